"""What every engine for token sequences does, whatever its architecture.

A concrete engine says which weights it has, how they start, and what its forward pass is; this
class declares them, records the step around the pass (loss, backward, AdamW), feeds it, and hands
weights and gradients out by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import checks, ops
from toynn._kernels import random
from toynn.checks import IGNORED
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.options import RecipeOptions
from toynn.reports import Memory
from toynn.session import Session
from toynn.tape import Tape, Tensor

__all__ = ["Config", "Pass", "SequenceEngine", "check_sizes", "gain_or_zeros"]

Shapes = dict[str, tuple[int, ...]]


class Config(Protocol):
    """What the configurations of all architectures have."""

    @property
    def vocab(self) -> int:
        """Tokens that there are."""

    @property
    def context(self) -> int:
        """Tokens that the model sees at most."""

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""

    @property
    def d_ff(self) -> int:
        """Width of the feed-forward layer."""

    @property
    def n_layers(self) -> int:
        """Number of blocks."""

    @property
    def n_heads(self) -> int:
        """Number of attention heads."""

    @property
    def n_kv_heads(self) -> int:
        """Number of heads of keys and values."""

    @property
    def d_head(self) -> int:
        """Width of one head."""


C = TypeVar("C", bound=Config)


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
    dropout: Tensor | None = None  # (step, active) of ops.dropout, where it is used


class SequenceEngine(ABC, Generic[C]):
    """Weights by name, and the tapes that train and evaluate them.

    ``realize_for_random_init`` makes the weights. From then on they can be replaced, until
    ``build_training_step`` and after it; the second call records and compiles the step.
    """

    config: C
    options: RecipeOptions
    vocab: int
    context: int
    d_model: int
    n_heads: int
    d_head: int
    d_ff: int
    n_layers: int
    t_seq: int
    t_batch: int
    parameters: dict[str, Tensor]  # by GGUF name, in the order of the optimizer
    moments: dict[str, tuple[Tensor, Tensor]]  # (m, v) of AdamW, by the names of the parameters
    t_tok: Tensor
    t_pos: Tensor
    t_labels: Tensor
    t_hp: Tensor
    t_loss: Tensor
    t_logits: Tensor

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        self._backend, self._n_threads = backend, n_threads
        self._session: Session | None = None
        self._step: Pass | None = None
        self._tensors: dict[str, Tensor] = {}
        self._dropout: Tensor | None = None  # of the tape that is being recorded
        self.parameters, self.moments = {}, {}
        self.batches = 0  # micro-batches trained on: each has dropout masks of its own

    @property
    def backend(self) -> str:
        """The name of the backend that the engine was made for."""
        return self._backend

    @property
    def session(self) -> Session:
        """The session that owns the weights."""
        return self._session_for("session")

    def _session_for(self, call: str) -> Session:
        if self._session is None:
            raise LifecycleError(f"{type(self).__name__}.{call} before realize_for_random_init()")
        return self._session

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All weights by GGUF name: the parameters, and those that are frozen."""
        self._session_for("tensors")
        return self._tensors

    # -- What an architecture says -------------------------------------------------------------

    def _check(self, cfg: C, opts: RecipeOptions) -> None:
        """Refuse what only fails together; raises ConfigError."""
        if opts.t_seq > cfg.context:
            raise ConfigError(
                f"{type(self).__name__}: t_seq {opts.t_seq} is longer than the context "
                f"{cfg.context}"
            )

    @abstractmethod
    def _shapes(self) -> Shapes:
        """Return the shape of every weight by its GGUF name, in the order of the optimizer."""

    def _frozen(self) -> frozenset[str]:
        """Return the names of the weights that are not trained."""
        return frozenset()

    def _declare_constants(self) -> None:
        """Declare what the forward pass reads beside weights and inputs."""

    def _drops(self) -> bool:
        """Whether a training step has dropout; its control is then ``self._dropout``."""
        return False

    @abstractmethod
    def _std(self, name: str, shape: tuple[int, ...]) -> float:
        """Return the standard deviation from which a matrix is drawn."""

    @abstractmethod
    def _record_forward(self, tokens: Tensor, positions: Tensor, batch: int) -> Tensor:
        """Record the forward pass on the session's tape; return what the head reads (B T, C)."""

    @abstractmethod
    def _record_head(self, x: Tensor) -> Tensor:
        """Record the logits (N, V) of x (N, C)."""

    # -- Life cycle ----------------------------------------------------------------------------

    def declare(self, cfg: C, opts: RecipeOptions) -> None:
        """Declare the weights; no memory is taken before the session's ``finalize_weights``.

        Each weight must be uploaded before a tape can run that reads it.
        """
        if self._session is not None:
            raise LifecycleError(f"{type(self).__name__}.realize: once only; make a new engine")
        self._check(cfg, opts)
        self.config, self.options = cfg, replace(opts)
        self.vocab, self.context = cfg.vocab, cfg.context
        self.d_model, self.d_ff, self.n_layers = cfg.d_model, cfg.d_ff, cfg.n_layers
        self.n_heads, self.d_head = cfg.n_heads, cfg.d_head
        self.t_seq, self.t_batch = opts.t_seq or cfg.context, opts.t_batch
        self._session = Session(
            self._backend, opts.seed, self._n_threads, checkpointing=opts.checkpointing
        )
        self._declare_weights(self._session)
        self._declare_constants()

    def _declare_weights(self, s: Session) -> None:
        frozen = self._frozen()
        for name, shape in self._shapes().items():
            if name in frozen:
                self._tensors[name] = s.constant(name, shape)
            else:
                self._tensors[name] = self.parameters[name] = s.parameter(name, shape)

    def realize_for_random_init(self, cfg: C, opts: RecipeOptions) -> None:
        """Declare and draw the weights; ``build_training_step`` comes next."""
        self.declare(cfg, opts)
        self.session.finalize_weights()
        for name, values in self._draw():
            self.session.upload(self.tensors[name], values)

    def _draw(self) -> Iterable[tuple[str, NDArray[np.float32]]]:
        """Yield the initial weights: matrices from N(0, std), each with a stream of its own."""
        for stream, (name, shape) in enumerate(self._shapes().items()):
            values = gain_or_zeros(name, shape)
            if len(shape) == 2:
                std = self._std(name, shape)
                random.normal(values.reshape(-1), self.options.seed, stream, std)
            yield name, values

    def build_training_step(self) -> None:
        """Record and compile the training step."""
        self.build_forward()
        self.build_train_step()

    def build_forward(self) -> None:
        """Record the forward pass, up to the loss: the first part of build_training_step."""
        self._session_for("build_forward()")
        if self._step is not None:
            raise LifecycleError(f"{type(self).__name__}.build_forward: it has been called already")
        step = self._step = self._record_loss(self.t_batch, self.t_seq, dense=False)
        assert step.labels is not None and step.hp is not None and step.loss is not None
        self.t_tok, self.t_pos, self.t_logits = step.tokens, step.positions, step.logits
        self.t_labels, self.t_hp, self.t_loss = step.labels, step.hp, step.loss

    def build_train_step(self) -> None:
        """Record backward and AdamW, and compile: the second part of build_training_step."""
        if self._step is None:
            raise LifecycleError(f"{type(self).__name__}.build_train_step before build_forward()")
        self._record_update(self._step)
        self.session.realize()

    def step_memory(self) -> Memory:
        """Record the training step of declared weights; return the memory that it would need."""
        self.build_forward()
        assert self._step is not None
        self._record_update(self._step)
        return self.session.memory()

    def _check_built(self, call: str) -> Pass:
        """Return the training step; refuse a call that comes before it."""
        if self._step is None or not self._step.tape.sealed:
            raise LifecycleError(f"{type(self).__name__}.{call} before build_training_step()")
        return self._step

    # -- Recording -----------------------------------------------------------------------------

    def _record_inputs(self, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        s = self.session
        tokens = s.input("tokens", (batch * length,), "i32")
        positions = s.input("positions", (batch * length,), "i32")
        x = self._record_forward(tokens, positions, batch)
        return tokens, positions, self._record_head(x)

    def _record_logits(self, batch: int, length: int) -> Pass:
        tokens, positions, logits = self._record_inputs(batch, length)
        return Pass(self.session.tape, tokens, positions, self.session.output(logits))

    def _record_loss(self, batch: int, length: int, *, dense: bool) -> Pass:
        s = self.session
        self._dropout = s.input("dropout", (2,), "i32") if self._drops() else None
        tokens, positions, logits = self._record_inputs(batch, length)
        control, self._dropout = self._dropout, None
        N = batch * length
        labels = s.input("labels", (N, self.vocab) if dense else (N,), "f32" if dense else "i32")
        hp = s.input("hp", (7,))
        loss = ops.cross_entropy(s, logits, labels)
        s.set_loss(loss)
        return Pass(s.tape, tokens, positions, logits, labels, hp, loss, control)

    def _record_update(self, step: Pass) -> None:
        """Record backward, and AdamW for every parameter."""
        s = self.session
        s.build_backward()
        assert step.hp is not None
        for name, w in self.parameters.items():
            self.moments[name] = s.opt_step_adamw(w, s.grad(w), step.hp)

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
        self, ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike, *, train: bool
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
        if step.dropout is not None:
            self.session.upload(step.dropout, np.array([self.batches, train], np.int32))
        self.batches += train
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
        step, rows = self._feed(seq_ids, positions, labels, train=True)
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
        step, rows = self._feed(seq_ids, positions, labels, train=True)
        self.session.run("grads", weight=rows, tape=step.tape)
        return self._loss(step)

    def evaluate(self, seq_ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike) -> float:
        """Return the loss of one batch; no gradient and no moment is touched."""
        step, _ = self._feed(seq_ids, positions, labels, train=False)
        self.session.run("loss", tape=step.tape)
        return self._loss(step)

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
        return s.download(found.logits)

    # -- Weights -------------------------------------------------------------------------------

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of all weights, by GGUF name."""
        return {name: self.session.download(w) for name, w in self.tensors.items()}

    def gradients(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the last step's gradients of the mean loss, before clipping."""
        self._check_built("gradients")
        return {
            name: self.session.download(self.session.grad(w)) for name, w in self.parameters.items()
        }

    def load_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Replace all weights; names and shapes must be those of ``weights()``."""
        self._load(weights, self.tensors)

    def _load(self, weights: Mapping[str, ArrayLike], tensors: Mapping[str, Tensor]) -> None:
        missing = sorted(tensors.keys() - weights.keys())
        unknown = sorted(weights.keys() - tensors.keys())
        if missing or unknown:
            raise ConfigError(
                f"load_weights: missing {missing or 'none'}, unknown {unknown or 'none'}"
            )
        arrays = {  # all are checked before the first is replaced
            name: checks.converted(name, weights[name], w.shape, w.dtype)
            for name, w in tensors.items()
        }
        for name, w in tensors.items():
            self.session.upload(w, arrays[name])


def gain_or_zeros(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return ones for a norm's gain, zeros for everything else."""
    gain = name.endswith("norm.weight")
    return np.ones(shape, np.float32) if gain else np.zeros(shape, np.float32)


def check_sizes(cfg: Any, *names: str) -> None:
    """Raise ConfigError unless these fields are whole numbers of at least 1."""
    for name in names:
        value = getattr(cfg, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"{type(cfg).__name__}: {name} must be a whole number >= 1; got {value!r}"
            )
