"""Scaled dot-product attention."""

from collections.abc import Callable
from math import sqrt

from toynn.autograd import Backward
from toynn.ops._shape import Recorder, Sizes, given, matrix, require
from toynn.tape import Node, Op, Tensor

__all__ = ["attention"]


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
) -> Tensor:
    """Record o (B T, H D) = softmax(q k^T / sqrt(D)) v, per sequence and head.

    q (B T, H D), k and v (B T, KV D); or q alone, holding all three side by side
    (B T, (H + 2 KV) D). Saves the log-sum-exp of each row of scores, never the scores.
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
    o, lse = s.tape.new("attention", (N, H * D)), s.tape.new("lse", (batch, H, T))
    sizes = {"B": batch, "T": T, "H": H, "KV": KV, "D": D}
    sizes |= {"ldq": q.shape[1], "ldk": k.shape[1], "ldv": v.shape[1], "causal": int(causal)}
    s.tape.record(ATTENTION, [o], [lse], [q, k, v], sizes, options={"scale": 1 / sqrt(D)})
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


def _products(products: int) -> Callable[[Sizes], int]:
    """Count ``products`` products of T x T x D per head; half of each when causal."""

    def count(sizes: Sizes) -> int:
        full = 2 * products * sizes["B"] * sizes["H"] * sizes["T"] ** 2 * sizes["D"]
        return full // 2 if sizes["causal"] else full

    return count


ATTENTION_BACKWARD = Op("attention.backward", _products(5))
ATTENTION = Op("attention.forward", _products(2), _attention_gradient)
