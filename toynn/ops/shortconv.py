"""A short convolution, alone or between two gates."""

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.numerics import checks
from toynn.ops._shape import Recorder, Sizes, by_names, matrix, require

RING = 128  # rows of a ring, for each sequence: those of a run and the L - 1 before them


def shortconv(
    s: Recorder,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    batch: int,
    first: Tensor | None = None,
    ring: Tensor | None = None,
    past: Tensor | None = None,
) -> Tensor:
    """Record y (B T, C) = g conv(i v) for x (B T, 3 C), whose thirds are i, g and v; w (C, L).

    For x (B T, C), y is conv(x). conv is a weighted sum of L rows of a channel, plus b (C,) if
    given; see the kernel. ``first`` is as in ``attention``. With a ``ring`` (B, RING, C) and
    ``past`` i32 (B,), the rows are the next T of their sequences. A ring allows no gradient and no
    segments. Raises ConfigError if a count limits the rows of several sequences.
    """
    N, columns = matrix("shortconv", x=x)
    C, L = matrix("shortconv", w=w)
    fits = columns in (C, 3 * C) and N % batch == 0
    require(fits, "shortconv", f"x (B T, {C}) or (B T, {3 * C}), {batch} sequences", x=x, w=w)
    require(b is None or b.shape == (C,), "shortconv", f"a bias ({C},)", b=b)
    T = N // batch
    if x.root.valid is not None and batch != 1:
        raise ConfigError("shortconv: a count may limit the rows of one sequence; got several")
    if ring is None or past is None:
        y = s.tape.record(SHORTCONV, {"x": x, "w": w, "b": b, "first": first}, B=batch).output
        if first is not None:
            s.tape.checks.setdefault(first, []).append(checks.segments_within(T))
        return y
    fits = first is None and ring.shape == (batch, RING, C) and T + L - 1 <= RING
    require(fits, "shortconv", f"a ring ({batch}, {RING}, {C})", ring=ring, x=x)
    read = {"ring": ring, "x": x, "w": w, "b": b, "past": past}
    return s.tape.record(CACHED, read, B=batch).output


def _no_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    raise ConfigError("a convolution over a ring has no gradient: record it without one to train")


def _forward(sizes: Sizes) -> int:
    """Count 2 for each tap, and the products with two gates."""
    gates = sizes["L"] + 1 if sizes["P"] == 3 else 0
    return (2 * sizes["L"] + gates) * sizes["B"] * sizes["T"] * sizes["C"]


def _backward(sizes: Sizes) -> int:
    """Count du and dw; with gates also z again, and the gates' gradients."""
    each = 9 * sizes["L"] + 3 if sizes["P"] == 3 else 4 * sizes["L"]
    return each * sizes["B"] * sizes["T"] * sizes["C"]


SHORTCONV_BACKWARD = Op("shortconv.backward", _backward, rows="T dy")
SHORTCONV = Op("shortconv.forward", _forward, by_names(SHORTCONV_BACKWARD), rows="T x")
CACHED = Op("shortconv.cached", _forward, _no_gradient)
