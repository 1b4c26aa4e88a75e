"""Assemble expert weights, which a Hugging Face folder cuts into other pieces than GGUF.

    blk.{n}.ffn_gate_exps (E, F, C) is
    model.layers.{n}.mlp.experts.{e}.gate_proj                     E weights (F, C), or
    model.layers.{n}.block_sparse_moe.input_linear[0/2]            the first half of one (E, 2 F, C)

    model.layers.{n}.mlp.experts.gate_up_proj[0:2T]                every other column of (E, C, 2 F)

    blk.{n}.attn_qkv is
    model.layers.{n}.linear_attn.in_proj_qkvz[0]                   the rows that its order names

    {e}      a weight for each expert; GGUF stacks them
    [i/k]    part i of k, along the rows
    [i:k]    rows i, i + k, ...
    [i]      the rows that the part's order names among all rows
    T        the matrices are (in, out) in the folder

Instead of a weight for each expert a folder may have stacks, gate_up_proj and down_proj, as models
that read pictures have.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]

_PART = re.compile(r"\[(\d+)(?:([/:])(\d+)(T?))?\]")
#: In folders with stacks: the stack and part of each expert matrix.
_STACKED = {
    "{e}.gate_proj": "gate_up_proj[0/2]",
    "{e}.up_proj": "gate_up_proj[1/2]",
    "{e}.down_proj": "down_proj[0/1]",
}
_NUMBER = "(0|[1-9][0-9]{0,8})"


class Piece(NamedTuple):
    """The relation of a folder's weight to GGUF's: one expert or all; part i of k."""

    name: str  # GGUF's
    expert: int | None
    part: int = 0
    parts: int = 1
    interleaved: bool = False  # rows i, i + k, ...; else the i-th contiguous part
    transposed: bool = False  # whether the folder's matrices are (in, out)

    @property
    def rows(self) -> int:
        """The axis of the rows, counted from the end."""
        return -1 if self.name.endswith(".bias") else -2

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return the piece's shape, given the stored shape of the whole. The parts must fit."""
        shape = list(stored)
        if self.transposed:
            shape[-2:] = shape[:-3:-1]
        shape[self.rows] //= self.parts
        return tuple(shape)


def is_cut(hf_name: str) -> bool:
    """Return whether a module's Hugging Face name stands for pieces."""
    return "{e}" in hf_name or _PART.search(hf_name) is not None


def _spellings(modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the modules in pieces, with each of their possible names in a folder."""
    for module, hf_name in modules.items():
        if is_cut(hf_name):
            yield module, hf_name
        begin, _, end = hf_name.partition("{e}")
        if stacked := _STACKED.get(f"{{e}}{end}"):
            yield module, begin + stacked


def pieces_of(modules: Mapping[str, str], name: str) -> list[Piece]:
    """Return the pieces in a folder's weight; none if it is whole or unknown."""
    pieces = []
    for module, hf_name in _spellings(modules):
        pattern = re.escape(_PART.sub("", hf_name))
        pattern = pattern.replace(r"\{n\}", f"(?P<n>{_NUMBER})").replace(
            r"\{e\}", f"(?P<e>{_NUMBER})"
        )
        match = re.fullmatch(f"{pattern}\\.(?P<kind>weight|bias)", name)
        if match is None:
            continue
        groups, part = match.groupdict(), _PART.search(hf_name)
        expert = groups.get("e")
        pieces.append(
            Piece(
                f"{module.replace('{n}', groups['n'])}.{groups['kind']}",
                None if expert is None else int(expert),
                *_how(part, groups["kind"] == "weight"),
            )
        )
    return pieces


def assembled(pieces: Mapping[Piece, str], read: Callable[[str], Array]) -> Array:
    """Assemble a weight from its pieces, given their names in the folder."""
    ordered = sorted(pieces, key=lambda piece: piece.expert or 0)
    values = [_part(read(pieces[piece]), piece) for piece in ordered]
    return np.stack(values) if ordered[0].expert is not None else values[0]


def _part(values: Array, piece: Piece) -> Array:
    values = values.swapaxes(-1, -2) if piece.transposed else values
    if piece.parts == 1:
        return np.ascontiguousarray(values)
    kept = rows_of(piece.part, piece.parts, piece.interleaved, values.shape[piece.rows])
    part = values[..., kept] if piece.rows == -1 else values[..., kept, :]
    return np.ascontiguousarray(part)


def _how(part: re.Match[str] | None, is_weight: bool) -> tuple[Any, ...]:
    """Return the last fields of a Piece."""
    if part is None:
        return ()
    if part[2] is None:
        return int(part[1]), 1, False, False
    return int(part[1]), int(part[3]), part[2] == ":", part[4] == "T" and is_weight


def rows_of(part: int, parts: int, interleaved: bool, total: int) -> slice:
    """Return the rows of one of ``parts`` parts of ``total`` rows."""
    rows = total // parts
    return slice(part, None, parts) if interleaved else slice(part * rows, (part + 1) * rows)


def layout_of(hf_name: str) -> tuple[str, int, int, bool]:
    """Return the folder's name, the part, the number of parts, and whether they interleave."""
    part = _PART.search(hf_name)
    i, k, interleaved, _ = _how(part, True) or (0, 1, False, False)
    return _PART.sub("", hf_name), i, k, interleaved


def joined(hf_name: str, values: list[Floats]) -> Floats:
    """Join parts, in order, to a folder's weight; the inverse of ``assembled``."""
    part, is_weight = _PART.search(hf_name), hf_name.endswith(".weight")
    _, _, interleaved, transposed = _how(part, is_weight) or (0, 1, False, False)
    axis = -2 if is_weight else -1
    if interleaved:
        shape = list(values[0].shape)
        shape[axis] *= len(values)
        whole = np.stack(values, axis=len(shape) + axis + 1).reshape(shape)
    else:
        whole = np.concatenate(values, axis=axis)
    return np.ascontiguousarray(whole.swapaxes(-1, -2) if transposed else whole)


def cut(hf_name: str, values: Floats) -> dict[tuple[str, int], Floats]:
    """Cut a weight into pieces, by the folder's name and the number of the part."""
    part = _PART.search(hf_name)
    if part:
        return {(_PART.sub("", hf_name), int(part[1])): values}
    return {(hf_name.replace("{e}", str(e)), 0): w for e, w in enumerate(values)}
