"""Frozen weights of quantized types on the tape: declared, recorded, counted and refused."""

import json

import gguf
import numpy as np
import pytest

from toynn import Session, ops
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.formats.quants import dequantize, quantize
from toynn.numerics import dtypes
from toynn.testing.cases.quants import blocks

M, N, K = 5, 6, 512
TYPES = gguf.GGMLQuantizationType
RNG = np.random.default_rng(4)
MATRIX = RNG.standard_normal((N, K)).astype(np.float32)


def raw(dtype, shape=(N, K)):
    """Bytes of any blocks."""
    return RNG.integers(0, 255, dtypes.nbytes(dtype, np.prod(shape)), np.uint8)


def test_the_table_is_that_of_the_gguf_library():
    for name, (number, elements, nbytes) in dtypes.DTYPES.items():
        assert TYPES[name.upper()] == number
        assert gguf.GGML_QUANT_SIZES[TYPES(number)] == (elements, nbytes)


@pytest.mark.parametrize("dtype", ["f32", *dtypes.QUANTIZED])
def test_a_linear_layer_over_blocks(dtype):
    """One node forward, dX alone backward; both know the type, and count the bytes as stored."""
    s = Session()
    data = MATRIX if dtype == "f32" else raw(dtype)
    w = s.mapped("w", data, dtype, (N, K))
    x = ops.linear(s, s.input("x", (M, 3)), s.parameter("a", (K, 3)))
    s.set_loss(ops.cross_entropy(s, ops.linear(s, x, w), s.input("labels", (M,), "i32")))
    s.build_backward()
    forward, backward = (
        node for node in s.tape.nodes if w in node.inputs and node.op.kernel.startswith("matmul")
    )
    assert (forward.op.kernel, backward.op.kernel) == ("matmul.forward", "matmul.backward_input")
    for node in (forward, backward):
        assert list(node.sizes.items())[-1] == ("type", TYPES[dtype.upper()])
        assert node.nbytes == 4 * (M * N + M * K) + data.nbytes
    assert w.nbytes == data.nbytes
    memory = s.memory()
    assert (memory.mapped, memory.weights, memory.gradients) == (data.nbytes, K * 12, K * 12)
    assert memory.peak == memory.weights + memory.gradients + memory.activations
    assert json.loads(s.tape.to_json())["nodes"][1]["sizes"]["type"] == TYPES[dtype.upper()]


@pytest.mark.parametrize("dtype", ["f32", *dtypes.QUANTIZED])
def test_an_embedding_over_blocks(dtype):
    s = Session()
    w = s.mapped("w", MATRIX if dtype == "f32" else raw(dtype), dtype, (N, K))
    ops.embedding(s, w, s.input("ids", (M,), "i32"))
    (node,) = s.tape.nodes
    assert list(node.sizes.items())[-1] == ("type", TYPES[dtype.upper()])
    assert node.nbytes == M * w.nbytes // N + 4 * M * K


@pytest.mark.parametrize("dtype", ["f32", *dtypes.QUANTIZED])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_step_over_blocks_is_that_over_their_float32_values(dtype, checkpointing):
    """Rows of a table, times a matrix, times an adapter: all gradients pass through the matrix."""
    number = dtypes.DTYPES[dtype].ggml
    data = [MATRIX, MATRIX[::-1].copy()]
    if dtype != "f32":
        count = N * K // dtypes.DTYPES[dtype].elements
        data = [blocks(np.random.default_rng(i), number, count) for i in range(2)]
    results = []
    for dequantized in (False, True):
        s = Session(checkpointing=checkpointing)
        names = ("table", "matrix")
        held = [s.mapped(*pair, dtype, (N, K)) for pair in zip(names, data, strict=True)]
        if dequantized:
            held = [s.mapped(f"{w.name}.f32", s.download(w)) for w in held]
        ids, labels = s.input("ids", (M,), "i32"), s.input("labels", (M,), "i32")
        with s.tape.block("all"):
            x = ops.add(s, ops.embedding(s, held[0], ids), a := s.parameter("a", (M, K)))
            y = s.output(ops.linear(s, x, held[1]))
        s.set_loss(ops.cross_entropy(s, y, labels))
        s.build_backward()
        s.finalize_weights()
        s.realize()
        s.upload(a, np.random.default_rng(2).standard_normal((M, K)))
        s.upload(ids, np.arange(M) % N)
        s.upload(labels, np.arange(M) % N)
        s.run("grads")
        results.append([s.download(t) for t in (y, s.grad(a))])
    assert all(np.isfinite(array).all() and array.any() for array in results[0])
    for array, expected in zip(*results, strict=True):
        assert array.tobytes() == expected.tobytes()


def test_a_download_expands_the_blocks_and_an_upload_is_refused():
    s = Session()
    packed = quantize(MATRIX, "Q8_0")
    packed.flags.writeable = False
    w = s.mapped("w", packed, "q8_0", (N, K))
    assert np.array_equal(s.download(w), dequantize(packed.reshape(-1), "Q8_0", (N, K)))
    with pytest.raises(LifecycleError, match=r"upload\(w\) into a mapped weight"):
        s.upload(w, MATRIX)


@pytest.mark.parametrize(
    ("array", "dtype", "shape", "error", "message"),
    [
        (raw("q8_0"), "q9_0", (N, K), ConfigError, "w: dtype must be one of f32, .*; got 'q9_0'"),
        (raw("q8_0"), "Q8_0", (N, K), ConfigError, "dtype must be one of f32"),
        (MATRIX, "i32", (N, K), ConfigError, "dtype must be one of f32"),
        (raw("q8_0"), "q8_0", None, ShapeError, "bytes of q8_0 have no shape"),
        (raw("q8_0")[:-1], "q8_0", (N, K), ShapeError, r"\(6, 512\) needs 3264 bytes; got 3263"),
        (raw("q8_0"), "q4_k", (N, K), ShapeError, "q4_k of shape .* needs 1728 bytes; got 3264"),
        (raw("q8_0")[::2], "q8_0", (N, K), ShapeError, "q8_0 needs a C-contiguous uint8 array"),
        (MATRIX, "q8_0", (N, K), ShapeError, "C-contiguous uint8 array; got float32"),
        (raw("q8_0"), "f32", (N, K), ShapeError, "C-contiguous float32 array; got uint8"),
        (MATRIX, "f32", (N, K + 1), ShapeError, "needs 12312 bytes; got 12288"),
        (raw("q8_0"), "q8_0", (K, N), ShapeError, "multiple of 32 elements; got shape"),
        (raw("q6_k"), "q6_k", (2 * N, K // 2 - 8), ShapeError, "multiple of 256 elements"),
        (raw("q8_0"), "q8_0", (0, K), ShapeError, "whole number >= 1"),
    ],
)
def test_what_does_not_hold_the_weight_is_refused_by_name(array, dtype, shape, error, message):
    s = Session()
    with pytest.raises(error, match=message) as caught:
        s.mapped("blk.0.w", array, dtype, shape)
    assert "mapped blk.0.w: " in str(caught.value)
    s.mapped("blk.0.w", MATRIX)  # the name is still free


def test_only_the_matrix_of_a_product_or_a_table_may_be_blocks():
    s = Session()
    w = s.mapped("w", raw("q8_0"), "q8_0", (N, K))
    square = s.mapped("square", raw("q8_0", (32, 32)), "q8_0", (32, 32))
    gain = s.mapped("gain", raw("f16", (K,)), "f16", (K,))
    x, ids = s.input("x", (N, K)), s.input("ids", (M,), "i32")
    calls = {
        r"x must be f32; got q8_0 \(x is w\)": (
            lambda: ops.linear(s, w, s.constant("c", (2, K))),
            lambda: ops.silu(s, w),
            lambda: ops.softmax(s, w),
        ),
        r"b must be f32; got q8_0 \(b is w\)": (lambda: ops.add(s, x, w),),
        r"logits must be f32; got q8_0 \(logits is w\)": (
            lambda: ops.cross_entropy(s, w, s.input("labels", (N,), "i32")),
        ),
        r"[wb] must be f32; got f16 \([wb] is gain\)": (
            lambda: ops.rmsnorm(s, x, gain),
            lambda: ops.layernorm(s, x, gain, gain),
            lambda: ops.linear(s, x, s.constant("d", (K, K)), gain),
        ),
        r"q must be f32; got q8_0 \(q is square\)": (
            lambda: ops.attention(s, square, square, square, batch=1, n_heads=1),
        ),
    }
    for message, refused in calls.items():
        for call in refused:
            with pytest.raises(ShapeError, match=message):
                call()
    ops.embedding(s, w, ids)
    assert len(s.tape.nodes) == 1
