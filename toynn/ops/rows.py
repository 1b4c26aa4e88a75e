"""What looks at one row at a time: softmax, norms, RoPE, class tokens."""

from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.ops._shape import EXP, Recorder, Sizes, by_names, flops, itself, matrix, require

__all__ = ["class_token", "layernorm", "rmsnorm", "rope", "softmax"]


def softmax(s: Recorder, x: Tensor) -> Tensor:
    """Record y (N, C) = softmax over the rows of x."""
    N, C = matrix("softmax", x)
    y = s.tape.new("softmax", x.shape)
    s.tape.record(SOFTMAX, {"y": y, "x": x}, {"N": N, "C": C})
    return y


def layernorm(s: Recorder, x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    """Record y (N, C) = (x - mean) / sqrt(var + eps) * w + b; saves mean and 1/std of each row."""
    N, C = matrix("layernorm", x)
    require(w.shape == b.shape == (C,), "layernorm", f"w and b ({C},)", x, w, b)
    y, mean, r = s.tape.new("layernorm", x.shape), s.tape.new("mean", (N,)), s.tape.new("r", (N,))
    tensors = {"y": y, "mean": mean, "r": r, "x": x, "w": w, "b": b}
    s.tape.record(LAYERNORM, tensors, {"N": N, "C": C}, {"eps": eps})
    return y


def rmsnorm(s: Recorder, x: Tensor, w: Tensor, eps: float = 1e-5) -> Tensor:
    """Record y (N, C) = x / sqrt(mean x^2 + eps) * w; saves the factor of each row.

    A shorter w (D,), D dividing C, normalises each group of D columns by itself: heads of width D.
    """
    N, C = matrix("rmsnorm", x)
    D = w.size
    require(w.shape == (D,) and C % D == 0, "rmsnorm", f"w (D,) with D dividing {C}", x, w)
    groups = N * (C // D)
    y, r = s.tape.new("rmsnorm", x.shape), s.tape.new("r", (groups,))
    tensors = {"y": y, "r": r, "x": x, "w": w}
    s.tape.record(RMSNORM, tensors, {"N": groups, "C": D}, {"eps": eps})
    return y


def rope(
    s: Recorder,
    x: Tensor,
    positions: Tensor,
    inverse_frequency: Tensor,
    n_heads: int,
    *,
    interleaved: bool,
    magnitude: float = 1.0,
    turned: int | None = None,
) -> Tensor:
    """Record y (N, H D): pairs of each head of x turned by position * inverse_frequency (R/2,).

    The first R channels of a head are turned, and multiplied by ``magnitude``; R = D, or less. Of
    the heads, the first ``turned``; None: all.
    """
    N, C = matrix("rope", x)
    D, R = C // n_heads, 2 * inverse_frequency.size
    needed = f"positions ({N},), {n_heads} heads of {R} channels or more"
    P = n_heads if turned is None else turned
    fits = positions.shape == (N,) and n_heads * D == C and R <= D and 0 <= P <= n_heads
    require(fits, "rope", needed, x, positions, inverse_frequency)
    y = s.tape.new("rope", x.shape)
    sizes = {"N": N, "H": n_heads, "D": D, "R": R, "P": P, "interleaved": int(interleaved)}
    given = {"x": x, "positions": positions, "inverse_frequency": inverse_frequency}
    s.tape.record(ROPE, {"y": y, **given}, sizes, {"magnitude": magnitude})
    return y


def _rope_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    read = {name: node[name] for name in ("positions", "inverse_frequency")}
    back.emit(ROPE_BACKWARD, {"dx": node["x"]}, {"dy": dy, **read}, node.sizes, node.options)


def class_token(s: Recorder, x: Tensor, cls: Tensor, pos: Tensor) -> Tensor:
    """Record y (B T, C): cls (C,), then the T - 1 rows of x of a picture; plus pos (T, C)."""
    (N, C), (T, columns) = matrix("class_token", x), matrix("class_token", pos)
    B = N // max(T - 1, 1)
    fits = N == B * (T - 1) and columns == C and cls.shape == (C,)
    require(fits, "class_token", f"x (B {T - 1}, {columns}), cls ({columns},)", x, cls, pos)
    y = s.tape.new("tokens", (B * T, C))
    s.tape.record(CLASS_TOKEN, {"y": y, "x": x, "cls": cls, "pos": pos}, {"B": B, "T": T, "C": C})
    return y


def _turns(sizes: Sizes) -> int:
    """Count 6 for each pair of each head that turns, and for all heads 26: a cosine and a sine."""
    return (6 * sizes["P"] + 26) * sizes["N"] * sizes["R"] // 2


SOFTMAX_BACKWARD = Op("softmax.backward", flops(4, "N", "C"), rows="N dy")
SOFTMAX = Op("softmax.forward", flops(EXP + 4, "N", "C"), by_names(SOFTMAX_BACKWARD), rows="N x")
LAYERNORM_BACKWARD = Op("layernorm.backward", flops(19, "N", "C"), rows="N dy")
LAYERNORM = Op(
    "layernorm.forward", flops(7, "N", "C"), by_names(LAYERNORM_BACKWARD), again=itself, rows="N x"
)
RMSNORM_BACKWARD = Op("rmsnorm.backward", flops(9, "N", "C"), rows="N dy")
RMSNORM = Op(
    "rmsnorm.forward", flops(4, "N", "C"), by_names(RMSNORM_BACKWARD), again=itself, rows="N x"
)
ROPE_BACKWARD = Op("rope.backward", _turns, rows="N dy")
ROPE = Op("rope.forward", _turns, _rope_gradient, rows="N x")
CLASS_TOKEN_BACKWARD = Op("class_token.backward", flops(1, "B", "T", "C"))
CLASS_TOKEN = Op("class_token.forward", flops(1, "B", "T", "C"), by_names(CLASS_TOKEN_BACKWARD))
