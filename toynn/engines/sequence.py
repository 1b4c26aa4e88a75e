"""The engine around any model of token sequences.

What is particular to an architecture its model says (toynn.models); this class records the loss of
whole sequences around the forward pass, feeds it, and is the door to what goes with it: reading on
where one stopped (decoding.py), files (files.py), weights that stay in a file with adapters beside
them (weights.py, adapters.py).
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.engines import files
from toynn.engines.decoding import Decoding
from toynn.engines.doors import AdapterDoors, DecoderDoors
from toynn.engines.engine import Engine, counted
from toynn.engines.files import StrPath
from toynn.engines.packed import Packed
from toynn.engines.preference import PreferenceDoors, PreferencePass
from toynn.engines.recording import Pass, record_logits, record_loss
from toynn.engines.weights import FileWeights
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.formats import bases, gguf, hf
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
from toynn.options import RecipeOptions
from toynn.reports import Memory

__all__ = ["SequenceEngine"]

C = TypeVar("C", bound=SequenceConfig)


class _Architectures:
    """The architectures whose configurations are an engine's; of all kinds, if it names none."""

    def __get__(self, engine: Any, kind: "type[SequenceEngine[Any]]") -> tuple[str, ...]:
        own = kind.config_type
        return tuple(
            name for name, model in ARCHITECTURES.items() if issubclass(model.config_type, own)
        )


class SequenceEngine(Engine[C, Pass], AdapterDoors, DecoderDoors, PreferenceDoors, Generic[C]):
    """An engine that reads B sequences of T tokens, laid flat (B T,).

    Its weights are drawn (``realize_for_random_init``) or read (``from_gguf``, ``from_hf``), and
    all trained; or they stay in their file, frozen: ``enable_lora``, ``realize_for_mmap``,
    ``init_adapters`` or ``load_weights``, ``build_training_step``.

    Calls in another order raise LifecycleError.
    """

    config_type: type[Any] = object  # of the models that it is for
    architectures = _Architectures()  # general.architecture of the files that it reads

    context: int
    vocab: int
    t_seq: int
    t_tok: Tensor
    t_pos: Tensor

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        super().__init__(backend, n_threads)
        self.batches = 0  # micro-batches trained on: each has dropout masks of its own
        self._decoding = Decoding(self)
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

        Raises ConfigError where the engine is for others.
        """
        return self._model_of(self.config)

    def _check(self, cfg: C, opts: RecipeOptions) -> None:
        if opts.t_seq > cfg.context:
            raise ConfigError(
                f"{type(self).__name__}: t_seq {opts.t_seq} is longer than the context "
                f"{cfg.context}"
            )
        super()._check(cfg, opts)

    def declare(self, cfg: C, opts: RecipeOptions) -> None:
        """Declare the weights; no memory is taken before the session's ``finalize_weights``.

        Each weight must be uploaded before a tape can run that reads it.
        """
        super().declare(cfg, opts)
        self.vocab, self.context = cfg.vocab, cfg.context
        self.t_seq = opts.t_seq or cfg.context

    def _beside(self) -> Shapes:
        return {name: array.shape for name, array in self.model.beside(self.config).items()}

    def build_forward(self) -> None:
        """Record the forward pass, up to the loss: the first part of build_training_step."""
        super().build_forward()
        assert self._step is not None
        self.t_tok, self.t_pos = self._step.tokens, self._step.positions

    # -- Recording -----------------------------------------------------------------------------

    def _record_main(self) -> Pass:
        if self.preference is not None:
            return self._record_preference(self.t_batch)
        return self._record_loss(self.t_batch, dense=False, packed=self.options.packed)

    def _record_loss(self, batch: int, *, dense: bool, packed: bool) -> Pass:
        dropout = self.adapter_dropout
        return record_loss(self, batch, self.t_seq, dropout, dense=dense, packed=packed)

    def _record_preference(self, batch: int) -> PreferencePass:
        assert self.preference is not None
        return self.preference.record(batch, self.adapter_dropout)

    def _step_for(self, tokens: int, *, dense: bool, packed: bool) -> Pass:
        """Return the training step with room for so many tokens, and for this form of labels."""
        batch = -(-tokens // self.t_seq)
        if packed:
            batch = max(batch, self.t_batch)
        if batch == self.t_batch and not dense and packed == self.options.packed:
            return self._check_built("step")

        def build() -> Pass:
            step = self._record_loss(batch, dense=dense, packed=packed)
            return self._record_update(step)

        return self.session.record(("step", batch, dense, packed), build)

    def _kind_of(self, name: str, w: Tensor) -> tuple[bool, float]:
        return super()._kind_of(name, w)[0], self.lora.rate_of(name) if self.lora else 1.0

    # -- Running -------------------------------------------------------------------------------

    def _feed(
        self,
        ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        segments: ArrayLike | None,
        hp: ArrayLike | None = None,
        *,
        train: bool,
    ) -> tuple[Pass, float]:
        """Upload a batch; return its tape's handles, and how many rows of it count.

        With ``train`` it gets the next dropout masks, unless something in it is refused.
        """
        self._check_built("step")
        ids, labels = np.asarray(ids), np.asarray(labels)
        dense, given = labels.ndim == 2, None
        alone = hp is not None and not self.session.pending  # then nobody asks for a count
        count = 1.0 if alone else counted(labels)
        packed = segments is not None or (self.options.packed and not dense)
        if ids.ndim != 1 or ids.size == 0 or (segments is None and ids.size % self.t_seq):
            raise ShapeError(
                f"step: seq_ids must be flat, whole sequences of {self.t_seq}; got {ids.shape}"
            )
        if packed:
            given = Packed.of(ids, positions, labels, segments, self.t_seq, self.context)
        elif positions is None:
            positions = np.tile(np.arange(self.t_seq, dtype=np.int32), ids.size // self.t_seq)
        step = self._step_for(ids.size, dense=dense, packed=packed)
        inputs: dict[Tensor, ArrayLike] = {}
        if given is not None:
            assert step.segments is not None and step.count is not None
            inputs[step.count] = np.array(ids.size)
            ids, positions, labels, inputs[step.segments] = given.padded(step.tokens.shape[0])
        assert positions is not None and step.labels is not None
        inputs |= {step.tokens: ids, step.positions: positions, step.labels: labels}
        if hp is not None:
            inputs |= self._rows_of_adamw(step, hp)
        if step.dropout is not None:
            inputs[step.dropout] = np.array([self.batches, train], np.int32)
        self.session.feed(inputs, step.tape)
        self.batches += train
        return step, count

    def step(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
        segments: ArrayLike | None = None,
    ) -> float:
        """Train on one batch; return its loss before the update.

        seq_ids and positions: int (B T,), B whole sequences; positions None means 0..T-1 each.
        labels: int (B T,), -100 where a row does not count, or dense float (B T, V).
        hp: the 7-slot row of AdamW. ``is_first`` zeroes the moments first; gradients need no
        reset, since the first micro-batch overwrites them. Batches given to ``accumulate`` since
        the last step count too, each by its rows.
        segments: int, as many as seq_ids, which are then any number of examples, of any lengths,
        one behind another: of each token the number of the first one of its example. No example
        sees another; positions count from 0 in each.

        Raises ShapeError for ids that are no whole sequences, or segments that do not fit.
        """
        fed = self._feed(seq_ids, positions, labels, segments, hp, train=True)
        return self._train(*fed, is_first)

    def accumulate(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        segments: ArrayLike | None = None,
    ) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss.

        Raises what ``step`` does: ShapeError.
        """
        return self._add_gradients(*self._feed(seq_ids, positions, labels, segments, train=True))

    def evaluate(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        segments: ArrayLike | None = None,
    ) -> float:
        """Return the loss of one batch; no gradient and no moment is touched.

        Raises what ``step`` does: ShapeError.
        """
        return self._evaluate(self._feed(seq_ids, positions, labels, segments, train=False)[0])

    def logits(
        self, ids: ArrayLike, batch: int | None = None, rows: ArrayLike | None = None
    ) -> NDArray[np.float32]:
        """Return logits (len(ids), V) of flat ids: ``batch`` sequences of at most ``context`` ids.

        Without ``batch``, ids that are as many as a training step's are t_batch sequences; others
        are one sequence, or, where they exceed the context, whole sequences of t_seq.
        With ``rows``, int (n,), return the logits (n, V) of these rows only, in their order: the
        head looks at no others.

        Raises ShapeError for ids that are no such sequences, and where there are no rows.
        """
        self._session_for("logits()")
        ids = np.asarray(ids)
        if batch is None:
            several = ids.size > self.context or ids.size == self.t_batch * self.t_seq
            batch = ids.size // self.t_seq if several and ids.size % self.t_seq == 0 else 1
        length = ids.size // batch if batch > 0 else 0
        if ids.ndim != 1 or length * batch != ids.size or not 0 < length <= self.context:
            raise ShapeError(
                f"logits: ids must be flat, {batch} sequence(s) of 1 to {self.context} of them; "
                f"got {ids.shape}"
            )
        s = self.session
        wanted = np.arange(0) if rows is None else np.asarray(rows)
        if rows is not None and (wanted.ndim != 1 or wanted.size == 0):
            raise ShapeError(f"logits: rows must be flat, at least one; got {wanted.shape}")
        room = 1 << (wanted.size - 1).bit_length() if wanted.size else 0  # few tapes
        found = s.record(
            ("logits", batch, length, room), lambda: record_logits(self, batch, length, room)
        )
        if found.rows is not None and found.count is not None:
            s.upload(found.count, wanted.size)
            s.upload(found.rows, np.append(wanted, np.zeros(room - wanted.size, wanted.dtype)))
        s.upload(found.tokens, ids)
        s.upload(found.positions, np.tile(np.arange(length, dtype=np.int32), batch))
        s.run("loss", tape=found.tape)
        assert found.logits is not None
        return s.download(found.logits)[: wanted.size or None]

    # -- A file's weights, as they lie there --------------------------------------------------

    def _check_undeclared(self, call: str) -> None:
        if self._session is not None:
            raise LifecycleError(
                f"{type(self).__name__}.{call} after the weights were declared: make a new engine"
            )

    def declare_for_mmap(self, file: Source, cfg: C | None, opts: RecipeOptions) -> None:
        """Declare a file's weights, frozen, where they lie, and the adapters; takes no memory.

        ``file`` is a GGUF file or a Hugging Face folder, open.
        ``cfg``, ``opts.untied`` and ``opts.qkv_bias`` come from the file: what is given must agree
        with it. The file stays mapped as long as the session lives, and is never written.
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
        """Take a file's weights as they lie there, frozen; all adapters are zero yet.

        See ``declare_for_mmap``. Norms and biases of another type than F32 are expanded.
        """
        weights = self._map(file, cfg, opts)
        self.session.finalize_weights()
        weights.fill(self.session)

    # -- Files ---------------------------------------------------------------------------------

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
        packed: bool = False,
        decay: str = "all",
        build: bool = True,
    ) -> Self:
        """Return an engine with a file's weights, quantized ones expanded, ready to train.

        ``t_seq`` 0 means the context length that the file names, which may be long. Without
        ``build`` there is no training step before ``build_training_step``, and no memory is taken
        for one: that is all that logits and generation need. ``toynn.engines.frozen`` leaves the
        weights in the file, too.
        """
        options = {"weight_dtype": weight_dtype, "checkpointing": checkpointing}
        options |= {"packed": packed, "decay": decay}
        with gguf.open(path, check=True) as file:
            return cls._read(file, t_seq, t_batch, backend, build=build, **options)

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
        packed: bool = False,
        decay: str = "all",
        build: bool = True,
    ) -> Self:
        """Return an engine with the weights of a Hugging Face folder, ready to train.

        The folder has config.json and model.safetensors. ``build`` as in from_gguf.
        """
        options = {"weight_dtype": weight_dtype, "checkpointing": checkpointing}
        options |= {"packed": packed, "decay": decay}
        with hf.open(path) as model:
            return cls._read(model, t_seq, t_batch, backend, build=build, **options)

    @classmethod
    def _read(
        cls, file: Source, t_seq: int, t_batch: int, backend: str, *, build: bool, **more: Any
    ) -> Self:
        engine = cls._declared(file, t_seq, t_batch, backend, **more)
        engine.session.finalize_weights()
        for name, tensor in engine.tensors.items():
            engine.session.upload(tensor, file[name])
        engine._carried = files.passed_on(file)
        if build:
            engine.build_training_step()
        return engine

    @classmethod
    def declared_from(cls, path: StrPath, t_seq: int = 0, *, weight_dtype: str = "f32") -> Self:
        """Return an engine with the shape of a GGUF file or Hugging Face folder, and no weights.

        Whatever is wrong with the file and needs no look at its weights is an error here already.
        """
        with bases.open(path, check=True) as file:
            return cls._declared(file, t_seq, 1, weight_dtype=weight_dtype)

    @classmethod
    def memory_for(
        cls, file: Source, t_seq: int = 0, t_batch: int = 1, backend: str = "cpu"
    ) -> Memory:
        """Return the memory that training a file's model would need; none of it is taken."""
        return cls._declared(file, t_seq, t_batch, backend).step_memory()

    @classmethod
    def _declared(
        cls, file: Source, t_seq: int, t_batch: int, backend: str = "cpu", **more: Any
    ) -> Self:
        """Return an engine for a file's model, before it takes any memory."""
        cfg, options = files.config_of(file, cls.architectures, cls.__name__)
        engine = cls(backend)
        opts = RecipeOptions(t_seq=t_seq, t_batch=t_batch, **options, **more)
        try:
            engine.declare(cfg, opts)
        except ShapeError as error:  # sizes that no memory could hold
            refuse(file, str(error))
        shapes = {name: tensor.shape for name, tensor in engine.tensors.items()}
        check_tensors(file, shapes | engine._beside())
        return engine

    def carry_tokenizer(self, path: StrPath) -> None:
        """Let exports carry the tokenizer of a file or folder; it must have the model's tokens.

        Raises DataError for one of a folder that GGUF files have no name for.
        """
        own = {k: v for k, v in self._carried.items() if not k.startswith("tokenizer.")}
        self._carried = own | files.tokenizer_of(path, self.vocab)

    def export_gguf(self, path: StrPath, outtype: str = "f32", *, overwrite: bool = False) -> None:
        """Write the model; ``outtype`` is that of its matrices: f32, f16, bf16 or q8_0.

        The tokenizer is that of the file that the engine came from. Without one the file says so
        ("no_vocab"), and llama.cpp takes token ids. Refused over a mapped file, which is there.
        """
        self._weights.check_exported(f"{type(self).__name__}.export_gguf")
        self._session_for("export_gguf()")
        files.write_gguf(path, self, outtype, overwrite=overwrite)

    def export_hf(self, path: StrPath) -> None:
        """Write the model as a new Hugging Face folder: config.json and model.safetensors.

        Refused over a mapped file.
        """
        self._weights.check_exported(f"{type(self).__name__}.export_hf")
        self._session_for("export_hf()")
        files.write_hf(path, self)
