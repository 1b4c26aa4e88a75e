"""Sums, scales, roundings and activations, element by element."""

from collections.abc import Callable

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
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

#: The two forms of GELU by name, with the value of the kernel's switch "exact".
GELU_FORMS = {"gelu_tanh": 0, "gelu_exact": 1}
_ROUNDED = {"f16": 0, "bf16": 1}


def _add_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.contribute(node["a"], dy)
    back.contribute(node["b"], dy)


def columns(s: Recorder, x: Tensor, first: int, count: int) -> Tensor:
    """Record columns (N, count) of x (N, X), from ``first`` on."""
    _, X = matrix("columns", x=x)
    fits = first >= 0 and 0 < count <= X - first
    require(fits, "columns", f"{count} columns from {first} on", x=x)
    return s.tape.record(COLUMNS, {"x": x}, C=count, K=first).output


def _columns_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(COLUMNS_BACKWARD, {"dx": node["x"]}, {"dy": dy}, node)


def scale(s: Recorder, x: Tensor, alpha: float) -> Tensor:
    """Record y = alpha x."""
    return s.tape.record(SCALE, {"x": x}, alpha=alpha).output


def _scale_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(SCALE, {"y": node["x"]}, {"x": dy}, node)


def rounded(s: Recorder, x: Tensor, dtype: str) -> Tensor:
    """Record y = x rounded to ``f16`` or ``bf16``, in float32; dx = dy (straight-through).

    Raises ConfigError for another dtype.
    """
    if dtype not in _ROUNDED:
        raise ConfigError(f"rounded: dtype must be one of {', '.join(_ROUNDED)}; got {dtype!r}")
    y = s.tape.new(f"{dtype}({x.name})", x.shape)
    return s.tape.record(ROUNDING, {"y": y, "x": x}, brain=_ROUNDED[dtype]).output


def gelu(s: Recorder, x: Tensor, form: str = "gelu_tanh") -> Tensor:
    """Record y = gelu(x), in the form "gelu_tanh" or "gelu_exact" (erf).

    Raises ConfigError for another form.
    """
    if form not in GELU_FORMS:
        raise ConfigError(f"gelu: form must be one of {', '.join(GELU_FORMS)}; got {form!r}")
    return s.tape.record(GELU, {"x": x}, exact=GELU_FORMS[form]).output


def sigmoid(s: Recorder, x: Tensor) -> Tensor:
    """Record y = 1 / (1 + e^-x)."""
    return s.tape.record(SIGMOID, {"x": x}).output


def relu2(s: Recorder, x: Tensor) -> Tensor:
    """Record y = max(x, 0)^2."""
    return s.tape.record(RELU2, {"x": x}).output


def silu(s: Recorder, x: Tensor) -> Tensor:
    """Record y = x sigmoid(x)."""
    return s.tape.record(SILU, {"x": x}).output


def swiglu(
    s: Recorder, gate: Tensor, up: Tensor, *, limit: float = 0.0, alpha: float = 1.0
) -> Tensor:
    """Record y = silu(gate) * up.

    With a ``limit``, y = g sigmoid(alpha g) (u + 1), with g = min(gate, limit) and u = up clamped
    to [-limit, limit].
    """
    require(limit >= 0 and alpha > 0, "swiglu", "limit >= 0 and alpha > 0", gate=gate)
    return s.tape.record(SWIGLU, {"gate": gate, "up": up}, alpha=alpha, limit=limit).output


def geglu(s: Recorder, gate: Tensor, up: Tensor, *, exact: bool = False) -> Tensor:
    """Record y = gelu(gate) * up, in GELU's tanh form or exactly."""
    return s.tape.record(GEGLU, {"gate": gate, "up": up}, exact=exact).output


def softcap(s: Recorder, x: Tensor, cap: float) -> Tensor:
    """Record y = cap tanh(x / cap); cap is a number above 0."""
    require(cap > 0, "softcap", "a cap above 0", x=x)
    return s.tape.record(SOFTCAP, {"x": x}, cap=cap).output


def swiglu_halves(s: Recorder, x: Tensor) -> Tensor:
    """Record y (N, F) = silu(gate) * up, where gate and up are the halves of x's rows (N, 2 F)."""
    return s.tape.record(HALVES, {"x": x}).output


def _gelu_flops(tanh: int, exact: int) -> Callable[[Sizes], int]:
    """Count each form separately: one has an exponential, the other erf's two polynomials."""
    return lambda sizes: (exact if sizes["exact"] else tanh) * sizes["n"]


ADD = Op("elementwise.add", flops(1, "n"), _add_gradient, rows="n a", name="add")
ACCUMULATE = Op("elementwise.accumulate", flops(1, "n"))
COLUMNS_BACKWARD = Op("columns.backward", flops(1, "N", "C"), adds=True, rows="N dy")
COLUMNS = Op("columns.forward", flops(0, "N", "C"), _columns_gradient, rows="N x")
SCALE = Op("elementwise.scale", flops(1, "n"), _scale_gradient, rows="n x", name="scale")
ROUNDING = Op("rounding.forward", flops(1, "n"), straight_through=True)
NARROW = Op("rounding.narrow", flops(1, "n"), rows="n x")
WIDEN = Op("rounding.widen", flops(0, "n"), rows="n z")
GELU_BACKWARD = Op("gelu.backward", _gelu_flops(EXP + 16, EXP + 32), rows="n dy")
GELU = Op(
    "gelu.forward", _gelu_flops(EXP + 7, 27), by_names(GELU_BACKWARD), recompute=itself, rows="n x"
)
SIGMOID_BACKWARD = Op("sigmoid.backward", flops(SIGMOID_SLOPE + 1, "n"), rows="n dy")
SIGMOID = Op(
    "sigmoid.forward", flops(EXP + 2, "n"), by_names(SIGMOID_BACKWARD), recompute=itself, rows="n x"
)
RELU2_BACKWARD = Op("relu2.backward", flops(3, "n"), rows="n dy")
RELU2 = Op("relu2.forward", flops(2, "n"), by_names(RELU2_BACKWARD), recompute=itself, rows="n x")
SILU_BACKWARD = Op("silu.backward", flops(SIGMOID_SLOPE + 3, "n"), rows="n dy")
SILU = Op(
    "silu.forward", flops(EXP + 3, "n"), by_names(SILU_BACKWARD), recompute=itself, rows="n x"
)
SWIGLU_BACKWARD = Op("swiglu.backward", flops(SIGMOID_SLOPE + 6, "n"), rows="n dy")
SWIGLU = Op(
    "swiglu.forward",
    flops(EXP + 4, "n"),
    by_names(SWIGLU_BACKWARD),
    recompute=itself,
    rows="n gate",
)
HALVES_BACKWARD = Op("swiglu.halves_backward", flops(SIGMOID_SLOPE + 6, "N", "F"), rows="N dy")
HALVES = Op(
    "swiglu.halves_forward",
    flops(EXP + 4, "N", "F"),
    by_names(HALVES_BACKWARD),
    recompute=itself,
    rows="N x",
)
GEGLU_BACKWARD = Op("geglu.backward", flops(EXP + 23, "n"), rows="n dy")
GEGLU = Op(
    "geglu.forward", flops(EXP + 8, "n"), by_names(GEGLU_BACKWARD), recompute=itself, rows="n gate"
)
SOFTCAP_BACKWARD = Op("softcap.backward", flops(5, "n"), rows="n dy")
SOFTCAP = Op("softcap.forward", flops(EXP + 18, "n"), by_names(SOFTCAP_BACKWARD), rows="n x")
