"""Sums of the squares of a gradient, by tile: a product leaves them, the norm makes up for them.

The reference is float64 sums; and the norm's own sums of the same tiles, bit for bit.
"""

import numpy as np
import pytest

import toynn._kernels as kernels

LEVELS = [name for name in kernels.built_levels() if name in kernels.supported_levels()]
FIRST, ROWS, COLUMNS, SUMS, VALID, TOTAL = range(6)  # of Squares in _squares.pxd
CONTROL = np.array([0.5, 0.25], np.float32)

pytestmark = [pytest.mark.kernels, pytest.mark.parametrize("level", LEVELS)]


class Table:
    """Gradients (N, K) side by side in g, with gaps before, between and behind them."""

    def __init__(self, level, shapes, gaps):
        self.norm = kernels.load("grad_norm", level)
        self.fields = np.zeros((len(shapes), 6), np.int64)
        self.all = np.array([len(shapes), self.fields.ctypes.data])
        self.sums, first = [], 0
        for fields, (N, K), gap in zip(self.fields, shapes, gaps, strict=False):
            first += gap
            self.sums.append(np.full(self.norm.tiles(N, K), np.nan, np.float32))
            fields[:4] = first, N, K, self.sums[-1].ctypes.data
            first += N * K
        self.g = np.random.default_rng(5).standard_normal(first + gaps[-1], np.float32)

    def gradient(self, i):
        first, N, K = self.fields[i, :SUMS]
        return self.g[first : first + N * K].reshape(N, K)

    def kept(self, i):
        return self.fields[i].ctypes.data

    def total(self, i):
        return self.fields[i : i + 1, TOTAL].view(np.float64).item()

    def forward(self, n_threads=1):
        norm, scale = np.empty((2, 1), np.float32)
        self.norm.forward(
            norm, scale, self.g, CONTROL, n_threads=n_threads, kept=self.all.ctypes.data
        )
        return norm[0], scale[0]


def squares(x):
    return float((x.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize(
    "M, N, K",
    [
        (300, 96, 160),  # whole tiles at each level
        (257, 101, 173),  # and none
        (140, 700, 40),  # a larger A than B, and the other way round
        (140, 40, 700),
        (600, 33, 1030),
        (1100, 400, 310),  # several passes
    ],
)
def test_a_product_leaves_the_sums_of_the_norm(level, M, N, K, precision, threads):
    matmul, rng = kernels.load("matmul", level), np.random.default_rng(M)
    dy, x = rng.standard_normal((M, N), np.float32), rng.standard_normal((M, K), np.float32)
    table = Table(level, [(N, K)], [0, 0])
    dw, left = table.gradient(0), []
    for accumulate in (False, True):
        table.sums[0][:] = np.nan
        options = {"accumulate": accumulate, "n_threads": threads, "precision": precision}
        matmul.backward_weight(dw, dy, x, kept=table.kept(0), **options)
        # At level amx what is in no tiles is cut otherwise: the norm sums it again.
        assert table.fields[0, VALID] or level == "amx"
        if table.fields[0, VALID]:
            left = table.sums[0].copy()
            assert left.astype(np.float64).sum() == pytest.approx(squares(dw), rel=1e-6)
            norm = table.forward()
            table.fields[0, VALID] = False
            table.sums[0][:] = np.nan
            assert table.forward(threads) == norm
            assert np.array_equal(table.sums[0], left)
    plain = np.empty_like(dw)
    for accumulate in (False, True):
        matmul.backward_weight(plain, dy, x, **options | {"accumulate": accumulate})
    assert np.array_equal(plain, dw)


def test_what_is_in_tiles_leaves_sums(level):
    """At level amx too: there is a product in each precision that the norm need not read."""
    matmul, table = kernels.load("matmul", level), Table(level, [(128, 192)], [0, 0])
    dy, x = np.ones((256, 128), np.float32), np.ones((256, 192), np.float32)
    for precision in ("highest", "high", "medium"):
        table.fields[0, VALID] = False
        matmul.backward_weight(table.gradient(0), dy, x, precision=precision, kept=table.kept(0))
        assert table.fields[0, VALID]


@pytest.mark.parametrize("M", [0, 1, 20])
def test_a_product_that_is_not_packed_leaves_none(level, M):
    matmul, table = kernels.load("matmul", level), Table(level, [(40, 64)], [0, 0])
    table.fields[0, VALID] = True  # of an earlier run
    dy, x = np.ones((M, 40), np.float32), np.ones((M, 64), np.float32)
    matmul.backward_weight(table.gradient(0), dy, x, kept=table.kept(0))
    assert not table.fields[0, VALID]
    assert table.forward()[0] == pytest.approx(0.25 * M * np.sqrt(40 * 64), rel=1e-6)


@pytest.mark.parametrize(
    "shapes, gaps",
    [
        ([(96, 160)], [0, 0]),
        ([(96, 160)], [50000, 3]),
        ([(33, 70), (101, 173), (400, 77)], [16384, 7, 0, 40001]),
        ([(33, 70), (101, 173)], [0, 100, 16385]),
    ],
)
def test_the_norm_is_right_whatever_lies_between(level, shapes, gaps):
    table = Table(level, shapes, gaps)
    expected = 0.25 * np.sqrt(squares(table.g))
    norm, scale = table.forward()
    assert norm == pytest.approx(expected, rel=1e-6)
    assert scale == pytest.approx(0.25 * 0.5 / expected, rel=1e-6)
    for i in range(len(shapes)):
        assert table.total(i) == pytest.approx(squares(table.gradient(i)), rel=1e-6)
    for threads in (2, 3, 7):
        table.fields[:, VALID] = False
        assert table.forward(threads) == (norm, scale)
        assert table.forward(threads) == (norm, scale)  # valid now


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("where", [0, 5000, 5001, 5000 + 96 * 160 - 1, -1])
def test_scale_is_nan_where_a_gradient_is_not_finite(level, bad, where):
    table = Table(level, [(96, 160)], [5000, 20])
    table.g[where] = bad
    norm, scale = table.forward()
    assert not np.isfinite(norm) and np.isnan(scale)


def test_a_product_that_overflows_leaves_sums_that_are_not_finite(level):
    matmul, table = kernels.load("matmul", level), Table(level, [(128, 192)], [0, 0])
    dy, x = np.ones((256, 128), np.float32), np.ones((256, 192), np.float32)
    dy[3, 77], x[3, 100] = 1e30, 1e30
    with np.errstate(over="ignore"):
        matmul.backward_weight(table.gradient(0), dy, x, kept=table.kept(0))
    norm, scale = table.forward()
    assert not np.isfinite(norm) and np.isnan(scale)


def test_a_gradient_one_panel_wide_or_high_has_no_tiles(level):
    norm = kernels.load("grad_norm", level)
    assert norm.tiles(4, 1000) == norm.tiles(1000, 4) == 0
    assert norm.tiles(1000, 1000) > 0
