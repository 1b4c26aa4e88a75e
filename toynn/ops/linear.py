"""What multiplies by a matrix of weights, or looks rows up in one."""

from dataclasses import replace

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.numerics import checks, dtypes, precision
from toynn.ops._shape import Recorder, Sizes, by_names, flops, matrix, require
from toynn.ops.elementwise import GELU, GELU_BACKWARD, GELU_FORMS

__all__ = ["embedding", "linear"]


_ACTIVATIONS = {None: 0} | {form: 1 + exact for form, exact in GELU_FORMS.items()}


def embedding(s: Recorder, w: Tensor, ids: Tensor) -> Tensor:
    """Record y (N, C) = the rows of w (V, C) that ids (N,) name; a frozen w may be blocks."""
    V, C = matrix("embedding", w)
    require(len(ids.shape) == 1 and ids.dtype == "i32", "embedding", "ids (N,) of i32", w, ids)
    N = ids.shape[0]
    s.tape.checks.setdefault(ids, []).append(checks.ids_below(V))
    y = s.tape.new("embedding", (N, C))
    sizes = {"N": N, "V": V, "C": C, "type": _type(w)}
    s.tape.record(EMBEDDING, {"y": y, "w": w, "ids": ids}, sizes)
    return y


def linear(
    s: Recorder, x: Tensor, w: Tensor, b: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """Record y (M, N) = x (M, K) w (N, K)^T + b (N,), then a GELU if asked.

    With ``activation`` ("gelu_tanh" or "gelu_exact") the sum before it is saved. A frozen w may
    be of a block type (see Session.mapped): it stays packed, and the kernels expand parts of it.
    The node and its gradients keep the session's ``matmul_precision`` of now.

    Raises ConfigError for another activation.
    """
    (M, K), (N, columns) = matrix("linear", x), matrix("linear", w)
    require(columns == K, "linear", f"w (N, {K})", x, w)
    require(b is None or b.shape == (N,), "linear", f"b ({N},)", x, w, b)
    if activation not in _ACTIVATIONS:
        raise ConfigError(
            f"linear: activation must be {', '.join(GELU_FORMS)} or None; got {activation!r}"
        )
    y = s.tape.new("linear", (M, N))
    pre = s.tape.new("pre", (M, N)) if activation else None
    sizes = {"M": M, "N": N, "K": K, "precision": precision.PRECISIONS.index(s.matmul_precision)}
    sizes |= {"activation": _ACTIVATIONS[activation], "type": _type(w)}
    s.tape.record(LINEAR, {"y": y, "pre": pre, "x": x, "w": w, "b": b}, sizes)
    return y


def _linear_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    x, w, b = node["x"], node["w"], node.named["b"]
    sizes = {name: node.sizes[name] for name in ("M", "N", "K", "precision")}
    if node.sizes["activation"]:
        pre = node["pre"]
        d_pre = back.new(pre)
        form = {"n": pre.size, "exact": node.sizes["activation"] - 1}
        back.tape.record(GELU_BACKWARD, {"dx": d_pre, "dy": dy, "x": pre}, form)
        dy = d_pre
    back.emit(LINEAR_BACKWARD_WEIGHT, {"dw": w}, {"dy": dy, "x": x}, sizes)
    back.emit(BIAS_BACKWARD, {"db": b}, {"dy": dy}, {"N": sizes["M"], "C": sizes["N"]})
    sizes |= {"type": node.sizes["type"]}
    back.emit(LINEAR_BACKWARD_INPUT, {"dx": x}, {"dy": dy, "w": w}, sizes)


def _activation(node: Node) -> Node | None:
    """Return what computes y from the sum before the activation, which is saved; or None."""
    form = node.sizes["activation"]
    if not form:
        return None
    pre = node["pre"]
    sizes = {"n": pre.size, "exact": form - 1}
    return replace(node, op=GELU, saved=(), inputs=(pre,), sizes=sizes)


def _type(w: Tensor) -> int:
    """Return by which number a kernel knows the type of a matrix: GGML's."""
    return dtypes.DTYPES[w.dtype].ggml


def _gathered(sizes: Sizes) -> int:
    """Count the bytes of the rows that an embedding reads, and of those that it writes."""
    N, C = sizes["N"], sizes["C"]
    return sum(dtypes.nbytes(dtype, N * C) for dtype in (dtypes.NAMES[sizes["type"]], "f32"))


_PRODUCT = flops(2, "M", "N", "K")

BIAS_BACKWARD = Op("elementwise.bias_backward", flops(1, "N", "C"), rows="N dy")
EMBEDDING_BACKWARD = Op(
    "embedding.backward", flops(1, "N", "C"), nbytes=flops(12, "N", "C"), rows="N dy"
)
EMBEDDING = Op(
    "embedding.forward",
    flops(0, "N", "C"),
    by_names(EMBEDDING_BACKWARD),
    nbytes=_gathered,
    rows="N ids",
)
LINEAR_BACKWARD_INPUT = Op("matmul.backward_input", _PRODUCT, adds=True, rows="M dy")
LINEAR_BACKWARD_WEIGHT = Op("matmul.backward_weight", _PRODUCT, rows="M dy")
LINEAR = Op("matmul.forward", _PRODUCT, _linear_gradient, again=_activation, rows="M x")
