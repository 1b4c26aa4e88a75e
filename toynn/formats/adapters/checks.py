"""Checks that an adapter fits a base model: names, shapes, and identity."""

import os

from toynn.errors import AdapterError
from toynn.formats.adapters.adapter import (
    BASE_NAME,
    LORA_A,
    LORA_B,
    Adapter,
    Base,
    gguf_architecture,
    is_embedding,
    matrix_of,
    text_of,
)
from toynn.formats.adapters.identity import Identity, called, identity_of, tell


def check(adapter: Adapter, base: Base, *, strict: bool = False) -> None:
    """Raise AdapterError, with tensor, expected and got, if an adapter does not fit a model.

    Warns if an adapter's shapes fit but it was trained on another model; with ``strict`` that is an
    AdapterError too. An adapter of another program does not describe its model; only the models'
    names are compared then, if both have one.
    """
    check_shapes(adapter, base)
    check_base(adapter, base, strict=strict)


def check_architecture(path: object, architecture: str, base: Base) -> None:
    """Raise AdapterError unless it is a model's own architecture, or that of its GGUF file."""
    if gguf_architecture(base, architecture) != gguf_architecture(base):
        raise AdapterError(
            f"{path}: general.architecture: expected {base.architecture!r}, as the base model is; "
            f"got {architecture!r}"
        )


def check_shapes(adapter: Adapter, base: Base) -> None:
    """Raise AdapterError if an adapter does not fit a model by architecture, names and shapes."""
    path = os.fspath(adapter.path)
    check_architecture(path, adapter.architecture, base)
    for weight, (a, b) in adapter.pairs.items():
        place = matrix_of(weight, base)
        if place not in base.tensors:
            raise AdapterError(
                f"{path}: tensor {weight}{LORA_A}: {weight} does not exist in the base model, "
                f"which has {len(base.tensors)} tensors (is it the wrong base model?)"
            )
        shape, rank = tuple(base.tensors[place].shape), adapter.rank_of(weight)
        if len(shape) not in (2, 3) or weight == "position_embd.weight":
            raise AdapterError(
                f"{path}: {weight}: expected a matrix that multiplies activations; in the base "
                f"it is {shape}"
            )
        expected: tuple[tuple[int, ...], ...] = ((shape[0], rank), (shape[1], rank))
        if not is_embedding(weight):
            *experts, rows, columns = shape
            expected = ((*experts, rank, columns), (*experts, rows, rank))
        for suffix, values, wanted in zip((LORA_A, LORA_B), (a, b), expected, strict=True):
            if values.shape != wanted:
                raise AdapterError(
                    f"{path}: tensor {weight}{suffix}: expected {wanted} for the base model's "
                    f"{shape}; got {values.shape} (is it the wrong base model?)"
                )


def check_base(adapter: Adapter, base: Base, *, strict: bool = False) -> None:
    """Warn if an adapter was trained on another model; ``strict``: raise AdapterError."""
    path = os.fspath(adapter.path)
    theirs = Identity.read(adapter.metadata, path)
    name, base_name = text_of(adapter.metadata, BASE_NAME), text_of(base.metadata, "general.name")
    if theirs:
        why = theirs.unlike(identity_of(base))
    else:
        why = "their names differ" if name and base_name and name != base_name else ""
    if why:
        described = called(base.metadata, "general.name", os.fspath(base.path))
        tell(
            f"{path}: made for {called(adapter.metadata)}; the base model here is another one, "
            f"{described}: {why}. Use the model that it was made for, or a copy of it in any type",
            strict,
        )
