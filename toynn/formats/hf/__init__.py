"""Read and write Hugging Face's format: a folder with config.json and safetensors files.

    with hf.open("folder") as model:
        model.metadata["llama.block_count"], model["blk.0.attn_q.weight"]
    hf.write("new", "llama", {"block_count": 2, ...}, {"token_embd.weight": array, ...})

Keys, names, shapes and the order of rows are GGUF's, so the same code reads both formats. The one
exception is `stored`: rows of q and k are in the folder's order, so that they can be mapped.
Nothing is silently ignored: an unknown key that could change a number is an error that names it.
"""

import math
import os
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.errors import DataError
from toynn.formats import quants
from toynn.formats.foreign import foreign
from toynn.formats.gguf.finite import E8M0_LIMIT, find_nonfinite
from toynn.formats.gguf.tensors import HEAD, TABLE, TensorInfo
from toynn.formats.hf.config import (
    CLASSES,
    CLASSIFIES,
    CONFIG,
    WEIGHTS,
    Config,
    class_of,
    read_classes,
)
from toynn.formats.hf.mxfp4 import BLOCKS, BYTES, ELEMENTS, SCALES, interleaved
from toynn.formats.hf.name_mapping import (
    NAME_MAPPINGS,
    Floats,
    NameMapping,
    module_of,
    name_mapping_for,
    pairs_together,
    text_name_of,
)
from toynn.formats.hf.pieces import Piece, assembled, pieces_of
from toynn.formats.hf.shards import Shards
from toynn.formats.hf.writer import contents, write
from toynn.formats.objects import read_object
from toynn.formats.opened import Opened
from toynn.system.reading import Unchanged

__all__ = ["TABLE", "WEIGHTS", "HFModel", "contents", "context_length", "open", "write"]

Array = NDArray[Any]
Scalar = TypeVar("Scalar", bool, int, float, str)

#: Suffixes of tensors in old files that are constants; not used.
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", ".position_ids")
#: The number of extra blocks that predict further tokens (MTP). They are left out.
_FURTHER = "num_nextn_predict_layers"
#: Types for moving numbers without converting them.
_VIEWS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<u2"),
    "BF16": np.dtype("<u2"),
}


class HFModel(Opened):
    """An open folder: `metadata` by key, `tensors` by name; model[name] is an array.

    Raises DataError for a folder that toynn does not know or cannot read.
    """

    error = DataError

    def __init__(self, path: Path) -> None:
        self._watched = Unchanged.of(path / CONFIG)
        self.path, config = path, Config(path, read_object(path / CONFIG))
        self._config, self._is_part = config.of_text()
        mapping = _name_mapping_for(config)
        if mapping is None:
            kind = self._config.get("model_type")
            kinds = ", ".join({name: s for s in NAME_MAPPINGS.values() for name in s.model_types})
            self._config.refuse(f"model_type must be {kinds}; got {kind!r}")
        self.architecture, self._mapping = mapping.architecture, mapping
        self._pieces: dict[str, dict[Piece, str]] = {}  # of weights that are stored in pieces
        self._added: dict[str, Floats] = {}
        self.types: dict[str, str] = {}  # of metadata that an export keeps: none
        self.metadata = {"general.architecture": self.architecture} | {
            f"{self.architecture}.{key}": value for key, value in self._read_config().items()
        }
        self._mapping = mapping.suited(self.metadata)
        #: whether ``stored`` rows of q and k that RoPE rotates together are half a head apart
        self.pairs_apart = bool(mapping.pairs)
        self._stored = Shards(path, BUFFERS, (BLOCKS, SCALES) if mapping.bare else ())
        try:
            self._sources = self._read_names()  # by GGUF name
            names = (*self._sources, *self._pieces, *self._added)
            self.tensors = {name: self._info(name) for name in names}
        except DataError:
            self.close()
            raise
        self.nbytes, self.files = self._stored.nbytes, str(self._stored)

    def close(self) -> None:
        """Release the files. Arrays from ``stored`` stay valid."""
        self._stored.close()

    def __getitem__(self, name: str) -> Floats:
        """Return a weight in float32, in GGUF's order; it must be finite."""
        if name in self._added:
            return self._added[name]
        values = self._floats(name)
        if not np.isfinite(values).all():
            where = self._sources.get(name, name)
            raise DataError(f"{self._path_of(name)}: {where} has weights that are NaN or infinite")
        heads = self._heads(name)
        return pairs_together(values, heads) if heads else values

    def _order(self, name: str, shape: tuple[int, ...]) -> tuple[int, NDArray[np.intp]] | None:
        """Return a weight's axis and order, if its rows or columns are ordered unlike GGUF's."""
        try:
            return self._mapping.order(self.metadata, name, shape)
        except (KeyError, ValueError) as error:
            raise DataError(f"{self.path}: {name}: {shape} does not fit: {error}") from error

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a weight in its own type, in GGUF's order."""
        values, heads = self._as_stored(name), self._heads(name)
        return _bytes(pairs_together(values, heads) if heads else values)

    def stored(self, name: str) -> Array:
        """Return a weight as stored in the folder: float32, or the bytes of another type.

        It is a view of the mapped file. If the file has the weight in pieces, transposed or in
        another order, it is a copy in the same type. Rows of q and k are in the folder's order: see
        ``pairs_apart``.
        """
        values = self._as_stored(name)
        return np.require(values, requirements="A") if self._is_f32(name) else _bytes(values)

    def is_copied(self, name: str) -> bool:
        """Return whether ``stored`` copies a weight.

        It does if the weight is in pieces, transposed, in another order, changed in value, or
        unaligned float32.
        """
        if name in self._added:
            return False
        if name in self._pieces or self._is_changed(name) or self._is_transposed(name):
            return True
        info = self._stored.tensors[self._sources[name]]
        odd = info.type == "F32" and info.offset % _VIEWS["F32"].itemsize != 0
        return odd or self._order(name, self._whole(name, info.shape)) is not None

    def _as_stored(self, name: str) -> Array:
        """Return a weight with GGUF's shape, as stored; q and k in the folder's order."""
        if name in self._added:
            return self._added[name]
        if self._is_changed(name):
            return self._floats(name)
        if name in self._pieces:
            return self._ordered(name, assembled(self._pieces[name], self._view))
        values = self._view(self._sources[name])
        if self._is_transposed(name):
            return np.ascontiguousarray(values.T)
        return self._ordered(name, values.reshape(self._whole(name, values.shape)))

    def _ordered(self, name: str, values: Array) -> Array:
        """Return a weight with its rows or columns in GGUF's order, except q and k."""
        order = self._order(name, values.shape)
        return values if order is None else np.take(values, order[1], order[0])

    def _is_changed(self, name: str) -> bool:
        """Return whether GGUF's values differ from the folder's (offset or logarithm)."""
        module = module_of(name)
        return module in self._mapping.more or module in self._mapping.logarithms

    def _floats(self, name: str) -> Floats:
        """Return a weight in float32, with GGUF's values."""
        more = self._mapping.more.get(module_of(name), 0.0)
        if more:
            return self._stored[self._sources[name]] + np.float32(more)
        if module_of(name) in self._mapping.logarithms:
            with np.errstate(over="ignore"):
                values = -np.exp(self._stored[self._sources[name]])
                return self._ordered(name, values.reshape(self._whole(name, values.shape)))
        info = self.tensors[name]
        return quants.dequantize(_bytes(self._as_stored(name)), info.type, info.shape)

    def _view(self, source: str) -> Array:
        """Return a tensor of the files; 16-bit numbers as uint16."""
        info = self._stored.tensors[source]
        if info.type == "U8":
            scales = source.removesuffix(BLOCKS) + SCALES
            whole, parts = info.shape, self._stored.tensors[scales].shape
            blocks, exponents = self._stored.raw(source), self._stored.raw(scales)
            return interleaved(blocks.reshape(whole), exponents.reshape(parts))
        view: Array = self._stored.raw(source).view(_VIEWS[info.type])
        return view.reshape(info.shape)

    def _is_f32(self, name: str) -> bool:
        return self.tensors[name].type == "F32"

    def _heads(self, name: str) -> int:
        """Return the number of heads of a weight whose rows GGUF orders differently, else 0.

        Raises DataError if the rows are not a multiple of two rows for each head.
        """
        heads, rows = self._mapping.heads(self.metadata, name), self.tensors[name].shape[0]
        if heads and rows % (2 * heads):
            raise DataError(
                f"{self.path / CONFIG}: expected a number of heads that divides the row pairs of "
                f"{name}; got {heads} for {rows} rows"
            )
        return heads

    def _path_of(self, name: str) -> Path:
        source = self._sources.get(name) or next(iter(self._pieces[name].values()))
        return self._stored.path_of(source)

    @property
    def rows(self) -> int:
        """The number of token ids: rows of the embedding table. Raises DataError without one."""
        if TABLE not in self.tensors:
            raise DataError(f"{self.path}: tensor {TABLE} is missing")
        return self.tensors[TABLE].shape[0]

    def require(self, key: str, kind: type[Scalar]) -> Scalar:
        """Return the value of a key that must exist and have type ``kind``. Raises DataError."""
        value = self.metadata.get(key)
        if type(value) is kind:
            return value
        raise DataError(f"{self.path / CONFIG}: {key}: expected {kind.__name__}; got {value!r}")

    def check_finite(self) -> None:
        """Raise DataError for a weight that is NaN or infinite."""
        for name, info in self._stored.tensors.items():
            if info.nbytes and self._is_nonfinite(name, info):
                raise DataError(
                    f"{self._stored.path_of(name)}: {name} has weights that are NaN or infinite"
                )

    def _is_nonfinite(self, name: str, info: TensorInfo) -> bool:
        """Return whether a tensor has NaN or infinity; in MXFP4 only scales can."""
        raw = self._stored.raw(name)
        if info.type != "U8":
            return find_nonfinite(raw, info.type) is not None
        return name.endswith(SCALES) and int(raw.max()) >= E8M0_LIMIT

    def check_unchanged(self) -> None:
        """Raise DataError if a file has changed since it was opened.

        Weight files, their index and config.json are checked, also after ``close``.
        """
        self._watched.check()
        self._stored.check_unchanged()

    def _read_config(self) -> dict[str, Any]:
        """Return the hyper-parameters by GGUF's keys; refuse unknown keys."""
        config, mapping = self._config, self._mapping
        self._is_tied = config.get("tie_word_embeddings")
        further = config.get(_FURTHER)
        further = 0 if further is None else further
        self._further = config.number(_FURTHER, further, real=False, least=0)
        hyper = config.numbers(mapping.keys, mapping.real)
        self._added |= mapping.rules.complete(config, hyper)
        if not mapping.encodes and class_of(config).endswith(CLASSIFIES):
            read_classes(config, hyper)
        for key, values in mapping.fixed.items():
            config.expect(key, values)
        for key in mapping.biases:  # see _check_biases
            config.get(key)
        config.refuse_others()
        for key, hf_key in mapping.keys.items():
            if key not in hyper and key not in mapping.optional:
                config.refuse(f"{hf_key} is missing")
        return hyper

    # -- Weights ---------------------------------------------------------------------------------

    def _read_names(self) -> dict[str, str]:
        """Return the name in the file of each weight, by its GGUF name."""
        sources, unknown = {}, []
        for name, info in self._stored.tensors.items():
            if name.endswith(SCALES) and name.removesuffix(SCALES) + BLOCKS in self._stored.tensors:
                continue
            text_name = text_name_of(name) if self._is_part else name
            if text_name is None or self._is_further(text_name):
                continue
            if text_name.startswith(self._mapping.without):
                continue
            hf_name = self._mapping.plain_name(text_name)
            if pieces := pieces_of(self._mapping.modules, hf_name):
                for piece in pieces:
                    part = piece._replace(transposed=False) if info.type == "U8" else piece
                    self._pieces.setdefault(piece.name, {})[part] = name
                continue
            gguf_name = self._mapping.gguf_name(hf_name)
            if gguf_name and self._mapping.passes_over(self.metadata, gguf_name):
                continue
            if gguf_name is None or gguf_name in sources:
                unknown += [] if name.endswith(BUFFERS) else [name]
            else:
                sources[gguf_name] = name
        if unknown:
            where = self._stored.path_of(unknown[0])
            raise DataError(f"{where}: unknown tensors: {', '.join(unknown[:5])}")
        self._check_biases(sources)
        if self._mapping.encodes:
            return sources
        if self._mapping.tied if self._is_tied is None else self._is_tied:
            head = sources.pop(HEAD, None)
            table = sources.get(TABLE)
            if head and table and not self._are_alike(head, table):
                where = self._stored.path_of(head)
                raise DataError(f"{where}: {head} is tied, and differs from {table}")
        elif not sources.keys() & {HEAD, CLASSES}:
            raise DataError(f"{self.path}: tensor lm_head.weight is missing")
        return sources

    def _is_further(self, name: str) -> bool:
        """Return whether a weight belongs to an extra block that predicts further tokens."""
        if name.startswith(("mtp.", "model.mtp_")):
            return True
        number = self._mapping.block_of(name) if self._further else None
        return number is not None and number >= self.metadata[f"{self.architecture}.block_count"]

    def _are_alike(self, *names: str) -> bool:
        mixed = len({self._stored.tensors[name].type for name in names}) > 1
        one, other = (self._stored[name] if mixed else self._view(name) for name in names)
        return np.array_equal(one, other)

    def _check_biases(self, sources: dict[str, str]) -> None:
        """Refuse biases that contradict config.json; drop biases that are all zero."""
        mapping = self._mapping
        for key, (usual, modules) in mapping.biases.items():
            said = self._config.get(key, usual)
            for name in mapping.biases_of(sources, modules):
                if bool(said) != (name in sources):
                    there = "there is" if name in sources else "there is no"
                    self._config.refuse(f"{key} is {said!r}; {there} {mapping.name(name)}")
        zero = [n for n in mapping.biases_of(sources, mapping.zero_biases) if n in sources]
        if not any(self._stored[sources[name]].any() for name in zero):
            for name in zero:
                del sources[name]

    def _info(self, name: str) -> TensorInfo:
        if name in self._added:
            return TensorInfo(name, "F32", self._added[name].shape, 0, self._added[name].nbytes)
        if name in self._pieces:
            return self._info_of_pieces(name)
        info = self._stored.tensors[self._sources[name]]
        if self._is_changed(name):
            shape = self._whole(name, info.shape)
            return TensorInfo(name, "F32", shape, info.offset, 4 * math.prod(shape))
        if self._is_transposed(name):
            return TensorInfo(name, info.type, info.shape[::-1], info.offset, info.nbytes)
        shape, size = self._taken(name, self._whole(name, info.shape), info.nbytes)
        return TensorInfo(name, info.type, shape, info.offset, size)

    def _info_of_pieces(self, name: str) -> TensorInfo:
        """Describe a weight in pieces; all pieces must exist, with one shape and type."""
        pieces, path = self._pieces[name], self._path_of(name)
        infos = [self._stored.tensors[source] for source in pieces.values()]
        first, piece = infos[0], next(iter(pieces))
        numbers = sorted(p.expert for p in pieces if p.expert is not None)
        if numbers != list(range(len(numbers))):
            raise DataError(
                f"{path}: {name}: expected experts 0 to {len(numbers) - 1}; got {numbers}"
            )
        kinds = {(info.shape, info.type) for info in infos}
        if len(kinds) > 1 or len(first.shape) < 2:
            raise DataError(f"{path}: {name}: expected matrices of one shape; got {sorted(kinds)}")
        type, whole, size = first.type, first.shape, sum(info.nbytes for info in infos)
        if type == "U8":
            type, whole = "MXFP4", self._whole_of_blocks(next(iter(pieces.values())))
            size = math.prod(whole) // ELEMENTS * BYTES
        shape = piece.shape(whole)
        if math.prod(shape) * piece.parts != math.prod(whole):
            raise DataError(
                f"{path}: {name}: expected rows that {piece.parts} parts divide; got {first.shape}"
            )
        shape, size = self._taken(name, shape, size // piece.parts)
        whole = (len(numbers), *shape) if numbers else shape
        return TensorInfo(name, type, whole, first.offset, size)

    def _taken(self, name: str, shape: tuple[int, ...], size: int) -> tuple[tuple[int, ...], int]:
        """Return shape and bytes of the rows or columns that a weight has of those stored."""
        if order := self._order(name, shape):
            axis, index = order
            size = size // shape[axis] * len(index)
            shape = (*shape[:axis], len(index), *shape[axis + 1 :])
        return shape, size

    def _whole_of_blocks(self, source: str) -> tuple[int, ...]:
        """Return the shape of the matrices that MXFP4 blocks and scales hold."""
        shape, name = self._stored.tensors[source].shape, source.removesuffix(BLOCKS)
        scales = self._stored.tensors.get(name + SCALES)
        if scales is None or len(shape) < 3 or (shape[:-1], 16) != (scales.shape, shape[-1]):
            raise DataError(
                f"{self._stored.path_of(source)}: {name}: expected blocks (.., G, 16) and scales "
                f"(.., G); got {shape} and {scales and scales.shape}"
            )
        if scales.type != "U8":
            raise DataError(
                f"{self._stored.path_of(source)}: {name + SCALES} must be U8; got {scales.type}"
            )
        return (*shape[:-2], shape[-2] * ELEMENTS)

    def _whole(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape without the axis that only folders have, or with the one they lack."""
        if self._mapping.is_spread(name) and shape[-2:-1] == (1,):
            return (*shape[:-2], shape[-1])
        try:
            return self._mapping.unflattened(self.metadata, name, shape)
        except ValueError as error:
            raise DataError(f"{self.path}: {name}: {shape} does not fit: {error}") from error

    def _is_transposed(self, name: str) -> bool:
        dimensions = len(self._stored.tensors[self._sources[name]].shape)
        return self._mapping.is_transposed(name, dimensions)


def _bytes(values: Array) -> NDArray[np.uint8]:
    """Return the bytes of an array, row by row."""
    flat = np.ascontiguousarray(values)
    return flat.view(np.uint8).reshape(*flat.shape[:-1], -1)


def _name_mapping_for(whole: Config) -> NameMapping | None:
    """Return the name mapping of a folder's text part; None if its model_type is not known.

    Raises DataError for a model of another kind, such as an encoder.
    """
    config, _ = whole.of_text()
    mapping, classes = name_mapping_for(config), whole.get("architectures")
    named = list(classes) if isinstance(classes, list) else []
    fits = mapping is not None and (mapping.encodes or class_of(config).endswith(CLASSIFIES))
    if other := foreign(() if fits else named if mapping else [*named, config.get("model_type")]):
        whole.refuse(other)
    return mapping


def context_length(folder: Path) -> int | None:
    """Return a folder's context length in tokens; None if config.json does not say.

    Raises DataError for a config.json that cannot be read, and for a model of another kind.
    """
    whole = Config(folder, read_object(folder / CONFIG))
    (config, _), mapping = whole.of_text(), _name_mapping_for(whole)
    key = None if mapping is None else mapping.keys.get("context_length")
    value = None if key is None else config.get(key)
    return None if key is None or value is None else int(config.number(key, value, real=False))


def open(path: str | os.PathLike[str], *, check: bool | None = False) -> HFModel:
    """Open a folder. Raises DataError for a malformed folder.

    `check` searches the weights for NaN and infinity; None means only if the model is small.
    """
    return HFModel(Path(path)).looked_through(check)
