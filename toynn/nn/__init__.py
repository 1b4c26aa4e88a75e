"""Blocks of a transformer, recorded on a session."""

from toynn.nn.attention import self_attention
from toynn.nn.lora import LoRA, linear
from toynn.nn.mlp import mlp

__all__ = ["LoRA", "linear", "mlp", "self_attention"]
