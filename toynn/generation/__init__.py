"""Texts from a model: sampling of a token, tokens one by one, and whole completions.

sampling    which token comes next: temperature, top-k, top-p, penalties
drawing     a model reads a prompt, then each token that was drawn
completion  the tokens as a text, up to a token or a text that ends it
"""

from toynn.generation.completion import Completion, complete, complete_all
from toynn.generation.drawing import draw, generate, sample
from toynn.generation.sampling import Sampling

__all__ = ["Completion", "Sampling", "complete", "complete_all", "draw", "generate", "sample"]
