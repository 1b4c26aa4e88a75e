"""Models in Hugging Face's format: a folder with config.json and model.safetensors.

    with hf.open("folder") as model:
        model.metadata["llama.block_count"], model["blk.0.attn_q.weight"]
    hf.write("new", "llama", {"block_count": 2, ...}, {"token_embd.weight": array, ...})

Keys, names, shapes and the order of rows are GGUF's, so that what reads one reads the other.
Nothing is ignored in silence: what could change a number and is not known is refused by its name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import DataError
from toynn.formats.gguf.tensors import TensorInfo
from toynn.formats.hf.config import CONFIG, WEIGHTS, Config
from toynn.formats.hf.pieces import Piece, assembled, pieces_of
from toynn.formats.hf.spelling import SPELLINGS, module_of, pairs_together, spelling_for
from toynn.formats.hf.writer import write
from toynn.formats.objects import read_object
from toynn.formats.safetensors import SafeTensors

__all__ = ["HFModel", "open", "write"]

Floats = NDArray[np.float32]

#: Weights of old files that are constants, or an input's: of no use.
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


class HFModel:
    """An open folder. `metadata` is by key, `tensors` by name; model[name] is an array.

    Raises DataError for what toynn does not know or cannot read.
    """

    error = DataError

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self._config = path, Config(path, values)
        kind = self._config.get("model_type")
        spelling = spelling_for(kind)
        if spelling is None:
            known = ", ".join(s.model_type or s.architecture for s in SPELLINGS.values())
            self._config.refuse(f"model_type must be {known}; got {kind!r}")
        self.architecture, self._spelling = spelling.architecture, spelling
        self._pieces: dict[str, dict[Piece, str]] = {}  # of those that lie in pieces
        self._added: dict[str, Floats] = {}
        self.types: dict[str, str] = {}  # of metadata that is passed on: none is
        self.metadata = {"general.architecture": self.architecture} | {
            f"{self.architecture}.{key}": value for key, value in self._read_config().items()
        }
        weights, index = path / WEIGHTS, path / f"{WEIGHTS}.index.json"
        if not weights.exists() and index.exists():
            raise DataError(f"{index}: a model in several files is not supported; save it as one")
        self._stored = SafeTensors(weights, BUFFERS)
        self._sources = self._read_names()  # by GGUF name
        names = (*self._sources, *self._pieces, *self._added)
        self.tensors = {name: self._info(name) for name in names}

    def __enter__(self) -> "HFModel":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stored.close()

    def __getitem__(self, name: str) -> Floats:
        """Return a weight in float32, in GGUF's order."""
        if name in self._added:
            return self._added[name]
        if name in self._pieces:
            return assembled(self._pieces[name], self._stored.__getitem__)
        values = self._stored[self._sources[name]]
        if self._is_transposed(name):
            return np.ascontiguousarray(values.T)
        values = values.reshape(self._whole(name, values.shape))
        heads = self._spelling.heads(self.metadata, name)
        more = self._spelling.more.get(module_of(name), 0.0)
        values = values + np.float32(more) if more else values
        return pairs_together(values, heads) if heads else values

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a weight, as float32."""
        return np.ascontiguousarray(self[name]).reshape(-1).view(np.uint8)

    def _read_config(self) -> dict[str, Any]:
        """Return the hyper-parameters by GGUF's keys; refuse what is not known."""
        config, spelling = self._config, self._spelling
        self._is_tied = config.get("tie_word_embeddings")
        found = config.numbers(spelling.keys, spelling.real)
        self._added |= spelling.complete(config, found)
        for key, values in spelling.fixed.items():
            config.expect(key, values)
        config.refuse_others()
        for key, spelled in spelling.keys.items():
            if key not in found and key not in spelling.optional:
                config.refuse(f"{spelled} is missing")
        return found

    # -- model.safetensors ---------------------------------------------------------------------

    def _read_names(self) -> dict[str, str]:
        """Return the name in the file of each weight, by its GGUF name."""
        sources, unknown = {}, []
        for name in self._stored.tensors:
            if pieces := pieces_of(self._spelling.modules, name):
                for piece in pieces:
                    self._pieces.setdefault(piece.name, {})[piece] = name
                continue
            gguf_name = self._spelling.gguf_name(name)
            if gguf_name is None or gguf_name in sources:
                unknown += [] if name.endswith(BUFFERS) else [name]
            elif not self._is_zero_bias(gguf_name, name):
                sources[gguf_name] = name
        if unknown:
            raise DataError(f"{self.path / WEIGHTS}: unknown tensors: {', '.join(unknown[:5])}")
        if self._spelling.tied if self._is_tied is None else self._is_tied:
            head = sources.pop("output.weight", None)
            table = sources.get("token_embd.weight")
            if head and table and not np.array_equal(self._stored[head], self._stored[table]):
                raise DataError(f"{self.path / WEIGHTS}: {head} is tied, and differs from {table}")
        elif "output.weight" not in sources:
            raise DataError(f"{self.path / WEIGHTS}: tensor lm_head.weight is missing")
        return sources

    def _is_zero_bias(self, gguf_name: str, name: str) -> bool:
        """Whether this is a bias that the model does not have, and does nothing."""
        return self._spelling.may_be_zero(gguf_name) and not self._stored[name].any()

    def _info(self, name: str) -> TensorInfo:
        if name in self._added:
            return TensorInfo(name, "F32", self._added[name].shape, 0, self._added[name].nbytes)
        if name in self._pieces:
            return self._info_of_pieces(name)
        info = self._stored.tensors[self._sources[name]]
        shape = info.shape[::-1] if self._is_transposed(name) else self._whole(name, info.shape)
        return TensorInfo(name, info.type, shape, info.offset, info.nbytes)

    def _info_of_pieces(self, name: str) -> TensorInfo:
        """Describe a weight that lies in pieces, all of which must be there, and alike."""
        pieces, path = self._pieces[name], self.path / WEIGHTS
        infos = [self._stored.tensors[source] for source in pieces.values()]
        first, piece = infos[0], next(iter(pieces))
        numbers = sorted(p.expert for p in pieces if p.expert is not None)
        if numbers != list(range(len(numbers))):
            raise DataError(
                f"{path}: {name}: expected experts 0 to {len(numbers) - 1}; got {numbers}"
            )
        if any(info.shape != first.shape for info in infos) or len(first.shape) < 2:
            shapes = sorted({info.shape for info in infos})
            raise DataError(f"{path}: {name}: expected matrices of one shape; got {shapes}")
        shape = (*first.shape[:-2], first.shape[-2] // piece.parts, first.shape[-1])
        if first.shape[-2] % piece.parts:
            raise DataError(
                f"{path}: {name}: expected {piece.parts} parts of as many rows; got {first.shape}"
            )
        nbytes = sum(info.nbytes for info in infos) // piece.parts
        return TensorInfo(
            name, first.type, (len(numbers), *shape) if numbers else shape, first.offset, nbytes
        )

    def _whole(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape without an axis that only folders have."""
        spread = module_of(name) in self._spelling.spread and len(shape) == 3 and shape[1] == 1
        return (shape[0], shape[2]) if spread else shape

    def _is_transposed(self, name: str) -> bool:
        dimensions = len(self._stored.tensors[self._sources[name]].shape)
        return self._spelling.is_transposed(name, dimensions)


def open(path: str | os.PathLike[str]) -> HFModel:
    """Open a folder. Raises DataError for whatever is wrong with it."""
    path = Path(path)
    return HFModel(path, read_object(path / CONFIG))
