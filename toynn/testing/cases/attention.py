"""attention against softmax(scale q k^T) v with the whole T x T matrix in float64."""

import math

import numpy as np

from toynn.testing.cases._case import Array, Sizes, differentiable, normal, shapes_of

#: Outputs of backward if only some gradients are wanted; a shape's "wanted" is an index here.
WANTED = (
    "dq dk dv delta",
    "dq delta",
    "dk delta",
    "dv",
    "dq dk delta",
    "dq dv delta",
    "dk dv delta",
)

#: Lengths of segments: one row; 33, the fewest that are multiplied in bfloat16; a block of 64; less
#: than a block, whole blocks and more.
LENGTHS = (1, 33, 64, 2, 70, 32, 128, 5, 145)


def _inputs(
    rng: np.random.Generator,
    B: int,
    T: int,
    H: int,
    KV: int,
    D: int,
    E: int = 0,
    segments: int = 0,
    sinks: int = 0,
    **_: int,
) -> dict[str, Array]:
    q, k, v = (normal(rng, B * T, n) for n in (H * D, KV * D, KV * (E or D)))
    arrays = {"q": q, "k": k, "v": v}
    if segments:
        arrays["first"] = segment_starts(B, T, segments)
    if sinks:
        arrays["sinks"] = normal(rng, H, scale=sinks)
    return arrays


def segment_starts(B: int, T: int, segments: int) -> Array:
    """Return the first row of each row's segment; lengths begin at LENGTHS[segments - 1]."""
    first = np.empty((B, T), np.int32)
    for b in range(B):
        row, i = 0, segments - 1 + b
        while row < T:
            first[b, row:] = b * T + row
            row += LENGTHS[i % len(LENGTHS)]
            i += 1
    return first.reshape(-1)


def _options(sizes: Sizes) -> dict[str, float]:
    """Return a shape's scale, which is given as a multiple of the default."""
    return {"scale": sizes["scale"] / math.sqrt(sizes["D"])} if "scale" in sizes else {}


def _without(sizes: Sizes) -> tuple[str, ...]:
    wanted = WANTED[sizes.get("wanted", 0)].split()
    return tuple(name for name in WANTED[0].split() if name not in wanted)


CASE = differentiable(
    "attention",
    _inputs,
    backward=("backward", "backward_sinks"),
    options=_options,
    without=_without,
    shapes=shapes_of(
        "B T H KV D",
        "1 1 1 1 1 causal=1 sinks=1, 1 1 1 1 1 causal=1, 0 4 2 1 8 causal=1",
        "2 0 2 1 8 causal=0, 2 65 4 2 5 causal=1 sinks=3",
        "2 65 4 2 33 causal=1",  # one past a block
        "2 65 4 2 33 causal=0 wanted=1, 1 130 3 1 16 causal=1 wanted=2",
        "1 144 2 1 8 causal=0",  # the longest last block
        "1 145 2 1 8 causal=0",  # one past it
        "1 64 2 2 257 causal=1",  # one past a block of terms
        "2 37 2 2 64 causal=0 wanted=3, 2 200 4 2 16 causal=1 segments=1",
        "1 290 2 1 20 causal=1 segments=5 wanted=4, 3 7 1 1 8 causal=1 segments=4",
        "2 70 2 1 8 causal=1 window=1 wanted=5",  # itself alone
        "1 200 4 2 16 causal=1 window=7 wanted=6, 1 200 2 2 33 causal=1 window=64 wanted=3",
        "1 260 2 1 8 causal=1 window=130",
        "1 70 2 1 8 causal=1 window=500",  # all
        "1 290 2 1 20 causal=1 segments=5 window=40 sinks=2",
        "1 65 2 1 8 causal=0 cap=2 scale=3 sinks=9",
        "2 130 4 2 16 causal=1 cap=3 scale=4 window=9",
        "2 65 4 2 24 E=5 causal=1 sinks=1",  # narrow v
        "1 81 2 2 6 E=35 causal=0",  # wide v
        "1 290 3 1 20 E=260 causal=1 segments=5 window=40 cap=3",
        "1 70 2 1 130 E=129 causal=1 wanted=5",
        # from both sides: last blocks of 70 and 145 rows are longer, segments begin anywhere
        "2 200 4 2 16 causal=0 segments=1, 1 480 2 1 20 causal=0 segments=5 wanted=4",
        "3 7 1 1 8 causal=0 segments=4, 1 145 2 1 8 causal=0 window=1 wanted=5",
        "1 300 2 2 8 causal=0 window=65, 1 70 2 1 8 causal=0 window=500",
        "1 480 2 1 20 causal=0 segments=5 window=40 cap=2 sinks=1",
    ),
    bench={
        "gpt2_124m_t256": {"B": 4, "T": 256, "H": 12, "KV": 12, "D": 64, "causal": 1},
        "gpt2_124m_t64": {"B": 4, "T": 64, "H": 12, "KV": 12, "D": 64, "causal": 1},
        "llama_135m": {"B": 1, "T": 256, "H": 9, "KV": 3, "D": 64, "causal": 1},
        "bert_packed": {"B": 1, "T": 512, "H": 12, "KV": 12, "D": 64, "causal": 0, "segments": 5},
        "vit_tiny": {"B": 1, "T": 197, "H": 3, "KV": 3, "D": 64, "causal": 0},
        "sinks": {
            **{"B": 1, "T": 256, "H": 64, "KV": 8, "D": 64},
            **{"causal": 1, "window": 128, "sinks": 1},
        },
        "latent": {"B": 1, "T": 256, "H": 16, "KV": 16, "D": 192, "E": 128, "causal": 1},
        "tiny": {"B": 1, "T": 32, "H": 4, "KV": 4, "D": 16, "causal": 1},
    },
    tolerance=2e-6,
    reason="float32 sums of up to 257 products, and exp to 2 units in the last place; rough: all "
    "factors, also weights and their gradients, have a relative error of 2^-9",
    rough=1e-2,
)
