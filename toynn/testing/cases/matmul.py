"""matmul against x w^T + b in float64, its GELU, and the two products of its gradient.

With a ``type`` (GGUF's number), w holds random quantized blocks; the reference dequantizes them.
"""

import math
from typing import Any

import numpy as np

from toynn._kernels.base.entry import ACTIVATIONS
from toynn.testing.cases._case import Array, Call, derived, differentiable, normal, shapes_of
from toynn.testing.cases.quants import SCALES, matrix


def _inputs(rng: np.random.Generator, M: int, N: int, K: int, **_: Any) -> dict[str, Array]:
    w = normal(rng, N, K, scale=1 / math.sqrt(max(K, 1)))
    return {"x": normal(rng, M, K), "w": w, "b": normal(rng, N)}


def _calls(
    rng: np.random.Generator, M: int, N: int, K: int, activation: int = 0, type: int = 0
) -> list[Call]:
    arrays, more = _inputs(rng, M, N, K), dict[str, Any]()
    arrays["dy"] = normal(rng, M, N)
    if type:  # quantized weights are frozen
        more["type"], arrays["w"], exact = matrix(rng, type, N, K)
        more["exact"] = {"w": exact}
    reading = [
        derived("matmul.forward", arrays, activation=ACTIVATIONS[activation], **more),
        derived("matmul.backward_input", arrays, **more),
    ]
    return reading if type else [*reading, derived("matmul.backward_weight", arrays)]


CASE = differentiable(
    "matmul",
    _inputs,
    backward=("backward_input", "backward_weight", "elementwise.bias_backward"),
    options=lambda sizes: {"activation": 0},
    shapes=(
        *shapes_of(
            "M N K",
            "1 1 1, 0 3 5, 3 0 5, 3 5 0",
            "37 65 19 activation=1",  # one thread, in place
            "15 33 257 activation=2",  # one past a tile, one past a block of terms
            "129 131 127 activation=2",  # packed, all edges ragged
            "40 1000 513 activation=1",  # three blocks of terms
            "1025 48 96",  # more rows than columns
            "300 8 1100 activation=1",  # skinny: N is less than a tile
            "300 1100 9",  # skinny: K is less than a tile
            "3 100 527 activation=1",  # GEMV: w is not packed
            "1 33 512 activation=2",
            "5 37 259 type=1",  # half floats: rows of any length
            "300 65 544 type=8",  # more rows than columns
            "3 100 288 type=2",  # few rows
            "3 0 256 type=12",
        ),
        *({"M": 33, "N": 70, "K": 512, "activation": 1, "type": type} for type in SCALES),
    ),
    bench={
        "gpt2_attn": {"M": 256, "N": 768, "K": 768},
        "gpt2_qkv": {"M": 256, "N": 2304, "K": 768},
        "gpt2_fc": {"M": 256, "N": 3072, "K": 768},
        "gpt2_proj": {"M": 256, "N": 768, "K": 3072},
        "gpt2_head": {"M": 256, "N": 50257, "K": 768},
        "tiny_attn": {"M": 32, "N": 64, "K": 64},
        "tiny_qkv": {"M": 32, "N": 192, "K": 64},
        "tiny_fc": {"M": 32, "N": 256, "K": 64},
        "tiny_proj": {"M": 32, "N": 64, "K": 256},
        "tiny_head": {"M": 32, "N": 627, "K": 64},
        "llama_up_f32": {"M": 256, "N": 5632, "K": 2048},
        "llama_up_q8_0": {"M": 256, "N": 5632, "K": 2048, "type": 8},
        "llama_up_q4_k": {"M": 256, "N": 5632, "K": 2048, "type": 12},
        "llama_row_f32": {"M": 1, "N": 5632, "K": 2048},
        "llama_row_q8_0": {"M": 1, "N": 5632, "K": 2048, "type": 8},
        "llama_row_q4_k": {"M": 1, "N": 5632, "K": 2048, "type": 12},
    },
    calls=_calls,
    tolerance=2e-6,
    reason="float32 sums of up to 1025 products, relative to the largest element; rough: factors "
    "have a relative error of 2^-9, so a sum of mixed signs has about the same error",
    rough=8e-3,
)
