"""Skinny products of quantized weights in "medium": their codes are multiplied by x in 8 bits.

The reference rounds x in NumPy, block by block, and multiplies by the exact blocks in float64: what
is left is the error of adding up in float32.
"""

import numpy as np
import pytest

import toynn._kernels as kernels
from toynn import Session, ops
from toynn._kernels import experts, matmul
from toynn.formats import quants
from toynn.formats.quants import TYPES
from toynn.testing.cases.quants import matrix

TERMS = {"Q4_0": 32, "Q8_0": 32, "Q4_K": 256, "Q6_K": 256}  # of a block
INT8 = tuple(TERMS)

GEMV_ROWS = 16  # rows, at most

LEVELS = [name for name in kernels.built_levels() if name in kernels.supported_levels()]
OTHERS = [kernels.load("matmul", name) for name in LEVELS if name != kernels.level]
OTHERS = [module for module in OTHERS if module.multiplies_int8()]

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(
        not matmul.multiplies_int8(),
        reason="this CPU, or the ISA level in use, has no AVX2 with F16C: blocks are dequantized",
    ),
]


def normal(*shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def forward(x, raw, type, precision="medium", bias=None, n_threads=1, module=matmul):
    y = np.empty((len(x), len(raw)), np.float32)
    module.forward(y, None, x, raw, bias, type=type, precision=precision, n_threads=n_threads)
    return y


def rounded(x):
    """float64 of x in 8 bits: blocks of 32, the largest of each is 127 steps."""
    blocks = x.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    steps = np.rint(blocks.astype(np.float64) / np.where(scale > 0, scale, 1))
    return (steps * scale).reshape(x.shape)


@pytest.mark.parametrize("M", [1, 2, 3, 7, GEMV_ROWS])
@pytest.mark.parametrize("shape", [(70, 256), (33, 768), (1, 2048)], ids=str)
@pytest.mark.parametrize("type", INT8)
def test_products_are_those_of_rounded_rows(type, shape, M):
    N, K = shape
    _, raw, exact = matrix(np.random.default_rng(5), TYPES[type], N, K)
    x = normal(M, K) * (10.0 ** np.arange(M)).astype(np.float32)[:, None]
    x[:, 32:64] = 0
    y = forward(x, raw, type)
    assert_of_rounded_rows(y, x, exact)
    whole = x @ exact.T
    scale = np.abs(rounded(x)) @ np.abs(exact).T
    assert 1e-5 * np.linalg.norm(scale) <= np.linalg.norm(y - whole) + 1e-5
    assert np.linalg.norm(y - whole) <= 1e-2 * np.linalg.norm(scale)
    for module in OTHERS:
        assert forward(x, raw, type, module=module).tobytes() == y.tobytes()


def assert_of_rounded_rows(y, x, exact):
    expected, scale = rounded(x) @ exact.T, np.abs(rounded(x)) @ np.abs(exact).T
    # A quotient that lies on half a step may go either way in float32: one step of one number.
    assert np.abs(y - expected).max(initial=0) <= 1e-3 * scale.max()
    assert np.linalg.norm(y - expected) <= 1e-4 * np.linalg.norm(scale)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("type", INT8)
def test_the_largest_sums_do_not_overflow(type, sign):
    """All codes as large as they may be, of one sign or of either: sums of x = 127 steps, exactly.

    d and m are powers of two, so that nothing is rounded.
    """
    codes = {  # of each type, bytes of a block: d (and m) 1, then codes and factors
        "Q8_0": [b"\0\x3c" + b"\x80" * 32, b"\0\x3c" + b"\x7f" * 32],
        "Q4_0": [b"\0\x3c" + b"\xff" * 16, b"\0\x3c" + b"\0" * 16],
        "Q4_K": [b"\0\x3c\0\x3c" + b"\xff" * 140, b"\0\x3c\0\x3c" + b"\xff" * 12 + b"\0" * 128],
        "Q6_K": [
            lower + upper + a * 16 + b"\0\x3c"
            for lower, upper in ((b"\xff" * 128, b"\xff" * 64), (b"\0" * 128, b"\0" * 64))
            for a in (b"\x80", b"\x7f")
        ],
    }[type]
    raw = np.stack([np.frombuffer(block * (256 // TERMS[type]), np.uint8) for block in codes])
    exact = quants.dequantize(raw.reshape(-1), type, (len(raw), 256)).astype(np.float64)
    x = np.full((5, 256), 127 * sign, np.float32)
    x[1, ::2] *= -1  # neighbours cancel out
    x[2, 32:64] *= -1
    assert (forward(x, raw, type) == x @ exact.T).all()


@pytest.mark.parametrize("type", INT8)
def test_experts_multiply_their_few_rows_so(type):
    """Of 1, 3, 16 rows, and of none; and in float32 of 17."""
    counts = (1, 0, 3, GEMV_ROWS, GEMV_ROWS + 1)
    E, M, N, K = len(counts), sum(counts), 300, 512
    offsets = np.cumsum([0, *counts], dtype=np.int32)
    _, raw, exact = matrix(np.random.default_rng(5), TYPES[type], E * N, K)
    w, exact, x, b = raw.reshape(E, N, -1), exact.reshape(E, N, K), normal(M, K), normal(E, N)
    y, other, floats = np.empty((3, M, N), np.float32)
    experts.forward(y, x, w, b, offsets, type=type, precision="medium")
    experts.forward(other, x, w, b, offsets, type=type, precision="medium", n_threads=3)
    experts.forward(floats, x, w, b, offsets, type=type)
    assert other.tobytes() == y.tobytes()
    for e in (0, 2, 3):
        rows = slice(offsets[e], offsets[e + 1])
        assert_of_rounded_rows(y[rows] - b[e], x[rows], exact[e])
        assert not np.array_equal(y[rows], floats[rows])
    if not (matmul.multiplies_pairs() or matmul.multiplies_tiles()):
        assert y[offsets[4] :].tobytes() == floats[offsets[4] :].tobytes()


@pytest.mark.parametrize("type", INT8)
def test_only_medium_rounds_and_threads_agree(type):
    _, raw, exact = matrix(np.random.default_rng(5), TYPES[type], 100, 512)
    x, bias = normal(2, 512), normal(100)
    exact_y = forward(x, raw, type, "highest")
    np.testing.assert_allclose(exact_y, x @ exact.T, atol=1e-4 * np.abs(x @ exact.T).max())
    y = forward(x, raw, type)
    assert y.tobytes() != exact_y.tobytes()
    for n_threads in (2, 3):
        assert forward(x, raw, type, n_threads=n_threads).tobytes() == y.tobytes()
    assert forward(x[:1], raw, type).tobytes() == y[:1].tobytes()
    assert forward(x, raw, type, bias=bias).tobytes() == (y + bias).tobytes()


@pytest.mark.parametrize("type", [name for name in TYPES if name not in (*INT8, "F32")])
def test_other_types_stay_float32(type):
    _, raw, _ = matrix(np.random.default_rng(5), TYPES[type], 40, 512)
    x = normal(2, 512)
    assert forward(x, raw, type).tobytes() == forward(x, raw, type, "highest").tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("type", INT8)
def test_what_is_not_finite_gives_nan_in_its_row(type, value):
    _, raw, _ = matrix(np.random.default_rng(5), TYPES[type], 40, 256)
    x = normal(2, 256)
    ordinary = forward(x, raw, type)
    x[1, 200] = value
    y = forward(x, raw, type)
    assert np.isnan(y[1]).all() and y[0].tobytes() == ordinary[0].tobytes()


def test_a_program_has_room_for_rows_that_are_fewer_than_planned():
    """Few of many rows: scratch memory is planned for either way."""
    for M in (1, 3, 4, 500):
        few = min(M, GEMV_ROWS) * (2048 + 2 * 4 * 64)
        sizes = {"M": M, "N": 64, "K": 2048, "precision": 2, "activation": 0, "type": TYPES["Q8_0"]}
        assert matmul.forward.workspace(sizes) >= few
        assert experts.forward.workspace({"E": 4, **sizes, "N": 2}) >= few
    assert matmul.forward.workspace({**sizes, "M": 1, "precision": 0}) == 0


def test_a_tape_in_medium_multiplies_so():
    raw = quants.quantize(normal(48, 256), "Q8_0")
    s = Session(matmul_precision="medium")
    x, w = s.input("x", (1, 256)), s.mapped("w", raw, "q8_0", (48, 256))
    y = s.output(ops.linear(s, x, w))
    s.finalize_weights()
    s.realize()
    s.upload(x, normal(1, 256))
    s.run("loss")
    assert s.download(y).tobytes() == forward(normal(1, 256), raw, "Q8_0").tobytes()
