"""Adapters of matrices that are one module in a folder: PEFT adapts the module as a whole.

    toynn, GGUF    A_1 (r, in), B_1 (out_1, r)          A_2, B_2
    PEFT           A = [A_1; A_2]  (R, in)              R = 2 r
                   B (out, R): B_1 in the rows of the first matrix, and the columns of A_1; ...

The rest of B is 0. So B A adds the same to each matrix as before, with twice the rank. DoRA's
magnitudes are one for each row. A matrix without an adapter gets the norms of its rows.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from toynn.errors import AdapterError
from toynn.formats.adapters.adapter import LORA_A, Adapter, Base, Floats
from toynn.formats.adapters.stacks import Wrapped, together
from toynn.formats.hf.name_mapping import NameMapping
from toynn.formats.hf.pieces import pieces_of


def fused(adapter: Adapter, mapping: NameMapping, base: Base) -> dict[str, Wrapped]:
    """Return adapters in PEFT's form for modules that are several matrices here.

    The keys are the name of each module's first matrix. Raises AdapterError where the base model's
    sizes do not fit.
    """
    groups: dict[str, list[str]] = {}
    for weight in adapter.pairs:
        if parts := mapping.parts_of(weight):
            groups.setdefault(parts[0], []).append(weight)
    wrapped = {}
    for first, group in groups.items():
        total, rows = _rows(mapping, base, mapping.parts_of(first))
        a, b, alpha = together(adapter, {weight: rows[weight] for weight in group}, total)
        module = mapping.module(first)
        place = f"base_model.model.{module}"
        tensors = {f"{place}.lora_A.weight": a, f"{place}.lora_B.weight": b}
        if adapter.use_dora:
            m = tensors[f"{place}.lora_magnitude_vector"] = np.empty(total, np.float32)
            for weight, part in rows.items():
                learned = adapter.magnitudes.get(weight)
                m[part] = np.linalg.norm(base[weight], axis=1) if learned is None else learned
        wrapped[first] = Wrapped(module, tensors, len(a), alpha)
    return wrapped


def split(
    where: str, mapping: NameMapping, base: Base, name: str, side: str, values: Floats
) -> Iterator[tuple[str, Floats]]:
    """Yield each matrix that is part of a folder's weight, with its part of the weight's adapter.

    ``values`` are A, B or magnitudes, as ``side`` says. ``where`` begins an error. Raises
    AdapterError for other sizes than the base model's.
    """
    parts = [piece.name for piece in pieces_of(mapping.modules, name) if piece.expert is None]
    parts = [part for part in parts if part in base.tensors]
    total, rows = _rows(mapping, base, parts)
    if side != LORA_A and parts and len(values) != total:
        raise AdapterError(f"{where}: expected {total} rows; got {len(values)}")
    for part in parts:
        yield part, values if side == LORA_A else np.ascontiguousarray(values[rows[part]])


def _rows(
    mapping: NameMapping, base: Base, parts: list[str]
) -> tuple[int, dict[str, NDArray[np.intp]]]:
    """Return the number of rows of all parts, and the indices of each part's rows."""
    total = sum(base.tensors[part].shape[0] for part in parts)
    try:
        return total, {part: mapping.rows(base.metadata, part, total) for part in parts}
    except (KeyError, ValueError) as error:
        raise AdapterError(
            f"{parts[0]}: the base model's {error} does not fit {total} rows"
        ) from error
