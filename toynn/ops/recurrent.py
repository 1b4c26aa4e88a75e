"""States that are written row by row: the gated delta rule, Mamba 2, and what goes with them."""

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.numerics import checks
from toynn.ops._shape import EXP, SIGMOID_SLOPE, Recorder, Sizes, by_names, flops, matrix, require

LENGTH = 32  # rows from one saved state to the next
MOST = 256  # rows of a state
CHUNK = 64  # rows of a state space that are computed together


def decay(s: Recorder, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Record y = w log(1 + e^(x + b)) for x (N, V), w and b (V,)."""
    return s.tape.record(DECAY, {"x": x, "w": w, "b": b}).output


def queries(s: Recorder, x: Tensor, n_heads: int, part: int = 0) -> Tensor:
    """Record a half (N, H D), 0 or 1, of each head of x (N, H 2 D); the second may be a gate."""
    _, columns = matrix("queries", x=x)
    require(columns % (2 * n_heads) == 0, "queries", f"{n_heads} heads of two halves", x=x)
    return s.tape.record(QUERIES, {"x": x}, H=n_heads, part=part).output


def gated(s: Recorder, o: Tensor, x: Tensor, n_heads: int) -> Tensor:
    """Record y = o / (1 + e^-gate) for o (N, H D); gates are the second halves of x's heads."""
    N, columns = matrix("gated", o=o)
    fits = x.shape == (N, 2 * columns) and columns % n_heads == 0
    require(fits, "gated", f"x ({N}, {2 * columns}) of {n_heads} heads", o=o, x=x)
    return s.tape.record(GATED, {"o": o, "x": x}, H=n_heads).output


def delta(
    s: Recorder,
    x: Tensor,
    g: Tensor,
    c: Tensor,
    *,
    batch: int,
    n_k_heads: int,
    d_k: int,
    grouped: bool = False,
    first: Tensor | None = None,
    state: Tensor | None = None,
    past: Tensor | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """Record y (B T, V E), the outputs of the gated delta rule; see the kernel.

    x (B T, 2 K D + V E) holds q and k of K heads, and v of V heads. g and c are (B T, V). e^g is
    the share of the state that is kept; sigmoid(c) is the share of v that is written. Head h of v
    reads head h mod K of q and k; with ``grouped``, it reads head h // (V / K). ``first`` is as in
    ``attention``. With a ``state`` (B, V, D, E), ``past`` and ``count`` i32 (B,), the first
    ``count`` rows are the next of their sequences. A state allows no gradient and no segments.
    Raises ConfigError if a count limits the rows of several sequences.
    """
    N, X = matrix("delta", x=x)
    _, V = matrix("delta", g=g)
    K, D = n_k_heads, d_k
    E = (X - 2 * K * D) // V
    fits = E >= 1 and 2 * K * D + V * E == X and V % K == 0 and D <= MOST and N % batch == 0
    require(fits, "delta", f"x: q, k of {K} heads of {D} (at most {MOST}), v of {V}", x=x, g=g)
    T = N // batch
    if x.root.valid is not None and batch != 1:
        raise ConfigError("delta: a count may limit the rows of one sequence; got several")
    tensors: dict[str, Tensor | None] = {"x": x, "g": g, "c": c}
    if state is not None and past is not None and count is not None:
        require(first is None, "delta", "no segments over a state", state=state, first=first)
        tensors |= {"state": state, "past": past, "count": count}
        y = s.tape.record(DELTA_CACHED, tensors, B=batch, K=K, D=D, grouped=int(grouped)).output
        s.tape.checks.setdefault(count, []).append(checks.Below(T + 1))
        return y
    S, tensors["first"] = -(-T // LENGTH), first
    y = s.tape.record(DELTA, tensors, B=batch, K=K, D=D, S=S, L=LENGTH, grouped=int(grouped)).output
    if first is not None:
        s.tape.checks.setdefault(first, []).append(checks.segments_within(T))
    return y


def ssd(
    s: Recorder,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    bias: Tensor,
    skip: Tensor,
    *,
    batch: int,
    n_groups: int,
    d_state: int,
    first: Tensor | None = None,
    state: Tensor | None = None,
    past: Tensor | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """Record y (B T, V E), the outputs of a selective state space; see the kernel.

    x (B T, V E + 2 G D) holds x of V heads, and b and c of G groups. dt (B T, V) and bias (V,) give
    the size of a row's step. a (V, 1), below 0, is the rate of decay. skip (V, 1) times x is added
    to y. ``first``, and ``state`` (B, V, D, E) with ``past`` and ``count`` (B,), are as in
    ``delta``. Raises ConfigError if a count limits the rows of several sequences.
    """
    N, X = matrix("ssd", x=x)
    _, V = matrix("ssd", dt=dt)
    G, D = n_groups, d_state
    fits = V % G == 0 and X > 2 * G * D and (X - 2 * G * D) % V == 0 and N % batch == 0
    require(fits, "ssd", f"x: {V} heads in {G} groups, then b and c of {G} x {D}", x=x, dt=dt)
    if x.root.valid is not None and batch != 1:
        raise ConfigError("ssd: a count may limit the rows of one sequence; got several")
    T = N // batch
    tensors: dict[str, Tensor | None] = {"x": x, "dt": dt, "a": a, "bias": bias, "skip": skip}
    if state is not None and past is not None and count is not None:
        require(first is None, "ssd", "no segments over a state", state=state, first=first)
        tensors |= {"state": state, "past": past, "count": count}
        y = s.tape.record(SSD_CACHED, tensors, B=batch, G=G, D=D).output
        s.tape.checks.setdefault(count, []).append(checks.Below(T + 1))
        return y
    tensors["first"] = first
    y = s.tape.record(SSD, tensors, B=batch, G=G, D=D).output
    if first is not None:
        s.tape.checks.setdefault(first, []).append(checks.segments_within(T))
    return y


def _no_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    raise ConfigError("an op over a kept state has no gradient: record it without one to train")


def _forward(sizes: Sizes) -> int:
    """Count 7 for each number of a state: it shrinks, is read, written and read again."""
    each = 7 * sizes["D"] * sizes["E"] + 3 * EXP
    return each * sizes["B"] * sizes["T"] * sizes["V"]


def _backward(sizes: Sizes) -> int:
    """Count 5 for recomputing states, 6 for R, du and what was read, and 14 for the rest."""
    each = 25 * sizes["D"] * sizes["E"] + 6 * EXP
    return each * sizes["B"] * sizes["T"] * sizes["V"]


def _chunks(sizes: Sizes, triangles: int, states: int, of_groups: int) -> int:
    """Count the products of chunks of 64 rows: of triangles and with states, and of groups."""
    T, E, D = (sizes[name] for name in "TED")
    rows = min(T, CHUNK)
    of_heads = sizes["V"] * (triangles * rows * E + 2 * states * D * E + 3 * EXP)
    return sizes["B"] * T * (of_heads + sizes["G"] * of_groups * rows * D)


DECAY_BACKWARD = Op("decay.backward", flops(3 * EXP + 8, "N", "V"), rows="N dy")
DECAY = Op("decay.forward", flops(2 * EXP + 4, "N", "V"), by_names(DECAY_BACKWARD), rows="N x")
QUERIES_BACKWARD = Op("gated.queries_backward", flops(1, "N", "H", "D"), rows="N dq")
QUERIES = Op(
    "gated.queries",
    flops(1, "N", "H", "D"),
    by_names(QUERIES_BACKWARD),
    rows="N x",
    name="queries",
)
GATED_BACKWARD = Op("gated.backward", flops(SIGMOID_SLOPE + 3, "N", "H", "D"), rows="N dy")
GATED = Op("gated.forward", flops(EXP + 3, "N", "H", "D"), by_names(GATED_BACKWARD), rows="N o")
DELTA_BACKWARD = Op("delta.backward", _backward, rows="T dy")
DELTA = Op("delta.forward", _forward, by_names(DELTA_BACKWARD), rows="T x")
DELTA_CACHED = Op("delta.cached", _forward, _no_gradient)
SSD_BACKWARD = Op("ssd.backward", lambda sizes: _chunks(sizes, 2, 5, 3), rows="T dy")
SSD = Op("ssd.forward", lambda sizes: _chunks(sizes, 1, 2, 1), by_names(SSD_BACKWARD), rows="T x")
SSD_CACHED = Op("ssd.cached", lambda sizes: _chunks(sizes, 1, 2, 1), _no_gradient)
