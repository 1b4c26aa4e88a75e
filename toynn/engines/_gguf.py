"""Engines that read and write files: GGUF, and Hugging Face's folders.

Nothing in a file is ignored in silence: a tensor or a hyper-parameter that the engine does not know
is refused by its name.
"""

from abc import abstractmethod
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from toynn.engines._decoding import DecodingEngine
from toynn.engines._hyper import Hyper, Source, refuse
from toynn.engines._sequence import C
from toynn.errors import ConfigError, ShapeError
from toynn.formats import gguf, hf
from toynn.formats.gguf import OUTTYPES, stored_as
from toynn.options import RecipeOptions
from toynn.reports import Memory

__all__ = ["GGUFEngine", "StrPath", "check_tensors"]

Metadata = Mapping[str, Any]
StrPath = str | PathLike[str]

#: Keys of a file that describe that file and not the model.
_OWN_KEYS = tuple(
    f"general.{key}"
    for key in ("architecture", "alignment", "file_type", "quantization_version", "type")
)


def check_tensors(file: Source, shapes: Mapping[str, tuple[int, ...]]) -> None:
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


def _passed_on(file: Source) -> dict[str, tuple[Any, str]]:
    """Return what an export passes on: the tokenizer, and the name, author and licence."""
    return {
        key: typed
        for key, typed in gguf.typed_metadata(file.metadata, file.types).items()
        if key.startswith(("tokenizer.", "general.")) and key not in _OWN_KEYS
    }


class GGUFEngine(DecodingEngine[C]):
    """A sequence engine that can be read from a GGUF file or a Hugging Face folder, and written."""

    architectures: ClassVar[tuple[str, ...]]  # general.architecture of the files it reads
    _carried: Metadata = MappingProxyType({})  # what the file it came from said beside the model

    @classmethod
    def from_gguf(
        cls,
        path: StrPath,
        t_seq: int = 0,
        t_batch: int = 1,
        backend: str = "cpu",
        *,
        weight_dtype: str = "f32",
        checkpointing: bool = False,
        build: bool = True,
    ) -> Self:
        """Return an engine with a file's weights, quantized ones expanded, ready to train.

        ``t_seq`` 0 means the context length that the file names, which may be long. Without
        ``build`` there is no training step before ``build_training_step``, and no memory is taken
        for one: that is all that logits and generation need. ``toynn.engines.frozen`` leaves the
        weights in the file, too.
        """
        with gguf.open(path, check=True) as file:
            options = {"weight_dtype": weight_dtype, "checkpointing": checkpointing}
            engine = cls._read(file, t_seq, t_batch, backend, **options)
        if build:
            engine.build_training_step()
        return engine

    @classmethod
    def from_hf(
        cls,
        path: StrPath,
        t_seq: int = 0,
        t_batch: int = 1,
        backend: str = "cpu",
        *,
        weight_dtype: str = "f32",
        checkpointing: bool = False,
        build: bool = True,
    ) -> Self:
        """Return an engine with the weights of a Hugging Face folder, ready to train.

        The folder has config.json and model.safetensors, of a llama, qwen2, qwen3 or gpt2.
        ``build`` as in from_gguf.
        """
        with hf.open(path) as model:
            options = {"weight_dtype": weight_dtype, "checkpointing": checkpointing}
            engine = cls._read(model, t_seq, t_batch, backend, **options)
        if build:
            engine.build_training_step()
        return engine

    @classmethod
    def declared_from(cls, path: StrPath, t_seq: int = 0, *, weight_dtype: str = "f32") -> Self:
        """Return an engine with the shape of a GGUF file or Hugging Face folder, and no weights.

        Whatever is wrong with the file and needs no look at its weights is an error here already.
        """
        is_folder = Path(path).is_dir()
        with hf.open(path) if is_folder else gguf.open(path, check=False) as file:
            return cls._declared(file, t_seq, 1, weight_dtype=weight_dtype)

    @classmethod
    def _read(cls, file: Source, t_seq: int, t_batch: int, backend: str, **options: Any) -> Self:
        engine = cls._declared(file, t_seq, t_batch, backend, **options)
        engine.session.finalize_weights()
        for name, tensor in engine.tensors.items():
            engine.session.upload(tensor, file[name])
        engine._carried = _passed_on(file)
        return engine

    @classmethod
    def memory_for(
        cls, file: Source, t_seq: int = 0, t_batch: int = 1, backend: str = "cpu"
    ) -> Memory:
        """Return the memory that training a file's model would need; none of it is taken."""
        return cls._declared(file, t_seq, t_batch, backend).step_memory()

    def carry_tokenizer(self, path: StrPath) -> None:
        """Let exports carry the tokenizer that a GGUF file has; it must have the model's tokens."""
        with gguf.open(path, check=False) as file:
            texts = file.metadata.get("tokenizer.ggml.tokens")
            if isinstance(texts, gguf.Strings) and len(texts) != self.vocab:
                refuse(file, f"it has {len(texts)} tokens; the model has {self.vocab}")
            own = {k: v for k, v in self._carried.items() if not k.startswith("tokenizer.")}
            found = {k: v for k, v in _passed_on(file).items() if k.startswith("tokenizer.")}
        self._carried = own | found

    def export_gguf(self, path: StrPath, outtype: str = "f32", *, overwrite: bool = False) -> None:
        """Write the model; ``outtype`` is that of its matrices: f32, f16, bf16 or q8_0.

        The tokenizer is that of the file that the engine came from. Without one the file says so
        ("no_vocab"), and llama.cpp takes token ids.
        """
        self._session_for("export_gguf()")
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
            name: (values, stored_as(name, values.shape, outtype))
            for name, values in (self._exported() | self._beside()).items()
        }
        gguf.write(path, metadata, tensors, overwrite=overwrite)

    def export_hf(self, path: StrPath) -> None:
        """Write the model as a new Hugging Face folder: config.json and model.safetensors."""
        self._session_for("export_hf()")
        if beside := self._beside():
            raise ConfigError(f"export_hf: config.json has no place for {', '.join(beside)}")
        architecture, hyper = self._to_hyper()
        hyper["vocab_size"] = self.vocab
        hf.write(path, architecture, hyper, self._exported())

    @classmethod
    def _declared(
        cls, file: Source, t_seq: int, t_batch: int, backend: str = "cpu", **more: Any
    ) -> Self:
        """Return an engine for a file's model, before it takes any memory."""
        cfg, options = cls._config_of(file)
        engine = cls(backend)
        opts = RecipeOptions(t_seq=t_seq, t_batch=t_batch, **options, **more)
        try:
            engine.declare(cfg, opts)
        except ShapeError as error:  # sizes that no memory could hold
            refuse(file, str(error))
        shapes = {name: tensor.shape for name, tensor in engine.tensors.items()}
        beside = {name: values.shape for name, values in engine._beside().items()}
        check_tensors(file, shapes | beside)
        return engine

    @classmethod
    def _config_of(cls, file: Source) -> tuple[C, dict[str, Any]]:
        """Return the configuration of a file's model, and the options that it calls for."""
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
        return cfg, options

    @classmethod
    @abstractmethod
    def _from_hyper(cls, hyper: Hyper) -> tuple[C, dict[str, Any]]:
        """Return what _config_of does; a ConfigError in here becomes one of the file."""

    @abstractmethod
    def _to_hyper(self) -> tuple[str, dict[str, Any]]:
        """Return the architecture and its hyper-parameters, their keys without its name."""

    def _exported(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights as files of the architecture have them."""
        return self.weights()

    def _beside(self) -> dict[str, NDArray[np.float32]]:
        """Return the tensors of a file that are no weights; they come from the configuration."""
        return {}
