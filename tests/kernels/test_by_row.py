"""Products by row: the bits of a row depend on no other row, nor on how many there are."""

import numpy as np
import pytest

from toynn import _kernels as kernels
from toynn.formats import quants
from toynn.testing.cases.quants import blocks

pytestmark = pytest.mark.kernels

LEVELS = [name for name in kernels.built_levels() if name in kernels.supported_levels()]
N, MOST = 133, 70
PRODUCTS = [("F32", 77), ("F32", 1500), ("Q8_0", 576), ("Q8_0", 2400), ("Q4_0", 96)]
PRODUCTS += [("Q4_K", 1280), ("Q6_K", 512)]


def matrix(rng, rows, columns, type):
    """Random blocks, whose values are about 1, and the same dequantized."""
    if type == "F32":
        w = rng.standard_normal((rows, columns), np.float32)
        return w, w
    elements, _ = quants.BLOCKS[type]
    raw = blocks(rng, quants.TYPES[type], rows * columns // elements).reshape(rows, -1)
    return raw, quants.dequantize(raw, type, (rows, columns))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("precision", ["highest by row", "high by row", "medium by row"])
@pytest.mark.parametrize(
    ("type", "K"),
    [
        ("F32", 8),  # an adapter's second product
        ("F32", 77),
        ("F32", 1500),
        ("Q8_0", 576),
        ("Q8_0", 2400),
        ("Q4_0", 96),
        ("Q4_K", 1280),
        ("Q6_K", 512),
    ],
)
def test_a_row_is_as_if_alone(level, precision, type, K):
    matmul, experts = (kernels.load(op, level) for op in ("matmul", "experts"))
    rng = np.random.default_rng(0)
    w, values = matrix(rng, N, K, type)
    x, b = rng.standard_normal((MOST, K), np.float32), rng.standard_normal(N, np.float32)
    how = {"type": type, "precision": precision}
    whole, back = np.empty((MOST, N), np.float32), np.empty((MOST, K), np.float32)
    matmul.forward(whole, None, x, w, b, activation="gelu_tanh", n_threads=2, **how)
    matmul.backward_input(back, whole, w, n_threads=2, **how)
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    plain = np.empty_like(whole)
    matmul.forward(plain, None, x, w, None, n_threads=1, **how)
    coarse = precision.startswith("medium") and type != "F32" and matmul.multiplies_int8()
    scale = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(values, axis=1)
    assert np.abs(plain - exact).max() < (2e-2 if coarse else 1e-6) * scale.max()
    for first, last in ((0, 1), (3, 5), (0, 3), (1, 5), (9, 17), (2, 34), (5, 69), (0, MOST)):
        M = last - first
        y, dx = np.empty((M, N), np.float32), np.empty((M, K), np.float32)
        rows = np.ascontiguousarray(x[first:last])
        matmul.forward(y, None, rows, w, b, activation="gelu_tanh", **how)
        matmul.backward_input(dx, np.ascontiguousarray(whole[first:last]), w, **how)
        assert y.tobytes() == whole[first:last].tobytes(), (first, last)
        assert dx.tobytes() == back[first:last].tobytes(), (first, last)
        offsets = np.array([0, M], np.int32)
        experts.forward(y, rows, w.reshape(1, N, -1), b[None], offsets, **how)
        matmul.forward(dx := np.empty_like(y), None, rows, w, b, **how)
        assert y.tobytes() == dx.tobytes(), (first, last)


@pytest.mark.parametrize("level", LEVELS)
def test_one_row_in_highest_is_what_generation_computes(level):
    matmul, rng = kernels.load("matmul", level), np.random.default_rng(1)
    w, _ = matrix(rng, N, 576, "Q8_0")
    x, found = rng.standard_normal((1, 576), np.float32), []
    for precision in ("highest", "highest by row"):
        y = np.empty((1, N), np.float32)
        matmul.forward(y, None, x, w, None, type="Q8_0", precision=precision)
        found.append(y.tobytes())
    assert found[0] == found[1]
