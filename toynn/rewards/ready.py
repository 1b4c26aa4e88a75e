"""Ready rewards. Each maker returns ``f(completions, **columns)``, as users write them.

The process of the rewards runs this file as it runs a user's, so it needs only Python's library;
``json`` with a schema also needs jsonschema. A completion is a text, or a conversation, whose last
message counts. c_i is completion i without white space at its ends; a_i is row i of a column of the
data. On the command line the text behind the colon is the first argument: ``number:result``.
"""

import json as parser
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from importlib import import_module
from math import inf
from typing import Any, NoReturn

__all__ = ["exact", "json", "length", "number", "regex"]

NUMBER = re.compile(r"(?:(?<![\w.)])-)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)")
Reward = Callable[..., list[float]]


def exact(column: str = "answer") -> Reward:
    """Return the reward of an exact answer: r_i = 1 if c_i = a_i, else 0.

    White space at the ends of both is ignored.
    """
    return _each(lambda text, answer: text == str(answer).strip(), column)


def number(column: str = "answer") -> Reward:
    """Return the reward of a number: r_i = 1 if the last number of c_i equals that of a_i, else 0.

    Numbers are decimal, without exponents: 1,234.50 equals 1234.5. A completion without a number
    has 0; an answer without one raises ValueError.
    """

    def equal(text: str, answer: Any) -> bool:
        if (wanted := _last_number(str(answer))) is None:
            raise ValueError(f"column {column!r}: {answer!r} has no number")
        return _last_number(text) == wanted

    return _each(equal, column)


def regex(pattern: str) -> Reward:
    """Return the reward of a regular expression: r_i = 1 if it is found in c_i, else 0.

    ^ and $ are the ends of c_i. (?s) lets a dot match a line break, (?i) ignores case.
    """
    search = re.compile(pattern).search
    return _each(lambda text: search(text) is not None)


def json(schema: str | None = None) -> Reward:
    """Return the reward of JSON: r_i = 1 if c_i is JSON that fits a schema, else 0.

    ``schema`` is the text of a JSON schema, on the command line its file; without one any JSON has
    1. As in RFC 8259, NaN and Infinity are not JSON.
    """
    fits: Callable[[Any], bool] = lambda value: True  # noqa: E731
    if schema is not None:
        try:
            validators = import_module("jsonschema.validators")
        except ImportError as error:
            raise ImportError("a schema needs jsonschema: pip install jsonschema") from error
        wanted = parser.loads(schema)
        kind = validators.validator_for(wanted)
        kind.check_schema(wanted)
        fits = kind(wanted).is_valid

    def valid(text: str) -> bool:
        try:
            return fits(parser.loads(text, parse_constant=_refuse))
        except (ValueError, RecursionError):
            return False

    return _each(valid)


def length(target: float) -> Reward:
    """Return the reward of a length: r_i = max(0, 1 - |n_i - target| / target).

    n_i is the number of characters of c_i. Raises ValueError unless target > 0.
    """
    goal = float(target)
    if not 0 < goal < inf:
        raise ValueError(f"expected a number of characters > 0; got {target}")
    return _each(lambda text: max(0.0, 1 - abs(len(text) - goal) / goal))


def _each(score: Callable[..., float], column: str | None = None) -> Reward:
    """Return the reward score(c_i), or score(c_i, a_i)."""

    def reward(completions: Sequence[Any], **columns: Any) -> list[float]:
        if column is not None and column not in columns:
            others = ", ".join(each for each in columns if each != "prompts")
            advice = ". The name of one may stand behind the reward: exact:NAME" if others else ""
            raise LookupError(
                f"the data have no column {column!r}; other columns: {others or 'none'}{advice}"
            )
        texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
        answers = [] if column is None else [columns[column]]
        return [
            float(score(text.strip(), *row)) for text, *row in zip(texts, *answers, strict=True)
        ]

    return reward


def _last_number(text: str) -> Decimal | None:
    found = NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)
