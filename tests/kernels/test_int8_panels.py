"""Products by quantized weights in "int8": both sides are rounded to 8 bits while they are packed.

The reference rounds both sides in NumPy, 256 terms at a time, and adds up integers: what is left is
the error of adding up 2 or 3 passes in float32.
"""

import hashlib
import itertools
import subprocess
import sys

import numpy as np
import pytest

import toynn
import toynn._kernels as kernels
from toynn import Session, ops
from toynn._kernels import experts, matmul
from toynn.errors import ConfigError
from toynn.formats import quants
from toynn.formats.quants import TYPES
from toynn.testing.cases.quants import matrix

PASS = 256  # terms that share a scale
BLOCKS = [name for name in TYPES if name not in ("F32", "F16", "BF16")]
#: Rows, outputs, inputs: whole and partial panels on both sides, passes of all lengths.
#: Some columns are in a whole panel at one level and in an edge at another.
SHAPES = [(140, 96, 256), (131, 310, 576), (33, 1045, 320), (257, 378, 800)]

needed = pytest.mark.skipif(
    not matmul.multiplies_quads(),
    reason="the ISA level in use has no products of 8-bit codes on this CPU",
)
#: Other levels that this CPU multiplies quads at.
LEVELS = [name for name in kernels.built_levels() if name in kernels.supported_levels()]
OTHERS = [kernels.load("matmul", name) for name in LEVELS if name != kernels.level]
OTHERS = [module for module in OTHERS if module.multiplies_quads()]
pytestmark = [pytest.mark.kernels]


def normal(*shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def forward(x, raw, type, precision="int8", bias=None, n_threads=1, module=matmul):
    y = np.empty((len(x), len(raw)), np.float32)
    module.forward(y, None, x, raw, bias, type=type, precision=precision, n_threads=n_threads)
    return y


def backward(dy, raw, type, K, precision="int8", n_threads=1, module=matmul):
    dx = np.empty((len(dy), K), np.float32)
    module.backward_input(dx, dy, raw, type=type, precision=precision, n_threads=n_threads)
    return dx


def chances(shape):
    """From -1/2 to 1/2: where dy is rounded up or down, by row and term (gemm_int8.h)."""
    rows, terms = (np.arange(n, dtype=np.uint32) for n in shape)
    h = rows[:, None] * np.uint32(0x9E3779B1) + terms * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x7FEB352D)
    h = (h ^ h >> np.uint32(15)) * np.uint32(0x846CA68B)
    return ((h ^ h >> np.uint32(16)) >> np.uint32(16)) / 65536 + (0.5 / 65536 - 0.5)


def rounded(x, moved=0):
    """Codes of x (rows, terms), and the scale of each pass of a row."""
    x, codes, scales = x.astype(np.float32), [], []
    moved = np.broadcast_to(moved, x.shape)
    for k in range(0, x.shape[1], PASS):
        part, by = x[:, k : k + PASS], moved[:, k : k + PASS]
        most = np.abs(part).max(1, keepdims=True)
        up = np.where(most > 0, np.float32(127) / np.where(most > 0, most, 1), 0)
        exact = part.astype(np.float64) * up.astype(np.float32) + by
        codes.append(np.rint(exact.astype(np.float32)).clip(-127, 127).astype(np.int64))
        scales.append(most / np.float32(127))
    return codes, scales


def of_integers(x, w, moved=0):
    """x w^T of the rounded sides, in float64, and the sum of the passes' magnitudes."""
    (q, s), (r, t) = rounded(x, moved), rounded(w)
    each = [(q @ r.T) * s.astype(np.float64) * t.T for q, s, r, t in zip(q, s, r, t, strict=True)]
    return sum(each), sum(map(np.abs, each))


def bound(x, w, steps=0.5):
    """How far rounding may move x w^T, if x moves by so many steps s and w by half a step t.

    In each pass: steps s |w| + t/2 |x| + n steps s t/2, added up.
    """
    total = 0
    for k in range(0, x.shape[1], PASS):
        a, b = np.abs(x[:, k : k + PASS]), np.abs(w[:, k : k + PASS])
        s, t = (m.max(1, keepdims=True) / 127 for m in (a, b))
        total = total + steps * s * b.sum(1) + t.T / 2 * a.sum(1, keepdims=True)
        total += a.shape[1] * steps * s * t.T / 2
    return total


@needed
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("type", ["Q8_0", "Q5_1", "IQ4_NL"])
def test_products_are_those_of_integers(type, shape):
    M, N, K = shape
    _, raw, exact = matrix(np.random.default_rng(5), TYPES[type], N, K)
    x, dy = normal(M, K), normal(M, N, seed=4)
    x[:, 32:64] *= 1e3
    for y, a, w, moved in (
        (forward(x, raw, type), x, exact, 0.0),
        (backward(dy, raw, type, K), dy, exact.T, chances(dy.shape)),
    ):
        expected, size = of_integers(a, w, moved)
        assert np.abs(y - expected).max() <= 4e-7 * size.max()
        most = bound(a, w, 1 if a is dy else 0.5) * 1.001
        assert (np.abs(y - a.astype(np.float64) @ w.T) <= most).all()


@needed
@pytest.mark.parametrize("type", BLOCKS)
def test_every_type_of_blocks(type):
    M, N, K = 60, 256, 768
    _, raw, exact = matrix(np.random.default_rng(6), TYPES[type], N, K)
    x, dy = normal(M, K), normal(M, N, seed=4)
    for y, a, w, moved in (
        (forward(x, raw, type), x, exact, 0.0),
        (backward(dy, raw, type, K), dy, exact.T, chances(dy.shape)),
    ):
        expected, size = of_integers(a, w, moved)
        # Where a weight lies on half a step in float32, its code may be one step off.
        assert np.linalg.norm(y - expected) <= 1e-5 * np.linalg.norm(size)


@needed
def test_gradients_are_right_on_average():
    """Numbers far below their block's largest: they count, though their nearest code is 0."""
    M, N, K = 200, 512, 256
    raw = quants.quantize(np.ones((N, K), np.float32), "Q8_0")
    dy = np.full((M, N), 1e-3, np.float32)
    dy[:, ::PASS] = 1
    dx = backward(dy, raw, "Q8_0", K)
    assert abs(dx.mean() / dy.sum(1).mean() - 1) < 0.01
    whole = np.where(np.arange(N) % PASS, 0, dy).sum(1).mean()
    assert dx.mean() > whole + 0.4 * (dy.sum(1).mean() - whole)
    dy[:, 1::PASS] = 0
    codes = backward(dy, quants.quantize(np.eye(N, K, dtype=np.float32), "Q8_0"), "Q8_0", K)
    assert (codes[:, 1] == 0).all() and len(np.unique(codes[:, 2])) == 2


@needed
def test_the_largest_number_keeps_its_sign():
    """Where chance is largest, and 127 / most is rounded up, 127 + u - 1/2 is rounded to 128."""
    dy = np.zeros((192, 256), np.float32)
    assert chances(dy.shape)[118, 212] == chances(dy.shape).max() > 0.49999
    raw = quants.quantize(np.ones((256, 256), np.float32), "Q8_0")
    for dy[118, 212] in (1.2697867, 1.6066358, 1.6706244, -1.2697867):
        dx = backward(dy, raw, "Q8_0", 256)[118]
        np.testing.assert_allclose(dx, dy[118, 212], rtol=0.02)


@needed
def test_the_largest_sums_do_not_overflow():
    """All codes 127 or -127, of one sign or of either: exact, for s = t = 1."""
    M, N, K = 50, 320, 256
    for sign, module in itertools.product((1, -1), (matmul, *OTHERS)):
        w = np.full((N, K), 127, np.float32)
        x = np.full((M, K), 127 * sign, np.float32)
        x[1, ::2] *= -1
        raw = np.full((N, K // 32, 34), 127, np.uint8)
        raw[:, :, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
        raw_w = raw.reshape(N, -1)
        assert (forward(x, raw_w, "Q8_0", module=module) == x.astype(np.float64) @ w.T).all()
        dy = np.resize(x, (M, N))
        dx = backward(dy, raw_w, "Q8_0", K, module=module)
        assert (dx == dy.astype(np.float64) @ w).all()


@needed
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.2e38])
def test_what_is_not_finite_gives_nan_in_its_row(value):
    _, raw, _ = matrix(np.random.default_rng(5), TYPES["Q8_0"], 320, 576)
    x = normal(64, 576)
    ordinary = forward(x, raw, "Q8_0")
    x[5, 300] = value
    y = forward(x, raw, "Q8_0")
    assert np.isnan(y[5]).all()
    assert np.delete(y, 5, 0).tobytes() == np.delete(ordinary, 5, 0).tobytes()


@needed
def test_rows_near_zero_count_as_zeros():
    _, raw, _ = matrix(np.random.default_rng(5), TYPES["Q8_0"], 320, 576)
    x = normal(64, 576)
    x[3], x[4, :256], x[7, 256:] = 1e-31, 0, 9e-31
    y = forward(x, raw, "Q8_0")
    assert (y[3] == 0).all() and np.isfinite(y).all()
    x[4, :256], x[7, 256:] = 0, 0
    assert (forward(x, raw, "Q8_0")[[4, 7]] == y[[4, 7]]).all()


@needed
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_and_levels_agree_bit_for_bit(shape):
    M, N, K = shape
    raw, x, dy = quants.quantize(normal(N, K, seed=5), "Q8_0"), normal(M, K), normal(M, N, seed=4)
    raw = raw.reshape(N, -1)
    y, dx = forward(x, raw, "Q8_0"), backward(dy, raw, "Q8_0", K)
    for n_threads in (2, 3):
        assert forward(x, raw, "Q8_0", n_threads=n_threads).tobytes() == y.tobytes()
        assert backward(dy, raw, "Q8_0", K, n_threads=n_threads).tobytes() == dx.tobytes()
    for module in OTHERS:
        assert forward(x, raw, "Q8_0", module=module).tobytes() == y.tobytes()
        assert backward(dy, raw, "Q8_0", K, module=module).tobytes() == dx.tobytes()
    bias = normal(N, seed=6)
    assert forward(x, raw, "Q8_0", bias=bias).tobytes() == (y + bias).tobytes()
    twice = dx.copy()
    matmul.backward_input(twice, dy, raw, type="Q8_0", precision="int8", accumulate=True)
    np.testing.assert_allclose(twice, 2 * dx, rtol=1e-5, atol=1e-5 * np.abs(dx).max())


def digest(module):
    """What the bits of all shapes are, in both directions."""
    bits = hashlib.sha256()
    for M, N, K in SHAPES:
        raw = quants.quantize(normal(N, K, seed=5), "Q8_0").reshape(N, -1)
        bits.update(forward(normal(M, K), raw, "Q8_0", module=module))
        bits.update(backward(normal(M, N, seed=4), raw, "Q8_0", K, module=module))
    return bits.hexdigest()


#: For a process of its own: which unit a module uses is decided when it is imported.
WITHOUT_VNNI = """
import runpy, sys
from toynn._kernels import cpu, load
cpu.int8_unit = lambda units: "AVX2"
for level in sys.argv[2:]:
    module = load("matmul", level)
    print(module.multiplies_quads(), runpy.run_path(sys.argv[1])["digest"](module))
"""


@needed
@pytest.mark.skipif("avx2" not in LEVELS, reason="not x86-64 with AVX2")
def test_a_cpu_without_vpdpbusd_has_the_same_bits(monkeypatch):
    monkeypatch.setenv("TOYNN_ISA", "generic")
    levels = [name for name in LEVELS if name in ("avx2", "avx512")]
    words = [sys.executable, "-c", WITHOUT_VNNI, __file__, *levels]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    assert told == ["AVX2", digest(matmul)] * len(levels)


def test_all_else_is_medium():
    """Weights of floats, small products, and skinny ones; and where there is no such unit."""
    x = normal(150, 256)
    for type, w in (("F32", normal(200, 256)), ("BF16", None), ("Q8_0", None)):
        if w is None:
            _, w, _ = matrix(np.random.default_rng(5), TYPES[type], 200, 256)
        same = forward(x, w, type).tobytes() == forward(x, w, type, "medium").tobytes()
        assert same == (type != "Q8_0" or not matmul.multiplies_quads())
        for rows in (1, 12, 16):
            y = forward(x[:rows], w, type)
            assert y.tobytes() == forward(x[:rows], w, type, "medium").tobytes()


@needed
@pytest.mark.parametrize("type", ["Q8_0", "Q4_K"])
def test_experts_multiply_so(type):
    """As matmul does, expert by expert; few rows as in medium."""
    counts = (150, 0, 40, 3)
    E, M, N, K = len(counts), sum(counts), 512, 768
    offsets = np.cumsum([0, *counts], dtype=np.int32)
    _, raw, _ = matrix(np.random.default_rng(5), TYPES[type], E * N, K)
    w, x, dy = raw.reshape(E, N, -1), normal(M, K), normal(M, N, seed=4)
    y, other, dx = np.empty((M, N), np.float32), np.empty((M, N), np.float32), np.empty_like(x)
    experts.forward(y, x, w, None, offsets, type=type, precision="int8")
    experts.forward(other, x, w, None, offsets, type=type, precision="int8", n_threads=3)
    experts.backward_input(dx, dy, w, offsets, type=type, precision="int8")
    assert other.tobytes() == y.tobytes()
    for e in range(E):
        rows = slice(offsets[e], offsets[e + 1])
        if counts[e]:
            assert y[rows].tobytes() == forward(x[rows], w[e], type).tobytes()
            assert dx[rows].tobytes() == backward(dy[rows], w[e], type, K).tobytes()


@pytest.mark.parametrize("entry", ["forward", "backward_input"])
@pytest.mark.parametrize("shape", [(64, 512, 96), (1024, 50272, 768), (300, 704, 1024)])
def test_scratch_memory_serves_any_smaller_number_of_threads(entry, shape):
    sizes = dict(zip("MNK", shape, strict=True), precision=3, activation=0, type=TYPES["Q8_0"])
    needs = [getattr(matmul, entry).workspace(sizes, n) for n in range(1, 33)]
    assert needs == sorted(needs)


# -- On the tape -----------------------------------------------------------------------------------


def network(dtype, precision="int8"):
    """Adapters over a frozen matrix, attention, and a loss."""
    M, C = 192, 256
    s = Session(matmul_precision=precision)
    x, labels = s.parameter("x", (M, C)), s.input("labels", (M,), "i32")
    raw = normal(3 * C, C)
    if dtype != "F32":
        raw = matrix(np.random.default_rng(5), TYPES[dtype], 3 * C, C)[1].reshape(-1)
    w = s.mapped("w", raw, dtype.lower(), (3 * C, C))
    a, b = s.parameter("a", (16, C)), s.parameter("b", (3 * C, 16))
    y = ops.add(s, ops.linear(s, x, w), ops.linear(s, ops.linear(s, x, a), b))
    logits = ops.linear(s, ops.attention(s, y, batch=1, n_heads=4), s.parameter("head", (64, C)))
    s.set_loss(ops.cross_entropy(s, logits, labels))
    s.build_backward()
    s.finalize_weights()
    return s, w


@needed
def test_only_products_by_frozen_blocks_are_rounded():
    s, w = network("Q8_0")
    nodes = [node for node in s.tape.nodes if "precision" in node.sizes]
    precisions = {(node.op.kernel, w in node.inputs): node.sizes["precision"] for node in nodes}
    assert precisions == {
        ("matmul.forward", True): 3,
        ("matmul.backward_input", True): 3,
        ("matmul.forward", False): 2,
        ("matmul.backward_input", False): 2,
        ("matmul.backward_weight", False): 2,
        ("attention.forward", False): 2,
        ("attention.backward", False): 2,
    }
    assert str(s.tape).count("matmul.forward (int8)") == 1
    assert s.tape.precisions() == {"medium", "int8"}
    s.realize()


@needed
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_model_without_blocks_is_refused(dtype):
    s, _ = network(dtype)
    with pytest.raises(ConfigError, match="frozen quantized weights; this model has none"):
        s.realize()


def test_where_there_is_no_unit_it_is_refused():
    for backend in ["reference", *["cpu"] * (not matmul.multiplies_quads())]:
        with pytest.raises(ConfigError, match=r"int8 needs .* AVX2"):
            Session(matmul_precision="int8", backend=backend)
    told = toynn.backends.config.describe()
    assert ("int8 multiplies in" in told) == bool(matmul.multiplies_quads())


def test_the_setting_of_the_process_has_pytorchs_names():
    with pytest.raises(ConfigError, match="one of highest, high, medium; got 'int8'"):
        toynn.set_float32_matmul_precision("int8")
