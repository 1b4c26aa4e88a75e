"""What every engine for token sequences does, whatever its architecture.

A concrete engine declares its weights and records its forward pass; this class records the step
around it (loss, backward, AdamW), feeds it, and hands weights and gradients out by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.checks import IGNORED
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.session import Session
from toynn.tape import Tape, Tensor

__all__ = ["Pass", "SequenceEngine"]


@dataclass(frozen=True)
class Pass:
    """Handles of one recorded tape: forward only, or a whole training step."""

    tape: Tape
    tokens: Tensor
    positions: Tensor
    logits: Tensor
    labels: Tensor | None = None
    hp: Tensor | None = None
    loss: Tensor | None = None


class SequenceEngine(ABC):
    """Weights by name, and the tapes that train and evaluate them."""

    vocab: int
    context: int
    t_seq: int
    t_batch: int
    parameters: dict[str, Tensor]  # by GGUF name, in the order of the optimizer
    moments: dict[str, tuple[Tensor, Tensor]]  # (m, v) of AdamW, by the same names

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        self._backend, self._n_threads = backend, n_threads
        self._session: Session | None = None
        self._step: Pass | None = None
        self.parameters, self.moments = {}, {}

    @property
    def session(self) -> Session:
        """The session that owns the weights."""
        if self._session is None:
            raise LifecycleError(f"{type(self).__name__}: call realize() first")
        return self._session

    @abstractmethod
    def _record_forward(self, tokens: Tensor, positions: Tensor, batch: int) -> Tensor:
        """Record the forward pass on the session's tape; return the logits (B T, V)."""

    # -- Recording -----------------------------------------------------------------------------

    def _record_inputs(self, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        s = self.session
        tokens = s.input("tokens", (batch * length,), "i32")
        positions = s.input("positions", (batch * length,), "i32")
        return tokens, positions, self._record_forward(tokens, positions, batch)

    def _record_logits(self, batch: int, length: int) -> Pass:
        tokens, positions, logits = self._record_inputs(batch, length)
        return Pass(self.session.tape, tokens, positions, self.session.output(logits))

    def _record_loss(self, batch: int, length: int, *, dense: bool) -> Pass:
        s = self.session
        tokens, positions, logits = self._record_inputs(batch, length)
        N = batch * length
        labels = s.input("labels", (N, self.vocab) if dense else (N,), "f32" if dense else "i32")
        hp = s.input("hp", (7,))
        loss = ops.cross_entropy(s, logits, labels)
        s.set_loss(loss)
        return Pass(s.tape, tokens, positions, logits, labels, hp, loss)

    def _record_update(self, step: Pass) -> None:
        """Record backward, and AdamW for every parameter."""
        s = self.session
        s.build_backward()
        assert step.hp is not None
        for name, w in self.parameters.items():
            self.moments[name] = s.opt_step_adamw(w, s.grad(w), step.hp)

    def _step_for(self, ids: NDArray[Any], labels: NDArray[Any]) -> Pass:
        """Return the training step for this many sequences and this form of labels."""
        if self._step is None:
            raise LifecycleError(f"{type(self).__name__}.step before build_train_step()")
        if ids.ndim != 1 or ids.size == 0 or ids.size % self.t_seq:
            raise ShapeError(
                f"step: seq_ids must be flat, whole sequences of {self.t_seq}; got {ids.shape}"
            )
        batch, dense = ids.size // self.t_seq, labels.ndim == 2
        if batch == self.t_batch and not dense:
            return self._step

        def build() -> Pass:
            step = self._record_loss(batch, self.t_seq, dense=dense)
            self._record_update(step)
            return step

        return self.session.record(("step", batch, dense), build)

    # -- Running -------------------------------------------------------------------------------

    def _feed(
        self, ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike
    ) -> tuple[Pass, float]:
        """Upload a batch; return its tape's handles, and how many rows of it count."""
        ids, labels = np.asarray(ids), np.asarray(labels)
        step = self._step_for(ids, labels)
        if positions is None:
            positions = np.tile(np.arange(self.t_seq, dtype=np.int32), ids.size // self.t_seq)
        assert step.labels is not None
        self.session.upload(step.tokens, ids)
        self.session.upload(step.positions, positions)
        self.session.upload(step.labels, labels)
        rows = labels.any(axis=1) if labels.ndim == 2 else labels != IGNORED
        return step, float(np.count_nonzero(rows))

    def _loss(self, step: Pass) -> float:
        assert step.loss is not None
        return float(self.session.download(step.loss))

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
        step, rows = self._feed(seq_ids, positions, labels)
        assert step.hp is not None
        self.session.upload(step.hp, hp)
        if is_first:
            self.session.reset_moments()
        weight = rows if self.session.pending else 1.0
        self.session.run("update", weight=weight, tape=step.tape)
        return self._loss(step)

    def accumulate(
        self, seq_ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike
    ) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss."""
        step, rows = self._feed(seq_ids, positions, labels)
        self.session.run("grads", weight=rows, tape=step.tape)
        return self._loss(step)

    def evaluate(self, seq_ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike) -> float:
        """Return the loss of one batch; no gradient and no moment is touched."""
        step, _ = self._feed(seq_ids, positions, labels)
        self.session.run("loss", tape=step.tape)
        return self._loss(step)

    def logits(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Return logits (len(ids), V) of flat ids.

        They are one sequence of at most ``context`` ids, or several whole ones of ``t_seq``.
        """
        ids = np.asarray(ids)
        several = ids.size > self.context or ids.size == self.t_batch * self.t_seq
        batch = ids.size // self.t_seq if several and ids.size % self.t_seq == 0 else 1
        length = ids.size // batch
        if ids.ndim != 1 or not 0 < length <= self.context:
            raise ShapeError(
                f"logits: ids must be flat, 1 to {self.context} of them or whole sequences of "
                f"{self.t_seq}; got {ids.shape}"
            )
        s = self.session
        found = s.record(("logits", batch, length), lambda: self._record_logits(batch, length))
        s.upload(found.tokens, ids)
        s.upload(found.positions, np.tile(np.arange(length, dtype=np.int32), batch))
        s.run("loss", tape=found.tape)
        return s.download(found.logits)

    # -- Weights -------------------------------------------------------------------------------

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of all weights, by GGUF name."""
        return {name: self.session.download(w) for name, w in self.parameters.items()}

    def gradients(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the last step's gradients of the mean loss, before clipping."""
        return {
            name: self.session.download(self.session.grad(w)) for name, w in self.parameters.items()
        }

    def load_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Replace all weights; names and shapes must be those of ``weights()``."""
        missing = sorted(self.parameters.keys() - weights.keys())
        unknown = sorted(weights.keys() - self.parameters.keys())
        if missing or unknown:
            raise ConfigError(
                f"load_weights: missing {missing or 'none'}, unknown {unknown or 'none'}"
            )
        arrays = {name: np.asarray(weights[name]) for name in self.parameters}
        for name, w in self.parameters.items():  # all are checked before the first is replaced
            if arrays[name].shape != w.shape:
                raise ShapeError(
                    f"load_weights: {name} must be {w.shape}; got {arrays[name].shape}"
                )
        for name, w in self.parameters.items():
            self.session.upload(w, arrays[name])
