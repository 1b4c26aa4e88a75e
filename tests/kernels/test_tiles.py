"""The level amx: products of bfloat16 parts in tiles, at each precision.

It runs where the CPU has AMX, and where TOYNN_TILES=software was built on any with AVX512_BF16. The
references: NumPy doing what the manual says of the instruction, bit for bit; float64; a loop of
float32 multiply-adds, which "highest" must not be less exact than. Products here are of more than
2^21 multiply-adds: smaller ones take another way.
"""

import numpy as np
import pytest

import toynn._kernels as kernels
from toynn.formats.quants import TYPES
from toynn.testing.cases import CASES
from toynn.testing.cases.quants import matrix

LEVELS = [name for name in kernels.built_levels() if name in kernels.supported_levels()]

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(
        "amx" not in LEVELS,
        reason="no level amx: neither CPU and Linux have AMX, nor is this TOYNN_TILES=software",
    ),
]

if "amx" in LEVELS:
    matmul, floats = kernels.load("matmul", "amx"), kernels.load("matmul", "avx512")

PARTS = {"highest": 3, "high": 2, "medium": 1}
SPLIT = ("highest", "high")
ENTRIES = ("forward", "backward_input", "backward_weight")
ORDER = {  # which part of A meets which of B, in the order of the tile kernel
    1: [(0, 0)],
    2: [(0, 1), (0, 0), (1, 0)],
    3: [(0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0)],
}


def normal(*shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(entry, a, b, precision="highest", module=None, n_threads=1, c=None):
    """C (M,N) = A (M,K) B (K,N), or C + A B, through one of the three calls."""
    module = module or matmul
    options = {"n_threads": n_threads, "precision": precision}
    out = np.full((len(a), b.shape[1]), np.nan, np.float32) if c is None else c.copy()
    if entry == "forward":
        module.forward(out, None, a, np.ascontiguousarray(b.T), None, **options)
    elif entry == "backward_input":
        module.backward_input(out, a, b, accumulate=c is not None, **options)
    else:
        at = np.ascontiguousarray(a.T)
        module.backward_weight(out, at, b, accumulate=c is not None, **options)
    return out


def error(got, a, b):
    """Distance from the float64 product, as a part of its norm."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return np.linalg.norm(got - exact) / np.linalg.norm(exact)


def rounded(x):
    """float32 of the nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32)


def rounded_away(x):
    """float32 of the nearest bfloat16, ties away from 0."""
    return (x.astype(np.float32).view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32)


def split(x, parts):
    """Parts of x, largest first: each is what rounding left of the one before.

    Several parts are rounded with ties away from 0, a single one with ties to even.
    """
    halves = []
    for _ in range(parts):
        halves.append(rounded(x) if parts == 1 else rounded_away(x))
        x = x - halves[-1]
    return halves


def multiply_add(sums, a, b):
    """sums + a b rounded once: in float64 the product of bfloat16 is exact."""
    return (sums + np.outer(a, b).astype(np.float64)).astype(np.float32)


def by_the_manual(a, b, parts):
    """What tiles make of A B: TDPBF16PS, 32 terms at a time, sums joining C after each pass.

    A pair is terms 2 p and 2 p + 1 of a single part, p and p + 16 of several.
    """
    K = a.shape[1]
    pairs = (
        [(t, t + 1) for t in range(0, 32, 2)] if parts == 1 else [(t, t + 16) for t in range(16)]
    )
    a, b = np.pad(a, ((0, 0), (0, -K % 32))), np.pad(b, ((0, -K % 32), (0, 0)))
    a_parts, b_parts = split(a, parts), split(b, parts)
    c = np.zeros((len(a), b.shape[1]), np.float32)
    for begin in range(0, a.shape[1], 768 // parts):
        sums = np.zeros_like(c)
        for k in range(begin, min(begin + 768 // parts, a.shape[1]), 32):
            for i, j in ORDER[parts]:
                even, odd = np.zeros_like(c), np.zeros_like(c)
                for t, u in pairs:
                    even = multiply_add(even, a_parts[i][:, k + t], b_parts[j][k + t])
                    odd = multiply_add(odd, a_parts[i][:, k + u], b_parts[j][k + u])
                sums += even + odd
        c = sums if begin == 0 else c + sums
    return c


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("precision", PARTS)
def test_tiles_do_what_the_manual_says(entry, precision):
    """Bit for bit: the instruction, the order of products, the split, the packing of each side."""
    K = 257 if precision == "highest" else 450 if precision == "high" else 801
    a, b = normal(70, K), normal(K, 121, seed=4)
    expected = by_the_manual(a, b, PARTS[precision])
    assert product(entry, a, b, precision).tobytes() == expected.tobytes()


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("scaled", ["not", "rows", "terms", "both", "columns"])
@pytest.mark.parametrize("shape", [(161, 207, 64), (129, 131, 127), (40, 66, 1601)], ids=str)
def test_errors(entry, scaled, shape):
    """In norm. highest: at most float32's; high: some 4e-6; medium: that of rounded operands."""
    M, N, K = shape
    a, b = normal(M, K), normal(K, N, seed=4)
    scale = 10 ** np.random.default_rng(5).uniform(-6, 6, max(shape)).astype(np.float32)
    if scaled == "rows":
        a *= scale[:M, None]
    elif scaled == "columns":
        b *= scale[:N]
    elif scaled != "not":
        a *= scale[:K]
    if scaled == "both":
        b /= scale[:K, None]
    loop = np.zeros((M, N), np.float32)
    for k in range(K):
        loop = multiply_add(loop, a[:, k].astype(np.float64), b[k].astype(np.float64))
    assert error(product(entry, a, b), a, b) <= error(loop, a, b)
    assert error(product(entry, a, b, "high"), a, b) <= 1e-5
    medium = product(entry, a, b, "medium")
    assert error(medium, rounded(a), rounded(b)) <= 1e-6
    assert 5e-4 <= error(medium, a, b) <= 5e-3


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_largest_error_of_one_product_of_two_numbers(entry):
    """What parts leave out of x y: 2^-23, 2^-14 and 2^-7 of it at most, before sums are rounded.

    Each sum has one product that is not 0. So its error is what is left out, and some 2^-24.
    """
    rng = np.random.default_rng(3)
    x, y = rng.uniform(1, 2, 512).astype(np.float32), rng.uniform(1, 2, (64, 512))
    a, b = np.zeros((512, 64), np.float32), y.astype(np.float32)
    rows, terms = np.arange(512), np.arange(512) % 64
    a[rows, terms] = x
    exact = x[:, None].astype(np.float64) * b[terms]
    for precision, most, least in (("highest", -23, -26), ("high", -14, -16), ("medium", -7, -8)):
        worst = np.abs(product(entry, a, b, precision) / exact - 1).max()
        assert 2.0**least <= worst <= 2.0**most + 2.0**-24, precision


@pytest.mark.parametrize("precision", PARTS)
@pytest.mark.parametrize("r", range(32))
def test_every_remainder_of_every_size(r, precision):
    M, N, K = 129 + r, 129 + (r * 5 + 3) % 32, 128 + (r * 11 + 7) % 32
    a, b = normal(M, K), normal(K, N, seed=4)
    most = {"highest": 2e-7, "high": 1e-5, "medium": 5e-3}[precision]
    for entry in ENTRIES:
        assert error(product(entry, a, b, precision), a, b) <= most


@pytest.mark.parametrize("precision", PARTS)
@pytest.mark.parametrize("index", range(len(CASES["matmul"].shapes)))
def test_the_case_table_at_each_precision(index, precision):
    case = CASES["matmul"]
    tolerance = {"highest": case.tolerance, "high": 2e-5, "medium": 2e-2}[precision]
    for call in case.calls(np.random.default_rng(7), **case.shapes[index]):
        arrays = {name: array.copy() for name, array in call.arrays.items()}
        getattr(matmul, call.entry)(*arrays.values(), **call.options, precision=precision)
        for name, exact in call.expected.items():
            scale = 1 + np.abs(exact).max(initial=0)
            assert np.abs(arrays[name] - exact).max(initial=0) <= tolerance * scale


@pytest.mark.parametrize("precision", PARTS)
@pytest.mark.parametrize("shape", [(129, 131, 800), (1025, 48, 97), (40, 1000, 513)], ids=str)
def test_threads_agree_bit_for_bit(shape, precision):
    """Also where a panel of each side is out of reach of the parts."""
    M, N, K = shape
    a, b = normal(M, K), normal(K, N, seed=4)
    a[5:9, :40] = np.inf
    b[-30:, -2:] = 1e38
    for entry in ENTRIES:
        one = product(entry, a, b, precision)
        for n_threads in (2, 3):
            assert product(entry, a, b, precision, n_threads=n_threads).tobytes() == one.tobytes()


@pytest.mark.parametrize("precision", PARTS)
def test_accumulation_bias_and_activation(precision):
    a, b, start, bias = normal(130, 900), normal(900, 150, seed=4), normal(130, 150), normal(150)
    bare = product("forward", a, b, precision)
    for entry in ENTRIES[1:]:
        added = product(entry, a, b, precision, c=start)
        np.testing.assert_allclose(added, bare + start, atol=1e-4)
    y, pre = np.empty_like(bare), np.empty_like(bare)
    w = np.ascontiguousarray(b.T)
    matmul.forward(y, pre, a, w, bias, activation="gelu_exact", precision=precision)
    assert pre.tobytes() == (bare + bias).tobytes()
    kernels.load("gelu", "amx").forward(bare.ravel(), pre.ravel(), exact=1)
    np.testing.assert_allclose(y, bare, atol=1e-6)


@pytest.mark.parametrize("precision", PARTS)
@pytest.mark.parametrize("name", [name for name in TYPES if name != "F32"])
@pytest.mark.parametrize("shape", [(150, 140, 768), (60, 700, 1280)], ids=str)
def test_blocks_are_split_while_they_are_packed(name, shape, precision):
    M, N, K = shape
    _, raw, exact = matrix(np.random.default_rng(5), TYPES[name], N, K)
    w, x, dy = exact.astype(np.float32), normal(M, K), normal(M, N, seed=5)
    for n_threads in (1, 3):
        options = {"precision": precision, "n_threads": n_threads}
        y, dx = np.empty_like(dy), np.empty_like(x)
        matmul.forward(y, None, x, raw, None, type=name, **options)
        matmul.backward_input(dx, dy, raw, type=name, **options)
        assert y.tobytes() == product("forward", x, w.T, precision).tobytes()
        assert dx.tobytes() == product("backward_input", dy, w, precision).tobytes()


@pytest.mark.parametrize("precision", SPLIT)
@pytest.mark.parametrize("entry", ENTRIES)
def test_sums_of_fewer_than_64_terms_stay_float32(entry, precision):
    for K, stay in ((63, True), (64, False)):
        a, b = normal(180, K), normal(K, 190, seed=4)
        got, as_floats = product(entry, a, b, precision), product(entry, a, b, module=floats)
        assert (got.tobytes() == as_floats.tobytes()) == stay


def test_highest_leaves_narrow_products_to_floats():
    """Where packing is most of the work: M N / (M + N) below 32."""
    sizes = (33, 1056, False), (32, 1100, True), (1056, 33, False), (1100, 32, True)
    for entry in ENTRIES:
        for M, N, stay in sizes:
            a, b = normal(M, 100), normal(100, N, seed=4)
            got, as_floats = product(entry, a, b), product(entry, a, b, module=floats)
            assert (got.tobytes() == as_floats.tobytes()) == stay
            assert product(entry, a, b, "high").tobytes() != as_floats.tobytes()


def test_medium_is_in_tiles_from_small_sizes_on():
    for (M, N, K), stay in (((32, 32, 16), True), ((32, 33, 31), True), ((20, 26, 32), False)):
        a, b = normal(M, K), normal(K, N, seed=4)
        for entry in ENTRIES:
            got, as_floats = product(entry, a, b, "medium"), product(entry, a, b, module=floats)
            assert (got.tobytes() == as_floats.tobytes()) == stay
            assert stay or got.tobytes() == by_the_manual(a, b, 1).tobytes()


@pytest.mark.parametrize("shape", [(363, 380, 270), (380, 363, 270)], ids=str)
def test_a_large_block_of_c_is_passed_over_once(shape):
    """The smaller side is packed once, with all its terms: the same sums, in the same order."""
    M, N, K = shape
    a, b = normal(M, K), normal(K, N, seed=4)
    expected = by_the_manual(a, b, 3)
    start = normal(M, N, seed=5)
    for entry in ENTRIES:
        for n_threads in (1, 2, 3):
            got = product(entry, a, b, n_threads=n_threads)
            assert got.tobytes() == expected.tobytes()
    a, b = normal(M, 1700), normal(1700, N, seed=4)
    for precision in PARTS:
        bare = product("forward", a, b, precision)
        assert error(bare, a, b) <= {"highest": 2e-7, "high": 1e-5, "medium": 5e-3}[precision]
        for entry in ENTRIES[1:]:
            np.testing.assert_allclose(
                product(entry, a, b, precision, c=start, n_threads=2), bare + start, atol=1e-3
            )
    bias, y = normal(N), np.empty_like(start)
    matmul.forward(y, None, a, np.ascontiguousarray(b.T), bias)
    assert y.tobytes() == (product("forward", a, b) + bias).tobytes()


def test_medium_rounds_short_sums_too():
    a, b = normal(300, 40), normal(40, 190, seed=4)
    for entry in ENTRIES:
        assert error(product(entry, a, b, "medium"), rounded(a), rounded(b)) <= 1e-6


# -- Out of reach of the parts ---------------------------------------------------------------------

INSIDE = [  # the largest of a panel, the largest of the other side
    (2.0**-66, 1),
    (2.0**126, 2.0**-30),
    (2.0**-60, 2.0**-20),  # products of 2^-80
    (2.0**60, 2.0**40),  # products of 2^100
]
OUTSIDE = [
    (np.nextafter(np.float32(2.0**-66), 0), 1),
    (np.nextafter(np.float32(2.0**126), np.inf), 2.0**-30),
    (np.nextafter(np.float32(2.0**-60), 0), 2.0**-20),
    (np.nextafter(np.float32(2.0**60), np.inf), 2.0**40),
]


def with_largest(x, value, where):
    """x times a power of two, but for ``value``, the largest, in one place or several."""
    x = x * np.float32(2.0 ** np.floor(np.log2(value / np.abs(x).max()) - 1))
    x[where] = value
    return x


def border(entry, side, largest, other, precision):
    """One panel of a side, 32 .. 63, has this largest number: is C there what float32 makes of it?

    Elsewhere C must be as if the panel had been ordinary.
    """
    a, b = normal(100, 256), normal(256, 100, seed=4)
    panel = (slice(32, 64), slice(None))
    if side == "A":
        b = with_largest(b, other, np.s_[7, :])  # in each panel
    else:
        panel = panel[::-1]
        a = with_largest(a, other, np.s_[:, 7])
    ordinary = product(entry, a, b, precision)
    changed = a if side == "A" else b
    changed[panel] = with_largest(changed[panel], largest, (20, 30))
    got = product(entry, a, b, precision)
    rest = np.ones(got.shape, bool)
    rest[panel] = False
    assert got[rest].tobytes() == ordinary[rest].tobytes()
    alone = (a[panel], b) if side == "A" else (a, b[panel].copy())
    assert error(got[panel], *alone) <= 1e-5
    return got[panel].tobytes() == product(entry, *alone).tobytes()  # so small: float32


@pytest.mark.parametrize("precision", SPLIT)
@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_both_sides_of_the_border(entry, side, precision):
    for largest, other in INSIDE:
        assert not border(entry, side, largest, other, precision)
    for largest, other in OUTSIDE:
        assert border(entry, side, largest, other, precision)


@pytest.mark.parametrize("precision", SPLIT)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4e38])
def test_numbers_that_have_no_parts_do_what_they_do_in_float32(value, precision):
    a, b = normal(100, 300), normal(300, 100, seed=4)
    for entry in ENTRIES:
        ordinary = product(entry, a, b, precision)
        wild = a.copy()
        wild[40, 290] = value
        with np.errstate(invalid="ignore"):
            got = product(entry, wild, b, precision)
        as_floats = product(entry, wild, b, module=floats)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(as_floats))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(as_floats))
        assert np.isnan(got).sum() in (0, 100), "the others of the row, no other row"
        rest = np.delete(got, 40, axis=0)
        np.testing.assert_allclose(rest, np.delete(ordinary, 40, axis=0), atol=1e-3)


@pytest.mark.parametrize("precision", SPLIT)
def test_small_numbers_beside_large_ones_stay_in_tiles(precision):
    """As in the gradient of logits: a few entries near 1, the others next to nothing, or 0."""
    a, b = normal(100, 256), normal(256, 100, seed=4)
    a[:, 1::2] *= np.float32(1e-30)
    a[:, 2::8] = 0
    for entry in ENTRIES:
        got, as_floats = product(entry, a, b, precision), product(entry, a, b, module=floats)
        assert not (got == as_floats).all(axis=1).any()
        assert error(got, a, b) <= (2e-7 if precision == "highest" else 1e-5)


@pytest.mark.parametrize("precision", SPLIT)
def test_only_the_terms_concerned_leave_the_tiles(precision):
    """One pass of several: the sums of the others, and what C held, are not lost."""
    a, b, start = normal(100, 1000), normal(1000, 100, seed=4), normal(100, 100, seed=5)
    a[40:50, 400:500] = 1e30
    b[400:500] *= np.float32(1e-30)
    for entry in ENTRIES[1:]:
        got = product(entry, a, b, precision, c=start)
        assert error(got - start, a, b) <= 1e-5


def test_panels_of_zeros():
    a, b = normal(100, 300), normal(300, 100, seed=4)
    a[32:64] = 0
    for entry in ENTRIES:
        assert not product(entry, a, b)[32:64].any()
    b[7, 9] = 3.4e38  # its nearest bfloat16 is infinite
    for entry in ENTRIES:
        assert not product(entry, a, b)[32:64].any()
    b[7, 9] = np.inf
    for entry in ENTRIES:
        assert np.isnan(product(entry, a, b)[32:64, 9]).all(), "0 times infinity"


# -- The level -------------------------------------------------------------------------------------


def test_a_level_takes_from_the_one_below_what_it_has_not():
    assert kernels.load("matmul", "amx").__name__ == "toynn._kernels.amx.matmul"
    assert kernels.load("rmsnorm", "amx") is kernels.load("rmsnorm", "avx512")
    assert matmul.multiplies_tiles() and not floats.multiplies_tiles()
