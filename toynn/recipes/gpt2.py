"""GPT-2 from random weights."""

from toynn.engines.gpt2 import GPT2SeqEngine
from toynn.recipes._sequence import FullRecipe

__all__ = ["GPT2"]


class GPT2(FullRecipe[GPT2SeqEngine]):
    """Train a GPT-2 model, a GPT2Config, from random weights.

    hp rows come from AdamW.for_lora(): the update with bias correction.
    """

    _kind = GPT2SeqEngine
