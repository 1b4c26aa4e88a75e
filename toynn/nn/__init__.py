"""Blocks of a transformer, recorded on a session."""

from toynn.nn.attention import self_attention
from toynn.nn.mlp import gated_mlp, mlp

__all__ = ["gated_mlp", "mlp", "self_attention"]
