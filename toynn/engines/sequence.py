"""The engine around any model of token sequences.

The model has what is particular to its architecture (toynn.models). This class records the loss of
whole sequences around the model's forward pass, and feeds the tapes. It adds incremental decoding
(decoding.py), preferences (preference.py), and, through filed.py, files and adapters.
"""

from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.data.batch import Batch
from toynn.engines.decoding import BatchDecoder, Decoder, Decoding
from toynn.engines.filed import FileEngine
from toynn.engines.packed import checked, inputs_of
from toynn.engines.preference import Preference, PreferenceOptions, PreferencePass
from toynn.engines.recording import Pass, record_logits, record_loss
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.graph.tape import Tensor
from toynn.models import SequenceConfig
from toynn.options import RecipeOptions
from toynn.system.critical import exclusive

__all__ = ["SequenceEngine"]

C = TypeVar("C", bound=SequenceConfig)


class SequenceEngine(FileEngine[C], Generic[C]):
    """An engine that reads B sequences of T tokens, laid flat (B T,).

    Its weights are drawn (``realize_for_random_init``) or read (``from_file``), and all trained. Or
    they stay in their file, frozen; the calls are then ``enable_lora``, ``realize_for_mmap``,
    ``init_adapters`` or ``load_weights``, ``build_training_step``.

    Calls in another order raise LifecycleError.
    """

    context: int
    t_seq: int
    t_tok: Tensor
    t_pos: Tensor
    preference: Preference | None = None  # the preference loss, if there is one
    _evaluated: tuple[Pass, int] | None = None  # the last evaluation's step and number of labels
    _evaluating = False

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        super().__init__(backend, n_threads)
        self._decoding = Decoding(self)

    # -- The model -----------------------------------------------------------------------------

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

    @exclusive
    def evaluate(self, batch: Batch | ArrayLike, *arrays: ArrayLike | None) -> float:
        """Return the loss of one batch; ``label_losses`` has that of each label.

        Gradients and moments are untouched. Raises what ``train`` does.
        """
        self._evaluating = True
        try:
            return super().evaluate(batch, *arrays)
        finally:
            self._evaluating = False

    def _loss(self, step: Pass, given: Batch) -> float:
        self._evaluated = (step, given.rows) if self._evaluating else None
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
