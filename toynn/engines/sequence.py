"""The engine around any model of token sequences, of any architecture of ``toynn.models``.

The model has what is particular to its architecture. This class records the loss of whole sequences
around the model's forward pass, and feeds the tapes. It adds incremental decoding (decoding.py) and
preferences (preference.py).

Weights are drawn; or read from a file, dequantized and trained (``from_file``); or they stay in the
file, frozen and mapped, with adapters (weights.py, adapters.py). The file's description of its
model is checked before any memory is allocated. files.py writes files.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.data.batch import Batch
from toynn.engines import files
from toynn.engines.adapters import Adapters
from toynn.engines.decoding import BatchDecoder, Decoder, Decoding
from toynn.engines.engine import Engine
from toynn.engines.files import StrPath
from toynn.engines.packed import checked, inputs_of
from toynn.engines.preference import Preference, PreferenceOptions, PreferencePass
from toynn.engines.recording import Pass, record_logits, record_loss
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

__all__ = ["SequenceEngine"]

C = TypeVar("C", bound=SequenceConfig)


class _Architectures:
    """The names of the architectures whose configurations have the engine's ``config_type``."""

    def __get__(self, engine: Any, kind: "type[SequenceEngine[Any]]") -> tuple[str, ...]:
        of = ((name, model.config_type) for name, model in ARCHITECTURES.items())
        own, others = kind.config_type, kind.other_types
        return tuple(n for n, each in of if issubclass(each, own) and not issubclass(each, others))


class SequenceEngine(Engine[C, Pass], Generic[C]):
    """An engine that reads B sequences of T tokens, laid flat (B T,).

    Its weights are drawn (``realize_for_random_init``) or read (``from_file``), and all trained. Or
    they stay in their file, frozen; the calls are then ``enable_lora``, ``realize_for_mmap``,
    ``init_adapters`` or ``load_weights``, ``build_training_step``.

    Calls in another order raise LifecycleError.
    """

    config_type: type[Any] = object  # of the engine's models
    other_types: tuple[type[Any], ...] = ()  # of models that it leaves to others
    architectures = _Architectures()  # values of general.architecture that it reads

    vocab: int
    context: int
    t_seq: int
    t_tok: Tensor
    t_pos: Tensor

    def _clear(self) -> None:
        super()._clear()
        self.lora: AdapterOptions | None = None  # given to enable_lora
        self.preference: Preference | None = None  # the preference loss, if there is one
        self._trains_adapters = False
        self._carried: files.Carried = MappingProxyType({})
        self._decoding = Decoding(self)
        self._evaluated: tuple[Pass, int] | None = None  # last evaluation's step, number of labels

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

    def _check(self, cfg: C, opts: RecipeOptions) -> None:
        if opts.t_seq > cfg.context:
            raise ConfigError(
                f"{type(self).__name__}: t_seq {opts.t_seq} is longer than the context "
                f"{cfg.context}"
            )
        super()._check(cfg, opts)

    def declare(self, cfg: C, opts: RecipeOptions) -> None:
        """Declare the weights; the session's ``finalize_weights`` allocates them.

        Each weight must be uploaded before a tape that reads it can run.
        """
        super().declare(cfg, opts)
        self.vocab, self.context = cfg.vocab, cfg.context
        self.t_seq = opts.t_seq or cfg.context

    def build_forward(self) -> None:
        """Record the forward pass up to the loss: the first half of build_training_step."""
        super().build_forward()
        assert self._step is not None
        self.t_tok, self.t_pos = self._step.tokens, self._step.positions

    # Upstream's names of inputs and weights.

    @property
    def t_seq_token_ids(self) -> Tensor:
        """The input of token ids, once the training step is built."""
        return self._check_built("t_seq_token_ids").tokens

    @property
    def t_seq_positions(self) -> Tensor:
        """The input of positions, once the training step is built."""
        return self._check_built("t_seq_positions").positions

    @property
    def t_seq_token_embed(self) -> Tensor:
        """The donor's embedding table (vocab, donor_d_in), or the model's without a projection.

        Raises ConfigError where there is none.
        """
        return self._tensor("token_embd.weight")

    @property
    def t_seq_w_proj(self) -> Tensor:
        """The input projection (d_model, donor_d_in). Raises ConfigError if there is none."""
        return self._tensor("lens.proj.weight")

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ConfigError(f"{type(self).__name__}: there is no {name}: donor_d_in is 0")
        return self.tensors[name]

    def enable_preference(self, options: PreferenceOptions) -> None:
        """Use a preference loss; comes before ``build_training_step``."""
        self.preference = Preference(self, options)

    # -- Recording -----------------------------------------------------------------------------

    def _record_main(self) -> Pass:
        if self.preference is not None:
            return self.preference.record(self.t_batch, self.adapter_dropout)
        return self._record_loss(self.t_batch, dense=False, packed=self.options.packed)

    def _record_loss(self, batch: int, *, dense: bool, packed: bool) -> Pass:
        dropout = self.adapter_dropout
        return record_loss(self, batch, self.t_seq, dropout, dense=dense, packed=packed)

    def _step_for(self, tokens: int, *, dense: bool, packed: bool) -> Pass:
        """Return the training step with room for ``tokens`` tokens, for dense labels or not."""
        batch = -(-tokens // self.t_seq)
        if packed:
            batch = max(batch, self.t_batch)
        if batch == self.t_batch and not dense and packed == self.options.packed:
            return self._check_built("step")
        return self._recorded(
            ("step", batch, dense, packed),
            lambda: self._record_loss(batch, dense=dense, packed=packed),
        )

    def _kind_of(self, name: str, w: Tensor) -> tuple[bool, float]:
        return super()._kind_of(name, w)[0], self.lora.rate_of(name) if self.lora else 1.0

    # -- Running -------------------------------------------------------------------------------

    def _fitted(self, batch: Batch) -> tuple[Pass, Batch, dict[Tensor, ArrayLike]]:
        return (self._sequences if self.preference is None else self._preferences)(batch)

    def _sequences(self, batch: Batch) -> tuple[Pass, Batch, dict[Tensor, ArrayLike]]:
        """Fit a batch of sequences, or of packed examples."""
        ids, labels, positions = np.asarray(batch.inputs), np.asarray(batch.labels), batch.positions
        dense, whole = labels.ndim == 2, batch.segments is None
        if whole and ids.ndim == 1 and batch.width not in (0, self.t_seq):  # rows of another length
            rows = np.arange(ids.size, dtype=np.int32)
            batch, whole = replace(batch, segments=rows - rows % batch.width), False
        if ids.ndim != 1 or ids.size == 0 or (whole and ids.size % self.t_seq):
            raise ShapeError(
                f"step: seq_ids must be flat, whole sequences of {self.t_seq}; got {ids.shape}"
            )
        if batch.bounds is not None:
            raise ShapeError("step: expected no bounds, which belong to preferences; got some")
        if not whole or (self.options.packed and not dense):
            batch = checked(batch, self.t_seq, self.context)
            step = self._step_for(ids.size, dense=dense, packed=True)
            return step, batch, inputs_of(step, batch)
        if positions is None:
            positions = np.tile(np.arange(self.t_seq, dtype=np.int32), ids.size // self.t_seq)
        step = self._step_for(ids.size, dense=dense, packed=False)
        assert step.labels is not None
        return step, batch, {step.tokens: ids, step.positions: positions, step.labels: labels}

    def _preferences(self, batch: Batch) -> tuple[Pass, Batch, dict[Tensor, ArrayLike]]:
        """Fit a batch of preferences."""
        assert self.preference is not None
        record, dropout = self.preference.record, self.adapter_dropout
        batch, step = self.preference.checked(batch), self._check_built("step")
        rows = max(-(-batch.tokens // self.t_seq), self.t_batch)
        if rows != self.t_batch:
            step = self._recorded(("preference", rows), lambda: record(rows, dropout))
        assert isinstance(step, PreferencePass)
        return step, batch, self.preference.inputs(step, batch)

    def label_losses(self) -> NDArray[np.float32]:
        """Return the loss of each label with loss in the last evaluated batch, (rows,).

        They are in the order of the labels; ``evaluate`` has returned their mean. If threads share
        an engine, ``session.exclusively`` keeps others out between the two calls.

        Raises LifecycleError unless ``RecipeOptions.label_losses`` is set and a batch with integer
        labels was evaluated.
        """
        step, rows = self._evaluated or (None, 0)
        if step is None or step.losses is None:
            raise LifecycleError(
                f"{type(self).__name__}.label_losses before evaluate() of a batch with integer "
                "labels, by an engine with RecipeOptions(label_losses=True)"
            )
        return self.session.download(step.losses)[:rows]

    def _loss(self, step: Pass, given: Batch, *, evaluated: bool = False) -> float:
        self._evaluated = (step, given.rows) if evaluated else None
        if self.preference is not None:
            assert isinstance(step, PreferencePass)
            self.preference.measure(step, given)
        return super()._loss(step, given)

    def step(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
        segments: ArrayLike | None = None,
        bounds: ArrayLike | None = None,
        wanted: ArrayLike | None = None,
    ) -> float:
        """Train on one batch, array by array; return its loss before the update. See ``train``.

        Parameters
        ----------
        seq_ids, positions
            int (B T,): B whole sequences. positions None means 0..T-1 in each.
        labels
            int (B T,), -100 for a row without loss, or dense float (B T, V).
        hp, is_first
            See ``train``.
        segments
            int, as many as seq_ids, for packed examples of any lengths: for each token, the index
            of the first token of its example. No example sees another; positions restart in each.
        bounds, wanted
            For preferences, see ``toynn.data.batch.Batch``.

        Raises ShapeError for ids that are not whole sequences, or segments that do not fit.
        """
        batch = Batch(seq_ids, positions, labels, segments, bounds, wanted)
        return self.train(batch, hp, is_first)

    @exclusive
    def logits(
        self, ids: ArrayLike, batch: int | None = None, rows: ArrayLike | None = None
    ) -> NDArray[np.float32]:
        """Return logits (len(ids), V) of flat ids: ``batch`` sequences of at most ``context`` ids.

        The default ``batch`` is 1. But if ids are t_batch * t_seq, or more than the context, it is
        the number of sequences of t_seq, if they are whole. With ``rows``, int (n,), return the
        logits (n, V) of only these rows, in this order; the head computes no others.

        Raises ShapeError for ids that are not such sequences, and for empty ``rows``.
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
        room = 1 << (wanted.size - 1).bit_length() if wanted.size else 0  # a power of 2: few tapes
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

    # -- Incremental decoding ------------------------------------------------------------------

    def decoder(self) -> Decoder:
        """Begin a sequence to read piece by piece; this ends the one begun before.

        The memory of the keys and values of ``context`` tokens is allocated when the first token is
        read, and kept.
        """
        self._session_for("decoder()")
        return Decoder(self._decoding.begin(1, self.context))

    def batch_decoder(self, batch: int, room: int = 0) -> BatchDecoder:
        """Begin several sequences to read together, piece by piece; see ``decoder``.

        Each has room for ``room`` tokens; 0 means the context. An earlier batch of the same size
        and room ends with this call. A batch also ends, and its memory is freed, after four batches
        of other sizes were used since. Raises ConfigError for a number or a room out of range.
        """
        self._session_for("batch_decoder()")
        return self._decoding.begin(batch, room or self.context)

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

    # -- Reading files -------------------------------------------------------------------------

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
        engine = cls(backend)
        with bases.open(path, check=True) as file:
            engine.read(file, options or RecipeOptions(t_seq, t_batch))
        if build:
            engine.build_training_step()
        return engine

    from_gguf = from_hf = from_file

    def read(self, file: Source, opts: RecipeOptions) -> None:
        """Declare an open file's model and take its weights; there is no training step yet."""
        self.declare_from(file, opts)
        self.session.finalize_weights()
        for name, tensor in self.tensors.items():
            self.session.upload(tensor, file[name])
        file.check_unchanged()
        self._carried = files.passed_on(file)

    def declare_from(self, file: Source, opts: RecipeOptions) -> None:
        """Declare an open file's model, before memory is allocated.

        Every error of the file that does not depend on the values of weights is raised here.
        """
        cfg, options = files.config_of(file, self.architectures, type(self).__name__)
        try:
            self.declare(cfg, replace(opts, **options))
        except ShapeError as error:  # sizes that no memory could hold
            refuse(file, str(error))
        shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        check_tensors(file, shapes | self._beside())

    # -- Writing files -------------------------------------------------------------------------

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

    def save(self, path: StrPath, outtype: str = "f32", *, overwrite: bool = False) -> None:
        """Write the model as a GGUF file, which llama.cpp loads. See ``export_gguf``."""
        self.export_gguf(path, outtype, overwrite=overwrite)

    def write_run(self, folder: Path) -> None:
        """Write the model to a run folder, as model.gguf and as model.safetensors."""
        self._check_built("write_run")
        self.save(folder / "model.gguf", overwrite=True)
        super().write_run(folder)
