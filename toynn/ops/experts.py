"""A mixture of experts: each row is multiplied by a few of many matrices, and the results summed.

    routes = route(s, softmax(s, linear(s, x, router)), 4, normalized=True)
    h = experts(s, dispatch(s, x, routes), w, routes)          one row for each copy of a row of x
    y = combine(s, weigh(s, h, routes), routes)

Between dispatch and combine, rows are sorted by expert. There is room for all N K copies. If not
all rows of x are valid, only a part of this room is used, from its start on.
"""

from dataclasses import dataclass
from typing import Any

from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.numerics import dtypes
from toynn.ops._shape import (
    Recorder,
    Sizes,
    by_names,
    flops,
    itself,
    matrix,
    product_precision,
    require,
)

MOST_ROWS = 2**31 - 1  # copies of rows: their indices are int32
MOST_GROUPS = 64  # of experts


@dataclass(frozen=True)
class Routes:
    """The K of E experts that each row goes to.

    ``weights`` (N, K) are the weights of the copies in the sum. ``slots`` i32 (N, K) are their rows
    after sorting. ``offsets`` i32 (E + 1,) are the first rows of the experts.
    """

    weights: Tensor
    slots: Tensor
    offsets: Tensor


def route(
    s: Recorder,
    p: Tensor,
    k: int,
    b: Tensor | None = None,
    f: Tensor | None = None,
    *,
    normalized: bool = False,
    scale: float = 1.0,
    eps: float = 0.0,
    groups: tuple[int, int] = (1, 1),
    best: int = 2,
) -> Routes:
    """Record the k experts of each row: those with the largest scores p (N, E) + b (E,).

    ``groups`` (G, L): the experts form G groups. A group's score is the sum of its two largest
    scores, or the largest if ``best`` is 1. Only experts of the L groups with the
    largest scores can be chosen.

    p is a softmax or a sigmoid of a router's logits. The weight of a copy is its p times ``scale``.
    With ``normalized``, p is first divided by the sum over the k experts plus ``eps``. With ``f``
    (E,), the weight is also multiplied by the expert's element of f.
    """
    N, E = matrix("route", p=p)
    fits = 1 <= k <= E and N * k <= MOST_ROWS
    require(fits, "route", f"{k} of E experts, and at most {MOST_ROWS} copies of rows", p=p)
    tensors = {"p": p, "b": b, "f": f}
    G, L = groups
    within = G == L == 1 or (2 <= G <= MOST_GROUPS and E % G == 0 and E >= 2 * G and 1 <= L <= G)
    require(best in (1, 2), "route", f"best 1 or 2; got {best}", p=p)
    require(within and k <= E // G * L, "route", f"{k} experts of {L} of {G} groups", p=p)
    how: dict[str, Any] = {"normalized": normalized, "scale": scale, "eps": eps}
    chosen = s.tape.record(ROUTING, tensors, K=k, G=G, L=L, best=best, **how)
    rows = s.tape.record(EXPERT_ROWS, {"experts": chosen["experts"]}, E=E)
    return Routes(chosen["weights"], rows["slots"], rows["offsets"])


def dispatch(s: Recorder, x: Tensor, routes: Routes) -> Tensor:
    """Record y (N K, C): the copies of each row of x (N, C), sorted by expert."""
    return s.tape.record(DISPATCH, {"x": x, "slots": routes.slots}).output


def combine(s: Recorder, x: Tensor, routes: Routes) -> Tensor:
    """Record y (N, C): the sum of the copies of each row, from x (N K, C)."""
    return s.tape.record(COMBINE, {"x": x, "slots": routes.slots}).output


def weigh(s: Recorder, x: Tensor, routes: Routes) -> Tensor:
    """Record y (N K, C): each row of x (a copy) times its weight."""
    return s.tape.record(WEIGH, {"x": x, "w": routes.weights, "slots": routes.slots}).output


def experts(s: Recorder, x: Tensor, w: Tensor, routes: Routes, b: Tensor | None = None) -> Tensor:
    """Record y (M, N) = x (M, K) w[e]^T + b[e], where e is the expert of a row of x.

    w (E, N, K), b (E, N). A frozen w may have a quantized type (see Session.mapped); kernels
    dequantize it in parts. The node and its gradients use the session's current
    ``matmul_precision``.
    """
    copies = routes.slots.size
    require(len(x.shape) == 2 and x.shape[0] == copies, "experts", f"x ({copies}, K)", x=x, w=w)
    tensors = {"x": x, "w": w, "b": b, "offsets": routes.offsets}
    return s.tape.record(EXPERTS, tensors, precision=product_precision(s, w)).output


def _experts_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    x, w, b, offsets = node["x"], node["w"], node.named["b"], node["offsets"]
    rows = {"dy": dy, "offsets": offsets}
    back.emit(EXPERTS_BACKWARD_WEIGHT, {"dw": w}, rows | {"x": x}, node)
    back.emit(EXPERTS_BACKWARD_BIAS, {"db": b}, rows, node)
    back.emit(EXPERTS_BACKWARD_INPUT, {"dx": x}, rows | {"w": w}, node)


def _batch_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    """Record the gradients of y (E M, N) = a (E M, K) b (E, K, N), which ``matmul`` records."""
    a, b, rows = node["dy"], node["w"], {"offsets": node["offsets"]}
    back.emit(EXPERTS_BACKWARD_WEIGHT, {"dw": b}, {"dy": a, "x": dy, **rows}, node)
    back.emit(EXPERTS, {"y": a}, {"x": dy, "w": b, **rows}, node)


def _dispatch_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    _transposed(back, COMBINE, node, dy)


def _combine_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    _transposed(back, DISPATCH, node, dy)


def _transposed(back: Backward, op: Op, node: Node, dy: Tensor) -> None:
    """Record the gradient of a node whose transpose is ``op``."""
    if not back.wants(node["x"]):
        return
    dx = back.new(node["x"])
    back.tape.record(op, {"y": dx, "x": dy, "slots": node["slots"]})
    back.contribute(node["x"], dx)


def _used(sizes: Sizes) -> int:
    """Count the bytes of a product: the experts that can have rows, and the rows."""
    E, M, N, K = (sizes[name] for name in "EMNK")
    dtype = dtypes.NAMES[sizes.get("type", 0)]
    return min(E, M) * dtypes.nbytes(dtype, N * K) + 4 * M * (N + K)


_PRODUCT = flops(2, "M", "N", "K")

ROUTING_BACKWARD = Op("routing.backward", flops(5, "N", "K"), rows="N dweights")
ROUTING = Op("routing.forward", flops(1, "N", "E"), by_names(ROUTING_BACKWARD), rows="N p")
EXPERT_ROWS = Op("expert_rows.forward", flops(3, "N", "K"), rows="N experts")
DISPATCH = Op(
    "dispatch.forward",
    flops(1, "N", "K", "C"),
    _dispatch_gradient,
    recompute=itself,
    rows="N slots",
    name="dispatched",
)
COMBINE = Op(
    "dispatch.combine",
    flops(1, "N", "K", "C"),
    _combine_gradient,
    rows="N slots",
    name="combined",
)
WEIGH_BACKWARD = Op("dispatch.weigh_backward", flops(3, "N", "K", "C"), rows="N slots")
WEIGH = Op(
    "dispatch.weigh",
    flops(1, "N", "K", "C"),
    by_names(WEIGH_BACKWARD),
    recompute=itself,
    rows="N slots",
    name="weighed",
)
EXPERTS_BACKWARD_BIAS = Op("experts.backward_bias", flops(1, "M", "N"), rows="M dy")
EXPERTS_BACKWARD_INPUT = Op(
    "experts.backward_input", _PRODUCT, _batch_gradient, nbytes=_used, adds=True, rows="M dy"
)
EXPERTS_BACKWARD_WEIGHT = Op("experts.backward_weight", _PRODUCT, rows="M dy")
EXPERTS = Op("experts.forward", _PRODUCT, _experts_gradient, nbytes=_used, rows="M x")
