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
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.data.batch import Batch
from toynn.engines.adapters import Adapters
from toynn.engines.plans import Level
from toynn.engines.snapshot import Shapes, Snapshot, check_alike
from toynn.errors import ConfigError, LifecycleError
from toynn.formats import safetensors
from toynn.formats.files import write_atomically
from toynn.formats.safetensors import SafeTensors
from toynn.graph.reports import Cost, Memory
from toynn.graph.tape import Tape, Tensor
from toynn.models import Model, Source
from toynn.models.tables import Weight
from toynn.nn import Layers
from toynn.numerics import checks
from toynn.numerics.adamw_row import SLOTS
from toynn.optim import AdamW
from toynn.options import RecipeOptions
from toynn.session import Session
from toynn.system.critical import Section, exclusive
from toynn.system.garbage import uncollected

RATE, BETA1, DECAY, C1 = map(SLOTS.index, ("lr", "beta1", "weight_decay", "c1"))

#: How the names of blocks' weights begin, in GGUF and in timm.
BLOCKS = ("blk.", "blocks.")
#: Whether a parameter decays, the factor of its learning rate, and Muon's momentum (0: AdamW).
Kind = tuple[bool, float, float]

Inputs = dict[str, ArrayLike]  # values of a tape's inputs, by name


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Results of one recorded tape. Its inputs are in ``tape.inputs``, by name."""

    tape: Tape
    loss: Tensor | None = None  # only of a tape that trains or evaluates
    logits: Tensor | None = None  # also None: computed in chunks, see ops.linear_cross_entropy
    losses: Tensor | None = None  # of labels with loss, in the first rows; if requested
    sums: Tensor | None = None  # (S, 2): of the losses of each prompt and each completion
    #: further inputs like "hp", by name: see _kind_of
    hp_more: Mapping[str, Kind] = field(default_factory=dict)


def width(name: str) -> property:
    """Return a property: a size of the model, the field of this name in its configuration."""
    return property(lambda engine: int(getattr(engine.config, name)))


def of_step(name: str) -> property:
    """Return a property: a result or an input of the training step; None before there is a step."""

    def read(engine: "Engine[Any]") -> Any:
        step = engine._step
        return step and (getattr(step, name, None) or step.tape.inputs.get(name))

    return property(read)


C = TypeVar("C")


class Engine(ABC, Generic[C]):
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

    t_batch = property(lambda engine: engine.options.t_batch)  # sequences or pictures, usually
    t_loss, t_logits = of_step("loss"), of_step("logits")
    t_labels, t_hp = of_step("labels"), of_step("hp")

    d_model, n_heads, d_head = width("d_model"), width("n_heads"), width("d_head")
    d_ff, n_layers = width("d_ff"), width("n_layers")  # d_ff: of the feed-forward layers

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        self.backend, self._n_threads = backend, n_threads
        self._clear()

    def _clear(self) -> None:
        """Set the state before any call; the memory of an earlier session is freed."""
        self._session: Session | None = None
        self._step: Recorded | None = None
        self._loadable: dict[str, Tensor] = {}  # weights in the session's memory
        self._mapped: dict[str, Tensor] = {}  # weights of ``file``, frozen
        self._adapters = Adapters()
        self._constants: dict[str, Tensor] = {}
        self.file: Source | None = None  # the file that the weights are stored in, if any
        self.parameters: dict[str, Tensor] = {}  # the trained weights, in the optimizer's order
        self.moments: dict[str, tuple[Tensor, ...]] = {}  # of each parameter: m, and v of AdamW
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
    def session(self) -> Session:
        """The session that owns the weights."""
        return self._session_for("session")

    def exclusively(self, call: str, signals: bool = False) -> Section:
        """Return the session's critical section for a call; see ``Session.exclusively``."""
        if self._session is None:  # the call says what is missing
            return Section(signals=signals)
        return self._session.exclusively(call, signals)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All weights by name: trained and frozen ones."""
        self._session_for("tensors")
        return self._mapped | self._loadable

    # -- What a subclass says ------------------------------------------------------------------

    @property
    @abstractmethod
    def model(self) -> Model[Any]:
        """The model of the configuration. Raises ConfigError if the engine is for others."""

    @property
    @abstractmethod
    def _usual(self) -> tuple[Any, ...]:
        """The arguments of ``_record_loss`` for batches as the options describe them."""

    @abstractmethod
    def _record_loss(self, *kind: Any, **_: Any) -> Recorded:
        """Record the forward pass and the loss of a kind of batches."""

    @abstractmethod
    def _fitted(self, batch: Batch) -> tuple[Recorded, Batch, Inputs]:
        """Return the step for a batch, the checked batch, and the step's input arrays."""

    def layers(self, batch: int, *, adapted: bool = True, **more: Any) -> Layers:
        """Return what recording a forward pass needs: all weights, and adapters if ``adapted``.

        ``more`` are further fields of Layers.
        """
        return Layers(
            session=self.session,
            weights=self.tensors,
            constants=self._constants,
            batch=batch,
            rounding=str(self.options.weight_dtype),
            adapters=self._adapters.layers if adapted else {},
            **more,
        )

    # -- Life cycle ----------------------------------------------------------------------------

    def declare(self, cfg: C, opts: RecipeOptions) -> None:
        """Declare the weights; the session's ``finalize_weights`` allocates them.

        Each weight must be uploaded before a tape that reads it can run.
        """
        self._check_new(self._declared_by)
        self.config, self.options = cfg, replace(opts)
        self._check()
        threads = {"n_threads": self._n_threads} if opts.n_threads is None else {}
        self._session = Session(self.backend, **opts.of_session() | threads)
        self._declare_weights(self.model.weights(cfg, self.options))
        mapped, arrays = self._session.mapped, self.model.constants(cfg)
        self._constants = {name: mapped(name, values) for name, values in arrays.items()}

    def _check(self) -> None:
        """Refuse options that do not fit the configuration. Raises ConfigError."""
        self.model.check(self.config, self.options)

    def _declare_weights(self, weights: Mapping[str, Weight]) -> None:
        """Declare parameters, and constants where the model freezes a weight."""
        for name, weight in weights.items():
            if weight.is_frozen:
                self._loadable[name] = self.session.constant(name, weight.shape)
            else:
                w = self.session.parameter(name, weight.shape)
                self._loadable[name] = self.parameters[name] = w

    def realize_for_random_init(self, cfg: C, opts: RecipeOptions) -> None:
        """Declare the weights and draw their values; ``build_training_step`` comes next."""
        self.declare(cfg, opts)
        self._fill(self.model.start(cfg, self.options))

    def _fill(self, values: Iterable[tuple[str, ArrayLike]]) -> None:
        """Allocate all weights, and upload these values."""
        self.session.finalize_weights()
        tensors = self.tensors
        for name, array in values:
            self.session.upload(tensors[name], array)

    @exclusive
    @uncollected()
    def build_training_step(self) -> None:
        """Record and compile the training step."""
        if self._session is not None and not self.parameters:
            self._refuse(
                "build_training_step: all weights are frozen: enable_lora_q() and "
                "enable_lora_q_adamw() come before realize_for_mmap()"
            )
        self.build_forward()
        self.build_update()

    def build_forward(self) -> None:
        """Record the forward pass up to the loss: the first half of build_training_step."""
        self._session_for("build_forward()")
        if self._step is not None:
            self._refuse("build_forward: once only; make a new engine")
        self._step = self._record_loss(*self._usual)

    def build_update(self) -> None:
        """Record backward and AdamW, and compile: the second half of build_training_step."""
        if self._step is None:
            self._refuse("build_update before build_forward()")
        self._step = self._record_update(self._step)
        self.session.realize()

    def _record_update(self, step: Recorded) -> Recorded:
        """Record backward, and an update of every parameter; return the step with its inputs."""
        s = self.session
        s.build_backward()
        names: dict[Kind, str] = {(True, 1.0, 0.0): "hp"}
        for name, w in self.parameters.items():
            kind = self._kind_of(name, w)
            if kind not in names:
                names[kind] = f"hp_{len(names) + 1}"
                s.input(names[kind], (7,))
            hp = s.tape.inputs[names[kind]]
            if kind[2]:
                self.moments[name] = (s.opt_step_muon(w, s.grad(w), hp),)
            else:
                self.moments[name] = s.opt_step_adamw(w, s.grad(w), hp)
        return replace(step, hp_more={hp: kind for kind, hp in names.items() if hp != "hp"})

    def _kind_of(self, name: str, w: Tensor) -> Kind:
        """Return how a parameter is updated. Hidden matrices are those of blocks."""
        hidden = name.startswith(BLOCKS) and len(w.shape) == 2 and _is_matrix(w)
        momentum = self.options.momentum if hidden and self.options.optimizer == "muon" else 0.0
        return self.options.decay != "matrices" or _is_matrix(w), 1.0, momentum

    @uncollected()
    def step_memory(self) -> Memory:
        """Record the training step of declared weights; return the memory that it would need."""
        self._record_step()
        return self.session.memory()

    @uncollected()
    def step_costs(self, prepack: Iterable[str], level: Level) -> dict[str, Cost]:
        """Return what the training step would take by each choice of prepacking.

        ``level`` takes the place of the options that it names. For a further level only the
        backward pass is recorded again.
        """
        if self._step is None:
            self._record_step()
        return self.session.costs(prepack, level._asdict())

    @exclusive
    def _record_step(self) -> None:
        self.build_forward()
        assert self._step is not None
        self._record_update(self._step)

    # -- In which order: each call says what it needs ------------------------------------------

    @property
    def is_declared(self) -> bool:
        """Whether the weights are declared."""
        return self._session is not None

    @property
    def is_built(self) -> bool:
        """Whether the training step is compiled."""
        return self._step is not None and self._step.tape.sealed

    def _refuse(self, why: str) -> NoReturn:
        raise LifecycleError(f"{type(self).__name__}.{why}")

    def _check_new(self, call: str, why: str = ": once only;") -> None:
        if self._session is not None:
            self._refuse(f"{call}{why} make a new engine")

    def _session_for(self, call: str) -> Session:
        return self._session or self._refuse(f"{call} before {self._declared_by}()")

    def _built(self, call: str) -> Recorded:
        """Return the training step. Raises LifecycleError if it is not built."""
        if self._step is None or not self._step.tape.sealed:
            self._refuse(f"{call} before {self._built_by}()")
        return self._step

    def _step_for(self, *kind: Any) -> Recorded:
        """Return the training step for a kind of batches, recorded when first needed."""
        if kind == self._usual and self._step is not None:
            return self._step
        return self.session.record(
            ("step", *kind), lambda: self._record_update(self._record_loss(*kind))
        )

    @contextmanager
    def _realizing(self, call: str | None = None) -> Iterator[None]:
        """Become as new if the body fails, e.g. for lack of memory; this frees its memory.

        The body is the ``call`` that realizes the engine, once; None: the second half of one.
        """
        if call is not None:
            self._check_new(call)
        try:
            yield
        except LifecycleError:  # nothing was done
            raise
        except BaseException:
            self._clear()
            raise

    def _realize(self, cfg: C, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step: what ``realize`` of most recipes does."""
        with self._realizing("realize"):
            self.realize_for_random_init(cfg, opts)
            self.build_training_step()

    # -- Running -------------------------------------------------------------------------------

    def _feed(self, tape: Tape, values: Inputs) -> None:
        """Upload a tape's inputs, given by name."""
        self.session.feed({tape.inputs[name]: array for name, array in values.items()}, tape)

    def compute(
        self, recorded: Recorded, values: Inputs, result: str = "logits"
    ) -> NDArray[np.float32]:
        """Run a tape without backward, with these inputs by name; return one of its results."""
        self._feed(recorded.tape, values)
        self.session.run("loss", tape=recorded.tape)
        return self.session.download(getattr(recorded, result))

    def _rows_of_adamw(self, step: Recorded, row: ArrayLike) -> Inputs:
        """Return AdamW's row, and a changed row for each other kind of parameters."""
        rows: Inputs = {"hp": row}
        for name, (decays, rate, momentum) in step.hp_more.items():
            changed = rows[name] = np.array(row, np.float32)
            changed[RATE] *= rate
            if momentum:  # Muon does not read c1, which belongs to AdamW's beta1
                changed[BETA1], changed[C1] = momentum, 1.0
            changed[DECAY] *= decays
        return rows

    def _fed(
        self, batch: Batch, hp: ArrayLike | None = None, *, train: bool
    ) -> tuple[Recorded, Batch]:
        """Upload a batch; return the step that takes it, and the checked batch.

        With ``train`` the counter of dropout masks advances after the batch is accepted.
        """
        self._built("step")
        step, batch, values = self._fitted(batch)
        if hp is not None:
            values |= self._rows_of_adamw(step, hp)
        if "dropout" in step.tape.inputs:
            values["dropout"] = np.array([self.batches, train], np.int32)
        self._feed(step.tape, values)
        self.batches += train
        return step, batch

    @exclusive
    def train(self, batch: Batch, hp: ArrayLike, is_first: bool) -> float:
        """Train on one batch; return its loss before the update.

        hp: the 7-slot row of AdamW; Muon reads its rate and its decay. ``is_first`` zeroes the
        moments first; gradients need no reset, since the first micro-batch overwrites them. Batches
        given to ``accumulate`` since the last step are included, each weighted by its rows.
        ``step`` takes arrays instead.

        Raises ShapeError or LabelError for a batch that does not fit. Raises NonFiniteError if a
        gradient is not finite; weights and moments are untouched then.
        """
        step, batch = self._fed(Batch.of(batch), hp, train=True)
        s = self.session
        if is_first:
            s.reset_moments()
        s.run("update", weight=float(batch.rows) if s.pending else 1.0, tape=step.tape)
        self.step_index += 1
        return self._loss(step, batch)

    @exclusive
    def accumulate(self, batch: Batch | ArrayLike, *arrays: ArrayLike | None) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss.

        A batch, or its arrays in order. Raises what ``train`` does: ShapeError, LabelError.
        """
        step, checked = self._fed(Batch.of(batch, *arrays), train=True)
        self.session.run("grads", weight=float(checked.rows), tape=step.tape)
        return self._loss(step, checked)

    @exclusive
    def evaluate(self, batch: Batch | ArrayLike, *arrays: ArrayLike | None) -> float:
        """Return the loss of one batch; gradients and moments are untouched.

        A batch, or its arrays in order. Raises what ``train`` does: ShapeError, LabelError.
        """
        step, checked = self._fed(Batch.of(batch, *arrays), train=False)
        self.session.run("loss", tape=step.tape)
        return self._loss(step, checked, evaluated=True)

    @exclusive
    def update(self, hp: ArrayLike, is_first: bool) -> None:
        """Update the weights with the gradients of ``accumulate``, without another batch.

        hp and ``is_first`` are those of ``train``. Raises NonFiniteError if a gradient is not
        finite; weights and moments are untouched then.
        """
        step = self._built("update")
        self._feed(step.tape, self._rows_of_adamw(step, hp))
        if is_first:
            self.session.reset_moments()
        self.session.run("apply", tape=step.tape)
        self.step_index += 1

    def _loss(self, step: Recorded, batch: Batch, *, evaluated: bool = False) -> float:
        """Return the loss of the last batch, of a step or an evaluation."""
        assert step.loss is not None
        return float(self.session.download(step.loss))

    # -- Resuming ------------------------------------------------------------------------------

    def _beside_weights(self) -> dict[str, Tensor]:
        """Return the optimizer's moments by name, and the frozen tensors of adapters."""
        pairs = ((name, zip("mv", pair, strict=False)) for name, pair in self.moments.items())
        moments = {f"{name}.{which}": tensor for name, pair in pairs for which, tensor in pair}
        return moments | self._adapters.frozen

    @exclusive
    def snapshot(self) -> Snapshot:
        """Return everything that training has changed; read it before training continues."""
        session, beside = self.session, self._beside_weights()
        tensors = self.parameters | beside
        weight, sums = session.waiting()
        sums = {f"{name}.sum": values for name, values in sums.items()}
        return Snapshot(
            {"steps": self.step_index, "batches": self.batches, "waiting": weight},
            _shapes(self.parameters),
            _shapes(beside) | {name: values.shape for name, values in sums.items()},
            lambda name: sums[name] if name in sums else session.download(tensors[name]),
            "model" if self.file is None else "adapter",
        )

    @exclusive
    def restore(self, state: Snapshot) -> None:
        """Take over the state of an engine that was realized alike; continue with the same bits.

        Raises CheckpointError for the state of a different engine.
        """
        beside, weight = self._beside_weights(), state.counts["waiting"]
        shapes = _shapes(self.parameters)
        sums = {f"{name}.sum": shape for name, shape in shapes.items()} if weight else {}
        check_alike("weights", shapes, state.weights)
        check_alike("optimizer", _shapes(beside) | sums, state.optimizer)
        for name, tensor in (self.parameters | beside).items():
            self.session.upload(tensor, state.read(name))
        if weight:
            self.session.wait(weight, {name: state.read(f"{name}.sum") for name in shapes})
        self.step_index = int(state.counts["steps"])
        self.batches = int(state.counts["batches"])

    # -- Weights -------------------------------------------------------------------------------

    @exclusive
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of all weights, by name, in the shapes that files have."""
        return self._downloaded(self.tensors)

    @exclusive
    def gradients(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the last step's gradients of the mean loss, before clipping."""
        self._built("gradients")
        return self._downloaded({n: self.session.grad(w) for n, w in self.parameters.items()})

    def _downloaded(self, tensors: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
        model, download = self.model, self.session.download
        return {n: model.outward(self.config, n, download(t)) for n, t in tensors.items()}

    @exclusive
    def load_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Replace all weights; names and shapes must match ``weights()``.

        Of an engine over a mapped file, replace the adapters, as ``adapter_weights()`` returns
        them. Raises ConfigError if a name is missing, unknown or frozen; no weight is replaced
        then.
        """
        self._session_for("load_weights()")
        if self.file is not None and (frozen := sorted(weights.keys() & self._mapped.keys())):
            more = f" and {len(frozen) - 1} more are" if frozen[1:] else " is"
            raise ConfigError(
                f"load_weights: {frozen[0]!r}{more} frozen in {self.file.path}: give only "
                "adapters, as adapter_weights() returns them"
            )
        missing = sorted(self._loadable.keys() - weights.keys())
        unknown = sorted(weights.keys() - self._loadable.keys())
        if missing or unknown:
            raise ConfigError(
                f"load_weights: missing {missing or 'none'}, unknown {unknown or 'none'}"
            )
        model, arrays = self.model, {}
        for name, w in self._loadable.items():  # all are checked before the first is replaced
            values = model.inward(self.config, name, weights[name])
            arrays[name] = checks.converted(name, values, w.shape, w.dtype)
        for name, w in self._loadable.items():
            self.session.upload(w, arrays[name])

    # -- Files ---------------------------------------------------------------------------------

    def write_run(self, folder: Path) -> None:
        """Write the weights to a run folder as model.safetensors; replaces an earlier file."""
        self._built("write_run")
        write_atomically(folder / "model.safetensors", safetensors.parts(self.weights()))

    def read_run(self, folder: Path) -> None:
        """Load what ``write_run`` wrote."""
        self._built("read_run")
        with closing(SafeTensors(folder / "model.safetensors")) as file:
            self.load_weights({name: file[name] for name in file.tensors})

    def check_unchanged(self) -> None:
        """Raise the file's error if it is mapped and has changed since it was opened."""
        if self.file is not None:
            self.file.check_unchanged()


def _shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _is_matrix(weight: Tensor) -> bool:
    """Whether it is no bias, no gain, and no number for each head."""
    flat = len(weight.shape) < 2 or weight.shape[-1] == 1
    return not flat and not weight.name.endswith((".bias", "_norm.weight"))
