"""The words of options about labelled texts: what is predicted, what is done with long texts."""

from typing import Literal, get_args

#: What is done with a text that has too many tokens.
TooLong = Literal["cut", "drop", "refuse"]
Problem = Literal["classes", "several", "number", "tokens"]
PROBLEMS = get_args(Problem)
