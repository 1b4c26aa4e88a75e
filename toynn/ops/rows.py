"""Ops on one row at a time: softmax, norms, RoPE, class tokens."""

from toynn.graph.tape import Op, Tensor
from toynn.ops._shape import (
    EXP,
    SIGMOID_SLOPE,
    Recorder,
    Sizes,
    by_names,
    flops,
    itself,
    matrix,
    require,
)


def softmax(s: Recorder, x: Tensor) -> Tensor:
    """Record y (N, C) = softmax over the rows of x."""
    return s.tape.record(SOFTMAX, {"x": x}).output


def layernorm(s: Recorder, x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    """Record y (N, C) = (x - mean) / sqrt(var + eps) * w + b; saves mean and 1/std of each row."""
    return s.tape.record(LAYERNORM, {"x": x, "w": w, "b": b}, eps=eps).output


def rmsnorm(s: Recorder, x: Tensor, w: Tensor, eps: float = 1e-5) -> Tensor:
    """Record y (N, C) = x / sqrt(mean x^2 + eps) * w; saves the factor of each row.

    With a shorter w (D,), D dividing C, each group of D columns (a head) is normalized separately.
    """
    _, C = matrix("rmsnorm", x=x)
    D = w.size
    require(w.shape == (D,) and C % D == 0, "rmsnorm", f"w (D,) with D dividing {C}", x=x, w=w)
    return s.tape.record(RMSNORM, {"x": x, "w": w}, eps=eps).output


def gatednorm(s: Recorder, x: Tensor, z: Tensor, w: Tensor, eps: float = 1e-5) -> Tensor:
    """Record y (N, G C) = h / sqrt(mean h^2 + eps) * w of each group, h = x silu(z); w (G, C)."""
    G, C = matrix("gatednorm", w=w)
    fits = x.shape == z.shape and x.shape[1:] == (G * C,)
    require(fits, "gatednorm", f"x and z (N, {G * C})", x=x, z=z, w=w)
    return s.tape.record(GATEDNORM, {"x": x, "z": z, "w": w}, eps=eps).output


def rope(
    s: Recorder,
    x: Tensor,
    positions: Tensor,
    inverse_frequency: Tensor,
    n_heads: int,
    *,
    interleaved: bool,
    magnitude: float = 1.0,
    growth: float = 0.0,
    span: int = 1,
    rotated: int | None = None,
) -> Tensor:
    """Record y (N, H D): pairs of each head of x rotated by position * inverse_frequency (R/2,).

    The first R <= D channels of a head are rotated, and multiplied by ``magnitude`` (1 + ``growth``
    ln(1 + floor(position / ``span``))). Only the first ``rotated`` heads are; None: all.
    """
    N, C = matrix("rope", x=x)
    R = 2 * inverse_frequency.size
    P = n_heads if rotated is None else rotated
    fits = C % n_heads == 0 and C // n_heads >= R and 0 <= P <= n_heads
    needed = f"positions ({N},), {n_heads} heads of {R} channels or more"
    require(fits, "rope", needed, x=x, positions=positions, inverse_frequency=inverse_frequency)
    return s.tape.record(
        ROPE,
        {"x": x, "positions": positions, "inverse_frequency": inverse_frequency},
        H=n_heads,
        P=P,
        interleaved=interleaved,
        magnitude=magnitude,
        growth=growth,
        span=span,
    ).output


def class_token(s: Recorder, x: Tensor, cls: Tensor, pos: Tensor) -> Tensor:
    """Record y (B T, C) = (cls (C,), then T - 1 rows of x) + pos (T, C), for each picture."""
    return s.tape.record(CLASS_TOKEN, {"x": x, "cls": cls, "pos": pos}).output


def _rotations(sizes: Sizes) -> int:
    """Count 6 for a pair in each rotated head, and 26 for its cosine and sine in all heads."""
    return (6 * sizes["P"] + 26) * sizes["N"] * sizes["R"] // 2


SOFTMAX_BACKWARD = Op("softmax.backward", flops(4, "N", "C"), rows="N dy")
SOFTMAX = Op("softmax.forward", flops(EXP + 4, "N", "C"), by_names(SOFTMAX_BACKWARD), rows="N x")
LAYERNORM_BACKWARD = Op("layernorm.backward", flops(19, "N", "C"), rows="N dy")
LAYERNORM = Op(
    "layernorm.forward",
    flops(7, "N", "C"),
    by_names(LAYERNORM_BACKWARD),
    recompute=itself,
    rows="N x",
)
GATEDNORM_BACKWARD = Op(
    "gatednorm.backward", flops(2 * SIGMOID_SLOPE + 18, "N", "G", "C"), rows="N dy"
)
GATEDNORM = Op(
    "gatednorm.forward",
    flops(EXP + 8, "N", "G", "C"),
    by_names(GATEDNORM_BACKWARD),
    recompute=itself,
    rows="N x",
)
RMSNORM_BACKWARD = Op("rmsnorm.backward", flops(9, "N", "C"), rows="N dy", grouped=True)
RMSNORM = Op(
    "rmsnorm.forward",
    flops(4, "N", "C"),
    by_names(RMSNORM_BACKWARD),
    recompute=itself,
    rows="N x",
    grouped=True,
)
ROPE_BACKWARD = Op("rope.backward", _rotations, rows="N dy")
ROPE = Op("rope.forward", _rotations, by_names(ROPE_BACKWARD), rows="N x")
CLASS_TOKEN_BACKWARD = Op("class_token.backward", flops(1, "B", "T", "C"))
CLASS_TOKEN = Op(
    "class_token.forward", flops(1, "B", "T", "C"), by_names(CLASS_TOKEN_BACKWARD), name="tokens"
)
