"""What multiplies by a matrix of weights, or looks rows up in one."""

from dataclasses import replace

from toynn import checks, dtypes, precision
from toynn.autograd import Backward
from toynn.errors import ConfigError
from toynn.ops._shape import Recorder, Sizes, flops, given, matrix, require
from toynn.ops.elementwise import GELU, GELU_BACKWARD
from toynn.tape import Node, Op, Tensor

__all__ = ["embedding", "linear"]


_ACTIVATIONS = {None: 0, "gelu": 1, "gelu_exact": 2}


def embedding(s: Recorder, w: Tensor, ids: Tensor) -> Tensor:
    """Record y (N, C) = the rows of w (V, C) that ids (N,) name; a frozen w may be blocks."""
    V, C = matrix("embedding", w)
    require(len(ids.shape) == 1 and ids.dtype == "i32", "embedding", "ids (N,) of i32", w, ids)
    N = ids.shape[0]
    s.tape.checks.setdefault(ids, []).append(checks.ids_below(V))
    y = s.tape.new("embedding", (N, C))
    s.tape.record(EMBEDDING, [y], [], [w, ids], {"N": N, "V": V, "C": C, "type": _type(w)})
    return y


def _embedding_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    w, ids = node.inputs
    back.emit(EMBEDDING_BACKWARD, [w], [dy, ids], {name: node.sizes[name] for name in "NVC"})


def linear(
    s: Recorder, x: Tensor, w: Tensor, b: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """Record y (M, N) = x (M, K) w (N, K)^T + b (N,), then a GELU if asked.

    With ``activation`` ("gelu": tanh form, "gelu_exact") the sum before it is saved. A frozen w may
    be of a block type (see Session.mapped): it stays packed, and the kernels expand parts of it.
    The node and its gradients keep the session's ``matmul_precision`` of now.
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
    sizes = {"M": M, "N": N, "K": K, "precision": precision.PRECISIONS.index(s.matmul_precision)}
    sizes |= {"activation": _ACTIVATIONS[activation], "type": _type(w)}
    s.tape.record(LINEAR, [y], [pre], [x, w, b], sizes)
    return y


def _linear_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    x, w, b = node.inputs
    sizes = {name: node.sizes[name] for name in ("M", "N", "K", "precision")}
    if node.sizes["activation"]:
        pre = given(node.saved[0])
        d_pre = back.new(pre)
        form = {"n": pre.size, "exact": node.sizes["activation"] - 1}
        back.tape.record(GELU_BACKWARD, [d_pre], [], [dy, pre], form)
        dy = d_pre
    back.emit(LINEAR_BACKWARD_WEIGHT, [w], [dy, x], sizes)
    back.emit(BIAS_BACKWARD, [b], [dy], {"N": sizes["M"], "C": sizes["N"]})
    back.emit(LINEAR_BACKWARD_INPUT, [x], [dy, w], sizes | {"type": node.sizes["type"]})


def _activation(node: Node) -> Node | None:
    """Return what computes y from the sum before the activation, which is saved; or None."""
    form = node.sizes["activation"]
    if not form:
        return None
    pre = given(node.saved[0])
    sizes = {"n": pre.size, "exact": form - 1}
    return replace(node, op=GELU, saved=(), inputs=(pre,), sizes=sizes)


def _type(w: Tensor) -> int:
    """Return by which number a kernel knows the type of a matrix: GGML's."""
    return dtypes.DTYPES[w.dtype].ggml


def _gathered(sizes: Sizes) -> int:
    """Count the bytes of the rows that an embedding reads, and of those that it writes."""
    N, C = sizes["N"], sizes["C"]
    return sum(dtypes.nbytes(dtype, N * C) for dtype in (_DTYPE[sizes["type"]], "f32"))


_DTYPE = {dtype.ggml: name for name, dtype in dtypes.DTYPES.items()}
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
    nbytes=_gathered,
    integers=(1,),
    blocks=(0,),
)
LINEAR_BACKWARD_INPUT = Op("matmul.backward_input", _PRODUCT, adds=True, blocks=(1,))
LINEAR_BACKWARD_WEIGHT = Op("matmul.backward_weight", _PRODUCT, weights=(0,))
LINEAR = Op("matmul.forward", _PRODUCT, _linear_gradient, blocks=(1,), again=_activation)
