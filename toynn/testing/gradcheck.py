"""Gradients against finite differences of a float64 reference.

    numeric[i] = <dy, f(x + eps e_i) - f(x - eps e_i)> / (2 eps)
    required     |analytic[i] - numeric[i]| <= atol largest + rtol |numeric[i]|

``largest`` is the largest gradient over all arrays: a gradient that should be zero may still have
the rounding errors of the others. Only a sample of elements is checked. It always has the
element of each array with the largest gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from toynn.graph.tape import Role
from toynn.session import Session
from toynn.testing import reference
from toynn.testing.calls import invoke
from toynn.testing.cases import CASES, Array, Call

#: Maps arrays to (y, backward), where backward(dy) gives a gradient (or None) for each array.
Function = Callable[..., tuple[Any, Callable[[Array], Any]]]


def gradcheck(
    target: str | Session | Function,
    inputs: Sequence[Any] | None = None,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    *,
    samples: int | None = 8,
    seed: int = 0,
) -> bool:
    """Check gradients by finite differences; return True.

    ``gradcheck("rmsnorm")``: an op of the case table, at each of its shapes. The reference's
    gradient is compared with differences of the reference, and the kernel with the reference.

    ``gradcheck(session)``: the tape of a realized session whose inputs are uploaded. The gradients
    of all its parameters, as the kernels compute them, are compared with differences of the same
    tape in float64. The session's gradients are zero afterwards.

    ``gradcheck(function, inputs)``: any function of arrays that returns ``(y, backward)``.
    Floating-point inputs become float64; all other arguments are passed unchanged and get no
    gradient.

    At most ``samples`` elements of each array are checked (None: all), chosen by ``seed``.

    Raises
    ------
    AssertionError
        Naming the array, the element, its gradient and the difference quotient.
    """
    options = _Options(eps, atol, rtol, samples, seed)
    if isinstance(target, str):
        _check_op(target, options)
    elif isinstance(target, Session):
        _check_session(target, options)
    elif inputs is None:
        raise TypeError("gradcheck: a function needs inputs")
    else:
        _check_function(target, inputs, options)
    return True


@dataclass(frozen=True)
class _Options:
    eps: float
    atol: float
    rtol: float
    samples: int | None
    seed: int


def _check_op(op: str, options: _Options) -> None:
    if op not in CASES:
        raise ValueError(f"gradcheck: no op is called {op}; there are {', '.join(CASES)}")
    case = CASES[op]
    if case.inputs is None or case.function is None or case.gradients is None:
        raise ValueError(f"gradcheck: {op} has no gradient")
    for sizes in case.shapes:
        rng = np.random.default_rng(options.seed)
        exact = {name: _exact(x) for name, x in case.inputs(rng, **sizes).items()}
        dy = rng.standard_normal(np.shape(case.function(exact, **sizes)))
        gradients = case.gradients(exact, dy, **sizes).items()
        analytic = {name.removeprefix("d"): gradient for name, gradient in gradients}
        label = f"{op} {sizes}"
        _compare(label, partial(case.function, exact, **sizes), dy, exact, analytic, options)
        for call in case.calls(rng, **sizes):
            if "backward" in call.entry:
                _compare_kernel(label, op, call, options)


def _compare_kernel(label: str, op: str, call: Call, options: _Options) -> None:
    """Compare a kernel with its reference by gradcheck's rule, not by the case's tolerance."""
    got = invoke(op, call)
    for name, expected in call.expected.items():
        error = np.abs(got[name] - expected)
        largest = 1 + np.abs(expected).max(initial=0)
        if not (error <= options.atol * largest + options.rtol * np.abs(expected)).all():
            raise AssertionError(
                f"gradcheck {label}: {call.entry} of the kernel writes {name} wrong by up to "
                f"{error.max():.3g}, where the largest is {largest - 1:.3g}"
            )


def _check_session(session: Session, options: _Options) -> None:
    tape = session.tape
    session.reset(moments=False)
    session.run("grads")
    assert tape.gradients is not None and tape.loss is not None
    gradients = {
        tensor: session.download(gradient)
        for tensor, gradient in tape.gradients.items()
        if tensor.role is Role.PARAMETER
    }
    session.reset(moments=False)
    outside = (Role.PARAMETER, Role.CONSTANT, Role.INPUT)
    read = {t for node in tape.nodes if node.phase in "FE" for t in node.roots}
    values = {t: _exact(session.download(t)) for t in read if t.role in outside}

    def loss() -> Array:
        return reference.computed(tape, values)[tape.loss]  # type: ignore[index]

    _compare("session", loss, np.ones(()), values, gradients, options)


def _check_function(function: Function, inputs: Sequence[Any], options: _Options) -> None:
    exact = dict(enumerate(_exact(x) for x in inputs))
    y, backward = function(*exact.values())
    dy = np.random.default_rng(options.seed).standard_normal(np.shape(y))
    returned = backward(dy)
    gradients = [returned] if isinstance(returned, np.ndarray) else list(returned)
    if len(gradients) != len(exact):
        raise ValueError(
            f"gradcheck: {len(exact)} inputs need {len(exact)} gradients; got {len(gradients)}"
        )
    analytic = {i: np.asarray(g) for i, g in enumerate(gradients) if g is not None}
    _compare("input", lambda: function(*exact.values())[0], dy, exact, analytic, options)


def _exact(x: Any) -> Array:
    """Return a copy, floats as float64."""
    array = np.array(x)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _compare(
    label: str,
    function: Callable[[], Any],
    dy: Array,
    inputs: Mapping[Any, Array],
    analytic: Mapping[Any, Array],
    options: _Options,
) -> None:
    """Move elements of ``inputs`` in place; compare ``function()``'s changes with ``analytic``."""
    rng = np.random.default_rng(options.seed)
    compared: list[tuple[Any, int, float, float]] = []
    for key, gradient in analytic.items():
        if gradient.shape != inputs[key].shape:
            raise AssertionError(
                f"gradcheck {label} {_named(key)}: shape {inputs[key].shape}, but its gradient "
                f"has {gradient.shape}"
            )
        for i in _chosen(gradient, options.samples, rng):
            numeric = difference_quotient(function, dy, inputs[key].reshape(-1), i, options.eps)
            compared.append((key, i, float(gradient.flat[i]), numeric))
    largest = max((abs(numeric) for *_, numeric in compared), default=0.0)
    for key, i, got, numeric in compared:
        allowed = options.atol * largest + options.rtol * abs(numeric)
        if not abs(got - numeric) <= allowed:
            index = tuple(int(n) for n in np.unravel_index(i, inputs[key].shape))
            raise AssertionError(
                f"gradcheck {label} {_named(key)} {index}: gradient {got:.9g}, "
                f"difference quotient {numeric:.9g}, allowed error {allowed:.3g}"
            )


def _named(key: Any) -> str:
    return str(getattr(key, "name", key))


def _chosen(gradient: Array, samples: int | None, rng: np.random.Generator) -> list[int]:
    """Return the index of the element with the largest gradient, and random others."""
    if samples is None or gradient.size <= samples:
        return list(range(gradient.size))
    steepest = int(np.abs(gradient).argmax())
    others = rng.choice(gradient.size, samples - 1, replace=False)
    return [steepest, *(int(i) for i in others if i != steepest)]


def difference_quotient(
    function: Callable[[], Any], dy: Array, x: Array, i: int, eps: float
) -> float:
    """Return d sum(dy function()) / d x[i] for flat x, by moving element i up and down by eps."""
    start = x[i]
    x[i] = start + eps
    above = np.array(function())
    x[i] = start - eps
    below = np.array(function())
    x[i] = start
    return float((dy * (above - below)).sum() / (2 * eps))
