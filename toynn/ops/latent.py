"""Ops for latent attention: slice and join heads, and multiply each head by its rows of a matrix.

    k = joined(s, head_columns(s, kv, H, 0, P), r, H)         (k_1 | r) of each head, r for all
    v = head_columns(s, kv, H, P, E)

    k . q = (q_1 W_k) . c + r . q_2           q_1 W_k = absorbed(s, q_1, w, H, 0, P + E)
    o = W_v c                                 expanded(s, c, w, H, P, E)

Training uses the first two. Generation uses the last two instead, so the cache holds only c and r.
"""

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.ops._shape import Recorder, by_names, flops, matrix, require


def head_columns(s: Recorder, x: Tensor, n_heads: int, first: int, width: int) -> Tensor:
    """Record columns first to first + width - 1 of each head of x (N, H W): (N, H width)."""
    W = _width("head_columns", n_heads, x=x)
    fits = width > 0 <= first <= W - width
    require(fits, "head_columns", f"{width} of {W} columns from {first}", x=x)
    return s.tape.record(COLUMNS, {"x": x}, H=n_heads, D=width, first=first).output


def placed(s: Recorder, x: Tensor, n_heads: int, first: int, width: int) -> Tensor:
    """Record heads of ``width`` columns: x (N, H D) from ``first`` on, else 0. No gradient."""
    return s.tape.record(COLUMNS_BACKWARD, {"dy": x}, H=n_heads, W=width, first=first).output


def joined(s: Recorder, a: Tensor, b: Tensor, n_heads: int, n_shared: int = 1) -> Tensor:
    """Record (a | b) of each head (N, H (P + R)): a (N, H P), and the ``n_shared`` heads of b."""
    _width("joined", n_heads, a=a)
    _width("joined", n_shared, b=b)
    require(n_heads % n_shared == 0, "joined", f"{n_shared} heads that divide {n_heads}", a=a, b=b)
    return s.tape.record(JOIN, {"a": a, "b": b}, H=n_heads, G=n_shared).output


def absorbed(
    s: Recorder, x: Tensor, w: Tensor, n_heads: int, first: int, rows: int, *, shared: bool = False
) -> Tensor:
    """Record x_h w_h (N, H C) for each head of x (N, H D); see the kernel. No gradient.

    w (H ``rows``, C) has ``rows`` rows for each head. w_h is D of these, from ``first`` on. If
    ``shared``, w (``rows``, C) serves all heads.
    """
    D, G = _width("absorbed", n_heads, x=x), 1 if shared else n_heads
    fits = w.shape[0] == G * rows and 0 <= first <= rows - D
    require(fits, "absorbed", f"w ({G * rows}, C), {D} of {rows} rows from {first}", x=x, w=w)
    tensors = {"x": x, "w": w}
    return s.tape.record(ABSORB, tensors, H=n_heads, G=G, W=rows, D=D, first=first).output


def expanded(
    s: Recorder,
    x: Tensor,
    w: Tensor,
    n_heads: int,
    first: int,
    width: int,
    rows: int,
    *,
    shared: bool = False,
) -> Tensor:
    """Record x_h w_h^T (N, H D) for each head of x (N, H C), w as in ``absorbed``. No gradient."""
    C, G = _width("expanded", n_heads, x=x), 1 if shared else n_heads
    fits = w.shape == (G * rows, C) and 0 <= first <= rows - width
    require(fits, "expanded", f"w ({G * rows}, {C}), {width} of {rows} rows from {first}", x=x, w=w)
    tensors = {"x": x, "w": w}
    return s.tape.record(EXPAND, tensors, H=n_heads, G=G, W=rows, D=width, first=first).output


def _width(op: str, n_heads: int, **named: Tensor) -> int:
    _, across = matrix(op, **named)
    require(n_heads > 0 == across % n_heads, op, f"{n_heads} heads", **named)
    return across // n_heads


def _no_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    raise ConfigError(
        "heads that absorb a matrix have no gradient: record keys and values to train"
    )


_PRODUCT = flops(2, "N", "H", "D", "C")

COLUMNS_BACKWARD = Op("latent.columns_backward", flops(1, "N", "H", "W"), rows="N dy")
COLUMNS = Op(
    "latent.columns",
    flops(1, "N", "H", "D"),
    by_names(COLUMNS_BACKWARD),
    rows="N x",
    name="columns",
)
JOIN_BACKWARD = Op("latent.join_backward", flops(1, "N", "H", "R"), rows="N dy")
JOIN = Op(
    "latent.join", flops(1, "N", "H", "P"), by_names(JOIN_BACKWARD), rows="N a", name="joined"
)
ABSORB = Op("latent.absorb", _PRODUCT, _no_gradient, rows="N x", name="absorbed")
EXPAND = Op("latent.expand", _PRODUCT, _no_gradient, rows="N x", name="expanded")
