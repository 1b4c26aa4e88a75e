"""latent against slices, concatenation and products by head, in float64.

With a ``type`` (GGUF's number), w holds random quantized blocks.
"""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference, shapes_of
from toynn.testing.cases.quants import matrix

OTHERS = {"x": "other columns are no part of y"}
ROWS = {"w": "other rows are no part of y"}


def _inputs(rng: np.random.Generator, N: int, H: int, G: int, W: int, **_: Any) -> dict[str, Array]:
    return {"x": normal(rng, N, H, W), "b": normal(rng, N, G, 3)}


def _sizes(sizes: dict[str, int]) -> dict[str, int]:
    """Return the sizes of columns and of join, all of which are given."""
    return {"R": 3, "P": sizes["D"], **sizes}


def _function(arrays: dict[str, Array], **sizes: int) -> Array:
    """Take columns of each head, and put b behind them."""
    part = reference("latent.columns", arrays, sizes)["y"]
    y: Array = reference("latent.join", {"a": part, **arrays}, _sizes(sizes))["y"]
    return y


def _gradients(arrays: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    joined = reference("latent.join_backward", {"dy": dy}, _sizes(sizes))
    dx = reference("latent.columns_backward", {"dy": joined["da"]}, sizes)
    return {"dx": dx["dx"], "db": joined["db"]}


def _calls(
    rng: np.random.Generator, N: int, H: int, G: int, W: int, D: int, C: int, **more: Any
) -> list[Call]:
    sizes = {"N": N, "H": H, "G": G, "W": W, "D": D, "C": C, "first": more.get("first", 0)}
    arrays = _inputs(rng, **sizes)
    arrays |= {"a": normal(rng, N, H, D), "dy": normal(rng, N, H, D)}
    how: dict[str, Any] = {"loses_nan": ROWS}
    if kind := more.get("type", 0):
        how["type"], arrays["w"], exact = matrix(rng, kind, G * W, C)
        how["exact"] = {"w": exact.reshape(G * W, C)}
    else:
        arrays["w"] = normal(rng, G * W, C, scale=0.3)
    into, out = ({**arrays, "x": normal(rng, N, H, width)} for width in (D, C))
    joined = {"dy": normal(rng, N, H, D + 3)}
    return [
        derived("latent.columns", arrays, sizes, loses_nan=OTHERS),
        derived("latent.columns_backward", arrays, sizes),
        derived("latent.join", arrays, _sizes(sizes)),
        derived("latent.join_backward", joined, _sizes(sizes)),
        derived("latent.absorb", into, sizes, **how),
        derived("latent.expand", out, sizes, **how),
    ]


CASE = OpCase(
    op="latent",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of(
        "N H G W D C",
        "1 1 1 1 1 1, 7 6 2 9 5 11 first=4",
        "65 3 3 40 33 70 first=2",  # one past ROWS
        "2 4 1 8 8 600",  # more terms than a pass takes
        "0 2 1 4 2 3",
        "3 4 4 6 3 64 first=3 type=8",  # Q8_0
        "3 2 2 6 3 256 first=3 type=12",  # Q4_K
    ),
    bench={
        "deepseek_v2_lite": {"N": 64, "H": 16, "G": 16, "W": 256, "D": 128, "C": 512},
        "decode": {"N": 1, "H": 16, "G": 16, "W": 256, "D": 128, "C": 512},
    },
    tolerance=2e-6,
    reason="float32 sums of up to 600 products",
)
