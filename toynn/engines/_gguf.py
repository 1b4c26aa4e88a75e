"""Engines that read and write GGUF: hyper-parameters by key, weights by name, the tokenizer.

Nothing in a file is ignored in silence: a tensor or a hyper-parameter that the engine does not know
is refused by its name.
"""

from abc import abstractmethod
from collections.abc import Mapping
from math import isfinite
from os import PathLike
from reprlib import repr  # which shortens long arrays
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from toynn.engines._sequence import C, SequenceEngine
from toynn.errors import ConfigError, GGUFError, ShapeError
from toynn.formats import gguf
from toynn.formats.gguf import GGUFFile
from toynn.options import RecipeOptions
from toynn.reports import Memory

__all__ = ["OUTTYPES", "GGUFEngine", "Hyper", "refuse"]

Metadata = Mapping[str, Any]

#: What weights can be exported as, with llama.cpp's number for a file that is mostly so.
OUTTYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
Q8_BLOCK = 32
#: Keys of a file that describe that file and not the model.
_OWN_KEYS = tuple(
    f"general.{key}"
    for key in ("architecture", "alignment", "file_type", "quantization_version", "type")
)
#: Hyper-parameters that change no number, and those that change none at this value.
_NEUTRAL = {
    "vocab_size": None,  # see Hyper.vocabulary
    "tensor_data_layout": None,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scale_linear": 1.0,
    "attention.causal": True,
    "attention.sliding_window": 0,
    "expert_count": 0,
    "expert_used_count": 0,
}


class Hyper:
    """Hyper-parameters of a file's architecture, each checked as it is read."""

    def __init__(self, file: GGUFFile) -> None:
        self.file, self.tensors = file, file.tensors
        self.prefix = f"{file.architecture}."
        self._known: set[str] = set()

    def _get(self, key: str, default: Any) -> Any:
        self._known.add(key)
        value = self.file.metadata.get(self.prefix + key, default)
        if value is None:
            refuse(self.file, f"key not found in model: {self.prefix}{key}")
        return value

    @property
    def vocabulary(self) -> int:
        """Number of rows of the embedding; every count of tokens in the file must be that."""
        metadata, rows = self.file.metadata, self.rows("token_embd.weight")
        size, tokens = f"{self.prefix}vocab_size", "tokenizer.ggml.tokens"
        listed = metadata.get(tokens)
        counts = {
            size: metadata.get(size, rows),
            tokens: len(listed) if isinstance(listed, list) else rows,
        }
        for what, count in counts.items():
            if not np.array_equal(count, rows):
                refuse(
                    self.file,
                    f"{what} counts {repr(count)} tokens; token_embd.weight has {rows} rows",
                )
        return rows

    @property
    def layers(self) -> int:
        """Number of blocks; there are tensors for each, so a wrong number costs no time."""
        count, tensors = self.whole("block_count"), len(self.tensors)
        if count > tensors:
            refuse(self.file, f"{self.prefix}block_count is {count}; there are {tensors} tensors")
        return count

    def rows(self, name: str) -> int:
        """Return the number of rows of a tensor."""
        if name not in self.tensors:
            refuse(self.file, f"tensor {name} is missing")
        return self.tensors[name].shape[0]

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            refuse(self.file, f"{self.prefix}{key} must be a whole number >= 1; got {repr(value)}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        value = self._get(key, default)
        if not isinstance(value, float) or not isfinite(value) or value <= 0:
            refuse(self.file, f"{self.prefix}{key} must be a number > 0; got {repr(value)}")
        return float(str(np.float32(value)))  # 1e-05, not 9.999999747378752e-06

    def expect(self, key: str, value: int) -> None:
        """Refuse a file in which a key is there and is not this value."""
        if not np.array_equal(found := self._get(key, value), value):
            refuse(self.file, f"{self.prefix}{key} must be {value} here; got {repr(found)}")

    def refuse_others(self) -> None:
        """Refuse a file with a hyper-parameter that was not read and could change its numbers."""
        for key, value in self.file.metadata.items():
            name = key.removeprefix(self.prefix)
            if not key.startswith(self.prefix) or name in self._known:
                continue
            if name not in _NEUTRAL:
                refuse(self.file, f"hyper-parameter {key} = {repr(value)} is not known to toynn")
            neutral = _NEUTRAL[name]
            if neutral is not None and not np.array_equal(value, neutral):
                refuse(self.file, f"{key} = {repr(value)} is not supported; only {neutral!r} is")


def refuse(file: GGUFFile, what: str) -> NoReturn:
    """Raise GGUFError about a file."""
    raise GGUFError(f"{file.path}: {what}")


def _check_tensors(file: GGUFFile, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a file has exactly these tensors, in these shapes.

    A model whose head is tied may come with an output.weight, if it equals token_embd.weight.
    """
    for name, shape in shapes.items():
        if name not in file.tensors:
            refuse(file, f"tensor {name} is missing")
        found = tuple(file.tensors[name].shape)
        if found != shape:
            refuse(file, f"tensor {name} has the wrong shape: expected {shape}; got {found}")
    unknown = file.tensors.keys() - shapes.keys()
    if "output.weight" in unknown:
        embedding, output = (file.tensors[name] for name in ("token_embd.weight", "output.weight"))
        if (embedding.type, embedding.shape) != (output.type, output.shape) or not np.array_equal(
            file.raw("token_embd.weight"), file.raw("output.weight")
        ):
            refuse(file, "output.weight differs from token_embd.weight, to which it is tied here")
        unknown -= {"output.weight"}
    if unknown:
        refuse(file, f"unknown tensors: {', '.join(sorted(unknown))}")


def _stored_as(name: str, values: NDArray[np.float32], outtype: str) -> str:
    """Return the type of one tensor: ``outtype``, or float32 where that does not fit.

    Norms, biases and learned positions stay float32, as in llama.cpp's own converter; so do, in
    q8_0, matrices whose rows are no whole number of blocks of 32.
    """
    if values.ndim < 2 or name == "position_embd.weight":
        return "f32"
    if outtype == "q8_0" and values.shape[-1] % Q8_BLOCK:
        return "f32"
    return outtype


def _passed_on(file: GGUFFile) -> dict[str, tuple[Any, str]]:
    """Return what an export passes on: the tokenizer, and the name, author and licence."""
    return {
        key: (value, file.types[key])
        for key, value in file.metadata.items()
        if np.size(value)  # the writer has no empty arrays
        and key.startswith(("tokenizer.", "general."))
        and key not in _OWN_KEYS
    }


class GGUFEngine(SequenceEngine[C]):
    """A sequence engine that can be read from a GGUF file and written to one."""

    architectures: ClassVar[tuple[str, ...]]  # general.architecture of the files it reads
    _carried: Metadata = MappingProxyType({})  # what the file it came from said beside the model

    @classmethod
    def from_gguf(
        cls, path: str | PathLike[str], t_seq: int = 0, t_batch: int = 1, backend: str = "cpu"
    ) -> Self:
        """Return an engine with a file's weights, quantized ones expanded, ready to train.

        ``t_seq`` 0 means the context length that the file names, which may be long.
        """
        with gguf.open(path, check=True) as file:
            engine = cls._declared(file, t_seq, t_batch, backend)
            engine.session.finalize_weights()
            for name, tensor in engine.tensors.items():
                engine.session.upload(tensor, file[name])
            engine._carried = _passed_on(file)
        engine.build_training_step()
        return engine

    @classmethod
    def memory_for(
        cls, file: GGUFFile, t_seq: int = 0, t_batch: int = 1, backend: str = "cpu"
    ) -> Memory:
        """Return the memory that training a file's model would need; none of it is taken."""
        engine = cls._declared(file, t_seq, t_batch, backend)
        engine.build_forward()
        assert engine._step is not None
        engine._record_update(engine._step)
        return engine.session.memory()

    def export_gguf(
        self, path: str | PathLike[str], outtype: str = "f32", *, overwrite: bool = False
    ) -> None:
        """Write the model; ``outtype`` is that of its matrices: f32, f16, bf16 or q8_0.

        The tokenizer is that of the file that the engine came from. Without one the file says so
        ("no_vocab"), and llama.cpp takes token ids.
        """
        if outtype not in OUTTYPES:
            raise ConfigError(
                f"export_gguf: outtype must be {', '.join(OUTTYPES)}; got {outtype!r}"
            )
        architecture, hyper = self._to_hyper()
        metadata: dict[str, Any] = {
            "general.architecture": architecture,
            "general.type": "model",
            "general.file_type": OUTTYPES[outtype],
            "general.quantization_version": 2,
            "tokenizer.ggml.model": "no_vocab",
            **self._carried,
            f"{architecture}.vocab_size": self.vocab,
        }
        metadata |= {f"{architecture}.{key}": value for key, value in hyper.items()}
        tensors = {
            name: (values, _stored_as(name, values, outtype))
            for name, values in (self._exported() | self._beside()).items()
        }
        gguf.write(path, metadata, tensors, overwrite=overwrite)

    @classmethod
    def _declared(cls, file: GGUFFile, t_seq: int, t_batch: int, backend: str) -> Self:
        """Return an engine for a file's model, before it takes any memory."""
        if file.architecture not in cls.architectures:
            refuse(
                file,
                f"its architecture is {file.architecture!r}; {cls.__name__} reads "
                + ", ".join(cls.architectures),
            )
        hyper = Hyper(file)
        try:
            cfg, options = cls._from_hyper(hyper)
        except ConfigError as error:
            refuse(file, str(error))
        hyper.refuse_others()
        engine = cls(backend)
        opts = RecipeOptions(t_seq=t_seq, t_batch=t_batch, **options)
        try:
            engine.declare(cfg, opts)
        except ShapeError as error:  # sizes that no memory could hold
            refuse(file, str(error))
        shapes = {name: tensor.shape for name, tensor in engine.tensors.items()}
        beside = {name: values.shape for name, values in engine._beside().items()}
        _check_tensors(file, shapes | beside)
        return engine

    @classmethod
    @abstractmethod
    def _from_hyper(cls, hyper: Hyper) -> tuple[C, dict[str, Any]]:
        """Return the configuration of a file's model, and the options that it calls for."""

    @abstractmethod
    def _to_hyper(self) -> tuple[str, dict[str, Any]]:
        """Return the architecture and its hyper-parameters, their keys without its name."""

    def _exported(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights as files of the architecture have them."""
        return self.weights()

    def _beside(self) -> dict[str, NDArray[np.float32]]:
        """Return the tensors of a file that are no weights; they come from the configuration."""
        return {}
