"""What the case table cannot say of matmul: missing arrays, refusals, scratch memory."""

import numpy as np
import pytest

from toynn._kernels import matmul
from toynn._kernels import quants as kernel
from toynn.formats import quants
from toynn.numerics.precision import ALL_PRECISIONS
from toynn.testing.cases.quants import blocks

pytestmark = pytest.mark.kernels


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def scratch(entry, M, N, K, n_threads=1):
    sizes = {"M": M, "N": N, "K": K, "precision": 0, "activation": 0, "type": 0}
    return getattr(matmul, entry).workspace(sizes, n_threads)


@pytest.mark.parametrize("sizes", [(9, 10, 11), (150, 160, 170)])
def test_bias_and_pre_may_be_missing(sizes):
    M, N, K = sizes
    x, w, b = normal(M, K), normal(N, K), normal(N)
    y, pre, bare = (np.full((M, N), np.nan, np.float32) for _ in range(3))
    matmul.forward(bare, None, x, w, None)
    matmul.forward(y, pre, x, w, np.zeros_like(b))
    assert bare.tobytes() == y.tobytes() == pre.tobytes()
    matmul.forward(y, pre, x, w, b, activation="gelu_exact")
    matmul.forward(bare, None, x, w, b, activation="gelu_exact")
    assert bare.tobytes() == y.tobytes() != pre.tobytes()


def test_nan_stays_in_its_row():
    x, w = normal(150, 170), normal(160, 170)
    x[77, 5] = np.nan
    y = np.zeros((150, 160), np.float32)
    matmul.forward(y, None, x, w, None, activation="gelu_tanh", n_threads=2)
    assert np.isnan(y[77]).all()
    assert np.isnan(y).sum() == 160


@pytest.mark.parametrize("size", range(1, 36))
def test_every_small_size(size):
    """All heights of a tile, and both sides of its width."""
    x, w, dy = normal(size, 7), normal(35, 7), normal(size, 35)
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)
    matmul.forward(y, None, x, w, None)
    matmul.backward_input(dx, dy, w)
    matmul.backward_weight(dw, dy, x)
    np.testing.assert_allclose(y, x @ w.T, atol=1e-4)
    np.testing.assert_allclose(dx, dy @ w, atol=1e-4)
    np.testing.assert_allclose(dw, dy.T @ x, atol=1e-4)


def test_scratch_memory_is_small_and_none_for_small_products():
    assert scratch("forward", 32, 64, 64) == 0
    for entry in ("forward", "backward_input", "backward_weight"):
        assert 0 < scratch(entry, 1024, 50257, 768, n_threads=2) < 8 << 20


def test_refusals_say_what_was_needed():
    x, w, y = normal(3, 4), normal(5, 4), normal(3, 5)
    with pytest.raises(ValueError, match=r"y\[M N\] needs shape \(3, 5\).*got y \(5, 3\)"):
        matmul.forward(normal(5, 3), None, x, w, None)
    with pytest.raises(ValueError, match=r"activation needs one of none, .*'relu'"):
        matmul.forward(y, None, x, w, None, activation="relu")
    with pytest.raises(ValueError, match="n_threads must be 1 to"):
        matmul.backward_input(np.empty_like(x), y, w, n_threads=0)


@pytest.mark.parametrize("entry", ["forward", "backward_input", "backward_weight"])
@pytest.mark.parametrize(
    "shape", [(64, 512, 96), (1024, 768, 768), (1024, 50257, 768), (300, 700, 1024)]
)
def test_scratch_memory_serves_any_smaller_number_of_threads(entry, shape):
    """A run may use fewer threads than were planned; their groups of panels may be larger."""
    needs = [scratch(entry, *shape, n_threads=n) for n in range(1, 33)]
    assert needs == sorted(needs)


@pytest.mark.parametrize("type", ["F32", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("precision", ALL_PRECISIONS)
def test_any_number_of_threads_takes_blocks_of_the_same_bits(type, precision):
    """More threads than panels, and fewer; several passes; panels that share quantized blocks."""
    M, N, K = 130, 200, 1024
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((M, K), np.float32), rng.standard_normal((M, N), np.float32)
    w = rng.standard_normal((N, K), np.float32)
    if type != "F32":
        elements, _ = quants.BLOCKS[type]
        w = blocks(rng, quants.TYPES[type], N * K // elements).reshape(N, -1)
    how = {"precision": precision, "type": type}

    def compute(n_threads):
        y, dx, dw = np.empty((M, N), np.float32), np.empty_like(x), np.empty((N, K), np.float32)
        matmul.forward(y, None, x, w, None, n_threads=n_threads, **how)
        matmul.backward_input(dx, dy, w, n_threads=n_threads, **how)
        coarse = "medium" if precision == "int8" else precision
        matmul.backward_weight(dw, dy, x, precision=coarse, n_threads=n_threads)
        return [each.tobytes() for each in (y, dx, dw)]

    one = compute(1)
    for n_threads in (2, 3, 7, 33):
        assert compute(n_threads) == one, n_threads


@pytest.mark.parametrize("type", sorted(set(quants.BLOCKS) - {"F32"}))
@pytest.mark.parametrize("M", [1, 2, 3, 4, 5])
def test_few_rows_by_quantized_weights_have_the_bits_of_their_floats(type, M):
    """Most types are dequantized first, four in registers; N is no multiple of four rows."""
    N, K = 7, 768
    rng = np.random.default_rng(M)
    elements, _ = quants.BLOCKS[type]
    raw = blocks(rng, quants.TYPES[type], N * K // elements)
    x, w = rng.standard_normal((M, K), np.float32), np.empty(N * K, np.float32)
    kernel.dequantize(w, raw.ravel(), quants.TYPES[type])
    y, want = np.empty((M, N), np.float32), np.empty((M, N), np.float32)
    how = {"precision": "highest by row"}
    matmul.forward(y, None, x, raw.reshape(N, -1), None, type=type, **how)
    matmul.forward(want, None, x, w.reshape(N, K), None, **how)
    assert y.tobytes() == want.tobytes()
