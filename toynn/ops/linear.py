"""Products with a weight matrix, and lookups of its rows."""

from dataclasses import replace
from functools import cache

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.sizes import Solved
from toynn.graph.tape import Node, Op, Tensor
from toynn.numerics import checks, dtypes
from toynn.ops._shape import Recorder, Sizes, by_names, flops, matrix, product_precision
from toynn.ops.elementwise import GELU, GELU_BACKWARD, GELU_FORMS


def embedding(s: Recorder, w: Tensor, ids: Tensor) -> Tensor:
    """Record y (N, C) = the rows ids (N,) of w (V, C); a frozen w may be quantized."""
    y = s.tape.record(EMBEDDING, {"w": w, "ids": ids}).output
    s.tape.checks.setdefault(ids, []).append(checks.Below(w.shape[0]))
    return y


def linear(
    s: Recorder, x: Tensor, w: Tensor, b: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """Record y (M, N) = x (M, K) w (N, K)^T + b (N,), then a GELU if asked.

    With ``activation`` ("gelu_tanh" or "gelu_exact") the sum before it is saved. A frozen w may
    have a quantized type (see Session.mapped); kernels dequantize it in parts. The node and its
    gradients use the session's current ``matmul_precision``.

    Raises ConfigError for another activation.
    """
    if activation not in (None, *GELU_FORMS):
        raise ConfigError(
            f"linear: activation must be {', '.join(GELU_FORMS)} or None; got {activation!r}"
        )
    (M, _), (N, _) = matrix("linear", x=x), matrix("linear", w=w)
    pre = s.tape.new("pre", (M, N)) if activation else None
    return s.tape.record(
        LINEAR,
        {"pre": pre, "x": x, "w": w, "b": b},
        precision=product_precision(s, w),
        activation=activation or "none",
    ).output


def _linear_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    x, w, b = node["x"], node["w"], node.named["b"]
    if node.sizes["activation"]:
        pre = node["pre"]
        tensors = {"dx": back.new(pre), "dy": dy, "x": pre}
        dy = back.tape.record(GELU_BACKWARD, tensors, exact=node.sizes["activation"] - 1).output
    back.emit(LINEAR_BACKWARD_WEIGHT, {"dw": w}, {"dy": dy, "x": x}, node)
    back.emit(BIAS_BACKWARD, {"db": b}, {"dy": dy})
    back.emit(LINEAR_BACKWARD_INPUT, {"dx": x}, {"dy": dy, "w": w}, node)


def _plain_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    """Record the gradients of y (M, N) = a (M, K) b (K, N), which ``matmul`` records."""
    a, b = node["dy"], node["w"]
    back.emit(LINEAR_BACKWARD_WEIGHT, {"dw": b}, {"dy": a, "x": dy}, node)
    back.emit(LINEAR, {"y": a}, {"x": dy, "w": b}, node)


def _activation(node: Node) -> Node | None:
    """Return a node that computes y from the saved sum before the activation; or None."""
    form = node.sizes["activation"]
    if not form:
        return None
    pre = node["pre"]
    solved = _solved_gelu(pre.size, form - 1)
    return replace(node, op=GELU, saved=(), inputs=(pre,), solved=solved)


@cache
def _solved_gelu(n: int, exact: int) -> Solved:
    return Solved({"n": n, "exact": exact}, {}, {})


def _gathered(sizes: Sizes) -> int:
    """Count the bytes of the rows that an embedding reads and writes."""
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
LINEAR_BACKWARD_INPUT = Op(
    "matmul.backward_input", _PRODUCT, _plain_gradient, adds=True, rows="M dy"
)
LINEAR_BACKWARD_WEIGHT = Op("matmul.backward_weight", _PRODUCT, rows="M dy")
LINEAR = Op(
    "matmul.forward", _PRODUCT, _linear_gradient, recompute=_activation, rows="M x", name="linear"
)
