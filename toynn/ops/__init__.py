"""The op table: for each op its arguments, shape rule, gradient rule, its flops and bytes.

A function here (``linear(s, x, w, b)``) checks shapes and records one node on ``s.tape``; nothing
runs. In each module the recording functions stand first, each with the rule that records its
backward nodes unless names alone say it, and the table of its Ops last. Names of kernels and of
their arguments are those of toynn/_kernels, where the formulas are. All activations are matrices
(N, C) with one row a token, N = B * T.

Work is counted here and nowhere else: profile, bench and the choice of threads have it from TABLE.
A flop is one addition, subtraction, multiplication, division, square root or maximum of the formula
as the kernel computes it (a multiply-add: two); an exponential counts as many as its polynomial.
"""

from importlib import import_module
from pkgutil import iter_modules

from toynn.graph.tape import Op
from toynn.ops._shape import Recorder
from toynn.ops.attention import KVCache, attention
from toynn.ops.dora import dora, dora_norms
from toynn.ops.dropout import dropout
from toynn.ops.elementwise import (
    ACCUMULATE,
    ADD,
    SCALE,
    add,
    columns,
    geglu,
    gelu,
    relu2,
    rounded,
    scale,
    sigmoid,
    silu,
    softcap,
    swiglu,
    swiglu_halves,
)
from toynn.ops.experts import Routes, combine, dispatch, experts, route, weigh
from toynn.ops.latent import absorbed, expanded, head_columns, joined, placed
from toynn.ops.linear import embedding, linear
from toynn.ops.loss import chunk_rows, cross_entropy, linear_cross_entropy, valid_rows
from toynn.ops.preference import dpo, kto, orpo, token_losses, token_sums
from toynn.ops.recurrent import decay, delta, gated, queries, ssd
from toynn.ops.rows import class_token, gatednorm, layernorm, rmsnorm, rope, softmax
from toynn.ops.shortconv import RING, shortconv
from toynn.ops.update import adamw_step, grad_norm

__all__ = [
    "ACCUMULATE",
    "ADD",
    "RING",
    "SCALE",
    "TABLE",
    "KVCache",
    "Recorder",
    "Routes",
    "absorbed",
    "adamw_step",
    "add",
    "attention",
    "chunk_rows",
    "class_token",
    "columns",
    "combine",
    "cross_entropy",
    "decay",
    "delta",
    "dispatch",
    "dora",
    "dora_norms",
    "dpo",
    "dropout",
    "embedding",
    "expanded",
    "experts",
    "gated",
    "gatednorm",
    "geglu",
    "gelu",
    "grad_norm",
    "head_columns",
    "joined",
    "kto",
    "layernorm",
    "linear",
    "linear_cross_entropy",
    "orpo",
    "placed",
    "queries",
    "relu2",
    "rmsnorm",
    "rope",
    "rounded",
    "route",
    "scale",
    "shortconv",
    "sigmoid",
    "silu",
    "softcap",
    "softmax",
    "ssd",
    "swiglu",
    "swiglu_halves",
    "token_losses",
    "token_sums",
    "valid_rows",
    "weigh",
]

#: Each op by its kernel: "rmsnorm.forward".
TABLE: dict[str, Op] = {
    op.kernel: op
    for module in [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    for op in vars(module).values()
    if isinstance(op, Op)
}
