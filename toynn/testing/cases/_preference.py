"""The shared case of dpo, orpo and kto: a loss of sums over sequences, and its gradient."""

from collections.abc import Callable, Mapping
from typing import Any

from toynn.testing.cases._case import Array, OpCase, differentiable, shapes_of


def preference_case(
    op: str,
    inputs: Callable[..., dict[str, Array]],
    options: dict[str, Any],
    unread: Mapping[str, str],
) -> OpCase:
    """Return the case of a loss over S sequences, of which only the first n are valid.

    ``unread`` names the inputs with values that the loss does not depend on, and where they are.
    """
    return differentiable(
        op,
        inputs,
        options=lambda sizes: options,
        loses_nan=lambda entry, sizes: unread,
        shapes=shapes_of("S n", "20 20, 9 4, 2 2"),
        bench={"pairs_8": {"S": 16, "n": 16}},
        tolerance=5e-7,
        reason="all in double; options and results are float32",
    )
