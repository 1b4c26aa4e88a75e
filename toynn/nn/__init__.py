"""Blocks of a transformer, recorded on a session."""

from toynn.nn.attention import self_attention
from toynn.nn.lora import LoRA, linear
from toynn.nn.mlp import gated_mlp, mlp

__all__ = ["LoRA", "gated_mlp", "linear", "mlp", "self_attention"]
