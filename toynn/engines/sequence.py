"""The engine around any model of token sequences.

What is particular to an architecture its model says (toynn.models); this class records the loss of
whole sequences around the forward pass, feeds it, and is the door to what goes with it: reading on
where one stopped (decoding.py), preferences (preference.py), and, by filed.py, files.
"""

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.engines.decoding import Decoding
from toynn.engines.doors import DecoderDoors
from toynn.engines.engine import counted
from toynn.engines.filed import FileEngine
from toynn.engines.packed import Packed
from toynn.engines.preference import PreferenceDoors, PreferencePass
from toynn.engines.recording import Pass, record_logits, record_loss
from toynn.errors import ConfigError, ShapeError
from toynn.graph.tape import Tensor
from toynn.models import SequenceConfig
from toynn.options import RecipeOptions
from toynn.system.critical import uninterrupted

__all__ = ["SequenceEngine"]

C = TypeVar("C", bound=SequenceConfig)


class SequenceEngine(FileEngine[C], DecoderDoors, PreferenceDoors, Generic[C]):
    """An engine that reads B sequences of T tokens, laid flat (B T,).

    Its weights are drawn (``realize_for_random_init``) or read (``from_gguf``, ``from_hf``), and
    all trained; or they stay in their file, frozen: ``enable_lora``, ``realize_for_mmap``,
    ``init_adapters`` or ``load_weights``, ``build_training_step``.

    Calls in another order raise LifecycleError.
    """

    context: int
    t_seq: int
    t_tok: Tensor
    t_pos: Tensor

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        super().__init__(backend, n_threads)
        self.batches = 0  # micro-batches trained on: each has dropout masks of its own
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
        """Declare the weights; no memory is taken before the session's ``finalize_weights``.

        Each weight must be uploaded before a tape can run that reads it.
        """
        super().declare(cfg, opts)
        self.vocab, self.context = cfg.vocab, cfg.context
        self.t_seq = opts.t_seq or cfg.context

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

    @uninterrupted
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

    @uninterrupted
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
