"""Model architectures: configuration, weight names, initial weights, forward pass."""

from toynn.engines.gpt2 import GPT2Config, GPT2SeqEngine

__all__ = ["GPT2Config", "GPT2SeqEngine"]
