"""Arithmetic and functions of one number; an operand is a tensor, or a number.

Shapes broadcast as in NumPy. A tensor that is repeated for that is copied by a node of its own.
"""

from numbers import Real

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.ops._shape import EXP, Recorder, by_names, flops, require
from toynn.ops.axes import broadcast
from toynn.ops.elementwise import ADD, SCALE, scale

Operand = Tensor | float


def add(s: Recorder, a: Operand, b: Operand) -> Tensor:
    """Record y = a + b; an operand is a tensor or a number, and not both are numbers.

    Raises ShapeError if the shapes do not broadcast, and ConfigError for other operands.
    """
    if not isinstance(b, Tensor):
        return _affine(s, "add", a, 1.0, b)
    return _both(s, ADD, a, b) if isinstance(a, Tensor) else _affine(s, "add", b, 1.0, a)


def sub(s: Recorder, a: Operand, b: Operand) -> Tensor:
    """Record y = a - b; raises ShapeError and ConfigError as ``add`` does."""
    if not isinstance(b, Tensor):
        return _affine(s, "sub", a, 1.0, -_number("sub", b))
    return _both(s, SUB, a, b) if isinstance(a, Tensor) else _affine(s, "sub", b, -1.0, a)


def mul(s: Recorder, a: Operand, b: Operand) -> Tensor:
    """Record y = a b; raises ShapeError and ConfigError as ``add`` does."""
    if not isinstance(b, Tensor):
        return scale(s, _tensor("mul", a), _number("mul", b))
    return _both(s, MUL, a, b) if isinstance(a, Tensor) else mul(s, b, a)


def div(s: Recorder, a: Operand, b: Operand) -> Tensor:
    """Record y = a / b; a number b is not 0; raises ShapeError and ConfigError as ``add`` does."""
    if not isinstance(b, Tensor):
        require(_number("div", b) != 0, "div", "a number that is not 0")
        return scale(s, _tensor("div", a), 1 / b)
    return _both(s, DIV, a, b) if isinstance(a, Tensor) else mul(s, power(s, b, -1.0), a)


def neg(s: Recorder, x: Tensor) -> Tensor:
    """Record y = -x."""
    return scale(s, x, -1.0)


def power(s: Recorder, x: Tensor, p: float) -> Tensor:
    """Record y = x^p; NaN for x below 0 if p has a fraction.

    Raises ConfigError unless p is a number.
    """
    if isinstance(p, Tensor):
        raise ConfigError("power: the exponent is a number; for a tensor p: (x.log() * p).exp()")
    if _number("power", p) == 1:
        return x
    if p in (0.5, 2):
        return s.tape.record(SQRT if p < 1 else SQUARE, {"x": x}).output
    return s.tape.record(POWER, {"x": x}, p=p).output


def square(s: Recorder, x: Tensor) -> Tensor:
    """Record y = x^2."""
    return s.tape.record(SQUARE, {"x": x}).output


def exp(s: Recorder, x: Tensor) -> Tensor:
    """Record y = e^x."""
    return s.tape.record(EXPONENTIAL, {"x": x}).output


def log(s: Recorder, x: Tensor) -> Tensor:
    """Record y = ln x: NaN below 0, -infinity at 0."""
    return s.tape.record(LOG, {"x": x}).output


def sqrt(s: Recorder, x: Tensor) -> Tensor:
    """Record y = x^(1/2): NaN below 0."""
    return s.tape.record(SQRT, {"x": x}).output


def tanh(s: Recorder, x: Tensor) -> Tensor:
    """Record y = tanh x."""
    return s.tape.record(TANH, {"x": x}).output


def abs(s: Recorder, x: Tensor) -> Tensor:
    """Record y = |x|, whose slope at 0 is 0."""
    return s.tape.record(ABS, {"x": x}).output


def relu(s: Recorder, x: Tensor) -> Tensor:
    """Record y = max(x, 0), whose slope at 0 is 0."""
    return s.tape.record(RELU, {"x": x}).output


def masked(s: Recorder, x: Operand, mask: Tensor, *, keep: bool = True) -> Tensor:
    """Record y = x where the mask is not 0 (where it is 0, if not ``keep``), else 0.

    mask: i32, in the shape of x after broadcasting. Raises ShapeError for another one, and
    ConfigError unless x is a tensor.
    """
    (whole,) = broadcast(s, "where", _tensor("where", x), to=mask.shape)
    return s.tape.record(MASKED, {"x": whole, "mask": mask}, keep=int(keep)).output


def where(s: Recorder, mask: Tensor, a: Operand, b: Operand) -> Tensor:
    """Record y = a where the mask is not 0, else b; one of a and b may be the number 0.

    mask: i32, in the shape of the result; a and b broadcast to it. It is the sum of two masked
    copies. Raises ShapeError for other shapes, and ConfigError for other numbers.
    """
    chosen = [
        masked(s, x, mask, keep=keep)
        for x, keep in ((a, True), (b, False))
        if isinstance(x, Tensor) or _number("where", x)
    ]
    require(len(chosen) > 0, "where", "a tensor a or b", mask=mask)
    return add(s, *chosen) if len(chosen) == 2 else chosen[0]


def _both(s: Recorder, op: Op, *operands: Tensor) -> Tensor:
    a, b = broadcast(s, op.name, *operands)
    return s.tape.record(op, {"a": a, "b": b}).output


def _affine(s: Recorder, what: str, x: Operand, alpha: float, beta: Operand) -> Tensor:
    tensors = {"x": _tensor(what, x)}
    return s.tape.record(AFFINE, tensors, alpha=alpha, beta=_number(what, beta)).output


def _number(what: str, x: Operand) -> float:
    """Return an operand that must be a number. Raises ConfigError."""
    if not isinstance(x, Real):
        raise ConfigError(
            f"{what}: needs tensors or numbers; got {type(x).__name__}: an array becomes a tensor "
            "by s.constant(name, array) or s.input(name, shape)"
        )
    return float(x)


def _tensor(what: str, x: Operand) -> Tensor:
    """Return an operand that must be a tensor. Raises ConfigError."""
    if not isinstance(x, Tensor):
        raise ConfigError(f"{what}: needs a tensor; got {_number(what, x)}")
    return x


def _sub_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.contribute(node["a"], dy)
    back.emit(SCALE, {"y": node["b"]}, {"x": dy}, alpha=-1.0)


def _mul_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(MUL, {"y": node["a"]}, {"a": dy, "b": node["b"]})
    back.emit(MUL, {"y": node["b"]}, {"a": dy, "b": node["a"]})


def _div_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(DIV, {"y": node["a"]}, {"a": dy, "b": node["b"]})
    back.emit(DIV_BACKWARD, {"db": node["b"]}, {"dy": dy, "y": node["y"], "b": node["b"]})


def _affine_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(SCALE, {"y": node["x"]}, {"x": dy}, node)


def _exp_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(MUL, {"y": node["x"]}, {"a": dy, "b": node["y"]})


def _log_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(DIV, {"y": node["x"]}, {"a": dy, "b": node["x"]})


def _masked_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(MASKED, {"y": node["x"]}, {"x": dy, "mask": node["mask"]}, node)


SUB = Op("pointwise.sub", flops(1, "n"), _sub_gradient, rows="n a", name="sub")
MUL = Op("pointwise.mul", flops(1, "n"), _mul_gradient, rows="n a", name="mul")
DIV = Op("pointwise.div", flops(1, "n"), _div_gradient, rows="n a", name="div")
DIV_BACKWARD = Op("pointwise.div_backward", flops(2, "n"), rows="n dy")
AFFINE = Op("pointwise.affine", flops(2, "n"), _affine_gradient, rows="n x", name="affine")
SQUARE_BACKWARD = Op("pointwise.square_backward", flops(2, "n"), rows="n dy")
SQUARE = Op("pointwise.square", flops(1, "n"), by_names(SQUARE_BACKWARD), rows="n x", name="square")
POWER_BACKWARD = Op("pointwise.power_backward", flops(3 * EXP, "n"), rows="n dy")
POWER = Op(
    "pointwise.power", flops(3 * EXP, "n"), by_names(POWER_BACKWARD), rows="n x", name="power"
)
EXPONENTIAL = Op("pointwise.exp", flops(EXP, "n"), _exp_gradient, rows="n x", name="exp")
LOG = Op("pointwise.log", flops(20, "n"), _log_gradient, rows="n x", name="log")
SQRT_BACKWARD = Op("pointwise.sqrt_backward", flops(2, "n"), rows="n dy")
SQRT = Op("pointwise.sqrt", flops(1, "n"), by_names(SQRT_BACKWARD), rows="n x", name="sqrt")
TANH_BACKWARD = Op("pointwise.tanh_backward", flops(4, "n"), rows="n dy")
TANH = Op("pointwise.tanh", flops(EXP + 18, "n"), by_names(TANH_BACKWARD), rows="n x", name="tanh")
ABS_BACKWARD = Op("pointwise.abs_backward", flops(1, "n"), rows="n dy")
ABS = Op("pointwise.abs", flops(1, "n"), by_names(ABS_BACKWARD), rows="n x", name="abs")
RELU_BACKWARD = Op("pointwise.relu_backward", flops(1, "n"), rows="n dy")
RELU = Op("pointwise.relu", flops(1, "n"), by_names(RELU_BACKWARD), rows="n x", name="relu")
MASKED = Op("pointwise.masked", flops(1, "n"), _masked_gradient, rows="n x", name="masked")
