"""Texts from a model: sampling of a token, tokens one by one, and whole completions.

Modules:

    sampling    choose the next token: temperature, top-k, top-p, penalties
    drawing     let a model read a prompt, then each token that was drawn
    completion  turn the tokens into a text, up to a stop token or stop text
    rollouts    many samples of many prompts at once, as ids with their log probabilities
"""

from toynn.generation.completion import Completion, complete, complete_all
from toynn.generation.drawing import draw, generate, sample
from toynn.generation.rollouts import Rollout, rollouts
from toynn.generation.sampling import Sampling

__all__ = [
    "Completion",
    "Rollout",
    "Sampling",
    "complete",
    "complete_all",
    "draw",
    "generate",
    "rollouts",
    "sample",
]
