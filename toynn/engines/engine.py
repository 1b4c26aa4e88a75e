"""One object around any model: its session, weights by name, and the tapes that use them.

A model says which weights it has, how they start, and what its forward pass is. This class declares
the weights, records the step around the forward pass (backward, AdamW), and runs it. Users get
weights and gradients by name. Recipes (toynn/recipes) are engines with constructors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.data.batch import Batch
from toynn.engines.snapshot import Shapes, Snapshot, check_alike
from toynn.engines.weights import OwnWeights, Weights
from toynn.errors import ConfigError, LifecycleError
from toynn.formats import safetensors
from toynn.formats.files import write_atomically
from toynn.formats.safetensors import SafeTensors
from toynn.graph.reports import Cost, Memory
from toynn.graph.tape import Tape, Tensor
from toynn.models import Model
from toynn.nn import Caches, Dropout, Layers
from toynn.numerics import checks
from toynn.numerics.adamw_row import SLOTS
from toynn.optim import AdamW
from toynn.options import RecipeOptions
from toynn.session import Session
from toynn.system.critical import Section, exclusive

__all__ = ["Engine", "Recorded"]

RATE, DECAY = SLOTS.index("lr"), SLOTS.index("weight_decay")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Handles of one recorded tape: forward only, or a whole training step."""

    tape: Tape
    logits: Tensor | None = None
    labels: Tensor | None = None
    hp: Tensor | None = None
    hp_more: Mapping[tuple[bool, float], Tensor] = field(default_factory=dict)  # see _kind_of
    loss: Tensor | None = None
    dropout: Tensor | None = None  # (step, active) of ops.dropout, where it is used


class Width:
    """A size of the model: the field of this name in its configuration."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, engine: "Engine[Any, Any] | None", owner: type[Any]) -> Any:
        return self if engine is None else int(getattr(engine.config, self._name))


C = TypeVar("C")
R = TypeVar("R", bound=Recorded)


class Engine(ABC, Generic[C, R]):
    """Weights by name, and the tapes that train and evaluate them.

    ``realize_for_random_init`` makes the weights, then ``build_training_step`` records and compiles
    the step. The weights can be replaced at any time after the first call.

    Calls in another order raise LifecycleError. So does a call while another thread is in one, so
    that steps, evaluations and sets of weights are never mixed.

    The caller owns the data, the schedule and ``is_first``. Ctrl-C waits until a step has ended.
    After a KeyboardInterrupt, ``step_index`` says whether the step was taken; it was taken as a
    whole or not at all.
    """

    #: Makes the AdamW whose hp rows the step takes; conventions differ in the last two slots.
    optimizer: ClassVar[Callable[..., AdamW]] = AdamW.for_lora
    _declared_by = "realize_for_random_init"  # the call that makes the weights
    _built_by = "build_training_step"  # the call after which steps can be taken

    config: C
    options: RecipeOptions
    t_batch: int
    moments: dict[str, tuple[Tensor, Tensor]]  # (m, v) of AdamW, by the names of the parameters
    t_labels: Tensor | None = None  # this and the next two: None before there is a step
    t_hp: Tensor | None = None
    t_loss: Tensor | None = None
    t_logits: Tensor | None = None  # also None: computed in chunks, see ops.linear_cross_entropy

    d_model = Width()  # of the residual stream
    n_heads = Width()
    d_head = Width()
    d_ff = Width()  # of the feed-forward layers
    n_layers = Width()

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        self._backend, self._n_threads = backend, n_threads
        self._clear()

    def _clear(self) -> None:
        """Set the state before any call; the memory of an earlier session is freed."""
        self._session: Session | None = None
        self._step: R | None = None
        self._weights: Weights = OwnWeights()
        self._constants: dict[str, Tensor] = {}
        self.t_labels = self.t_hp = self.t_loss = self.t_logits = None
        self.moments = {}
        self.step_index = 0  # steps taken
        self.batches = 0  # micro-batches trained on: each has its own dropout masks

    def __repr__(self) -> str:
        if self._session is None:
            return f"{type(self).__name__}(not realized)"
        sizes = sum(tensor.size for tensor in self.tensors.values())
        trained = sum(tensor.size for tensor in self.parameters.values())
        steps = f"{self.step_index} steps, " if self.is_built else ""
        return f"{type(self).__name__}({steps}{sizes:,} parameters, {trained:,} trained)"

    @property
    def engine(self) -> Self:
        """The object itself: upstream's recipes hold an engine, toynn's are one."""
        return self

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
            raise LifecycleError(f"{type(self).__name__}.{call} before {self._declared_by}()")
        return self._session

    def exclusively(self, call: str, signals: bool = False) -> Section:
        """Return the session's critical section for a call; see ``Session.exclusively``."""
        if self._session is None:  # the call says what is missing
            return Section(signals=signals)
        return self._session.exclusively(call, signals)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All weights by name: trained and frozen ones."""
        self._session_for("tensors")
        return self._weights.tensors

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The weights that are trained, by name, in the order of the optimizer."""
        return self._weights.parameters

    # -- What a subclass says ------------------------------------------------------------------

    @abstractmethod
    def _model_of(self, cfg: C) -> Model[Any]:
        """Return the model of a configuration. Raises ConfigError if the engine is for others."""

    @property
    def model(self) -> Model[Any]:
        """The model of the configuration."""
        return self._model_of(self.config)

    def _check(self, cfg: C, opts: RecipeOptions) -> None:
        """Refuse options that do not fit the configuration. Raises ConfigError."""
        self._model_of(cfg).check(cfg, opts)

    def _beside(self) -> Shapes:
        """Return the shapes of a file's tensors that are not weights."""
        return {}

    @abstractmethod
    def _record_main(self) -> R:
        """Record the forward pass and the loss of the training step that the options ask for."""

    def layers(
        self,
        batch: int,
        dropout: Dropout | None = None,
        caches: Caches | None = None,
        segments: Tensor | None = None,
        *,
        adapted: bool = True,
        long: bool = False,
        long_positions: Tensor | None = None,
    ) -> Layers:
        """Return what recording a forward pass needs: all weights, and adapters if ``adapted``."""
        adapters = self._weights.adapters if adapted else None
        return Layers(
            session=self.session,
            weights=self.tensors,
            constants=self._constants,
            batch=batch,
            rounding=str(self.options.weight_dtype),
            adapters={} if adapters is None else adapters.layers,
            dropout=dropout,
            caches=caches,
            segments=segments,
            long=long,
            long_positions=long_positions,
        )

    # -- Life cycle ----------------------------------------------------------------------------

    def declare(self, cfg: C, opts: RecipeOptions) -> None:
        """Declare the weights; the session's ``finalize_weights`` allocates them.

        Each weight must be uploaded before a tape that reads it can run.
        """
        self._check_new(self._declared_by)
        self._check(cfg, opts)
        self.config, self.options = cfg, replace(opts)
        self.t_batch = opts.t_batch
        own = {"n_threads": self._n_threads} if opts.n_threads is None else {}
        self._session = Session(self._backend, **opts.of_session() | own)
        weights = self.model.weights(cfg, self.options)
        self._weights.declare(self._session, weights, self._beside())
        self._constants = {
            name: self._session.mapped(name, values)
            for name, values in self.model.constants(cfg).items()
        }

    def realize_for_random_init(self, cfg: C, opts: RecipeOptions) -> None:
        """Declare the weights and draw their values; ``build_training_step`` comes next."""
        self.declare(cfg, opts)
        self.session.finalize_weights()
        for name, values in self.model.start(cfg, self.options):
            self.session.upload(self.tensors[name], values)

    @exclusive
    def build_training_step(self) -> None:
        """Record and compile the training step."""
        self._weights.check_trained(type(self).__name__)
        self.build_forward()
        self.build_update()

    def build_forward(self) -> None:
        """Record the forward pass up to the loss: the first half of build_training_step."""
        self._session_for("build_forward()")
        if self._step is not None:
            name = type(self).__name__
            raise LifecycleError(f"{name}.build_forward: once only; make a new engine")
        step = self._step = self._record_main()
        assert step.labels is not None and step.hp is not None and step.loss is not None
        self.t_logits = step.logits
        self.t_labels, self.t_hp, self.t_loss = step.labels, step.hp, step.loss

    def build_update(self) -> None:
        """Record backward and AdamW, and compile: the second half of build_training_step."""
        if self._step is None:
            raise LifecycleError(f"{type(self).__name__}.build_update before build_forward()")
        self._step = self._record_update(self._step)
        self.session.realize()

    def step_memory(self) -> Memory:
        """Record the training step of declared weights; return the memory that it would need."""
        self._record_step()
        return self.session.memory()

    def step_costs(self, prepack: Iterable[str]) -> dict[str, Cost]:
        """Do the same, and return what it would take by each choice of prepacking."""
        self._record_step()
        return self.session.costs(prepack)

    def _record_step(self) -> None:
        self.build_forward()
        assert self._step is not None
        self._record_update(self._step)

    @property
    def is_declared(self) -> bool:
        """Whether the weights are declared."""
        return self._session is not None

    @property
    def is_built(self) -> bool:
        """Whether the training step is compiled."""
        return self._step is not None and self._step.tape.sealed

    def _check_built(self, call: str) -> R:
        """Return the training step. Raises LifecycleError if it is not built."""
        if self._step is None or not self._step.tape.sealed:
            raise LifecycleError(f"{type(self).__name__}.{call} before {self._built_by}()")
        return self._step

    def _check_new(self, call: str) -> None:
        if self._session is not None:
            raise LifecycleError(f"{type(self).__name__}.{call}: once only; make a new engine")

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Become as new if the body fails, e.g. for lack of memory; this frees its memory."""
        try:
            yield
        except LifecycleError:  # nothing was done
            raise
        except BaseException:
            self._clear()
            raise

    def _realize(self, cfg: C, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step: what ``realize`` of most recipes does."""
        self._check_new("realize")
        with self._whole():
            self.realize_for_random_init(cfg, opts)
            self.build_training_step()

    def _record_update(self, step: R) -> R:
        """Record backward, and AdamW for every parameter; return the step with its inputs."""
        s = self.session
        s.build_backward()
        assert step.hp is not None
        more: dict[tuple[bool, float], Tensor] = {}
        for name, w in self.parameters.items():
            kind = self._kind_of(name, w)
            if kind != (True, 1.0) and kind not in more:
                more[kind] = s.input(f"hp_{len(more) + 2}", (7,))
            self.moments[name] = s.opt_step_adamw(w, s.grad(w), more.get(kind, step.hp))
        return replace(step, hp_more=more)

    def _kind_of(self, name: str, w: Tensor) -> tuple[bool, float]:
        """Return whether a parameter decays, and the factor of its learning rate."""
        return self.options.decay != "matrices" or _is_matrix(w), 1.0

    def _rows_of_adamw(self, step: R, row: ArrayLike) -> dict[Tensor, ArrayLike]:
        """Return AdamW's row, and a changed row for each other kind of parameters."""
        assert step.hp is not None
        rows: dict[Tensor, ArrayLike] = {step.hp: row}
        for (decays, rate), hp in step.hp_more.items():
            own = np.array(row, np.float32)
            own[RATE] *= rate
            own[DECAY] *= decays
            rows[hp] = own
        return rows

    def _recorded(self, key: tuple[Any, ...], record: Callable[[], R]) -> R:
        """Return another training step; ``record`` records its loss when first needed."""
        return self.session.record(key, lambda: self._record_update(record()))

    # -- Running -------------------------------------------------------------------------------

    @abstractmethod
    def _fitted(self, batch: Batch) -> tuple[R, Batch, dict[Tensor, ArrayLike]]:
        """Return the step for a batch, the checked batch, and the step's input arrays."""

    def _fed(self, batch: Batch, hp: ArrayLike | None = None, *, train: bool) -> tuple[R, Batch]:
        """Upload a batch; return the step that takes it, and the checked batch.

        With ``train`` the counter of dropout masks advances after the batch is accepted.
        """
        self._check_built("step")
        step, given, inputs = self._fitted(batch)
        if hp is not None:
            inputs |= self._rows_of_adamw(step, hp)
        if step.dropout is not None:
            inputs[step.dropout] = np.array([self.batches, train], np.int32)
        self.session.feed(inputs, step.tape)
        self.batches += train
        return step, given

    @exclusive
    def train(self, batch: Batch, hp: ArrayLike, is_first: bool) -> float:
        """Train on one batch; return its loss before the update.

        hp: the 7-slot row of AdamW. ``is_first`` zeroes the moments first; gradients need no reset,
        since the first micro-batch overwrites them. Batches given to ``accumulate`` since the last
        step are included, each weighted by its rows. ``step`` takes arrays instead.

        Raises ShapeError or LabelError for a batch that does not fit. Raises NonFiniteError if a
        gradient is not finite; weights and moments are untouched then.
        """
        step, given = self._fed(Batch.of(batch), hp, train=True)
        s = self.session
        if is_first:
            s.reset_moments()
        s.run("update", weight=float(given.rows) if s.pending else 1.0, tape=step.tape)
        self.step_index += 1
        return self._loss(step, given)

    @exclusive
    def accumulate(self, batch: Batch | ArrayLike, *arrays: ArrayLike | None) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss.

        A batch, or its arrays in order. Raises what ``train`` does: ShapeError, LabelError.
        """
        step, given = self._fed(Batch.of(batch, *arrays), train=True)
        self.session.run("grads", weight=float(given.rows), tape=step.tape)
        return self._loss(step, given)

    @exclusive
    def evaluate(self, batch: Batch | ArrayLike, *arrays: ArrayLike | None) -> float:
        """Return the loss of one batch; gradients and moments are untouched.

        A batch, or its arrays in order. Raises what ``train`` does: ShapeError, LabelError.
        """
        step, given = self._fed(Batch.of(batch, *arrays), train=False)
        self.session.run("loss", tape=step.tape)
        return self._loss(step, given, evaluated=True)

    @exclusive
    def update(self, hp: ArrayLike, is_first: bool) -> None:
        """Update the weights with the gradients of ``accumulate``, without another batch.

        hp and ``is_first`` are those of ``train``. Raises NonFiniteError if a gradient is not
        finite; weights and moments are untouched then.
        """
        step = self._check_built("update")
        self.session.feed(self._rows_of_adamw(step, hp), step.tape)
        if is_first:
            self.session.reset_moments()
        self.session.run("apply", tape=step.tape)
        self.step_index += 1

    def _loss(self, step: R, given: Batch, *, evaluated: bool = False) -> float:
        """Return the loss of the last batch, of a step or an evaluation."""
        assert step.loss is not None
        return float(self.session.download(step.loss))

    # -- Resuming ------------------------------------------------------------------------------

    def _moments(self) -> dict[str, Tensor]:
        """Return the optimizer's moments by name, and the frozen tensors of adapters."""
        pairs = ((name, zip("mv", pair, strict=True)) for name, pair in self.moments.items())
        found = {f"{name}.{which}": tensor for name, pair in pairs for which, tensor in pair}
        adapters = self._weights.adapters
        return found if adapters is None else found | adapters.frozen

    @exclusive
    def snapshot(self) -> Snapshot:
        """Return everything that training has changed; read it before training continues."""
        session, kept = self.session, self.parameters | self._moments()
        weight, sums = session.waiting()
        named = {f"{name}.sum": values for name, values in sums.items()}
        return Snapshot(
            {"steps": self.step_index, "batches": self.batches, "waiting": weight},
            _shapes(self.parameters),
            _shapes(self._moments()) | {name: values.shape for name, values in named.items()},
            lambda name: named[name] if name in named else session.download(kept[name]),
            "model" if self._weights.file is None else "adapter",
        )

    @exclusive
    def restore(self, found: Snapshot) -> None:
        """Take over the state of an engine that was realized alike; continue with the same bits.

        Raises CheckpointError for the state of a different engine.
        """
        kept, weight = self._moments(), found.counts["waiting"]
        own = _shapes(self.parameters)
        sums = {f"{name}.sum": shape for name, shape in own.items()} if weight else {}
        check_alike("weights", own, found.weights)
        check_alike("optimizer", _shapes(kept) | sums, found.optimizer)
        for name, tensor in (*self.parameters.items(), *kept.items()):
            self.session.upload(tensor, found.read(name))
        if weight:
            self.session.wait(weight, {name: found.read(f"{name}.sum") for name in own})
        self.step_index = int(found.counts["steps"])
        self.batches = int(found.counts["batches"])

    # -- Weights -------------------------------------------------------------------------------

    @exclusive
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of all weights, by name."""
        return {name: self.session.download(w) for name, w in self.tensors.items()}

    @exclusive
    def gradients(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the last step's gradients of the mean loss, before clipping."""
        self._check_built("gradients")
        return {
            name: self.session.download(self.session.grad(w)) for name, w in self.parameters.items()
        }

    @exclusive
    def load_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Replace all weights; names and shapes must match ``weights()``.

        Raises ConfigError if a name is missing or unknown; no weight is replaced then.
        """
        self._session_for("load_weights()")
        tensors = self._weights.replaceable(weights)
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

    # -- Files ---------------------------------------------------------------------------------

    def write_run(self, folder: Path) -> None:
        """Write the weights to a run folder as model.safetensors; replaces an earlier file."""
        self._check_built("write_run")
        write_atomically(folder / "model.safetensors", safetensors.parts(self.weights()))

    def read_run(self, folder: Path) -> None:
        """Load what ``write_run`` wrote."""
        self._check_built("read_run")
        with closing(SafeTensors(folder / "model.safetensors")) as file:
            self.load_weights({name: file[name] for name in file.tensors})

    def check_unchanged(self) -> None:
        """Raise the file's error if the weights are mapped and the file has changed."""


def _shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _is_matrix(weight: Tensor) -> bool:
    """Whether it is no bias, no gain, and no number for each head."""
    flat = len(weight.shape) < 2 or weight.shape[-1] == 1
    return not flat and not weight.name.endswith((".bias", "_norm.weight"))
