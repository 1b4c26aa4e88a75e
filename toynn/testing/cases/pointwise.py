"""pointwise: each function against NumPy's, and its slope, of numbers where it has one."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference
from toynn.testing.cases._unary import SHAPES

NUMBERS = {"p": 1.5, "alpha": -0.75, "beta": 2.0, "keep": 1}
#: By op: for each gradient the entry that computes it, and what that reads under other names.
SLOPES: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "mul": {"a": ("mul", {"a": "dy"}), "b": ("mul", {"a": "a", "b": "dy"})},
    "div": {"a": ("div", {"a": "dy"}), "b": ("div_backward", {})},
    "square": {"x": ("square_backward", {})},
    "power": {"x": ("power_backward", {})},
    "exp": {"x": ("mul", {"a": "dy", "b": "y"})},
    "log": {"x": ("div", {"a": "dy", "b": "x"})},
    "sqrt": {"x": ("sqrt_backward", {})},
    "tanh": {"x": ("tanh_backward", {})},
    "abs": {"x": ("abs_backward", {})},
    "relu": {"x": ("relu_backward", {})},
}
LOSES = {
    "abs_backward": {"x": "only its sign is read"},
    "relu_backward": {"y": "only its sign is read"},
    "masked": {"x": "masked elements are not read"},
}


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    """Return x above 0, a, and b: not near 0, where quotients are large and slopes jump."""
    away = [np.sign(z) * (np.abs(z) + 0.25) for z in (normal(rng, n) for _ in range(2))]
    return {"x": np.abs(normal(rng, n)) + np.float32(0.25), "a": away[0], "b": away[1]}


def _run(entry: str, arrays: dict[str, Array]) -> dict[str, Array]:
    return reference(f"pointwise.{entry}", arrays, NUMBERS)


def _function(arrays: dict[str, Array], n: int) -> Array:
    """Return the y of each function: of x, or of a and b. The first is a - b."""
    return np.stack([_run(op, arrays)["y"] for op in ("sub", *SLOPES)])


def _gradients(arrays: dict[str, Array], dy: Array, n: int) -> dict[str, Array]:
    gradients = {"dx": np.zeros(n), "da": dy[0].copy(), "db": -dy[0]}
    for (op, slopes), d in zip(SLOPES.items(), dy[1:], strict=True):
        values = {**arrays, **_run(op, arrays), "dy": d}
        for name, (entry, read) in slopes.items():
            renamed = {theirs: values[ours] for theirs, ours in read.items()}
            (gradient,) = _run(entry, values | renamed).values()
            gradients[f"d{name}"] += gradient
    return gradients


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    arrays = {**_inputs(rng, n), "dy": normal(rng, n), "mask": rng.integers(-1, 2, n, np.int32)}
    signed = {**arrays, "x": arrays["a"], "y": arrays["b"]}
    of_signed = ["sub", "mul", "div", "affine", "square", "square_backward", "exp", "tanh"]
    of_signed += ["abs", "abs_backward", "relu", "relu_backward", "masked"]
    of_roots = {"sqrt_backward": arrays["x"], "tanh_backward": np.tanh(arrays["a"])}
    positive = ("power", "power_backward", "log", "sqrt")
    return [
        *(_call(entry, signed) for entry in of_signed),
        *(_call(entry, arrays) for entry in positive),
        *(_call(entry, arrays | {"y": y}) for entry, y in of_roots.items()),
        _call("div_backward", arrays | {"y": arrays["a"] / arrays["b"]}),
        derived("pointwise.masked", signed, NUMBERS | {"keep": 0}, loses_nan=LOSES["masked"]),
    ]


def _call(entry: str, arrays: dict[str, Array]) -> Call:
    return derived(f"pointwise.{entry}", arrays, NUMBERS, loses_nan=LOSES.get(entry, {}))


CASE = OpCase(
    op="pointwise",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=SHAPES,
    bench={"gpt2_124m": {"n": 256 * 768}},
    tolerance=5e-7,
    reason="up to three roundings; exp, log, tanh and powers within 2 units in the last place",
)
