"""cross_entropy against -log softmax in float64: integer labels with -100, dense label rows."""

import numpy as np

from toynn.numerics.checks import IGNORED
from toynn.testing.cases._case import Array, Call, Sizes, derived, differentiable, normal, shapes_of

DLOSS = 0.7


def inputs(rng: np.random.Generator, N: int, V: int) -> dict[str, Array]:
    """Return logits, and labels of which the fifth, tenth, ... are ignored."""
    labels = rng.integers(0, V, N).astype(np.int32)
    labels[4::5] = IGNORED
    return {"logits": normal(rng, N, V, scale=3), "labels": labels}


def _dense(rng: np.random.Generator, arrays: dict[str, Array], sizes: Sizes) -> list[Call]:
    """Return calls with dense label rows, which need not sum to 1; every fifth row is zero."""
    labels = rng.random((sizes["N"], sizes["V"]), np.float32) / sizes["V"]
    labels[4::5] = 0
    arrays = {"logits": arrays["logits"], "labels": labels}
    forward = derived("cross_entropy.forward_dense", arrays)
    arrays |= {"dloss": np.array([DLOSS]), **forward.expected}
    return [forward, derived("cross_entropy.backward_dense", arrays)]


CASE = differentiable(
    "cross_entropy",
    inputs,
    more=_dense,
    shapes=shapes_of("N V", "1 1, 37 130, 3 1025, 257 17, 513 3, 6 5003"),
    bench={"gpt2_124m": {"N": 256, "V": 50257}, "bytes": {"N": 2048, "V": 256}},
    tolerance=2e-6,
    reason="exp within 2 ulp, sums of up to 1024 terms in 16 partial sums, lse rounded to float32",
)
