"""swiglu against gate / (1 + exp(-gate)) * up, and the same within a limit."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, Sizes, derived, differentiable, normal, shapes_of

#: gpt-oss's alpha; the model has a limit, too.
ALPHA = 1.702


def _options(sizes: Sizes) -> dict[str, float]:
    return {"alpha": ALPHA if sizes.get("limit") else 1.0, "limit": sizes.get("limit", 0.0)}


def _inputs(rng: np.random.Generator, N: int, F: int, **_: int) -> dict[str, Array]:
    gate, up = normal(rng, 2, N * F)
    gate[::4] *= 16
    return {"gate": gate, "up": up}


def _halves(rng: np.random.Generator, arrays: dict[str, Array], sizes: Sizes) -> list[Call]:
    if sizes.get("limit"):  # halves take no limit
        return []
    N, F = sizes["N"], sizes["F"]
    x = np.hstack([array.reshape(N, F) for array in arrays.values()])
    read: dict[str, Any] = {"x": x, "dy": normal(rng, N, F)}
    return [derived(f"swiglu.halves_{entry}", read) for entry in ("forward", "backward")]


CASE = differentiable(
    "swiglu",
    _inputs,
    options=_options,
    more=_halves,
    shapes=shapes_of("N F", "1 1, 1 37, 0 8, 3 0, 1 4096, 17 241, 1 4100 limit=1"),
    bench={"llama_135m": {"N": 256, "F": 1536}},
    tolerance=2e-7,
    reason="a few roundings; exp within 2 units in the last place",
)
