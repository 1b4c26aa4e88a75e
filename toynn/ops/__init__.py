"""The op table: for each op its shape rule, its gradient rule, its flops and bytes.

A function here (``linear(s, x, w, b)``) checks shapes and records one node on ``s.tape``; nothing
runs. In each module the recording functions stand first, each with the rule that records its
backward nodes, and the table of its Ops last. Names of kernels are those of toynn/_kernels, where
the formulas are. All activations are matrices (N, C) with one row a token, N = B * T.
"""

from toynn.ops._shape import Recorder
from toynn.ops.attention import KVCache, attention
from toynn.ops.dropout import dropout
from toynn.ops.elementwise import ACCUMULATE, ADD, SCALE, add, gelu, rounded, scale, silu, swiglu
from toynn.ops.linear import embedding, linear
from toynn.ops.loss import chunk_rows, cross_entropy, linear_cross_entropy
from toynn.ops.rows import class_token, layernorm, rmsnorm, rope, softmax
from toynn.ops.update import adamw_step, grad_norm

__all__ = [
    "ACCUMULATE",
    "ADD",
    "SCALE",
    "KVCache",
    "Recorder",
    "adamw_step",
    "add",
    "attention",
    "chunk_rows",
    "class_token",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "grad_norm",
    "layernorm",
    "linear",
    "linear_cross_entropy",
    "rmsnorm",
    "rope",
    "rounded",
    "scale",
    "silu",
    "softmax",
    "swiglu",
]
