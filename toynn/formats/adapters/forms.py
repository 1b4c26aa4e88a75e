"""Which of the two forms of an adapter can hold what, and why not."""

from collections.abc import Iterable

from toynn.formats.adapters.adapter import HEAD, TABLE, Base, is_stack, is_tied

__all__ = ["no_gguf", "no_peft"]

_INSTEAD = "write a PEFT folder, or merge it into a model (toynn fuse)"


def no_gguf(weights: Iterable[str], base: Base | None = None, *, use_dora: bool = False) -> str:
    """Return why no GGUF file can hold an adapter of these weights; empty where one can."""
    if use_dora:
        return (
            "llama.cpp's adapters are A and B alone, with no place for the magnitudes of DoRA: "
            f"{_INSTEAD}"
        )
    for weight in weights if base is not None and is_tied(base) else ():
        if weight == TABLE:
            return (
                f"{TABLE} makes the logits of this model too, and llama.cpp, which knows adapters "
                f"by the name of their tensor, cannot adapt it as the table alone: {_INSTEAD}"
            )
        if weight == HEAD:
            return (
                f"this model has no {HEAD}: its head is the table of embeddings, and llama.cpp "
                f"adapts tensors that there are: {_INSTEAD}"
            )
    return ""


def no_peft(weights: Iterable[str], *, use_dora: bool = False) -> str:
    """Return why no PEFT folder can hold an adapter of these weights; empty where one can."""
    stacks = sorted(filter(is_stack, weights)) if use_dora else []
    if not stacks:
        return ""
    return (
        f"{stacks[0]}: expected A and B alone; got DoRA: in transformers the matrices of experts "
        "are one parameter, for which PEFT has no magnitudes"
    )
