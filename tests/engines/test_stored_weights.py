"""Quantized weights: a product by them is the product by their float32 values, bit for bit."""

import subprocess
import sys

import numpy as np
import pytest

from toynn._kernels import embedding, matmul
from toynn.formats.quants import BLOCKS, TYPES, dequantize
from toynn.testing.cases.quants import matrix

pytestmark = pytest.mark.kernels

STORED = [name for name in TYPES if name != "F32"]
IN_8_BITS = ("Q4_0", "Q8_0", "Q4_K", "Q6_K")  # of up to 16 rows, in medium: test_int8.py
SHAPES = [  # M, N, and K in units of 256; rows of x 3, 4, 5, 14: where ways of computing change
    *[(M, 37, 2) for M in (1, 3, 4, 5, 14)],
    (8, 1100, 3),  # skinny: floats are read in place, blocks packed
    (9000, 9, 1),
    (40, 130, 3),  # one thread, in place
    (150, 140, 3),  # packed: w is the smaller side
    (60, 700, 2),  # packed: w is the larger side
    (400, 200, 4),  # several groups of panels, several blocks of terms
]


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def products(x, dy, w, b, type, n_threads, precision="highest"):
    """The bytes of y, pre and dx."""
    y, pre, dx = (np.full_like(like, np.nan) for like in (dy, dy, x))
    options = {"type": type, "n_threads": n_threads, "precision": precision}
    matmul.forward(y, pre, x, w, b, activation="gelu_tanh", **options)
    matmul.backward_input(dx, dy, w, **options)
    assert all(np.isfinite(product).all() for product in (y, pre, dx))
    return y.tobytes(), pre.tobytes(), dx.tobytes()


def assert_same_products(name, M, N, K):
    _, raw, exact = matrix(np.random.default_rng(5), TYPES[name], N, K)
    x, dy, b = normal(M, K), normal(M, N), normal(N)
    in_8_bits = M <= 16 and name in IN_8_BITS and matmul.multiplies_int8()
    for precision in ("highest",) if in_8_bits else ("highest", "medium"):
        expected = products(x, dy, exact.astype(np.float32), b, "F32", 1, precision)
        for n_threads in (1, 3):
            assert products(x, dy, raw, b, name, n_threads, precision) == expected


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_expansion(name, shape):
    M, N, units = shape
    assert_same_products(name, M, N, 256 * units)


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("blocks", [1, 7, 9])
def test_rows_of_any_number_of_blocks(name, blocks):
    """Panels that end in mid-block, rows that end in mid-panel."""
    K = blocks * BLOCKS[name][0]
    assert_same_products(name, 11, 50, K)
    assert_same_products(name, 150, 50, 5 * K)


@pytest.mark.parametrize("name", STORED)
def test_embedding_expands_the_rows_asked_for(name):
    raw = matrix(np.random.default_rng(5), TYPES[name], 9, 768)[1]
    ids = np.array([8, 0, 3, 3, 7], np.int32)
    for n_threads in (1, 2):
        y = np.full((5, 768), np.nan, np.float32)
        embedding.forward(y, raw, ids, type=name, n_threads=n_threads)
        assert y.tobytes() == dequantize(raw, name, (9, 768))[ids].tobytes()


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_embedding_of_half_floats_has_rows_of_any_length(name):
    raw, exact = matrix(np.random.default_rng(5), TYPES[name], 9, 37)[1:]
    y = np.full((2, 37), np.nan, np.float32)
    embedding.forward(y, raw, np.array([8, 2], np.int32), type=name)
    assert y.tobytes() == exact[[8, 2]].astype(np.float32).tobytes()


def test_subnormal_numbers_are_the_same_where_denormals_are_flushed():
    raw = matrix(np.random.default_rng(5), TYPES["MXFP4"], 40, 256)[1]
    raw.reshape(-1, 17)[:, 0] %= 4  # exponents: numbers of up to 12 times 2^-125
    exact = dequantize(raw, "MXFP4", (40, 256))
    y = np.full((40, 256), np.nan, np.float32)
    embedding.forward(y, raw, np.arange(40, dtype=np.int32), type="MXFP4")
    assert y.tobytes() == exact.tobytes() and (exact.view(np.uint32) % 2**31 < 2**23).any()
    x, dy, b = normal(30, 256), normal(30, 40), np.zeros(40, np.float32)
    scaled = np.float32(2.0**100)
    stored = products(x * scaled, dy * scaled, raw, b, "MXFP4", 1)
    assert stored == products(x * scaled, dy * scaled, exact, b, "F32", 1)


def test_blocks_may_lie_at_odd_addresses():
    _, raw, exact = matrix(np.random.default_rng(5), TYPES["Q6_K"], 40, 256)
    shifted = np.zeros(raw.size + 1, np.uint8)[1:].reshape(raw.shape)
    shifted[:] = raw
    x, dy, b = normal(30, 256), normal(30, 40), normal(40)
    assert products(x, dy, shifted, b, "Q6_K", 1) == (
        products(x, dy, exact.astype(np.float32), b, "F32", 1)
    )


def test_scratch_memory_does_not_depend_on_the_type():
    sizes = {"M": 256, "N": 5632, "K": 2048, "precision": 0, "activation": 0, "type": 0}
    for entry in (matmul.forward, matmul.backward_input):
        need = entry.workspace(sizes, n_threads=2)
        assert entry.workspace(sizes | {"type": TYPES["Q4_K"]}, n_threads=2) == need
        assert 0 < need < 5632 * 2048


@pytest.mark.parametrize(
    ("type", "K", "nbytes", "words"),
    [
        ("Q8_1", 32, 36, r"type needs one of F32, .*; got 'Q8_1'"),
        ("q8_0", 32, 34, r"type needs one of F32, .*; got 'q8_0'"),
        ("Q8_0", 40, 34, r"\w\[\w K\] needs shape .*; got (w \(5, 32\)|dx \(3, 40\))"),
        ("Q4_K", 128, 72, r"w\[N K\] needs rows of whole blocks of 144 bytes; got w \(5, 72\)"),
        ("Q8_0", 64, 67, r"w\[N K\] needs rows of whole blocks of 34 bytes; got w \(5, 67\)"),
        ("F32", 32, 32, r"w\[N K\] needs float32; got uint8"),
    ],
)
def test_refusals_say_what_was_needed(type, K, nbytes, words):
    x, y, w = normal(3, K), normal(3, 5), np.zeros((5, nbytes), np.uint8)
    with pytest.raises(ValueError, match=words):
        matmul.forward(y, None, x, w, None, type=type)
    with pytest.raises(ValueError, match=words):
        matmul.backward_input(x, y, w, type=type)


def test_floats_are_not_taken_for_bytes():
    with pytest.raises(ValueError, match="needs uint8; got float32"):
        matmul.forward(normal(3, 5), None, normal(3, 32), normal(5, 34), None, type="Q8_0")


#: A file ends where its last weight does, and may do so at the end of a page.
GUARDED = """
import ctypes, mmap
import numpy as np
from toynn._kernels import embedding, matmul
from toynn.formats.quants import BLOCKS, TYPES
from toynn.testing.cases.quants import matrix

protect = ctypes.CDLL(None).mprotect
protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def at_an_end(array):
    room = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    copy = np.frombuffer(memory, np.uint8, array.nbytes, room - array.nbytes)
    copy[:] = array.reshape(-1).view(np.uint8)
    assert protect(start + room, mmap.PAGESIZE, 0) == 0
    return copy.view(array.dtype).reshape(array.shape)


for type, (elements, _) in BLOCKS.items():
    for M, N, K in ((2, 37, 256), (7, 37, 256), (150, 140, 512)):
        K += 15 if elements == 1 else 0
        floats = np.ones((N, K), "f")
        blocks = None if type == "F32" else matrix(np.random.default_rng(5), TYPES[type], N, K)[1]
        w = at_an_end(floats if blocks is None else blocks)
        x, y = (at_an_end(np.ones((M, each), "f")) for each in (K, N))
        dx = np.empty((M, K), "f")
        matmul.forward(y, None, x, w, None, type=type, n_threads=2)
        matmul.backward_input(dx, y, w, type=type, n_threads=2)
        matmul.backward_weight(np.empty((N, K), "f"), y, x, n_threads=2)
        embedding.forward(dx, w, np.full(M, N - 1, np.int32), type=type, n_threads=2)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect of Linux")
def test_nothing_behind_a_matrix_is_read():
    subprocess.run([sys.executable, "-c", GUARDED], check=True)
