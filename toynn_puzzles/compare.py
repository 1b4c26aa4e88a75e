"""Say what is wrong with an array: the first wrong element, and a suspicion.

A suspicion is a sentence about the cause, such as "the mask is missing". Some come with a puzzle,
which computes what a program with this mistake returns. All others come from the pattern of the
errors: a factor, a sign, a transpose, the same error along an axis, a few wrong rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.testing.cases import CASES
from toynn.testing.gradcheck import difference_quotient
from toynn_puzzles.answer import Wrong

Array = NDArray[Any]
#: Suspicions, and the wrong results that each mistake gives.
Suspects = Mapping[str, Any]
Index = tuple[int, ...]

TOLERANCE = 1e-7  # relative to the largest element: float64 sums in any order


def fail(said: str, suspicion: str = "") -> None:
    """Raise Wrong with a message, and a suspicion if there is one."""
    raise Wrong(said + (f"\nSuspicion: {suspicion}" if suspicion else ""))


def compare(
    name: str,
    got: Any,
    right: Any,
    *,
    suspects: Suspects | None = None,
    sizes: Mapping[str, int] | None = None,
    quotient: Callable[[Index], float] | None = None,
    tolerance: float = TOLERANCE,
    where: str = "",
) -> None:
    """Raise Wrong unless ``got`` is ``right``, within a tolerance of the largest element.

    ``quotient(index)`` returns the finite difference for an element of a gradient. ``sizes`` are
    the letters of shapes and their numbers: a wrong factor is named by them. ``where`` ends the
    message's first line: it says which of several tries failed.
    """
    right = np.asarray(right)
    array = _array(name, got, right)
    allowed = tolerance * (np.abs(right).max(initial=0) or 1.0)
    with np.errstate(all="ignore"):
        wrong = ~(np.abs(array - right) <= allowed)
    if not wrong.any():
        return
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    value = right[index] if abs(right[index]) > allowed else 0  # not 1e-17
    place = f"{name}[{', '.join(map(str, index))}]" if index else name
    lines = [f"{place} is wrong{where}.", f"    yours               {array[index]:.8g}"]
    lines += [f"    right               {value:.8g}"]
    if quotient is not None:
        lines += [f"    finite difference   {quotient(index):.8g}"]
    if right.size > 1:
        count = np.count_nonzero(wrong)
        lines += [f"{count} of {right.size} elements of {name} are wrong."]
    fail("\n".join(lines), _suspicion(array, right, wrong, suspects or {}, sizes or {}, allowed))


def _array(name: str, got: Any, right: Array) -> Array:
    """Return a result as an array of the right shape and kind. Raises Wrong."""
    if got is None:
        fail(f"{name} is None.", "a return is missing.")
    try:
        array = np.asarray(got)
    except ValueError:
        fail(f"{name} is not an array: its rows differ in length.")
    if array.dtype.kind not in "biuf":
        fail(f"{name} has dtype {array.dtype}; it should have {right.dtype}.")
    if right.dtype.kind in "iu" and array.dtype.kind not in "biu":
        fail(f"{name} has dtype {array.dtype}; it should hold whole numbers ({right.dtype}).")
    if array.shape != right.shape:
        fail(
            f"{name} has shape {array.shape}; it should have {right.shape}.",
            _shape_suspicion(array.shape, right.shape),
        )
    return array


def _shape_suspicion(got: Index, right: Index) -> str:
    if got == right[::-1]:
        return f"{right} is the transpose of {got}."
    if [n for n in got if n != 1] == [n for n in right if n != 1]:
        return "keepdims: there is one axis of length 1 too many, or one too few."
    for axis in range(len(got)):
        if got[:axis] + got[axis + 1 :] == right:
            return f"a sum over axis {axis} is missing."
    for axis in range(len(right)):
        if right[:axis] + right[axis + 1 :] == got:
            return f"axis {axis} is summed over, and should stay."
    return ""


def _suspicion(
    got: Array,
    right: Array,
    wrong: Array,
    suspects: Suspects,
    sizes: Mapping[str, int],
    near: float,
) -> str:
    def alike(one: Any, other: Any) -> bool:
        return bool(np.allclose(one, other, rtol=1e-6, atol=near, equal_nan=True))

    with np.errstate(all="ignore"):
        for sentence, value in suspects.items():
            if np.shape(value) == right.shape and alike(got, value):
                return sentence
        if right.dtype.kind in "iu":
            return _places(wrong)
        pattern = next(_patterns(got.astype(float), right, sizes, alike), "")
    return pattern or _places(wrong)


def _patterns(
    got: Array, right: Array, sizes: Mapping[str, int], alike: Callable[[Any, Any], bool]
) -> Iterator[str]:
    """Yield suspicions from the pattern of the errors, the plainest first."""
    bad = ~np.isfinite(got)
    if bad.any():
        kind = "nan" if np.isnan(got).any() else "infinite"
        yield (
            f"{kind}: exp of a large number overflows, and log(0) is infinite; inf - inf, "
            "inf / inf, 0 / 0 and 0 times inf give nan."
        )
        return
    if not got.any():
        yield "all of it is 0: nothing was written or added."
    if alike(got, -right):
        yield "the sign is wrong everywhere."
    if right.ndim == 2 and right.shape[0] == right.shape[1] and alike(got.T, right):
        yield "it is the transpose."
    if right.size > 1 and np.abs(got - right).max() <= 1e-5 * np.abs(right).max():
        yield "the first six digits are right: it is computed in float32. Stay in float64."
    steep = np.unravel_index(np.abs(right).argmax(), right.shape) if right.size else ()
    factor = float(got[steep] / right[steep]) if right.size and right[steep] else 1.0
    if right.size > 1 and alike(got, factor * right):
        yield f"every element is {factor:.6g} times the right one{_called(factor, sizes)}."
    for axis in range(right.ndim if right.size > 1 else 0):
        for step in (1, -1):
            inner = [slice(1, None), slice(None, -1)][::step]
            if right.shape[axis] > 2 and alike(
                np.take(got, range(right.shape[axis])[inner[0]], axis),
                np.take(right, range(right.shape[axis])[inner[1]], axis),
            ):
                yield f"it is shifted by one along axis {axis}."
    for axis in range(right.ndim if right.ndim > 1 else 0):
        error, ratio = got - right, got / right
        if right.shape[axis] > 2 and np.ptp(error, axis).max() <= 1e-6 * np.abs(error).max():
            yield (
                f"the error is the same all along axis {axis}: a term that is a sum or mean over "
                f"axis {axis} is missing or wrong."
            )
        finite = np.isfinite(ratio).all() and right.shape[axis] > 2
        if finite and (np.ptp(ratio, axis) <= 1e-6 * np.abs(ratio).max(axis)).all():
            yield f"along axis {axis} all elements have the same wrong factor."


def _called(factor: float, sizes: Mapping[str, int]) -> str:
    for name, size in sizes.items():
        for said, value in (
            (name, size),
            (f"1 / {name}", 1 / size),
            (f"sqrt({name})", size**0.5),
            (f"1 / sqrt({name})", size**-0.5),
        ):
            if size > 1 and abs(factor - value) <= 1e-6 * value:
                return f": {said}, where {name} = {size}"
    return ""


def _places(wrong: Array) -> str:
    """Return a sentence about where the errors are, if they are at some indices of an axis."""
    for axis in range(wrong.ndim):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        there = np.flatnonzero(wrong.any(axis=others))
        if there.size <= wrong.shape[axis] // 2:
            shown = ", ".join(map(str, there[:6])) + (", ..." if there.size > 6 else "")
            last = wrong.shape[axis] - 1
            return f"all errors are at index {shown} of axis {axis} (0 to {last}). Why there?"
    return ""


@dataclass(frozen=True)
class Expected:
    """A function of float64 arrays with one set of inputs, dy, and the right gradients.

    ``function()`` computes y from ``inputs``; finite differences move the elements of ``inputs``.
    """

    inputs: dict[str, Array]
    function: Callable[[], Array]
    dy: Array
    right: Mapping[str, Array]
    sizes: Mapping[str, int]

    def compare(self, got: Mapping[str, Any], **suspects: Suspects) -> None:
        """Compare gradients, named "dx" for "x"; ``suspects`` by the same names. Raises Wrong."""
        for name, gradient in got.items():
            compare(
                name,
                gradient,
                self.right[name],
                suspects=suspects.get(name),
                sizes=self.sizes,
                quotient=partial(self._quotient, self.inputs[name.removeprefix("d")]),
            )

    def _quotient(self, x: Array, index: Index) -> float:
        i = int(np.ravel_multi_index(index, x.shape)) if x.ndim else 0
        return difference_quotient(self.function, self.dy, x.reshape(-1), i, 1e-6)


def expected(op: str, seed: int = 0, **sizes: int) -> Expected:
    """Return a case of the op table at one shape, in float64."""
    case, rng = CASES[op], np.random.default_rng(seed)
    assert case.inputs and case.function and case.gradients
    inputs = {
        name: x.astype(np.float64) if x.dtype.kind == "f" else x
        for name, x in case.inputs(rng, **sizes).items()
    }
    function = partial(case.function, inputs, **sizes)
    dy = rng.standard_normal(np.shape(function()))
    return Expected(inputs, function, dy, case.gradients(inputs, dy, **sizes), sizes)
