"""The op table: the arguments, shape rule, gradient rule, flops and bytes of each op.

A function here (``linear(s, x, w, b)``) checks shapes and records one node on ``s.tape``; nothing
runs. Each module begins with the recording functions and their gradient rules (``by_names`` where
names suffice), and ends with a table of Ops. The names of kernels and their arguments are those of
toynn/_kernels, which has the formulas. All activations are matrices (N, C) with one row for each
token, N = B * T.

Work is counted only here: profile, bench and the choice of threads read TABLE. A flop is one
addition, subtraction, multiplication, division, square root or maximum in the formula that the
kernel computes. A multiply-add is two flops, and an exponential counts as its polynomial.
"""

from importlib import import_module
from pkgutil import iter_modules

from toynn.graph.operators import RECORDERS
from toynn.graph.tape import Op
from toynn.ops._shape import Recorder
from toynn.ops.altup import correct, gaussian_topk, predict, rescale
from toynn.ops.arithmetic import (
    abs,
    add,
    div,
    exp,
    log,
    masked,
    mul,
    neg,
    power,
    relu,
    sqrt,
    square,
    sub,
    tanh,
    where,
)
from toynn.ops.attention import CACHE_ROWS, KVCache, attention
from toynn.ops.axes import concat, matmul, mean, part, reshape, sum, transpose
from toynn.ops.dora import dora, dora_norms
from toynn.ops.dropout import dropout
from toynn.ops.elementwise import (
    ACCUMULATE,
    ADD,
    NARROW,
    SCALE,
    WIDEN,
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
from toynn.ops.host import numpy
from toynn.ops.latent import absorbed, expanded, head_columns, joined, placed
from toynn.ops.linear import embedding, linear
from toynn.ops.loss import Teacher, chunk_rows, cross_entropy, linear_cross_entropy, valid_rows
from toynn.ops.preference import dpo, kto, orpo, token_losses, token_sums
from toynn.ops.recurrent import decay, delta, gated, queries, ssd
from toynn.ops.rows import class_token, gatednorm, layernorm, rmsnorm, rope, softmax
from toynn.ops.shortconv import RING, shortconv
from toynn.ops.texts import binary_cross_entropy, cosent, infonce, pooling, squared_error
from toynn.ops.update import adamw_step, grad_norm, muon_step

__all__ = [
    "ACCUMULATE",
    "ADD",
    "CACHE_ROWS",
    "NARROW",
    "RING",
    "SCALE",
    "TABLE",
    "WIDEN",
    "KVCache",
    "Recorder",
    "Routes",
    "Teacher",
    "abs",
    "absorbed",
    "adamw_step",
    "add",
    "attention",
    "binary_cross_entropy",
    "chunk_rows",
    "class_token",
    "columns",
    "combine",
    "concat",
    "correct",
    "cosent",
    "cross_entropy",
    "decay",
    "delta",
    "dispatch",
    "div",
    "dora",
    "dora_norms",
    "dpo",
    "dropout",
    "embedding",
    "exp",
    "expanded",
    "experts",
    "gated",
    "gatednorm",
    "gaussian_topk",
    "geglu",
    "gelu",
    "grad_norm",
    "head_columns",
    "infonce",
    "joined",
    "kto",
    "layernorm",
    "linear",
    "linear_cross_entropy",
    "log",
    "masked",
    "matmul",
    "mean",
    "mul",
    "muon_step",
    "neg",
    "numpy",
    "orpo",
    "part",
    "placed",
    "pooling",
    "power",
    "predict",
    "queries",
    "relu",
    "relu2",
    "rescale",
    "reshape",
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
    "sqrt",
    "square",
    "squared_error",
    "ssd",
    "sub",
    "sum",
    "swiglu",
    "swiglu_halves",
    "tanh",
    "token_losses",
    "token_sums",
    "transpose",
    "valid_rows",
    "weigh",
    "where",
]

#: Each op by its kernel: "rmsnorm.forward".
TABLE: dict[str, Op] = {
    op.kernel: op
    for module in [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    for op in vars(module).values()
    if isinstance(op, Op)
}

#: The operators of tensors record by these functions: see graph/operators.py.
_WORDS = "abs add div exp log matmul mean mul neg part power relu reshape sqrt sub sum tanh"
RECORDERS.update({name: globals()[name] for name in (*_WORDS.split(), "transpose")})


def __dir__() -> list[str]:
    """Name what is for users: the functions, and TABLE."""
    return [name for name in __all__ if not name.isupper() or name == "TABLE"]
