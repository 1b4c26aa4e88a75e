"""quants against the gguf library: the same bits for every type."""

import gguf
import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call

#: The types, and the bytes of a block that are float16 scales, which must not be random.
SCALES: dict[int, tuple[int, ...]] = {
    **dict.fromkeys((*range(1, 4), *range(6, 9), *range(10, 15), *range(16, 24)), (0,)),
    **dict.fromkeys((29, 30, 34, 35, 39, 40), ()),
    **{type: (0, 2) for type in (3, 7, 12, 13)},
    **{10: (80, 82), 11: (108,), 14: (208,), 34: (52,), 35: (64,)},
}


def blocks(rng: np.random.Generator, type: int, n: int) -> Array:
    """Return n blocks (n, bytes of a block) of random bytes with scales of ordinary size."""
    kind = gguf.GGMLQuantizationType(type)
    raw = rng.integers(0, 256, (n, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    for at in SCALES[type]:
        scale = (rng.standard_normal(n) * 0.01).astype("<f2")
        raw[:, at : at + 2] = scale.view(np.uint8).reshape(n, 2)
    if kind == gguf.GGMLQuantizationType.BF16:
        raw[:, 1] &= 0xBF  # exponents below that of 2: no NaN, no infinity
    if kind == gguf.GGMLQuantizationType.MXFP4:
        raw[:, 0] = rng.integers(112, 128, n)  # the exponent of the scale
    if kind == gguf.GGMLQuantizationType.IQ1_M:
        raw[:, 55] = raw[:, 55] & 0x8F | 0x20  # the scale's first bits: from 2^-7 on, either sign
    return raw


def matrix(
    rng: np.random.Generator, type: int, rows: int, columns: int
) -> tuple[str, Array, Array]:
    """Return a type's name, a random matrix as bytes (rows, bytes of a row), and its values."""
    kind = gguf.GGMLQuantizationType(type)
    raw = blocks(rng, type, rows * columns // gguf.GGML_QUANT_SIZES[kind][0])
    exact = gguf.quants.dequantize(raw, kind) if raw.size else np.empty(0)
    size = raw.size // rows if rows else gguf.quant_shape_to_byte_shape((columns,), kind)[0]
    return (
        kind.name,
        raw.reshape(rows, size),
        exact.reshape(rows, columns).astype(np.float64),
    )


def _calls(rng: np.random.Generator, type: int, n: int) -> list[Call]:
    kind = gguf.GGMLQuantizationType(type)
    elements, _ = gguf.GGML_QUANT_SIZES[kind]
    raw = blocks(rng, type, n)
    y = gguf.quants.dequantize(raw, kind) if n else np.empty(0, np.float32)
    calls = [
        call(
            "dequantize",
            {"y": y.reshape(-1).astype(np.float64)},
            {"raw": raw.reshape(-1)},
            type=type,
        )
    ]
    if kind.name in ("Q8_0", "Q4_0"):
        x = rng.standard_normal(n * elements).astype(np.float32)
        stored = gguf.quants.quantize(x.reshape(-1, elements), kind) if n else raw
        calls.append(
            call(
                "quantize",
                {"raw": stored.reshape(-1)},
                {"x": x},
                loses_nan={"x": "the outputs are bytes"},
                type=type,
            )
        )
    return calls


def _shapes() -> tuple[dict[str, int], ...]:
    """Return shapes of every type; one past groups of 8 and tasks of 16384 elements; 0 blocks."""
    ends = [(8, 9), (8, 513), (8, 0), (6, 7), (7, 8), (2, 521), (14, 65), (1, 16_385), (30, 33)]
    return (
        *({"type": type, "n": 33} for type in (8, *(t for t in SCALES if t != 8))),
        *({"type": type, "n": n} for type, n in ends),
    )


CASE = OpCase(
    op="quants",
    shapes=_shapes(),
    bench={
        gguf.GGMLQuantizationType(type).name.lower(): {
            "type": type,
            "n": 2**20 // gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type)][0],
        }
        for type in SCALES
    },
    calls=_calls,
    tolerance=1e-30,
    reason="the same bits; not 0, which would look like a forgotten tolerance",
)
