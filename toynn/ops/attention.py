"""Scaled dot-product attention."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from toynn import checks, precision
from toynn.autograd import Backward
from toynn.errors import ConfigError
from toynn.ops._shape import Recorder, Sizes, given, matrix, require
from toynn.tape import Node, Op, Tensor

__all__ = ["CACHE_BLOCK", "KVCache", "attention"]

CACHE_BLOCK = 64  # keys in a block of the cache: BLOCK of the kernel


@dataclass(frozen=True)
class KVCache:
    """What attention remembers of B sequences: room for S keys and values of each head.

    The sequences' ``past`` rows are in it; the rows that come next are written behind them.
    """

    k: Tensor  # (B, KV, S / CACHE_BLOCK, D, CACHE_BLOCK)
    v: Tensor  # (B, KV, S, D)
    past: Tensor  # i32 (B,), an input

    @staticmethod
    def shapes(
        batch: int, n_kv_heads: int, d_head: int, rows: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of k and v with room for at least ``rows`` rows."""
        blocks = -(-rows // CACHE_BLOCK)
        return (
            (batch, n_kv_heads, blocks, d_head, CACHE_BLOCK),
            (batch, n_kv_heads, blocks * CACHE_BLOCK, d_head),
        )


def attention(
    s: Recorder,
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    batch: int,
    n_heads: int,
    n_kv_heads: int | None = None,
    causal: bool = True,
    cache: KVCache | None = None,
) -> Tensor:
    """Record o (B T, H D) = softmax(q k^T / sqrt(D)) v, per sequence and head.

    q (B T, H D), k and v (B T, KV D); or q alone, holding all three side by side
    (B T, (H + 2 KV) D). Saves the log-sum-exp of each row of scores, never the scores. The node
    and its gradient keep the session's ``matmul_precision`` of now. With a ``cache`` the rows are
    the next T of their sequences: they see all that are in it, and are added to it. That is causal,
    exact to float32 in any precision, and has no gradient.
    """
    H, KV = n_heads, n_kv_heads or n_heads
    N, columns = matrix("attention", q)
    fused = k is None
    D = columns // (H + 2 * KV if fused else H)
    require(N % batch == 0 and H % KV == 0, "attention", f"rows in {batch} sequences, KV | H", q)
    if k is None or v is None:
        require(columns == (H + 2 * KV) * D, "attention", f"q, k, v of {H} + 2 x {KV} heads", q)
        k, v = q.at(H * D), q.at((H + KV) * D)
    else:
        fits = columns == H * D and k.shape == v.shape == (N, KV * D)
        require(fits, "attention", f"q ({N}, {H * D}), k and v ({N}, {KV * D})", q, k, v)
    T = N // batch
    o = s.tape.new("attention", (N, H * D))
    sizes = {"B": batch, "T": T, "H": H, "KV": KV, "D": D}
    strides = {"ldq": q.shape[1], "ldk": k.shape[1], "ldv": v.shape[1]}
    scale = {"scale": 1 / sqrt(D)}
    if cache is None:
        lse = s.tape.new("lse", (batch, H, T))
        sizes |= strides | {"causal": int(causal)}
        sizes["precision"] = precision.PRECISIONS.index(s.matmul_precision)
        s.tape.record(ATTENTION, [o], [lse], [q, k, v], sizes, options=scale)
        return o
    S = cache.v.shape[2]
    shapes = cache.k.shape, cache.v.shape
    fits = causal and cache.past.shape == (batch,) and shapes == cache.shapes(batch, KV, D, S)
    require(fits, "attention", f"a cache of {batch} x {KV} heads of {D}", cache.k, cache.v)
    s.tape.checks.setdefault(cache.past, []).append(checks.ids_below(S - T + 1))
    sizes |= {"S": S} | strides
    inputs = [q, k, v, cache.past]
    s.tape.record(CACHED_ATTENTION, [o, cache.k, cache.v], [], inputs, sizes, options=scale)
    return o


def _attention_gradient(back: Backward, node: Node, do: Tensor) -> None:
    q, k, v = (given(t) for t in node.inputs)
    o, lse = given(node.outputs[0]), given(node.saved[0])
    dq = back.new(q.root)
    dk = dq.at(k.offset) if k.base else back.new(k)
    dv = dq.at(v.offset) if v.base else back.new(v)
    delta = back.tape.new("delta", lse.shape)
    back.tape.record(
        ATTENTION_BACKWARD,
        [dq, dk, dv],
        [delta],
        [do, o, lse, q, k, v],
        node.sizes,
        options=node.options,
    )
    for x, dx in ((q, dq), (k, dk), (v, dv)):
        if not x.base:
            back.contribute(x, dx)


def _no_gradient(back: Backward, node: Node, do: Tensor) -> None:
    raise ConfigError("attention over a cache has no gradient: record it without one to train")


def _products(products: int) -> Callable[[Sizes], int]:
    """Count ``products`` products of T x T x D per head; half of each when causal."""

    def count(sizes: Sizes) -> int:
        full = 2 * products * sizes["B"] * sizes["H"] * sizes["T"] ** 2 * sizes["D"]
        return full // 2 if sizes["causal"] else full

    return count


def _half_full(sizes: Sizes) -> int:
    """Count the products with a cache that is half full: how full it is, no tape knows."""
    return 2 * sizes["B"] * sizes["H"] * sizes["T"] * sizes["S"] * sizes["D"]


def _half_full_bytes(sizes: Sizes) -> int:
    """Count half of the cache, and q, k, v and o."""
    B, T, H, KV, S, D = (sizes[name] for name in ("B", "T", "H", "KV", "S", "D"))
    return 4 * B * D * (KV * S + 2 * T * (H + KV))


ATTENTION_BACKWARD = Op("attention.backward", _products(5))
ATTENTION = Op("attention.forward", _products(2), _attention_gradient)
CACHED_ATTENTION = Op(
    "cached_attention.forward", _half_full, _no_gradient, integers=(3,), nbytes=_half_full_bytes
)
