"""An engine whose weights come from a file, or go to one.

Weights are read, dequantized and trained (``from_file``). Or they stay in the file, frozen and
mapped, with adapters (weights.py, adapters.py). The file's description of its model is checked
before any memory is allocated. files.py writes files.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.engines import files
from toynn.engines.adapters import Adapters
from toynn.engines.engine import Engine
from toynn.engines.files import StrPath
from toynn.engines.recording import Pass
from toynn.engines.targets import AdapterOptions
from toynn.engines.weights import FileWeights
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.formats import bases
from toynn.formats.adapters import Adapter
from toynn.graph.tape import Tensor
from toynn.models import (
    ARCHITECTURES,
    SequenceConfig,
    SequenceModel,
    Shapes,
    Source,
    architecture,
    check_tensors,
    refuse,
)
from toynn.nn import LoRA
from toynn.options import RecipeOptions
from toynn.system.critical import exclusive

__all__ = ["FileEngine"]

C = TypeVar("C", bound=SequenceConfig)


class _Architectures:
    """The names of the architectures whose configurations have the engine's ``config_type``."""

    def __get__(self, engine: Any, kind: "type[FileEngine[Any]]") -> tuple[str, ...]:
        own = kind.config_type
        return tuple(
            name for name, model in ARCHITECTURES.items() if issubclass(model.config_type, own)
        )


class FileEngine(Engine[C, Pass], Generic[C]):
    """An engine for the architectures of ``toynn.models``, with their files.

    Calls in another order raise LifecycleError.
    """

    config_type: type[Any] = object  # of the engine's models
    architectures = _Architectures()  # values of general.architecture that it reads

    vocab: int
    lora: AdapterOptions | None = None  # given to enable_lora
    _trains_adapters = False

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        super().__init__(backend, n_threads)
        self._carried: files.Carried = MappingProxyType({})

    # -- The model -----------------------------------------------------------------------------

    def _model_of(self, cfg: C) -> SequenceModel[Any]:
        model = architecture(cfg.arch)
        if cfg.arch not in self.architectures:
            raise ConfigError(
                f"{type(self).__name__}: expected the configuration of "
                f"{', '.join(self.architectures)}; got one of {cfg.arch}"
            )
        return model.apart() if self._weights.pairs_apart else model

    @property
    def model(self) -> SequenceModel[Any]:
        """The architecture of the configuration.

        Raises ConfigError if the engine is for others.
        """
        return self._model_of(self.config)

    def _beside(self) -> Shapes:
        return {name: array.shape for name, array in self.model.beside(self.config).items()}

    # -- Weights as stored in a file ----------------------------------------------------------

    def _check_undeclared(self, call: str) -> None:
        if self._session is not None:
            raise LifecycleError(
                f"{type(self).__name__}.{call} after the weights were declared: make a new engine"
            )

    def declare_for_mmap(self, file: Source, cfg: C | None, opts: RecipeOptions) -> None:
        """Declare a file's weights, frozen and in place, and the adapters; allocates nothing.

        ``file`` is an open GGUF file or Hugging Face folder. ``cfg``, ``opts.untied`` and
        ``opts.qkv_bias`` come from the file; given values must agree with it. The file stays mapped
        as long as the session lives, and is never written.
        """
        self._map(file, cfg, opts)

    def _map(self, file: Source, cfg: C | None, opts: RecipeOptions) -> FileWeights:
        self._check_undeclared("realize_for_mmap")
        found, options = files.config_of(file, self.architectures, type(self).__name__)
        if cfg is not None:
            files.check_agrees(file, cfg, found)
        files.check_options(file, opts, options)
        weights = self._weights = FileWeights(file, self.lora, trained=self._trains_adapters)
        self.declare(found, replace(opts, **options))
        return weights

    def realize_for_mmap(self, file: Source, cfg: C | None, opts: RecipeOptions) -> None:
        """Use a file's weights as they are stored, frozen; all adapters are zero.

        See ``declare_for_mmap``. Norms and biases that are not F32 are dequantized.
        """
        weights = self._map(file, cfg, opts)
        self.session.finalize_weights()
        weights.fill(self.session)

    # -- Adapters: requested before the weights, used after ------------------------------------

    def enable_lora(self, options: AdapterOptions, *, train: bool = True) -> None:
        """Request adapters, before ``realize_for_mmap``. Without ``train`` they only add to y."""
        self._check_undeclared("enable_lora")
        self.lora, self._trains_adapters = options, train

    def enable_lora_q(self, rank: int) -> None:
        """Request adapters of rank ``rank`` and scale 1 on the projections to q."""
        self.enable_lora(AdapterOptions(rank), train=False)

    def enable_lora_q_adamw(self) -> None:
        """Make the adapters trained; comes after ``enable_lora_q``.

        Raises LifecycleError before enable_lora_q().
        """
        self._check_undeclared("enable_lora_q_adamw")
        if self.lora is None:
            raise LifecycleError(
                f"{type(self).__name__}.enable_lora_q_adamw before enable_lora_q()"
            )
        self._trains_adapters = True

    @property
    def adapter_dropout(self) -> float:
        """The share of their inputs that adapters drop in a training step."""
        return self.lora.dropout if self.lora and self._trains_adapters else 0.0

    @property
    def file(self) -> Source | None:
        """The file that the weights are stored in, if any."""
        return self._weights.file

    def check_unchanged(self) -> None:
        """Raise the file's error if it is mapped and has changed since it was opened."""
        if self.file is not None:
            self.file.check_unchanged()

    @property
    def adapters(self) -> Mapping[str, LoRA]:
        """The adapters, by the GGUF name of their matrix."""
        found = self._weights.adapters
        return {} if found is None else found.layers

    @exclusive
    def init_adapters(self, init: str, seed: int, init_scale: float) -> None:
        """Draw every A as ``init`` says, each from its own random stream; set every B to zero.

        ``init`` is as in AdapterOptions. A principal one (PiSSA) must be given there too.
        """
        self._session_for("init_adapters()")
        AdapterOptions(1, init=init)  # refuses an unknown init
        if self._weights.adapters is not None:
            self._weights.adapters.start(init, seed, init_scale)

    def upload_lora_q_init(self, seed: int, init_scale: float) -> None:
        """Draw every A from N(0, init_scale); set every B to zero."""
        self.init_adapters("normal", seed, init_scale)

    @exclusive
    def adapter(self) -> Adapter:
        """Return a copy of the adapters, for ``toynn.formats.adapters`` to write.

        Raises LifecycleError where there are none.
        """
        self._session_for("adapter()")
        return self._adapted("adapter").copy()

    def load_adapter(self, adapter: Adapter) -> None:
        """Replace all adapters with those of ``adapter``; AdapterError unless they match.

        Raises LifecycleError where there are none.
        """
        self.load_weights(self._adapted("load_adapter").taken(adapter))

    @exclusive
    def adapter_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the adapters: `<weight>.lora_a` (r, in), `<weight>.lora_b` (out, r).

        With DoRA also `<weight>.lora_magnitude` (out,). Rows are in the order of the mapped file;
        ``adapter`` has GGUF's order.
        """
        found = self._weights.adapters
        return {} if found is None else found.weights()

    @property
    def unwritten(self) -> Mapping[str, str]:
        """Why the adapters cannot be written as "gguf" and as "peft"; "" if they can."""
        found = self._weights.adapters
        return {"gguf": "", "peft": ""} if found is None else found.unwritten

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """PiSSA's initial A and B, frozen, by name: s B0 A0 is subtracted."""
        found = self._weights.adapters
        return {} if found is None else found.starts

    def measure_norms(self) -> None:
        """Compute the row norms for DoRA, if weights have changed."""
        if self._weights.adapters is not None:
            self._weights.adapters.measure()

    def _adapted(self, call: str) -> Adapters:
        if self._weights.adapters is None:
            raise LifecycleError(f"{type(self).__name__}.{call}: realized without adapters")
        return self._weights.adapters

    # -- Reading -------------------------------------------------------------------------------

    @classmethod
    def from_file(
        cls,
        path: StrPath,
        t_seq: int = 0,
        t_batch: int = 1,
        backend: str = "cpu",
        *,
        options: RecipeOptions | None = None,
        build: bool = True,
    ) -> Self:
        """Return an engine with the weights of a GGUF file or Hugging Face folder, ready to train.

        Quantized weights are dequantized. ``t_seq`` 0 means the file's context length, which may be
        long. ``options`` replace t_seq and t_batch. Without ``build`` there is no training step and
        no memory for one until ``build_training_step``: enough for logits and generation.
        ``toynn.engines.frozen`` leaves the weights in the file.
        """
        with bases.open(path, check=True) as file:
            engine = cls.read(file, options or RecipeOptions(t_seq, t_batch), backend)
        if build:
            engine.build_training_step()
        return engine

    from_gguf = from_hf = from_file

    @classmethod
    def read(cls, file: Source, opts: RecipeOptions, backend: str = "cpu") -> Self:
        """Return an engine with the weights of an open file, and no training step yet."""
        engine = cls.declared(file, opts, backend)
        engine.session.finalize_weights()
        for name, tensor in engine.tensors.items():
            engine.session.upload(tensor, file[name])
        file.check_unchanged()
        engine._carried = files.passed_on(file)
        return engine

    @classmethod
    def declared(cls, file: Source, opts: RecipeOptions, backend: str = "cpu") -> Self:
        """Return an engine with an open file's model declared, before it allocates memory.

        Every error of the file that does not depend on the values of weights is raised here.
        """
        cfg, options = files.config_of(file, cls.architectures, cls.__name__)
        engine = cls(backend)
        try:
            engine.declare(cfg, replace(opts, **options))
        except ShapeError as error:  # sizes that no memory could hold
            refuse(file, str(error))
        shapes = {name: tensor.shape for name, tensor in engine.tensors.items()}
        check_tensors(file, shapes | engine._beside())
        return engine

    # -- Writing -------------------------------------------------------------------------------

    def carry_tokenizer(self, path: StrPath) -> None:
        """Include the tokenizer of a file or folder in exports; it must fit the vocabulary.

        Raises DataError for a folder's tokenizer of a kind that GGUF has no name for.
        """
        own = {k: v for k, v in self._carried.items() if not k.startswith("tokenizer.")}
        self._carried = own | files.tokenizer_of(path, self.vocab)

    def export_gguf(self, path: StrPath, outtype: str = "f32", *, overwrite: bool = False) -> None:
        """Write the model; ``outtype`` is the type of its matrices: f32, f16, bf16 or q8_0.

        The tokenizer comes from the file that the engine was read from. Without a tokenizer the
        file says "no_vocab", and llama.cpp takes token ids. Refused if the weights are mapped: the
        file exists already.
        """
        self._weights.check_exported(f"{type(self).__name__}.export_gguf")
        self._session_for("export_gguf()")
        files.write_gguf(path, self, outtype, overwrite=overwrite)

    def export_hf(self, path: StrPath, tokenizer: StrPath | None = None) -> str:
        """Write the model as a new Hugging Face folder: config.json, weights, tokenizer.

        The tokenizer comes from ``tokenizer``, a path, or from the file that the engine was read
        from. Return why the folder has no tokenizer, or "". Refused if the weights are mapped.
        """
        self._weights.check_exported(f"{type(self).__name__}.export_hf")
        self._session_for("export_hf()")
        return files.write_hf(path, self, tokenizer)
