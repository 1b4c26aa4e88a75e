"""Model architectures: configuration, weight names, initial weights, forward pass."""

from toynn.engines._sequence import SequenceEngine
from toynn.engines.gpt2 import GPT2Config, GPT2SeqEngine
from toynn.engines.llama import LlamaConfig, LlamaSeqEngine

__all__ = ["GPT2Config", "GPT2SeqEngine", "LlamaConfig", "LlamaSeqEngine", "SequenceEngine"]
