"""Quantized blocks against the gguf library, bit for bit; what is refused."""

import warnings

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from toynn.errors import GGUFError, ShapeError
from toynn.formats.quants import BLOCKS, TYPES, dequantize, quantize
from toynn.testing.cases.quants import SCALES, blocks

pytestmark = pytest.mark.kernels

QUANTIZED = [name for name in TYPES if TYPES[name] in SCALES]


def library(function, array, name):
    """What the gguf library says, which warns of NaN and overflow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(array, Type[name])


def assert_same(got, expected):
    """Equal bits; of a NaN, sign and payload may differ (they hang on the order of factors)."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    got, expected = got.view(np.uint32), expected.view(np.uint32)
    np.testing.assert_array_equal(got[~nan], expected[~nan])


def all_halves():
    return np.arange(2**16, dtype="<u2").view(np.uint8)


def test_tables_are_those_of_the_library():
    assert TYPES.keys() == BLOCKS.keys()
    for name, number in TYPES.items():
        assert Type[name] == number
        assert gguf.GGML_QUANT_SIZES[Type[name]] == BLOCKS[name]


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_half_float(name):
    raw = all_halves()
    assert_same(
        dequantize(raw, name, (256, 256)),
        library(gguf.quants.dequantize, raw, name).reshape(256, 256),
    )


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_random_bytes(name, n_threads):
    """Scales of any bits: subnormal, infinite, NaN, of both signs."""
    elements, nbytes = BLOCKS[name]
    raw = np.random.default_rng(5).integers(0, 256, (37, 40 * nbytes), np.uint8)
    got = dequantize(raw, name, (37, 40 * elements), n_threads=n_threads)
    assert_same(got, library(gguf.quants.dequantize, raw, name))


@pytest.mark.parametrize("name", [name for name in QUANTIZED if SCALES[TYPES[name]]])
@pytest.mark.parametrize(
    "scale", [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504, -65504, np.inf, -np.inf, np.nan]
)
def test_extreme_scales(name, scale):
    raw = blocks(np.random.default_rng(1), TYPES[name], 19)
    for at in SCALES[TYPES[name]]:
        raw[:-1, at : at + 2] = np.array([scale], "<f2").view(np.uint8)
    got = dequantize(raw, name, (19, BLOCKS[name][0]))
    assert_same(got, library(gguf.quants.dequantize, raw.reshape(19, -1), name))


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_code_in_every_place(name):
    """Blocks of one repeated byte, the scales apart: whatever is shifted wrongly shows."""
    elements, nbytes = BLOCKS[name]
    raw = np.repeat(np.arange(256, dtype=np.uint8), nbytes).reshape(256, nbytes)
    for at in SCALES[TYPES[name]]:
        raw[:, at : at + 2] = np.array([0.37], "<f2").view(np.uint8)
    got = dequantize(raw, name, (256, elements))
    assert_same(got, library(gguf.quants.dequantize, raw, name))


@pytest.mark.parametrize(("name", "at"), [("MXFP4", [0]), ("NVFP4", [0, 1, 2, 3])])
def test_every_scale_of_a_byte_with_every_code(name, at):
    """Exponents whose numbers are subnormal or overflow; small floats, also those that are NaN."""
    elements, nbytes = BLOCKS[name]
    codes = np.random.default_rng(6).permuted(np.tile(np.arange(256), (256, 1)), axis=1)
    raw = np.repeat(np.arange(256, dtype=np.uint8), 8 * nbytes).reshape(-1, nbytes)
    raw[:, len(at) :] = codes.reshape(256 * 8, -1)[:, : nbytes - len(at)]
    expected = library(gguf.quants.dequantize, raw, name)
    assert_same(dequantize(raw, name, (len(raw), elements)), expected)
    tiny = np.abs(expected) < np.finfo(np.float32).tiny
    assert np.isinf(expected).any() == (tiny & (expected != 0)).any() == (name == "MXFP4")


def test_float32_is_copied():
    values = np.random.default_rng(0).standard_normal((3, 5)).astype("<f4")
    raw = np.concatenate([[0], values.reshape(-1).view(np.uint8)]).astype(np.uint8)[1:]  # unaligned
    got = dequantize(raw, "F32", (3, 5))
    assert got.tobytes() == values.tobytes()
    assert not np.shares_memory(got, raw)


@pytest.mark.parametrize("name", list(TYPES))
def test_shapes_without_elements(name):
    elements, _ = BLOCKS[name]
    for shape in [(0,), (0, elements), (3, 0), (2, 0, elements)]:
        got = dequantize(np.empty(0, np.uint8), name, shape)
        assert got.shape == shape and got.dtype == np.float32


def test_a_single_number():
    assert dequantize(np.array([0, 0x3C], np.uint8), "F16", ()) == 1


def test_raw_may_be_read_only_and_at_odd_addresses():
    raw = blocks(np.random.default_rng(2), TYPES["Q6_K"], 9)
    shifted = np.zeros(raw.size + 1, np.uint8)[1:]
    shifted[:] = raw.reshape(-1)
    shifted.flags.writeable = False
    assert_same(dequantize(shifted, "Q6_K", (9, 256)), dequantize(raw, "Q6_K", (9, 256)))


@pytest.mark.parametrize(
    ("name", "shape", "size", "error", "words"),
    [
        ("Q8_1", (32,), 36, GGUFError, "needs a type of F32, .* got 'Q8_1'"),
        ("Q8_0", (3, 33), 102, ShapeError, r"multiple of 32 elements; got shape \(3, 33\)"),
        ("Q4_K", (32,), 18, ShapeError, r"multiple of 256 elements; got shape \(32,\)"),
        ("Q8_0", (), 34, ShapeError, "multiple of 32 elements"),
        ("F16", (-1, -2), 4, ShapeError, "got shape"),
        ("Q8_0", (4, 64), 271, ShapeError, r"needs 272 contiguous bytes; got uint8 \(271,\)"),
        ("Q4_0", (64,), 0, ShapeError, "needs 36 contiguous bytes"),
        ("F32", (3,), 11, ShapeError, "needs 12 contiguous bytes"),
    ],
)
def test_bad_input_is_refused(name, shape, size, error, words):
    with pytest.raises(error, match=words):
        dequantize(np.zeros(size, np.uint8), name, shape)


def test_bytes_of_another_kind_are_refused():
    with pytest.raises(ShapeError, match="not contiguous"):
        dequantize(np.zeros(68, np.uint8)[::2], "Q8_0", (32,))
    with pytest.raises(ShapeError, match="got float32"):
        dequantize(np.zeros(34, np.float32), "Q8_0", (32,))


MAKEABLE = ["Q8_0", "Q4_0"]


@pytest.mark.parametrize("name", MAKEABLE)
@pytest.mark.parametrize("std", [1e-30, 1e-9, 1e-6, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_quantize_is_the_librarys(name, std, n_threads):
    x = np.random.default_rng(4).standard_normal((64, 640)).astype(np.float32) * np.float32(std)
    x[3, :32] = 0
    x[4, :32] = -0.0
    x[5] = np.round(x[5] / np.float32(std)) * np.float32(std / 2)  # many ties
    x[6, 32:64] = x[6, 32]
    assert quantize(x, name, n_threads=n_threads).tobytes() == (
        library(gguf.quants.quantize, x, name).tobytes()
    )


@pytest.mark.parametrize("name", MAKEABLE)
def test_quantize_at_every_half_and_its_neighbours(name):
    """Values next to those where rounding turns, at many scales."""
    rng = np.random.default_rng(8)
    top = 127 if name == "Q8_0" else 8
    halves = rng.integers(-2 * top, 2 * top, (20_000, 32)) / 2
    halves[:, 0] = -top
    x = (halves * np.exp(rng.uniform(-9, 9, (20_000, 1)))).astype(np.float32)
    x = np.nextafter(x, x + rng.integers(-1, 2, x.shape).astype(np.float32))
    assert quantize(x, name).tobytes() == library(gguf.quants.quantize, x, name).tobytes()


@pytest.mark.parametrize("name", MAKEABLE)
def test_quantize_shapes(name):
    _, nbytes = BLOCKS[name]
    assert quantize(np.ones((2, 3, 64)), name).shape == (2, 3, 2 * nbytes)
    assert quantize(np.ones((0, 64)), name).shape == (0, 2 * nbytes)
    assert quantize(np.ones((3, 0)), name).shape == (3, 0)


@pytest.mark.parametrize("name", MAKEABLE)
@pytest.mark.parametrize("std", [1e-41, 1e-45])
def test_blocks_too_small_for_a_scale_become_zeros(name, std):
    x = np.random.default_rng(4).standard_normal((4, 64)).astype(np.float32) * np.float32(std)
    assert not dequantize(quantize(x, name), name, x.shape).any()


@pytest.mark.parametrize("name", MAKEABLE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e7])
def test_what_no_block_can_hold_is_refused(name, value):
    x = np.ones((3, 64), np.float32)
    x[1, 40] = value
    with pytest.raises(GGUFError, match=r"block 3 \(from element 96 on\)"):
        quantize(x, name)


def test_quantize_refuses_types_and_rows():
    with pytest.raises(GGUFError, match="needs a type of Q8_0, Q4_0; got 'Q6_K'"):
        quantize(np.ones(256), "Q6_K")
    with pytest.raises(ShapeError, match=r"multiple of 32 elements; got shape \(2, 33\)"):
        quantize(np.ones((2, 33)), "Q8_0")
