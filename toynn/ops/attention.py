"""Scaled dot-product attention."""

from dataclasses import dataclass
from typing import Any

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.numerics import checks
from toynn.ops._shape import EXP, Recorder, Sizes, matrix, product_precision, require

CACHE_ROWS = 64  # a cache has room for a multiple of this: kernels store rows in blocks


@dataclass(frozen=True)
class KVCache:
    """A cache of B sequences, with room for S keys and values of each head.

    It holds the sequences' ``past`` rows; the next rows are written after them. The kernel decides
    the order of numbers in k and v. Without v, the values are the first columns of the keys.
    """

    k: Tensor  # (B, KV, S, D)
    v: Tensor | None  # (B, KV, S, E)
    past: Tensor  # i32 (B,), an input

    @staticmethod
    def shapes(
        batch: int, n_kv_heads: int, rows: int, d_head: int, d_value: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of k and v with room for at least ``rows`` rows."""
        whole = (batch, n_kv_heads, -(-rows // CACHE_ROWS) * CACHE_ROWS)
        return (*whole, d_head), (*whole, d_value)


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
    first: Tensor | None = None,
    scale: float | None = None,
    window: int = 0,
    cap: float = 0.0,
    sinks: Tensor | None = None,
    cache: KVCache | None = None,
    d_value: int | None = None,
) -> Tensor:
    """Record o (B T, H E) = softmax(scale q k^T) v, per sequence and head.

    Saves the log-sum-exp of each row of scores, never the scores. The node and its gradient use the
    session's current ``matmul_precision``.

    Parameters
    ----------
    q, k, v
        q (B T, H D), k (B T, KV D) and v (B T, KV E). Or q alone, with all three side by side,
        (B T, (H + 2 KV) D), and E = D. Or q and k over a cache without values: the values are the
        first E = ``d_value`` columns of the keys.
    scale
        None means 1 / sqrt(D).
    window
        The number of keys that a row sees, its own the last; 0: all. If not causal, it sees as many
        from its own on.
    cap
        Scores become cap tanh(score / cap); 0: no cap.
    sinks
        (H,): one more score in every row of a head, of a key without a value.
    first
        i32 (B T,), for segments that do not see each other. It has the first row of each row's
        segment, as an index into all B T rows.
    cache
        The rows are the next T of their sequences. They see all rows in the cache, and are added to
        it. Such attention is causal, in float32 in any precision, and has no gradient and no
        segments.

    Raises ConfigError if a count limits the rows of several sequences.
    """
    H, KV = n_heads, n_kv_heads or n_heads
    N, columns = matrix("attention", q=q)
    fused, shared = k is None, k is not None and v is None
    D = columns // (H + 2 * KV if fused else H)
    require(
        N % batch == 0 and H % KV == 0,
        "attention",
        f"rows of {batch} sequences, and n_kv_heads that divides {H}; it is {KV}",
        q=q,
    )
    if k is None:
        require(columns == (H + 2 * KV) * D, "attention", f"q, k, v of {H} + 2 x {KV} heads", q=q)
        k, v, E = q.at(H * D), q.at((H + KV) * D), D
    else:
        E = (d_value or 0) if v is None else matrix("attention", v=v)[1] // KV
        fits = columns == H * D and k.shape == (N, KV * D) and (shared or E > 0)
        fits = fits and (v is None or v.shape == (N, KV * E))
        require(
            fits,
            "attention",
            f"q ({N}, {H * D}), k ({N}, {KV * D}), v ({N}, {KV} E)",
            q=q,
            k=k,
            v=v,
        )
    without = cache is not None and cache.v is None
    fits = shared == without and (0 < E <= D if shared else d_value is None)
    require(fits, "attention", "v, or a cache without values and d_value of 1 to D", q=q, k=k, v=v)
    require(window >= 0, "attention", "a window of keys", q=q)
    require(sinks is None or sinks.shape == (H,), "attention", f"sinks ({H},)", q=q, sinks=sinks)
    T = N // batch
    if q.root.valid is not None and batch != 1:
        raise ConfigError("attention: a count may limit the rows of one sequence; got several")
    if first is not None:
        fits = cache is None and first.shape == (N,) and first.dtype == "i32"
        require(fits, "attention", f"without a cache, first ({N},) of i32", q=q, first=first)
        s.tape.checks.setdefault(first, []).append(checks.segments_within(T))
    read = {"q": q, "k": k, "v": v, "sinks": sinks}
    scalars: dict[str, Any] = {"B": batch, "H": H, "KV": KV, "D": D, "E": E}
    scalars |= {"window": window, "cap": cap}
    if scale is not None:
        scalars["scale"] = scale
    if cache is None:
        scalars |= {"causal": causal, "precision": product_precision(s)}
        return s.tape.record(ATTENTION, {**read, "first": first}, **scalars).output
    S = cache.k.shape[2]
    keys, values = cache.shapes(batch, KV, S, D, E)
    fits = causal and cache.past.shape == (batch,) and cache.k.shape == keys
    fits = fits and (cache.v is None or cache.v.shape == values)
    require(fits, "attention", f"a cache of {batch} x {KV} heads of {D}, {E}", k=cache.k, v=cache.v)
    s.tape.checks.setdefault(cache.past, []).append(checks.Below(S - T + 1))
    remembered = {"kc": cache.k, "vc": cache.v, "past": cache.past}
    return s.tape.record(CACHED_ATTENTION, {**read, **remembered}, **scalars).output


def _attention_gradient(back: Backward, node: Node, do: Tensor) -> None:
    q, k, v = node["q"], node["k"], node["v"]
    dq = back.new(q.root).view(q.shape) if back.wants(q) else None
    dk, dv = (_gradient_of_keys(back, x, dq) for x in (k, v))
    if dq or dk or dv:
        delta = back.tape.new("delta", node["lse"].shape) if dq or dk else None
        tensors = {name: x for name, x in node.named.items() if name != "sinks"}
        tensors |= {"dq": dq, "dk": dk, "dv": dv, "delta": delta, "do": do}
        back.tape.record(ATTENTION_BACKWARD, tensors, like=node)
    sinks = node.named["sinks"]
    read = {"do": do, "o": node["o"], "lse": node["lse"], "sinks": sinks}
    back.emit(ATTENTION_BACKWARD_SINKS, {"dsinks": sinks}, read, node)
    for x, dx in ((q, dq), (k, dk), (v, dv)):
        if dx and not x.whole.base:
            back.contribute(x, dx)


def _gradient_of_keys(back: Backward, x: Tensor, dq: Tensor | None) -> Tensor | None:
    """Return the tensor for the gradient of k or v, perhaps columns of dq; None: not wanted."""
    if x.whole.base:
        return dq and dq.at(x.offset)
    return back.new(x) if back.wants(x) else None


def _no_gradient(back: Backward, node: Node, do: Tensor) -> None:
    raise ConfigError("attention over a cache has no gradient: record it without one to train")


def _products(sizes: Sizes, columns: int | None = None) -> int:
    """Count only products, T x T x ``columns`` per head (default D + E); half if causal.

    A causal window of W keys has T^2 / 2 - (T - W)^2 / 2 scores, one of both sides twice as many.
    """
    T, W = sizes["T"], min(sizes.get("window", 0), sizes["T"])
    full = 2 * sizes["B"] * sizes["H"] * (T**2 - (T - W) ** 2 if W else T**2)
    across = sizes["D"] + sizes["E"] if columns is None else columns
    return full * across // (2 if sizes["causal"] else 1)


def _backward_products(sizes: Sizes) -> int:
    """Count the scores, do v^T if dq or dk needs it, and one product for each of dq, dk, dv."""
    dq, dk, dv = (sizes[name] for name in ("has_dq", "has_dk", "has_dv"))
    D, E = sizes["D"], sizes["E"]
    return _products(sizes, (1 + dq + dk) * D + (max(dq, dk) + dv) * E)


def _keys(sizes: Sizes) -> int:
    """Return how many keys a row sees. Without ``past``, the cache counts as half full."""
    keys = sizes["past"] + sizes["T"] if "past" in sizes else sizes["S"] // 2
    window = sizes.get("window", 0)
    return min(keys, window + sizes["T"]) if window else keys


def _cached_flops(sizes: Sizes) -> int:
    """Count two products of each row with the cache."""
    across = sizes["D"] + sizes["E"]
    return 2 * sizes["B"] * sizes["H"] * sizes["T"] * _keys(sizes) * across


def _cached_bytes(sizes: Sizes) -> int:
    """Count the used part of the cache, and q, k, v and o."""
    B, T, H, KV, D, E = (sizes[name] for name in ("B", "T", "H", "KV", "D", "E"))
    cached = D + E * sizes["has_v"]
    return 4 * B * (KV * (_keys(sizes) + T) * cached + T * H * (D + E))


ATTENTION_BACKWARD = Op("attention.backward", _backward_products, rows="T do", segments="first")
ATTENTION_BACKWARD_SINKS = Op(
    "attention.backward_sinks",
    lambda sizes: (EXP + 3 + 2 * sizes["E"]) * sizes["B"] * sizes["T"] * sizes["H"],
    rows="T do",
)
ATTENTION = Op(
    "attention.forward",
    _products,
    _attention_gradient,
    rows="T q",
    segments="first",
    quadratic=True,
)
CACHED_ATTENTION = Op(
    "cached_attention.forward", _cached_flops, _no_gradient, nbytes=_cached_bytes, name="attention"
)
