"""distillation against the divergence in float64, for each form of it, and for no teacher."""

from typing import Any

import numpy as np

from toynn.testing.cases import chunked_cross_entropy as plain
from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference, shapes_of
from toynn.testing.cases.cross_entropy import DLOSS
from toynn.testing.cases.cross_entropy import inputs as labelled

OP = "distillation"
#: beta and temperature of a shape, by its number of teacher's tokens
FORMS = ((0.5, 0.9), (0.0, 1.0), (1.0, 2.0))


def _options(K: int) -> dict[str, Any]:
    return dict(zip(("beta", "temperature"), FORMS[K % len(FORMS)], strict=True))


def inputs(rng: np.random.Generator, N: int, V: int, K: int) -> dict[str, Array]:
    """Return logits, labels, and the K most likely tokens of another model with the rest."""
    arrays = labelled(rng, N, V)
    other = normal(rng, N, V, scale=3).astype(np.float64)
    log_p = other - np.log(np.exp(other).sum(axis=1, keepdims=True))
    ids = np.sort(np.argsort(-log_p, axis=1)[:, :K], axis=1).astype(np.int32)
    arrays |= {"ids": ids, "log_p": np.take_along_axis(log_p, ids, axis=1).astype(np.float32)}
    np.put_along_axis(log_p, ids, -np.inf, axis=1)
    with np.errstate(divide="ignore"):
        arrays["log_rest"] = np.log(np.exp(log_p).sum(axis=1)).astype(np.float32)
    return arrays | {"weight": np.full(1, 0.7, np.float32)}


def _function(arrays: dict[str, Array], K: int, **_: Any) -> Array:
    each = reference(f"{OP}.forward", arrays, _options(K))
    rows = {"rows": plain.rows_of(arrays["labels"])}
    return reference("chunked_cross_entropy.mean", {**each, **rows}, {})["loss"]


def _gradients(arrays: dict[str, Array], dy: Array, K: int, **_: Any) -> dict[str, Array]:
    read = {**arrays, "dloss": dy, "rows": plain.rows_of(arrays["labels"])}
    return {"dlogits": reference(f"{OP}.backward", read, _options(K))["dlogits"]}


def _calls(rng: np.random.Generator, N: int, V: int, K: int) -> list[Call]:
    arrays = inputs(rng, N, V, K)
    arrays |= {"dloss": np.array([DLOSS]), "rows": plain.rows_of(arrays["labels"])}
    alone = arrays | {"weight": np.zeros(1, np.float32)}
    unread = dict.fromkeys(("log_p", "log_rest"), "with weight 0 nobody reads the teacher")
    return [
        *(derived(f"{OP}.{entry}", arrays, **_options(K)) for entry in ("forward", "backward")),
        derived(f"{OP}.backward", alone, loses_nan=unread, **_options(K)),
    ]


CASE = OpCase(
    op=OP,
    inputs=inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of("N V K", "1 1 1, 33 130 6, 3 1025 7, 9 17 17, 5 40 8, 2 5003 64"),
    bench={"smollm2_135m": {"N": 256, "V": 49152, "K": 64}},
    tolerance=4e-6,
    reason="exp within 2 ulp, sums of up to 1024 terms in 16 partial sums; inputs are logarithms",
)
