"""One token of generation: attention over a cache of keys and values."""

from functools import partial

import numpy as np

from toynn.backends.reference import KERNELS
from toynn.testing.cases import Array
from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

H, KV, D, MOST = 6, 3, 4, 6


def check(answer: Answer) -> None:
    """Compare the result and the caches after three tokens, and after none."""
    rng = np.random.default_rng(0)
    for past in (3, 0):
        keys, values = rng.standard_normal((2, KV, MOST, D))
        for cache in (keys, values):
            cache[:, past:] = np.nan
        q, k, v = (rng.standard_normal((heads, D)) for heads in (H, KV, KV))

        attended = partial(_attended, keys, values, k, v, past)
        right = attended(q, D**-0.5)
        spread = partial(_spread, q, right["keys"], right["values"])
        swapped = dict(zip(("keys", "values"), (keys.copy(), values.copy()), strict=True))
        o = answer("attend", swapped["keys"], swapped["values"], past, q, k, v, changes=(0, 1))
        where = f", with {past} tokens in the cache"
        for name, new in (("keys", k), ("values", v)):
            row = swapped[name][:, past]
            compare(
                f"{name}[:, past]",
                row,
                new,
                where=where,
                suspects={"the new row is not written into the cache.": np.full_like(new, np.nan)},
            )
            compare(
                f"{name}[:, :past]", swapped[name][:, :past], right[name][:, :past], where=where
            )
        suspects = {
            "the factor 1 / sqrt(D) is missing.": attended(q, 1.0)["o"],
            "heads are served in turn (h % KV). Heads side by side share one: h // (H // KV).": (
                spread([h % KV for h in range(H)], past + 1)
            ),
            "the cache of head h is h // (H // KV), not h // KV.": spread(
                [h // KV for h in range(H)], past + 1
            ),
            "rows after the new token are read: nothing was written there yet.": np.full_like(
                right["o"], np.nan
            ),
        }
        if past:
            heads = [h // (H // KV) for h in range(H)]
            suspects["the new token does not see itself."] = spread(heads, past)
        compare("o", o, right["o"], where=where, suspects=suspects)


def _spread(q: Array, keys: Array, values: Array, heads: list[int], rows: int) -> Array:
    """Attend to the first ``rows`` rows; head h reads keys[heads[h]] and values[heads[h]]."""
    scores = np.einsum("hd,hnd->hn", q, keys[heads, :rows]) * D**-0.5
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return np.asarray(np.einsum("hn,hnd->hd", p, values[heads, :rows]))


def _attended(
    keys: Array, values: Array, k: Array, v: Array, past: int, q: Array, scale: float
) -> dict[str, Array]:
    """Return what the reference writes: o, and the caches."""
    outputs = KERNELS["cached_attention.forward"].compute(
        kc=np.nan_to_num(keys)[None],
        vc=np.nan_to_num(values)[None],
        q=q.reshape(1, H * D),
        k=k.reshape(1, KV * D),
        v=v.reshape(1, KV * D),
        past=np.array([past]),
        **{"T": 1, "H": H, "KV": KV, "D": D, "E": D},
        **{"scale": scale, "window": 0, "cap": 0.0, "sinks": None},
    )
    return {"o": outputs["o"].reshape(H, D), "keys": outputs["kc"][0], "values": outputs["vc"][0]}


PUZZLE = Puzzle(
    title="attention with a KV cache",
    wanted="""\
Write the new token's k and v (KV, D) into row `past` of the caches keys and values (KV, most, D).
Then return o (H, D): the attention of the H heads of q (H, D) over rows 0 ... past. Later rows hold
garbage. H / KV heads side by side share one of the KV caches.""",
    formula="""\
g    = h // (H // KV)                                       the cache of head h
o[h] = softmax(keys[g, :past + 1] q[h] / sqrt(D)) values[g, :past + 1]""",
    code="""
import numpy as np


def attend(keys, values, past, q, k, v):
    H, D = q.shape
    KV = keys.shape[0]
    o = np.zeros_like(q)
    # >>>
    keys[:, past] = k
    values[:, past] = v
    for h in range(H):
        g = h // (H // KV)
        scores = keys[g, : past + 1] @ q[h] / np.sqrt(D)
        p = np.exp(scores - scores.max())
        o[h] = p @ values[g, : past + 1] / p.sum()
    # ---
    # your code
    # <<<
    return o
""",
    hints=(
        "Write first: the new token attends to itself, too.",
        "There is no mask here. The new token is the last one, so it sees all rows up to its own: "
        "[: past + 1].",
        "With H = 4 and KV = 2, heads 0 and 1 read cache 0, heads 2 and 3 read cache 1.",
    ),
    why=(
        "Why does a token take longer at the end of a long text?",
        "It reads all keys and values before it, and each byte once. The weights that it reads "
        "stay the same.",
    ),
    same="_kernels/attention/cached_attention.pyx",
    check=check,
)
