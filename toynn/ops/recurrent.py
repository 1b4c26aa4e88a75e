"""A state that is written row by row: the gated delta rule, and what goes with it."""

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.numerics import checks
from toynn.ops._shape import EXP, SIGMOID_SLOPE, Recorder, Sizes, by_names, flops, matrix, require

__all__ = ["decay", "delta", "gated", "queries"]

LENGTH = 32  # rows from one saved state to the next
MOST = 256  # rows of a state


def decay(s: Recorder, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Record y = w log(1 + e^(x + b)) for x (N, V), w and b (V,)."""
    N, V = matrix("decay", x)
    require(w.shape == b.shape == (V,), "decay", f"w and b ({V},)", x, w, b)
    y = s.tape.new("decay", x.shape)
    s.tape.record(DECAY, {"y": y, "x": x, "w": w, "b": b}, {"N": N, "V": V})
    return y


def queries(s: Recorder, x: Tensor, n_heads: int) -> Tensor:
    """Record the first half (N, H D) of each head of x (N, H 2 D), beside which a gate lies."""
    N, columns = matrix("queries", x)
    require(columns % (2 * n_heads) == 0, "queries", f"{n_heads} heads of two halves", x)
    q = s.tape.new("queries", (N, columns // 2))
    sizes = {"N": N, "H": n_heads, "D": columns // n_heads // 2}
    s.tape.record(QUERIES, {"q": q, "x": x}, sizes)
    return q


def gated(s: Recorder, o: Tensor, x: Tensor, n_heads: int) -> Tensor:
    """Record y = o / (1 + e^-gate) for o (N, H D); gates are the second halves of x's heads."""
    N, columns = matrix("gated", o)
    fits = x.shape == (N, 2 * columns) and columns % n_heads == 0
    require(fits, "gated", f"x ({N}, {2 * columns}) of {n_heads} heads", o, x)
    y = s.tape.new("gated", o.shape)
    sizes = {"N": N, "H": n_heads, "D": columns // n_heads}
    s.tape.record(GATED, {"y": y, "o": o, "x": x}, sizes)
    return y


def delta(
    s: Recorder,
    x: Tensor,
    g: Tensor,
    c: Tensor,
    *,
    batch: int,
    n_k_heads: int,
    d_k: int,
    first: Tensor | None = None,
    state: Tensor | None = None,
    past: Tensor | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """Record y (B T, V E), what the gated delta rule reads of its states; see the kernel.

    x (B T, 2 K D + V E) holds q and k of K heads and v of V; e^g and sigmoid(c), g and c (B T, V),
    say how much is kept and how much is written. ``first`` as in ``attention``. With a ``state``
    (B, V, D, E), ``past`` and ``count`` (B,) of i32 so many rows are the next of their sequences;
    that has no gradient, and there are no segments. Raises ConfigError where rows of
    several sequences may be fewer.
    """
    N, X = matrix("delta", x)
    _, V = matrix("delta", g)
    K, D = n_k_heads, d_k
    E = (X - 2 * K * D) // V
    fits = E >= 1 and 2 * K * D + V * E == X and V % K == 0 and D <= MOST and N % batch == 0
    require(fits, "delta", f"x of {K} heads of {D} (at most {MOST}) twice, and {V} more", x, g)
    require(g.shape == c.shape == (N, V), "delta", f"g and c ({N}, {V})", g, c)
    T = N // batch
    if x.root.live is not None and batch != 1:
        raise ConfigError("delta: rows that may be fewer are one sequence, in segments")
    y = s.tape.new("delta", (N, V * E))
    sizes = {"B": batch, "T": T, "K": K, "V": V, "D": D, "E": E, "X": X}
    read = {"x": x, "g": g, "c": c}
    if state is not None and past is not None and count is not None:
        fits = first is None and state.shape == (batch, V, D, E)
        fits = fits and past.shape == count.shape == (batch,)
        require(fits, "delta", f"a state ({batch}, {V}, {D}, {E})", state, past, count)
        s.tape.checks.setdefault(count, []).append(checks.ids_below(T + 1))
        kept = {"state": state, "past": past, "count": count}
        s.tape.record(DELTA_CACHED, {"y": y, **read, **kept}, sizes)
        return y
    if first is not None:
        fits = first.shape == (N,) and first.dtype == "i32"
        require(fits, "delta", f"first ({N},) of i32", x, first)
        s.tape.checks.setdefault(first, []).append(checks.segments_within(T))
    S = -(-T // LENGTH)
    states = s.tape.new("states", (batch, V, S, D, E))
    s.tape.record(
        DELTA, {"y": y, "states": states, "first": first, **read}, sizes | {"S": S, "L": LENGTH}
    )
    return y


def _no_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    raise ConfigError("a delta rule over a kept state has no gradient: record it without to train")


def _forward(sizes: Sizes) -> int:
    """Count 7 for each number of a state: it is shrunk, read, written and read again."""
    each = 7 * sizes["D"] * sizes["E"] + 3 * EXP
    return each * sizes["B"] * sizes["T"] * sizes["V"]


def _backward(sizes: Sizes) -> int:
    """Count 5 for the states again, 6 for R, du and what was read, and 14 for the rest."""
    each = 25 * sizes["D"] * sizes["E"] + 6 * EXP
    return each * sizes["B"] * sizes["T"] * sizes["V"]


DECAY_BACKWARD = Op("decay.backward", flops(3 * EXP + 8, "N", "V"), rows="N dy")
DECAY = Op("decay.forward", flops(2 * EXP + 4, "N", "V"), by_names(DECAY_BACKWARD), rows="N x")
QUERIES_BACKWARD = Op("gated.queries_backward", flops(1, "N", "H", "D"), rows="N dq")
QUERIES = Op("gated.queries", flops(1, "N", "H", "D"), by_names(QUERIES_BACKWARD), rows="N x")
GATED_BACKWARD = Op("gated.backward", flops(SIGMOID_SLOPE + 3, "N", "H", "D"), rows="N dy")
GATED = Op("gated.forward", flops(EXP + 3, "N", "H", "D"), by_names(GATED_BACKWARD), rows="N o")
DELTA_BACKWARD = Op("delta.backward", _backward, rows="T dy")
DELTA = Op("delta.forward", _forward, by_names(DELTA_BACKWARD), rows="T x")
DELTA_CACHED = Op("delta.cached", _forward, _no_gradient)
