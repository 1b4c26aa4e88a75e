"""What every engine for token sequences does, whatever its architecture.

A concrete engine says which weights it has, how they start, and what its forward pass is; this
class records the loss of whole sequences around the pass, and feeds it.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.engines._engine import Engine, Recorded, Widths, counted
from toynn.errors import ConfigError, ShapeError
from toynn.options import RecipeOptions
from toynn.tape import Tensor

__all__ = ["Config", "Pass", "SequenceEngine"]


class Config(Widths, Protocol):
    """What the configurations of all architectures have."""

    @property
    def vocab(self) -> int:
        """Tokens that there are."""

    @property
    def context(self) -> int:
        """Tokens that the model sees at most."""

    @property
    def n_kv_heads(self) -> int:
        """Number of heads of keys and values."""


C = TypeVar("C", bound=Config)


@dataclass(frozen=True, kw_only=True)
class Pass(Recorded):
    """Handles of one recorded tape, with its inputs."""

    tokens: Tensor
    positions: Tensor
    dropout: Tensor | None = None  # (step, active) of ops.dropout, where it is used


class SequenceEngine(Engine[C, Pass], Generic[C]):
    """An engine that reads B sequences of T tokens, laid flat (B T,)."""

    vocab: int
    context: int
    t_seq: int
    t_tok: Tensor
    t_pos: Tensor

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        super().__init__(backend, n_threads)
        self._dropout: Tensor | None = None  # of the tape that is being recorded
        self.batches = 0  # micro-batches trained on: each has dropout masks of its own

    # -- What an architecture says -------------------------------------------------------------

    def _check(self, cfg: C, opts: RecipeOptions) -> None:
        if opts.t_seq > cfg.context:
            raise ConfigError(
                f"{type(self).__name__}: t_seq {opts.t_seq} is longer than the context "
                f"{cfg.context}"
            )

    def _adopt(self, cfg: C, opts: RecipeOptions) -> None:
        super()._adopt(cfg, opts)
        self.vocab, self.context = cfg.vocab, cfg.context
        self.t_seq = opts.t_seq or cfg.context

    def _drops(self) -> bool:
        """Whether a training step has dropout; its control is then ``self._dropout``."""
        return False

    @abstractmethod
    def _record_forward(self, tokens: Tensor, positions: Tensor, batch: int) -> Tensor:
        """Record the forward pass on the session's tape; return what the head reads (B T, C)."""

    @abstractmethod
    def _record_head(self, x: Tensor) -> Tensor:
        """Record the logits (N, V) of x (N, C)."""

    def _record_head_loss(self, x: Tensor, labels: Tensor) -> tuple[Tensor | None, Tensor]:
        """Record the loss of x (N, C); return the logits too, if they all exist at once."""
        logits = self._record_head(x)
        return logits, ops.cross_entropy(self.session, logits, labels)

    def build_forward(self) -> None:
        """Record the forward pass, up to the loss: the first part of build_training_step."""
        super().build_forward()
        assert self._step is not None
        self.t_tok, self.t_pos = self._step.tokens, self._step.positions

    # -- Recording -----------------------------------------------------------------------------

    def _record_main(self) -> Pass:
        return self._record_loss(self.t_batch, self.t_seq, dense=False)

    def _record_inputs(self, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        s = self.session
        tokens = s.input("tokens", (batch * length,), "i32")
        positions = s.input("positions", (batch * length,), "i32")
        return tokens, positions, self._record_forward(tokens, positions, batch)

    def _record_logits(self, batch: int, length: int) -> Pass:
        tokens, positions, x = self._record_inputs(batch, length)
        logits = self.session.output(self._record_head(x))
        return Pass(tape=self.session.tape, tokens=tokens, positions=positions, logits=logits)

    def _record_loss(self, batch: int, length: int, *, dense: bool) -> Pass:
        s = self.session
        self._dropout = s.input("dropout", (2,), "i32") if self._drops() else None
        try:
            tokens, positions, x = self._record_inputs(batch, length)
        finally:
            control, self._dropout = self._dropout, None
        N = batch * length
        labels = s.input("labels", (N, self.vocab) if dense else (N,), "f32" if dense else "i32")
        hp = s.input("hp", (7,))
        logits, loss = self._record_head_loss(x, labels)
        s.set_loss(loss)
        return Pass(
            tape=s.tape,
            tokens=tokens,
            positions=positions,
            logits=logits,
            labels=labels,
            hp=hp,
            loss=loss,
            dropout=control,
        )

    def _step_for(self, ids: NDArray[Any], labels: NDArray[Any]) -> Pass:
        """Return the training step for this many sequences and this form of labels."""
        main = self._check_built("step")
        if ids.ndim != 1 or ids.size == 0 or ids.size % self.t_seq:
            raise ShapeError(
                f"step: seq_ids must be flat, whole sequences of {self.t_seq}; got {ids.shape}"
            )
        batch, dense = ids.size // self.t_seq, labels.ndim == 2
        if batch == self.t_batch and not dense:
            return main

        def build() -> Pass:
            step = self._record_loss(batch, self.t_seq, dense=dense)
            self._record_update(step)
            return step

        return self.session.record(("step", batch, dense), build)

    # -- Running -------------------------------------------------------------------------------

    def _feed(
        self,
        ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike | None = None,
        *,
        train: bool,
    ) -> tuple[Pass, float]:
        """Upload a batch; return its tape's handles, and how many rows of it count.

        With ``train`` it gets the next dropout masks, unless something in it is refused.
        """
        ids, labels = np.asarray(ids), np.asarray(labels)
        step = self._step_for(ids, labels)
        if positions is None:
            positions = np.tile(np.arange(self.t_seq, dtype=np.int32), ids.size // self.t_seq)
        assert step.labels is not None
        self.session.upload(step.tokens, ids)
        self.session.upload(step.positions, positions)
        self.session.upload(step.labels, labels)
        if hp is not None:
            assert step.hp is not None
            self.session.upload(step.hp, hp)
        if step.dropout is not None:
            self.session.upload(step.dropout, np.array([self.batches, train], np.int32))
        self.batches += train
        return step, counted(labels)

    def step(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
    ) -> float:
        """Train on one batch; return its loss before the update.

        seq_ids and positions: int (B T,), B whole sequences; positions None means 0..T-1 each.
        labels: int (B T,), -100 where a row does not count, or dense float (B T, V).
        hp: the 7-slot row of AdamW. ``is_first`` zeroes the moments first; gradients need no
        reset, since the first micro-batch overwrites them. Batches given to ``accumulate`` since
        the last step count too, each by its rows.
        """
        return self._train(*self._feed(seq_ids, positions, labels, hp, train=True), is_first)

    def accumulate(
        self, seq_ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike
    ) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss."""
        return self._add_gradients(*self._feed(seq_ids, positions, labels, train=True))

    def evaluate(self, seq_ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike) -> float:
        """Return the loss of one batch; no gradient and no moment is touched."""
        return self._evaluate(self._feed(seq_ids, positions, labels, train=False)[0])

    def logits(self, ids: ArrayLike, batch: int | None = None) -> NDArray[np.float32]:
        """Return logits (len(ids), V) of flat ids: ``batch`` sequences of at most ``context`` ids.

        Without ``batch``, ids that are as many as a training step's are t_batch sequences; others
        are one sequence, or, where they exceed the context, whole sequences of t_seq.
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
        found = s.record(("logits", batch, length), lambda: self._record_logits(batch, length))
        s.upload(found.tokens, ids)
        s.upload(found.positions, np.tile(np.arange(length, dtype=np.int32), batch))
        s.run("loss", tape=found.tape)
        assert found.logits is not None
        return s.download(found.logits)
