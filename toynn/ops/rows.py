"""What looks at one row at a time: softmax, norms, RoPE, class tokens."""

from toynn.autograd import Backward
from toynn.ops._shape import Recorder, flops, itself, matrix, require
from toynn.tape import Node, Op, Tensor

__all__ = ["class_token", "layernorm", "rmsnorm", "rope", "softmax"]


def softmax(s: Recorder, x: Tensor) -> Tensor:
    """Record y (N, C) = softmax over the rows of x."""
    N, C = matrix("softmax", x)
    y = s.tape.new("softmax", x.shape)
    s.tape.record(SOFTMAX, [y], [], [x], {"N": N, "C": C})
    return y


def _softmax_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(SOFTMAX_BACKWARD, node.inputs, [dy, node.outputs[0]], node.sizes)


def layernorm(s: Recorder, x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    """Record y (N, C) = (x - mean) / sqrt(var + eps) * w + b; saves mean and 1/std of each row."""
    N, C = matrix("layernorm", x)
    require(w.shape == b.shape == (C,), "layernorm", f"w and b ({C},)", x, w, b)
    y, mean, r = s.tape.new("layernorm", x.shape), s.tape.new("mean", (N,)), s.tape.new("r", (N,))
    s.tape.record(LAYERNORM, [y], [mean, r], [x, w, b], {"N": N, "C": C}, options={"eps": eps})
    return y


def _layernorm_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    x, w, _ = node.inputs
    back.emit(LAYERNORM_BACKWARD, node.inputs, [dy, x, w, *node.saved], node.sizes)


def rmsnorm(s: Recorder, x: Tensor, w: Tensor, eps: float = 1e-5) -> Tensor:
    """Record y (N, C) = x / sqrt(mean x^2 + eps) * w; saves the factor of each row.

    A shorter w (D,), D dividing C, normalises each group of D columns by itself: heads of width D.
    """
    N, C = matrix("rmsnorm", x)
    D = w.size
    require(w.shape == (D,) and C % D == 0, "rmsnorm", f"w (D,) with D dividing {C}", x, w)
    groups = N * (C // D)
    y, r = s.tape.new("rmsnorm", x.shape), s.tape.new("r", (groups,))
    s.tape.record(RMSNORM, [y], [r], [x, w], {"N": groups, "C": D}, options={"eps": eps})
    return y


def _rmsnorm_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(RMSNORM_BACKWARD, node.inputs, [dy, *node.inputs, *node.saved], node.sizes)


def rope(
    s: Recorder,
    x: Tensor,
    positions: Tensor,
    inverse_frequency: Tensor,
    n_heads: int,
    *,
    interleaved: bool,
) -> Tensor:
    """Record y (N, H D): pairs of each head of x turned by position * inverse_frequency (D/2,)."""
    N, C = matrix("rope", x)
    D = 2 * inverse_frequency.size
    needed = f"positions ({N},), {n_heads} heads of {D}"
    fits = positions.shape == (N,) and n_heads * D == C
    require(fits, "rope", needed, x, positions, inverse_frequency)
    y = s.tape.new("rope", x.shape)
    sizes = {"N": N, "H": n_heads, "D": D, "interleaved": int(interleaved)}
    s.tape.record(ROPE, [y], [], [x, positions, inverse_frequency], sizes)
    return y


def _rope_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(ROPE_BACKWARD, node.inputs[:1], [dy, *node.inputs[1:]], node.sizes)


def class_token(s: Recorder, x: Tensor, cls: Tensor, pos: Tensor) -> Tensor:
    """Record y (B T, C): cls (C,), then the T - 1 rows of x of a picture; plus pos (T, C)."""
    (N, C), (T, columns) = matrix("class_token", x), matrix("class_token", pos)
    B = N // max(T - 1, 1)
    fits = N == B * (T - 1) and columns == C and cls.shape == (C,)
    require(fits, "class_token", f"x (B {T - 1}, {columns}), cls ({columns},)", x, cls, pos)
    y = s.tape.new("tokens", (B * T, C))
    s.tape.record(CLASS_TOKEN, [y], [], [x, cls, pos], {"B": B, "T": T, "C": C})
    return y


def _class_token_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(CLASS_TOKEN_BACKWARD, node.inputs, [dy], node.sizes)


SOFTMAX_BACKWARD = Op("softmax.backward", flops(4, "N", "C"), inplace={0: 0})
SOFTMAX = Op("softmax.forward", flops(12, "N", "C"), _softmax_gradient)
LAYERNORM_BACKWARD = Op("layernorm.backward", flops(14, "N", "C"), weights=(1, 2))
LAYERNORM = Op("layernorm.forward", flops(8, "N", "C"), _layernorm_gradient, again=itself)
RMSNORM_BACKWARD = Op("rmsnorm.backward", flops(11, "N", "C"), weights=(1,))
RMSNORM = Op("rmsnorm.forward", flops(4, "N", "C"), _rmsnorm_gradient, again=itself)
ROPE_BACKWARD = Op("rope.backward", flops(3, "N", "H", "D"), integers=(1,))
ROPE = Op("rope.forward", flops(3, "N", "H", "D"), _rope_gradient, integers=(1,))
CLASS_TOKEN_BACKWARD = Op("class_token.backward", flops(1, "B", "T", "C"), weights=(1, 2))
CLASS_TOKEN = Op("class_token.forward", flops(1, "B", "T", "C"), _class_token_gradient)
