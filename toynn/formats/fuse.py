"""Merge an adapter into its model, and write the result as one GGUF file.

This works tensor by tensor: only one matrix is in memory as float32, with its quantized blocks.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import AdapterError
from toynn.formats import adapters, gguf, mixes, quants
from toynn.formats.adapters import Adapter
from toynn.formats.bases import Base
from toynn.formats.gguf import Deferred, TensorInfo
from toynn.formats.gguf.tensors import HEAD, TABLE
from toynn.formats.hf.name_mapping import NAME_MAPPINGS
from toynn.formats.outtypes import MIXES, OUTTYPES, check_kind

Floats = NDArray[np.float32]

#: The type of merged tensors whose own type toynn cannot write; at least as precise.
REPLACEMENT = "Q8_0"
#: llama.cpp's file types, by the type of most tensors.
FILE_TYPES = {name.upper(): number for name, number in OUTTYPES.items()} | {"Q4_0": 2}
CHUNK = 1 << 18  # elements that are dequantized at once, to compare


@dataclass
class Fused:
    """The result of `fuse`."""

    #: By merged tensor: its type before and after.
    types: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: By merged tensor that is not float32: sums of squares, of the rounding error and of s B A.
    squares: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: By merged tensor: the sum of squares of s B A.
    added: dict[str, float] = field(default_factory=dict)
    #: The type chosen for a folder's matrices, if some had a type that cannot be written.
    chosen: str | None = None

    def rounding(self, *names: str) -> float:
        """Return the rounding error of these tensors, or of all, relative to s B A.

        It is the norm of (stored - exact) over the norm of s B A. At 1 rounding hides the adapter;
        at 0.01 nearly all of the adapter is left.
        """
        chosen = names or tuple(self.squares)
        changed, added = (sum(self.squares[name][i] for name in chosen) for i in (0, 1))
        return sqrt(changed / added) if added else 0.0


def fuse(
    base: Base,
    adapter: Adapter,
    out: str | os.PathLike[str],
    *,
    outtype: str | None = None,
    overwrite: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Fused:
    """Write the base with weights W + s B A instead of W; metadata and tokenizer stay.

    ``metadata`` replace the base's; without them the base must be a GGUF file.

    Each tensor keeps its type, with two exceptions. A merged tensor becomes Q8_0 if toynn cannot
    write its type: of quantized types toynn writes only Q8_0 and Q4_0. DeepSeek's attn_k_b and
    attn_v_b, which are one matrix here, become F32.

    With an ``outtype`` of f32, f16, bf16 or q8_0, all matrices get that type. With one of
    `toynn.formats.outtypes.MIXES` (q4_k_m, iq4_xs, ...), llama.cpp's quantizer chooses the types,
    and needs a temporary float32 file next to ``out``. Rounding to a type other than float32 can
    undo much of an adapter: the result says how much.

    Raises AdapterError if the adapter does not fit. Raises GGUFError if ``out`` exists (unless
    ``overwrite``), is the base, or cannot be written; and the base's error if it changes meanwhile.
    Raises ConfigError for an unknown ``outtype``, and for a mix without llama-cpp-python.
    """
    adapters.check(adapter, base)
    if outtype in MIXES:
        return _fuse_as_mix(base, adapter, Path(out), outtype, overwrite, metadata)
    if outtype is not None:
        check_kind(outtype, "fuse")
    parted = {TABLE, HEAD} & adapter.pairs.keys() if adapters.is_tied(base) else set()
    if parted and not NAME_MAPPINGS[base.architecture].has_head:
        raise AdapterError(
            f"{os.fspath(adapter.path)}: {min(parted)}: a {base.architecture} uses its embedding "
            "table as its head, and the adapter changes only one of them"
        )
    infos = dict(base.tensors)
    if parted:  # table and head are no longer the same
        infos[HEAD] = replace(infos[TABLE], name=HEAD)
    fused = Fused()
    tensors: dict[str, tuple[NDArray[np.uint8] | Deferred, str]] = {}
    for name, info in infos.items():
        merged = name in adapter.pairs
        type = gguf.stored_as(name, info.shape, outtype).upper() if outtype else info.type
        if merged and type not in gguf.WRITABLE:
            type = REPLACEMENT
        if merged:
            fused.types[name] = info.type, type
        if merged or type != info.type:
            tensors[name] = _deferred(base, adapter, info, type, fused), type
        else:
            tensors[name] = base.raw(adapters.matrix_of(name, base)), type
    described = _metadata(base, tensors, outtype) if metadata is None else metadata
    gguf.write(out, described, tensors, overwrite=overwrite, check=base.check_unchanged)
    return fused


def _fuse_as_mix(
    base: Base,
    adapter: Adapter,
    out: Path,
    mix: str,
    overwrite: bool,
    metadata: Mapping[str, Any] | None,
) -> Fused:
    """Write the model in float32, let llama.cpp quantize it, and compare the two."""
    fused = Fused()

    def write(whole: Path) -> None:
        nonlocal fused
        fused = fuse(base, adapter, whole, outtype="f32", metadata=metadata)

    instead = f"toynn fuse --model {base.path} --adapter {adapter.path} --outtype f32"
    instead += " --out whole.gguf"
    with (
        mixes.quantized(out, mix, write, overwrite=overwrite, who="fuse", instead=instead) as files,
        gguf.open(files[0], check=False) as exact,
        gguf.open(files[1]) as stored,
    ):
        for name, added in fused.added.items():
            type = stored.tensors[name].type
            fused.types[name] = base.tensors[adapters.matrix_of(name, base)].type, type
            if type != "F32":
                fused.squares[name] = _distance(exact[name], stored.raw(name), type), added
    return fused


def _deferred(base: Base, adapter: Adapter, info: TensorInfo, type: str, fused: Fused) -> Deferred:
    """Return the blocks of a tensor that is merged or changes its type, computed on demand."""
    elements, nbytes = quants.BLOCKS[type]
    *rows, columns = info.shape
    shape = (*rows, columns // elements * nbytes)

    def make() -> NDArray[np.uint8]:
        values = _values(base, adapters.matrix_of(info.name, base))
        added = adapters.merge(values, adapter, info.name) if info.name in adapter.pairs else None
        blocks = gguf.encode(f"{base.path}: {info.name}", values, type)
        if added is not None:
            fused.added[info.name] = added
            if type != "F32":
                fused.squares[info.name] = _distance(values, blocks, type), added
        return blocks

    return Deferred(shape, np.dtype(np.uint8), make)


def _values(base: Base, name: str) -> Floats:
    """Return a writable float32 copy of a tensor, without copying twice."""
    values = base[name]
    writable = values.flags.writeable and values.dtype == np.float32
    return values if writable else values.astype(np.float32)


def _distance(values: Floats, blocks: NDArray[np.uint8], type: str) -> float:
    """Return the sum of squares of the rounding error."""
    values = values.reshape(-1, values.shape[-1])
    blocks = blocks.reshape(len(values), -1)
    rows = max(1, CHUNK // values.shape[1])
    squares = 0.0
    for begin in range(0, len(values), rows):
        exact, stored = values[begin : begin + rows], blocks[begin : begin + rows]
        change = quants.dequantize(stored, type, exact.shape) - exact
        squares += float(np.vdot(change, change))
    return squares


def _metadata(
    base: Base, tensors: Mapping[str, tuple[object, str]], outtype: str | None
) -> dict[str, Any]:
    """Return the base's metadata with the right file type."""
    metadata: dict[str, Any] = gguf.typed_metadata(base.metadata, base.types)
    before = _most(base, lambda name: base.tensors[name].type)
    after = outtype.upper() if outtype else _most(base, lambda name: tensors[name][1])
    if after != before or outtype:
        metadata["general.file_type"] = (FILE_TYPES[after], "UINT32")
    return metadata


def _most(base: Base, type_of: Callable[[str], str]) -> str:
    """Return the type of most elements."""
    counts: Counter[str] = Counter()
    for name, info in base.tensors.items():
        counts[type_of(name)] += prod(info.shape)
    return counts.most_common(1)[0][0]
