"""cached_attention against softmax(scale q k^T) v over the whole past, in float64."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import (
    Array,
    Call,
    OpCase,
    call,
    normal,
    reference,
    shapes_of,
    widened,
)

BLOCK = 64  # keys in a block of the cache


def blocked(keys: Array) -> Array:
    """Put keys (B, KV, S, D) into the order (B, KV, S / 64, D, 64)."""
    B, KV, S, D = keys.shape
    return keys.reshape(B, KV, S // BLOCK, BLOCK, D).swapaxes(3, 4).reshape(keys.shape)


def plain(blocks: Array) -> Array:
    """Undo ``blocked``."""
    B, KV, S, D = blocks.shape
    return blocks.reshape(B, KV, S // BLOCK, D, BLOCK).swapaxes(3, 4).reshape(blocks.shape)


def _calls(rng: np.random.Generator, past: int, **sizes: int) -> list[Call]:
    """Make the call; sequence b has past / (b + 1) rows in the cache.

    A shape may have a window, a cap, sinks, and values of E columns. If ``shared``, the values are
    the first E columns of the keys.
    """
    B, T, H, KV, D, S = (sizes[name] for name in ("B", "T", "H", "KV", "D", "S"))
    E = sizes.get("E", D)
    q, k, v = (normal(rng, B * T, n) for n in (H * D, KV * D, KV * E))
    arrays = {"q": q, "k": k, "v": v, "past": past // np.arange(1, B + 1)}
    if "sinks" in sizes:
        arrays["sinks"] = normal(rng, H, scale=2)
    keys, values = normal(rng, B, KV, S, D), normal(rng, B, KV, S, E)
    caches = {"kc": blocked(keys), "vc": values}
    if "shared" in sizes:
        del arrays["v"], caches["vc"]
    known = widened({**arrays, **caches, "kc": keys})
    written = reference("cached_attention.forward", known, sizes)
    limits: dict[str, Any] = {n: sizes[n] for n in ("window", "cap", "E") if n in sizes}
    return [
        call(
            "forward",
            written | {"kc": blocked(written["kc"])},
            arrays,
            initial=caches,
            **limits,
        )
    ]


CASE = OpCase(
    op="cached_attention",
    shapes=shapes_of(
        "B T H KV D",
        "1 1 1 1 1 S=64 past=0, 0 1 2 1 8 S=64 past=0, 2 0 2 1 8 S=64 past=9",
        "2 1 4 2 16 S=640 past=600 sinks=1",
        "2 1 4 2 33 S=192 past=128",  # one past a block
        "2 1 6 2 16 S=640 past=512",  # one past two spans
        "2 1 2 1 8 S=512 past=511",  # one ends with a span
        "1 1 70 1 8 S=320 past=255",  # a group past a block
        "1 1 3 3 64 S=512 past=511",  # the last row
        "2 65 4 2 20 S=192 past=127",
        "1 64 3 1 64 S=128 past=60",  # across a block's edge
        "2 5 2 2 257 S=64 past=40",
        "2 1 4 2 16 S=640 past=600 window=330",  # spans
        "2 1 4 2 16 S=192 past=128 window=1, 2 70 4 2 8 S=320 past=200 window=67",
        "2 3 4 2 8 S=320 past=200 window=9 cap=1, 1 1 2 2 8 S=320 past=200 cap=2",
        "2 1 2 1 20 S=2112 past=2070",  # spans of a device
        "1 3 2 1 130 S=1088 past=1060 window=30, 2 1 4 2 16 S=2112 past=2070 sinks=1",
        "2 3 4 2 8 S=1088 past=1060 sinks=1 window=9, 2 1 4 2 24 E=5 S=640 past=600 sinks=1",
        "2 65 4 2 6 E=35 S=192 past=127",  # wide v
        "2 1 6 1 40 E=32 S=2112 past=2070 shared=1",
        "2 65 3 1 140 E=132 S=192 past=127 shared=1",
        "2 3 4 2 8 E=8 S=320 past=200 window=70 shared=1",
    ),
    bench={
        "decode_135m_past_1k": {"B": 1, "T": 1, "H": 9, "KV": 3, "D": 64, "S": 1088, "past": 1023},
        "decode_135m_past_8k": {"B": 1, "T": 1, "H": 9, "KV": 3, "D": 64, "S": 8256, "past": 8191},
        "decode_gpt2_past_1k": {
            **{"B": 1, "T": 1, "H": 12, "KV": 12, "D": 64},
            **{"S": 1088, "past": 1023},
        },
        "decode_latent_past_1k": {
            **{"B": 1, "T": 1, "H": 16, "KV": 1, "D": 576, "E": 512},
            **{"S": 1088, "past": 1023, "shared": 1},
        },
        "prefill_135m_past_1k": {
            **{"B": 1, "T": 64, "H": 9, "KV": 3, "D": 64},
            **{"S": 1088, "past": 1024},
        },
    },
    calls=_calls,
    tolerance=2e-6,
    reason="float32 sums of up to 577 products, and exp to 2 units in the last place",
)
