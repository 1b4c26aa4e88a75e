"""Python's operators on tensors: each records an op of the tensor's session.

    loss = ((x @ w + b - t) ** 2).mean()

ops/ has the functions, which it registers in RECORDERS when it is imported: nothing here imports
ops. A tensor knows its session by a weak reference, so that no tensor keeps a session alive.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

from toynn.errors import LifecycleError

#: The functions of ops by name: each takes the session, then the operands.
RECORDERS: dict[str, Callable[..., Any]] = {}


class Operators:
    """What a tensor of a session can do: each method is the function of ``toynn.ops`` by its name.

    An operand is a tensor of the same session, or a number. Shapes broadcast as in NumPy. Raises
    LifecycleError if the session no longer exists, and what the functions raise.
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy's scalars leave the operator to the tensor
    __iter__ = None
    name: str
    owner: Callable[[], Any] | None  # returns the session; None once it is gone

    def _record(self, op: str, *operands: Any, **options: Any) -> Self:
        """Record an op by its name in RECORDERS."""
        session = self.owner and self.owner()
        if session is None:
            raise LifecycleError(f"{op}: the session of {self.name} no longer exists")
        recorded: Self = RECORDERS[op](session, *operands, **options)
        return recorded

    def __add__(self, other: Self | float) -> Self:
        return self._record("add", self, other)

    def __radd__(self, other: float) -> Self:
        return self._record("add", other, self)

    def __sub__(self, other: Self | float) -> Self:
        return self._record("sub", self, other)

    def __rsub__(self, other: float) -> Self:
        return self._record("sub", other, self)

    def __mul__(self, other: Self | float) -> Self:
        return self._record("mul", self, other)

    def __rmul__(self, other: float) -> Self:
        return self._record("mul", other, self)

    def __truediv__(self, other: Self | float) -> Self:
        return self._record("div", self, other)

    def __rtruediv__(self, other: float) -> Self:
        return self._record("div", other, self)

    def __pow__(self, p: float) -> Self:
        return self._record("power", self, p)

    def __matmul__(self, other: Self) -> Self:
        return self._record("matmul", self, other)

    def __neg__(self) -> Self:
        return self._record("neg", self)

    def __abs__(self) -> Self:
        return self._record("abs", self)

    def __getitem__(self, index: Any) -> Self:
        return self._record("part", self, index)

    def exp(self) -> Self:
        """Record e^x."""
        return self._record("exp", self)

    def log(self) -> Self:
        """Record the natural logarithm: NaN below 0, -infinity at 0."""
        return self._record("log", self)

    def sqrt(self) -> Self:
        """Record the square root: NaN below 0."""
        return self._record("sqrt", self)

    def tanh(self) -> Self:
        """Record tanh x."""
        return self._record("tanh", self)

    def relu(self) -> Self:
        """Record max(x, 0)."""
        return self._record("relu", self)

    def sum(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Self:
        """Record the sum over one axis, several, or all."""
        return self._record("sum", self, axis, keepdims=keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Self:
        """Record the mean over one axis, several, or all."""
        return self._record("mean", self, axis, keepdims=keepdims)

    def reshape(self, *shape: Any) -> Self:
        """Return the same elements in another shape, of which one extent may be -1. No copy."""
        return self._record("reshape", self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Self:
        """Record a copy with the axes in this order; without axes, in reverse."""
        return self._record("transpose", self, *axes)
