"""Blocks of a transformer, recorded on a session."""

from toynn.nn.attention import self_attention
from toynn.nn.mlp import mlp

__all__ = ["mlp", "self_attention"]
