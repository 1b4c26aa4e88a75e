"""The engine around any model of token sequences, of any architecture of ``toynn.models``.

The model has what is particular to its architecture. This class records the loss of whole sequences
around the model's forward pass, and feeds the tapes. It adds incremental decoding (decoding.py) and
losses of completions (preference.py, policy.py).

Weights are drawn; or read from a file, dequantized and trained (``from_file``); or they stay in the
file, frozen and mapped, with adapters (adapters.py). The file's description of its model is checked
before any memory is allocated. files.py writes files.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.data.batch import Batch
from toynn.engines import files, packed, teacher
from toynn.engines.adapters import Adapters
from toynn.engines.decoding import BatchDecoder, Decoder, Decoders
from toynn.engines.engine import Engine, Inputs, Kind, Recorded, of_step, width
from toynn.engines.files import StrPath
from toynn.engines.objectives import PolicyOptions, PreferenceOptions
from toynn.engines.policy import Policy
from toynn.engines.preference import Preference
from toynn.engines.targets import AdapterOptions
from toynn.errors import ConfigError, ShapeError
from toynn.formats import bases, quants
from toynn.formats.adapters import Adapter
from toynn.graph.tape import Tensor
from toynn.models import (
    ARCHITECTURES,
    TABLE,
    SequenceConfig,
    SequenceModel,
    Source,
    architecture,
    refuse,
)
from toynn.models.tables import Weight
from toynn.nn import Dropout, Layers, LoRA
from toynn.options import RecipeOptions
from toynn.session import Session
from toynn.system.critical import exclusive

C = TypeVar("C", bound=SequenceConfig)

_DECLARED = " after the weights were declared:"


class _Architectures(Collection[str]):
    """The names of the architectures whose configurations have the engine's ``config_type``.

    Asking for one name imports one architecture; asking for all imports all.
    """

    def __init__(self, engine: "type[SequenceEngine[Any]]") -> None:
        self._types, self._others = engine.config_type, engine.other_types

    def __contains__(self, name: object) -> bool:
        if name not in ARCHITECTURES or (self._types, self._others) == (object, ()):
            return name in ARCHITECTURES
        kind = architecture(str(name)).config_type
        return issubclass(kind, self._types) and not issubclass(kind, self._others)

    def __iter__(self) -> Iterator[str]:
        return (name for name in ARCHITECTURES if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Readable:
    def __get__(self, engine: Any, kind: "type[SequenceEngine[Any]]") -> Collection[str]:
        return _Architectures(kind)


class SequenceEngine(Engine[C], Generic[C]):
    """An engine that reads B sequences of T tokens, laid flat (B T,).

    Its weights are drawn (``realize_for_random_init``) or read (``from_file``), and all trained. Or
    they stay in their file, frozen; the calls are then ``enable_lora``, ``realize_for_mmap``,
    ``init_adapters`` or ``load_weights``, ``build_training_step``.

    Calls in another order raise LifecycleError.
    """

    config_type: type[Any] = object  # of the engine's models
    other_types: tuple[type[Any], ...] = ()  # of models that it leaves to others
    architectures = _Readable()  # values of general.architecture that it reads

    vocab, context = width("vocab"), width("context")
    t_seq = property(lambda engine: engine.options.t_seq or engine.context)  # T
    t_tok, t_pos = of_step("tokens"), of_step("positions")

    def _clear(self) -> None:
        super()._clear()
        self.lora: AdapterOptions | None = None  # given to enable_lora
        self.objective: Preference | Policy | None = None  # a loss of whole completions
        self._trains_adapters = False
        #: reads the values of a file's weights that cannot stay there, by name
        self._copies: dict[str, Callable[[], NDArray[Any]]] = {}
        self._carried: files.Carried = MappingProxyType({})
        self.decoders: Decoders = OrderedDict()
        self._evaluated: tuple[Tensor | None, int] = None, 0  # losses of the labels, their number

    # -- The model -----------------------------------------------------------------------------

    @property
    def model(self) -> SequenceModel[Any]:
        """The architecture of the configuration.

        Raises ConfigError if the engine is for others.
        """
        name = self.config.arch
        model = architecture(name)
        if name not in self.architectures:
            raise ConfigError(
                f"{type(self).__name__}: expected the configuration of "
                f"{', '.join(self.architectures)}; got one of {name}"
            )
        return model.apart() if self.file is not None and self.file.pairs_apart else model

    def _check(self) -> None:
        if self.options.t_seq > self.context:
            raise ConfigError(
                f"t_seq|--seq {self.options.t_seq} is longer than the context {self.context}"
            )
        super()._check()

    def _declare_weights(self, weights: Mapping[str, Weight]) -> None:
        """Declare weights to train; or map the file's, and declare the requested adapters."""
        if self.file is None:
            super()._declare_weights(weights)
            return
        self._check_tensors(self.file)
        for name, weight in weights.items():
            self._mapped[name] = self._declare_frozen(self.file, name, weight)
        if self.lora is not None:
            chosen = self.lora.resolve(self.file.architecture, weights)
            # A tied head is the embedding table.
            matrices = {name: self._mapped.get(name, self._mapped[TABLE]) for name in chosen}
            trained = self._trains_adapters
            self._adapters.declare(self.session, self.file, self.lora, matrices, trained=trained)
            self._loadable, self.parameters = self._adapters.tensors, self._adapters.parameters

    def _declare_frozen(self, file: Source, name: str, weight: Weight) -> Tensor:
        """Declare a weight of a file: matrices, and vectors in float32, are mapped.

        Other vectors will be dequantized, and weights whose layout is not the kernels' be copied.
        """
        s, type, shape = self.session, file.tensors[name].type, weight.shape
        is_copied = file.is_copied(name)
        if type == "F32" and not is_copied:
            return s.mapped(name, file.stored(name))
        if type != "F32" and (len(shape) == 1 or weight.is_bias or weight.row.kind == "taps"):
            self._copies[name] = partial(file.__getitem__, name)
            return s.constant(name, shape)
        if type not in quants.BLOCKS:
            refuse(file, f"{name}: expected a type of {', '.join(quants.BLOCKS)}; got {type}")
        if is_copied:
            self._copies[name] = partial(file.stored, name)
            return s.constant(name, shape, type.lower())
        return s.mapped(name, file.stored(name), type.lower(), shape)

    def enable_preference(self, options: PreferenceOptions) -> None:
        """Use a preference loss; comes before ``build_training_step``."""
        self.objective = Preference(self, options)

    def enable_policy(self, options: PolicyOptions) -> None:
        """Use a policy loss of samples; comes before ``build_training_step``."""
        self.objective = Policy(self, options)

    @property
    def preference(self) -> Preference | None:
        """The preference loss, if there is one."""
        return self.objective if isinstance(self.objective, Preference) else None

    # -- Upstream's names of inputs and weights ------------------------------------------------

    t_seq_token_ids, t_seq_positions = t_tok, t_pos

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

    # -- Recording -----------------------------------------------------------------------------

    @property
    def _usual(self) -> tuple[int, bool, bool]:
        return self.t_batch, False, self.options.packed

    def _record_loss(self, *kind: Any, **_: Any) -> Recorded:
        """Record the loss of a batch. With integer labels, the head computes only rows with loss.

        A packed batch is one run of tokens, possibly fewer than the tape has room for: the rest is
        not computed.
        """
        batch, dense, packed = kind
        if self.objective is not None:
            return self.objective.record(batch, train=True)
        s, cfg, opts, model = self.session, self.config, self.options, self.model
        layers, x, labels = self.record_labelled(batch, dense=dense, packed=packed)
        s.input("hp", (7,))
        logits, loss = model.loss(layers, cfg, opts, x, labels)
        s.set_loss(loss)
        wanted = self.options.label_losses and not dense
        losses = _each(s, logits, labels, loss) if wanted else None
        return Recorded(tape=s.tape, logits=logits, loss=loss, losses=losses)

    def record_labelled(
        self,
        batch: int,
        *,
        packed: bool,
        dense: bool = False,
        adapted: bool = True,
        train: bool = True,
    ) -> tuple[Layers, Tensor, Tensor]:
        """Record the inputs of ``batch`` sequences with labels, and all blocks.

        Return the layers, the head's input and the labels. The two are those of rows with loss, if
        the labels are integers; else of all rows. Without ``adapted`` the model runs without its
        adapters; dropout is only in a tape that will ``train``.
        """
        s, cfg, size = self.session, self.config, batch * self.t_seq
        dropout = self._dropout() if train else None
        taught = teacher.recorded(s, size, cfg.vocab, self.options) if train and not dense else None
        inputs = self._record_inputs(size, packed=packed)
        layers = self.layers(
            1 if packed else batch,
            adapted=adapted,
            dropout=dropout,
            segments=inputs.get("segments"),
            long=not packed and self.is_long(self.t_seq),
            long_positions=inputs.get("long_positions"),
            teacher=taught,
        )
        if dense:
            labels = s.input("labels", (size, cfg.vocab))
            return layers, self.final(layers, None), labels
        labels = s.input("labels", (size,), "i32", inputs.get("count"))
        rows, labels = ops.valid_rows(s, labels, cfg.vocab)
        return layers, self.final(layers, rows), labels

    def _dropout(self) -> Dropout | None:
        """Record the input of dropout, if trained adapters have any."""
        if not (self.lora and self._trains_adapters and self.lora.dropout):
            return None
        return Dropout(self.lora.dropout, self.session.input("dropout", (2,), "i32"))

    def _record_inputs(self, size: int, *, packed: bool) -> Mapping[str, Tensor]:
        """Record the inputs of ``size`` tokens; return all inputs of the tape so far.

        Packed tokens have segments, and a second kind of positions if examples may be long.
        """
        s, count, names = self.session, None, ["tokens", "positions"]
        if packed:
            count = s.input("count", (), "i32")  # of the tokens that are not padding
            names += ["segments"]
            if self.is_long(min(size, self.context)):
                names += ["long_positions"]  # 0 in short examples; "positions" are 0 in long ones
        for name in names:
            s.input(name, (size,), "i32", count)
        return s.tape.inputs

    def final(self, layers: Layers, rows: Tensor | None) -> Tensor:
        """Record the blocks over the tape's tokens; return the head's input for all or ``rows``."""
        model, inputs = self.model, self.session.tape.inputs
        tokens, positions = inputs["tokens"], inputs["positions"]
        if rows is None:
            x = model.forward(layers, self.config, tokens, positions)
        else:
            x = model.rows(layers, self.config, tokens, positions, rows)
        return model.last(layers, self.config, x)

    def _record_logits(self, batch: int, length: int, wanted: int) -> Recorded:
        """Record the logits of all rows of a batch, or of at most ``wanted`` rows if not 0."""
        s, rows = self.session, None
        self._record_inputs(batch * length, packed=False)
        layers = self.layers(batch, long=self.is_long(length))
        if wanted:
            rows = s.input("rows", (wanted,), "i32", s.input("count", (), "i32"))
        x = self.final(layers, rows)
        logits = self.model.logits(layers, self.config, self.options, x)
        return Recorded(tape=s.tape, logits=s.output(logits))

    def _kind_of(self, name: str, w: Tensor) -> Kind:
        decays, _, momentum = super()._kind_of(name, w)
        return decays, self.lora.rate_of(name) if self.lora else 1.0, 0.0 if self.lora else momentum

    # -- Running -------------------------------------------------------------------------------

    def _fitted(self, batch: Batch) -> tuple[Recorded, Batch, Inputs]:
        step, batch, values = self._fitted_alone(batch)
        return step, batch, values | teacher.inputs_of(step.tape.inputs, batch)

    def _fitted_alone(self, batch: Batch) -> tuple[Recorded, Batch, Inputs]:
        if self.objective is not None:
            batch = self.objective.checked(batch)
            step = self._step_for(self.batch_of(batch), *self._usual[1:])
            return step, batch, self.objective.inputs(step, batch)  # type: ignore[arg-type]
        t_seq = self.t_seq
        ids, labels, positions = np.asarray(batch.inputs), np.asarray(batch.labels), batch.positions
        dense, whole = labels.ndim == 2, batch.segments is None
        if whole and ids.ndim == 1 and batch.width not in (0, t_seq):  # rows of another length
            rows = np.arange(ids.size, dtype=np.int32)
            batch, whole = replace(batch, segments=rows - rows % batch.width), False
        if ids.ndim != 1 or ids.size == 0 or (whole and ids.size % t_seq):
            raise ShapeError(
                f"step: seq_ids must be flat, whole sequences of {t_seq}; got {ids.shape}"
            )
        if batch.bounds is not None:
            raise ShapeError("step: expected no bounds, which belong to preferences; got some")
        if not whole or (self.options.packed and not dense):
            batch = packed.checked(batch, t_seq, self.context)
            step = self._step_for(self.batch_of(batch), dense, True)
            return step, batch, packed.inputs_of(step.tape.inputs, batch, self.is_long)
        if positions is None:
            positions = np.tile(np.arange(t_seq, dtype=np.int32), ids.size // t_seq)
        step = self._step_for(ids.size // t_seq, dense, False)
        return step, batch, {"tokens": ids, "positions": positions, "labels": labels}

    def batch_of(self, batch: Batch) -> int:
        """Return the sequences of t_seq that a tape for a packed batch has room for."""
        return int(max(-(-batch.tokens // self.t_seq), self.t_batch))

    def is_long(self, length: int) -> bool:
        """Say whether the model treats sequences of ``length`` tokens as long."""
        return self.model.is_long(self.config, length)

    def label_losses(self) -> NDArray[np.float32]:
        """Return the loss of each label with loss in the last evaluated batch, (rows,).

        They are in the order of the labels; ``evaluate`` has returned their mean. If threads share
        an engine, ``session.exclusively`` keeps others out between the two calls.

        Raises LifecycleError unless ``RecipeOptions.label_losses`` is set and a batch with integer
        labels was evaluated.
        """
        losses, rows = self._evaluated
        if losses is None:
            self._refuse(
                "label_losses before evaluate() of a batch with integer labels, by an engine with "
                "RecipeOptions(label_losses=True)"
            )
        return self.session.download(losses)[:rows]

    def _loss(self, step: Recorded, batch: Batch, *, evaluated: bool = False) -> float:
        self._evaluated = (step.losses, batch.rows) if evaluated else (None, 0)
        if self.objective is not None:
            self.objective.measure(step, batch)
        return super()._loss(step, batch)

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
        wanted = np.arange(0) if rows is None else np.asarray(rows)
        if rows is not None and (wanted.ndim != 1 or wanted.size == 0):
            raise ShapeError(f"logits: rows must be flat, at least one; got {wanted.shape}")
        room = 1 << (wanted.size - 1).bit_length() if wanted.size else 0  # a power of 2: few tapes
        recorded = self.session.record(
            ("logits", batch, length, room), lambda: self._record_logits(batch, length, room)
        )
        values: Inputs = {}
        if room:
            padding = np.zeros(room - wanted.size, wanted.dtype)
            values = {"count": wanted.size, "rows": np.append(wanted, padding)}
        positions = np.tile(np.arange(length, dtype=np.int32), batch)
        logits = self.compute(recorded, values | {"tokens": ids, "positions": positions})
        return logits[: wanted.size or None]

    # -- Incremental decoding ------------------------------------------------------------------

    def decoder(self) -> Decoder:
        """Begin a sequence to read piece by piece; this ends the one begun before.

        The memory of the keys and values of ``context`` tokens is allocated when the first token is
        read, and kept.
        """
        self._session_for("decoder()")
        return Decoder(BatchDecoder(self, 1, self.context, alone=True))

    def batch_decoder(self, batch: int, room: int = 0) -> BatchDecoder:
        """Begin several sequences to read together, piece by piece; see ``decoder``.

        Each has room for ``room`` tokens; 0 means the context. A sequence's bits depend neither on
        the others nor on ``batch``. An earlier batch of the same size
        and room ends with this call. A batch also ends, and its memory is freed, after four batches
        of other sizes were used since. Raises ConfigError for a number or a room out of range.
        """
        self._session_for("batch_decoder()")
        return BatchDecoder(self, batch, room or self.context)

    # -- Weights as stored in a file ----------------------------------------------------------

    def declare_for_mmap(self, file: Source, cfg: C | None, opts: RecipeOptions) -> None:
        """Declare a file's weights, frozen and in place, and the adapters; allocates nothing.

        ``file`` is an open GGUF file or Hugging Face folder. ``cfg``, ``opts.untied`` and
        ``opts.qkv_bias`` come from the file; given values must agree with it. The file stays mapped
        as long as the session lives, and is never written.
        """
        self._check_new("realize_for_mmap", _DECLARED)
        config, options = self._config_of(file)
        if cfg is not None:
            files.check_agrees(file, cfg, config)
        files.check_options(file, opts, options)
        self.file = file
        self.declare(config, replace(opts, **options))

    def realize_for_mmap(self, file: Source, cfg: C | None, opts: RecipeOptions) -> None:
        """Use a file's weights as they are stored, frozen; all adapters are zero.

        See ``declare_for_mmap``. Norms and biases that are not F32 are dequantized.
        """
        self.declare_for_mmap(file, cfg, opts)
        self._fill((name, values()) for name, values in self._copies.items())
        self._adapters.zero()

    # -- Adapters: requested before the weights, used after ------------------------------------

    def enable_lora(self, options: AdapterOptions, *, train: bool = True) -> None:
        """Request adapters, before ``realize_for_mmap``. Without ``train`` they only add to y."""
        self._check_new("enable_lora", _DECLARED)
        self.lora, self._trains_adapters = options, train

    def enable_lora_q(self, rank: int) -> None:
        """Request adapters of rank ``rank`` and scale 1 on the projections to q."""
        self.enable_lora(AdapterOptions(rank), train=False)

    def enable_lora_q_adamw(self) -> None:
        """Make the adapters trained; comes after ``enable_lora_q``.

        Raises LifecycleError before enable_lora_q().
        """
        self._check_new("enable_lora_q_adamw", _DECLARED)
        if self.lora is None:
            self._refuse("enable_lora_q_adamw before enable_lora_q()")
        self._trains_adapters = True

    @property
    def adapters(self) -> Mapping[str, LoRA]:
        """The adapters, by the GGUF name of their matrix."""
        return self._adapters.layers

    @exclusive
    def init_adapters(self, init: str, seed: int, init_scale: float) -> None:
        """Draw every A as ``init`` says, each from its own random stream; set every B to zero.

        ``init`` is as in AdapterOptions. A principal one (PiSSA) must be given there too.
        """
        self._session_for("init_adapters()")
        AdapterOptions(1, init=init)  # refuses an unknown init
        self._adapters.start(init, seed, init_scale)

    def upload_lora_q_init(self, seed: int, init_scale: float) -> None:
        """Draw every A from N(0, init_scale); set every B to zero."""
        self.init_adapters("normal", seed, init_scale)

    @exclusive
    def adapter(self) -> Adapter:
        """Return a copy of the adapters, for ``toynn.formats.adapters`` to write.

        Raises LifecycleError where there are none.
        """
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
        return self._adapters.weights()

    @property
    def unwritten(self) -> Mapping[str, str]:
        """Why the adapters cannot be written as "gguf" and as "peft"; "" if they can."""
        return self._adapters.unwritten

    def measure_norms(self) -> None:
        """Compute the row norms for DoRA, if weights have changed."""
        self._adapters.measure()

    def _adapted(self, call: str) -> Adapters:
        self._session_for(f"{call}()")
        if not self._adapters.layers:
            self._refuse(f"{call}: realized without adapters")
        return self._adapters

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
        self._fill((name, file[name]) for name in self.tensors)
        file.check_unchanged()
        self._carried = files.passed_on(file)

    def declare_from(self, file: Source, opts: RecipeOptions) -> None:
        """Declare an open file's model, before memory is allocated.

        Every error of the file that does not depend on the values of weights is raised here.
        """
        cfg, options = self._config_of(file)
        try:
            self.declare(cfg, replace(opts, **options))
        except ShapeError as error:  # sizes that no memory could hold
            refuse(file, str(error))
        self._check_tensors(file)

    def _config_of(self, file: Source) -> tuple[Any, dict[str, Any]]:
        """Return the configuration and the recipe's options that a file has."""
        return files.config_of(file, self.architectures, type(self).__name__)

    def _check_tensors(self, file: Source) -> None:
        """Raise the file's error unless it has exactly the tensors of the model."""
        files.check_tensors(file, self.model, self.config, self.options)

    # -- Writing files -------------------------------------------------------------------------

    def whole_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights that a folder gets."""
        return self.weights()

    def told(self, *, folder: bool = False) -> dict[str, Any]:
        """Return hyper-parameters that the engine knows and its model does not: none."""
        return {}

    def files_beside(self) -> dict[str, bytes]:
        """Return further files of a folder, by name: none."""
        return {}

    def carry_tokenizer(self, path: StrPath) -> None:
        """Include the tokenizer of a file or folder in exports; it must fit the vocabulary.

        Raises DataError for a folder's tokenizer of a kind that GGUF has no name for.
        """
        others = {k: v for k, v in self._carried.items() if not k.startswith("tokenizer.")}
        self._carried = others | files.tokenizer_of(path, self.vocab)

    def export_gguf(self, path: StrPath, outtype: str = "f32", *, overwrite: bool = False) -> None:
        """Write the model; ``outtype`` is the type of its matrices: f32, f16, bf16 or q8_0.

        The tokenizer comes from the file that the engine was read from. Without a tokenizer the
        file says "no_vocab", and llama.cpp takes token ids. Raises ConfigError if the weights are
        mapped: the file exists already.
        """
        self._check_exported("export_gguf")
        files.write_gguf(path, self, outtype, overwrite=overwrite)

    def export_hf(self, path: StrPath, tokenizer: StrPath | None = None) -> str:
        """Write the model as a new Hugging Face folder: config.json, weights, tokenizer.

        The tokenizer comes from ``tokenizer``, a path, or from the file that the engine was read
        from. Return why the folder has no tokenizer, or "". Raises ConfigError if the weights are
        mapped.
        """
        self._check_exported("export_hf")
        return files.write_hf(path, self, tokenizer)

    def _check_exported(self, call: str) -> None:
        """Raise ConfigError for mapped weights, LifecycleError if there are none."""
        if self.file is not None:
            raise ConfigError(
                f"{type(self).__name__}.{call}: the weights are in {self.file.path}, unchanged; "
                "write the adapter (LoRA.export_adapter) or both in one file (LoRA.save)"
            )
        self._session_for(f"{call}()")

    save = export_gguf

    def write_run(self, folder: Path) -> None:
        """Write the model to a run folder, as model.gguf and as model.safetensors."""
        super().write_run(folder)
        self.save(folder / "model.gguf", overwrite=True)


def _each(s: Session, logits: Tensor | None, labels: Tensor, loss: Tensor) -> Tensor:
    """Record an output with the loss of each row, for runs that end at the mean loss.

    A chunked cross-entropy computes them anyway; otherwise an op of phase E does.
    """
    if logits is None:
        mean = next(node for node in reversed(s.tape.nodes) if loss in node.outputs)
        return s.output(mean["losses"])
    s.tape.phase = "E"
    losses = ops.token_losses(s, logits, labels)
    s.tape.phase = "F"
    return s.output(losses)


def frozen(
    file: Source,
    adapter: Adapter | None = None,
    backend: str = "cpu",
    options: RecipeOptions | None = None,
) -> SequenceEngine[Any]:
    """Return an engine over the weights of a file as stored there, with an adapter if given.

    The engine is for logits and generation: it takes no memory for training, and prepacks no
    weights. The file may be closed; it stays mapped as long as the engine lives. Raises GGUFError,
    AdapterError.
    """
    engine = SequenceEngine[Any](backend)
    if adapter is not None:
        engine.enable_lora(AdapterOptions.of(adapter), train=False)
    engine.realize_for_mmap(file, None, replace(options or RecipeOptions(), prepack="never"))
    if adapter is not None:
        engine.load_adapter(adapter)
    return engine
