"""Self-attention with one fused projection for queries, keys and values."""

from toynn import ops
from toynn.session import Session
from toynn.tape import Tensor

__all__ = ["self_attention"]


def self_attention(
    s: Session,
    x: Tensor,
    w_qkv: Tensor,
    b_qkv: Tensor | None,
    w_out: Tensor,
    b_out: Tensor | None,
    *,
    batch: int,
    n_heads: int,
    causal: bool = True,
    rows: Tensor | None = None,
) -> Tensor:
    """Record out(attention(qkv(x))) for x (B T, C), w_qkv (3 C, C), w_out (C, C).

    With ``rows`` (N,) of i32, only those rows come out, (N, C): no other one is projected.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.
    """
    qkv = ops.linear(s, x, w_qkv, b_qkv)  # (B T, 3 C)
    heads = ops.attention(s, qkv, batch=batch, n_heads=n_heads, causal=causal)  # (B T, C)
    if rows is not None:
        heads = ops.embedding(s, heads, rows)
    return ops.linear(s, heads, w_out, b_out)
