"""The feed-forward layer of a transformer block."""

from toynn import ops
from toynn.session import Session
from toynn.tape import Tensor

__all__ = ["mlp"]


def mlp(
    s: Session,
    x: Tensor,
    w_up: Tensor,
    b_up: Tensor | None,
    w_down: Tensor,
    b_down: Tensor | None,
    *,
    activation: str = "gelu",
) -> Tensor:
    """Record down(f(up(x))) for x (N, C), w_up (F, C), w_down (C, F).

    f is the ``activation``: "gelu" (in its tanh form), "gelu_exact" or "silu".
    """
    if activation == "silu":
        hidden = ops.silu(s, ops.linear(s, x, w_up, b_up))  # (N, F)
    else:
        hidden = ops.linear(s, x, w_up, b_up, activation)  # (N, F)
    return ops.linear(s, hidden, w_down, b_down)
