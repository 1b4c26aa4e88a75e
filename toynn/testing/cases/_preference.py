"""What the cases of dpo, orpo and kto share: a loss of sums of pairs, and its gradient."""

from collections.abc import Callable, Mapping
from typing import Any

from toynn.testing.cases._case import Array, OpCase, differentiable


def preference_case(
    op: str,
    inputs: Callable[..., dict[str, Array]],
    options: dict[str, Any],
    unread: Mapping[str, str],
) -> OpCase:
    """Return the case of a loss over S sequences, of which the first n count.

    ``unread`` says which inputs have values that nothing depends on, and where.
    """
    return differentiable(
        op,
        inputs,
        options=lambda sizes: options,
        loses_nan=lambda entry, sizes: unread,
        shapes=({"S": 20, "n": 20}, {"S": 9, "n": 4}, {"S": 2, "n": 2}),
        bench={"pairs_8": {"S": 16, "n": 16}},
        tolerance=5e-7,
        reason="all in double; options and results are float32",
    )
