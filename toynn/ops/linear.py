"""What multiplies by a matrix of weights, or looks rows up in one."""

from toynn import checks
from toynn.autograd import Backward
from toynn.errors import ConfigError
from toynn.ops._shape import Recorder, flops, given, matrix, require
from toynn.ops.elementwise import GELU_BACKWARD
from toynn.tape import Node, Op, Tensor

__all__ = ["embedding", "linear"]


_ACTIVATIONS = {None: 0, "gelu": 1, "gelu_exact": 2}


def embedding(s: Recorder, w: Tensor, ids: Tensor) -> Tensor:
    """Record y (N, C) = the rows of w (V, C) that ids (N,) name."""
    V, C = matrix("embedding", w)
    require(len(ids.shape) == 1 and ids.dtype == "i32", "embedding", "ids (N,) of i32", w, ids)
    N = ids.shape[0]
    s.tape.checks.setdefault(ids, []).append(checks.ids_below(V))
    y = s.tape.new("embedding", (N, C))
    s.tape.record(EMBEDDING, [y], [], [w, ids], {"N": N, "V": V, "C": C})
    return y


def _embedding_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    w, ids = node.inputs
    back.emit(EMBEDDING_BACKWARD, [w], [dy, ids], node.sizes)


def linear(
    s: Recorder, x: Tensor, w: Tensor, b: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """Record y (M, N) = x (M, K) w (N, K)^T + b (N,), then a GELU if asked.

    With ``activation`` ("gelu": tanh form, "gelu_exact") the sum before it is saved.
    """
    (M, K), (N, columns) = matrix("linear", x), matrix("linear", w)
    require(columns == K, "linear", f"w (N, {K})", x, w)
    require(b is None or b.shape == (N,), "linear", f"b ({N},)", x, w, b)
    if activation not in _ACTIVATIONS:
        raise ConfigError(
            f"linear: activation must be gelu, gelu_exact or None; got {activation!r}"
        )
    y = s.tape.new("linear", (M, N))
    pre = s.tape.new("pre", (M, N)) if activation else None
    sizes = {"M": M, "N": N, "K": K, "activation": _ACTIVATIONS[activation]}
    s.tape.record(LINEAR, [y], [pre], [x, w, b], sizes)
    return y


def _linear_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    x, w, b = node.inputs
    M, N, K = (node.sizes[name] for name in "MNK")
    if node.sizes["activation"]:
        pre = given(node.saved[0])
        d_pre = back.new(pre)
        sizes = {"n": pre.size, "exact": node.sizes["activation"] - 1}
        back.tape.record(GELU_BACKWARD, [d_pre], [], [dy, pre], sizes)
        dy = d_pre
    back.emit(LINEAR_BACKWARD_WEIGHT, [w], [dy, x], {"M": M, "N": N, "K": K})
    back.emit(BIAS_BACKWARD, [b], [dy], {"N": M, "C": N})
    back.emit(LINEAR_BACKWARD_INPUT, [x], [dy, w], {"M": M, "N": N, "K": K})


_PRODUCT = flops(2, "M", "N", "K")

BIAS_BACKWARD = Op("elementwise.bias_backward", flops(1, "N", "C"), weights=(0,))
EMBEDDING_BACKWARD = Op(
    "embedding.backward",
    flops(1, "N", "C"),
    nbytes=flops(12, "N", "C"),
    weights=(0,),
    integers=(1,),
)
EMBEDDING = Op(
    "embedding.forward",
    flops(0, "N", "C"),
    _embedding_gradient,
    nbytes=flops(8, "N", "C"),
    integers=(1,),
)
LINEAR_BACKWARD_INPUT = Op("matmul.backward_input", _PRODUCT)
LINEAR_BACKWARD_WEIGHT = Op("matmul.backward_weight", _PRODUCT, weights=(0,))
LINEAR = Op("matmul.forward", _PRODUCT, _linear_gradient)
