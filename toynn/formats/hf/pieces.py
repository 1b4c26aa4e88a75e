"""Weights that a folder of Hugging Face cuts in other pieces than a GGUF file: those of experts.

    blk.{n}.ffn_gate_exps (E, F, C) is
    model.layers.{n}.mlp.experts.{e}.gate_proj                     E weights (F, C), or
    model.layers.{n}.block_sparse_moe.input_linear[0/2]            the first half of one (E, 2 F, C)

What begins in "{e}" is a stack, what ends in "[i/k]" is part i of k, along the rows.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Piece", "assembled", "cut", "is_cut", "pieces_of"]

Array = NDArray[Any]
Floats = NDArray[np.float32]

_PART = re.compile(r"\[(\d+)/(\d+)\]")
_NUMBER = "(0|[1-9][0-9]{0,8})"


class Piece(NamedTuple):
    """What a weight of a folder is to one of GGUF's: that of an expert, or all; part i of k."""

    name: str  # GGUF's
    expert: int | None
    part: int = 0
    parts: int = 1


def is_cut(spelled: str) -> bool:
    """Say whether a module's name at Hugging Face stands for pieces."""
    return "{e}" in spelled or _PART.search(spelled) is not None


def pieces_of(modules: Mapping[str, str], name: str) -> list[Piece]:
    """Return which pieces a weight of a folder is; none, if it is whole, or nothing known."""
    found = []
    for module, spelled in modules.items():
        if not is_cut(spelled):
            continue
        pattern = re.escape(_PART.sub("", spelled))
        pattern = pattern.replace(r"\{n\}", f"(?P<n>{_NUMBER})").replace(
            r"\{e\}", f"(?P<e>{_NUMBER})"
        )
        match = re.fullmatch(f"{pattern}\\.(?P<kind>weight|bias)", name)
        if match is None:
            continue
        groups, part = match.groupdict(), _PART.search(spelled)
        expert = groups.get("e")
        found.append(
            Piece(
                f"{module.replace('{n}', groups['n'])}.{groups['kind']}",
                None if expert is None else int(expert),
                *((int(part[1]), int(part[2])) if part else ()),
            )
        )
    return found


def assembled(pieces: Mapping[Piece, str], read: Callable[[str], Array]) -> Array:
    """Return a weight from its pieces, by the names by which they are read."""
    ordered = sorted(pieces, key=lambda piece: piece.expert or 0)
    values = [_part(read(pieces[piece]), piece) for piece in ordered]
    return np.stack(values) if ordered[0].expert is not None else values[0]


def _part(values: Array, piece: Piece) -> Array:
    if piece.parts == 1:
        return values
    rows = values.shape[-2] // piece.parts
    begin = piece.part * rows
    return np.ascontiguousarray(values[..., begin : begin + rows, :])


def cut(spelled: str, values: Floats) -> dict[tuple[str, int], Floats]:
    """Return the pieces of a weight: by the name of each, and which part it is of what is there."""
    part = _PART.search(spelled)
    if part:
        return {(_PART.sub("", spelled), int(part[1])): values}
    return {(spelled.replace("{e}", str(e)), 0): w for e, w in enumerate(values)}
