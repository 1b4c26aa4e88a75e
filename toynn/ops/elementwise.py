"""Sums, scales, roundings and activations, element by element."""

from toynn.autograd import Backward
from toynn.errors import ConfigError
from toynn.ops._shape import Recorder, Rule, flops, given, itself, require
from toynn.tape import Node, Op, Tensor

__all__ = [
    "ACCUMULATE",
    "ADD",
    "GELU_BACKWARD",
    "GELU_FORMS",
    "SCALE",
    "add",
    "gelu",
    "rounded",
    "scale",
    "silu",
    "swiglu",
]


GELU_FORMS = {"tanh": 0, "exact": 1}
_ROUNDED = {"f16": 0, "bf16": 1}


def add(s: Recorder, a: Tensor, b: Tensor) -> Tensor:
    """Record y = a + b, shapes equal."""
    require(a.shape == b.shape, "add", "two tensors of one shape", a, b)
    y = s.tape.new("add", a.shape)
    s.tape.record(ADD, [y], [], [a, b], {"n": a.size})
    return y


def _add_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    for x in node.inputs:
        back.contribute(given(x), dy)


def scale(s: Recorder, x: Tensor, alpha: float) -> Tensor:
    """Record y = alpha x."""
    y = s.tape.new("scale", x.shape)
    s.tape.record(SCALE, [y], [], [x], {"n": x.size}, options={"alpha": alpha})
    return y


def _scale_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(SCALE, node.inputs, [dy], node.sizes, options=node.options)


def rounded(s: Recorder, x: Tensor, dtype: str) -> Tensor:
    """Record y = x rounded to ``f16`` or ``bf16``, in float32; y's gradient is taken for x's."""
    if dtype not in _ROUNDED:
        raise ConfigError(f"rounded: dtype must be one of {', '.join(_ROUNDED)}; got {dtype!r}")
    y = s.tape.new(f"{dtype}({x.name})", x.shape)
    s.tape.record(ROUNDING, [y], [], [x], {"n": x.size, "brain": _ROUNDED[dtype]})
    return y


def gelu(s: Recorder, x: Tensor, form: str = "tanh") -> Tensor:
    """Record y = gelu(x), in its ``tanh`` or ``exact`` (erf) form."""
    if form not in GELU_FORMS:
        raise ConfigError(f"gelu: form must be one of {', '.join(GELU_FORMS)}; got {form!r}")
    y = s.tape.new("gelu", x.shape)
    s.tape.record(GELU, [y], [], [x], {"n": x.size, "exact": GELU_FORMS[form]})
    return y


def silu(s: Recorder, x: Tensor) -> Tensor:
    """Record y = x sigmoid(x)."""
    y = s.tape.new("silu", x.shape)
    s.tape.record(SILU, [y], [], [x], {"n": x.size})
    return y


def _pointwise_gradient(backward: Op) -> Rule:
    """Rule of y = f(x), whose backward kernel reads dy and x."""

    def rule(back: Backward, node: Node, dy: Tensor) -> None:
        back.emit(backward, node.inputs, [dy, *node.inputs], node.sizes)

    return rule


def swiglu(s: Recorder, gate: Tensor, up: Tensor) -> Tensor:
    """Record y = silu(gate) * up."""
    require(gate.shape == up.shape, "swiglu", "gate and up of one shape", gate, up)
    y = s.tape.new("swiglu", gate.shape)
    s.tape.record(SWIGLU, [y], [], [gate, up], {"n": gate.size})
    return y


ADD = Op("elementwise.add", flops(1, "n"), _add_gradient, inplace={0: 0})
ACCUMULATE = Op("elementwise.accumulate", flops(1, "n"), weights=(0,))
SCALE = Op("elementwise.scale", flops(1, "n"), _scale_gradient, inplace={0: 0})
ROUNDING = Op("rounding.forward", flops(1, "n"), straight_through=True)
GELU_BACKWARD = Op("gelu.backward", flops(16, "n"), inplace={0: 0})
GELU = Op("gelu.forward", flops(12, "n"), _pointwise_gradient(GELU_BACKWARD), again=itself)
SILU_BACKWARD = Op("silu.backward", flops(12, "n"), inplace={0: 0})
SILU = Op("silu.forward", flops(10, "n"), _pointwise_gradient(SILU_BACKWARD), again=itself)
SWIGLU_BACKWARD = Op("swiglu.backward", flops(14, "n"))
SWIGLU = Op("swiglu.forward", flops(11, "n"), _pointwise_gradient(SWIGLU_BACKWARD), again=itself)
