"""The session: declares tensors, owns the weights and the life cycle, uploads, runs, downloads.

    declare -> finalize_weights -> upload -> record ops -> set_loss -> build_backward
            -> opt_step_adamw ... -> realize -> upload inputs -> run -> download

``gradient_of``, for gradients of inputs, comes before ``build_backward``. ``finalize_weights`` may
come as late as before ``realize``. Any other wrong order raises
LifecycleError, which names the call that is missing. The short form of the same:

    declare, with values -> record ops -> step = minimize(loss) -> step(x=..., labels=...)
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import backends, ops
from toynn.backends.protocol import Place
from toynn.errors import (
    ConfigError,
    LifecycleError,
    NonFiniteError,
    ShapeError,
)
from toynn.graph.lowering import CompiledTape, compile_tape, lower
from toynn.graph.reports import Cost, Memory, Profile
from toynn.graph.storage import Storage
from toynn.graph.tape import Role, Tape, Tensor
from toynn.numerics import checks, precision
from toynn.numerics.adamw_row import SLOTS
from toynn.optim import AdamW
from toynn.options import PREPACK, checked
from toynn.session.feeding import compiled_feed, passes_checks
from toynn.session.looking import Look, check_stops, run_looking
from toynn.session.memory import MemoryUse
from toynn.session.step import Step
from toynn.session.updates import Updates
from toynn.system.critical import Section, exclusive

_COMPUTED = (Role.ACTIVATION, Role.GRADIENT)
MOST_RECORDED = 8  # further tapes that are kept; each has its own arena
_REPLACED = f"of a tape that {MOST_RECORDED} newer ones have replaced: record() it again"

T = TypeVar("T")


class Session:
    """Weights, tapes over them, and the order in which things may happen.

    Use the session as a context manager, or ``close()`` it, to free its memory; otherwise it is
    freed with the last reference.

    Parameters
    ----------
    backend
        "cpu", or another one of ``toynn.backends.available()``; "reference" computes in float64
        NumPy, slowly.
    seed
        The seed of dropout masks.
    n_threads
        The most threads; takes precedence over ``toynn.set_num_threads``.
    matmul_precision
        For ops recorded from now on (default: see ``toynn.set_float32_matmul_precision``); "auto"
        is the backend's choice; "int8" is for products by frozen quantized weights, see
        docs/environment.md.
    checkpointing
        Whether the backward pass recomputes the activations of each block of a tape
        (``s.tape.block``) instead of keeping them. That takes less memory, about one forward pass
        more work, and gives the same bits.
    keep_attention
        Whether checkpointing keeps the outputs of attention: see ``toynn.RecipeOptions``.
    recompute_cheap
        Whether the backward pass recomputes the outputs of norms and activations: see
        ``toynn.RecipeOptions``.
    activations
        How the activations of blocks are kept for the backward pass: "float32", or "bfloat16",
        which gives the same loss and rounded gradients: see ``toynn.RecipeOptions``.
    prepack
        Whether frozen weights are prepacked into GEMM panels: see ``toynn.RecipeOptions``.

    Each call takes effect wholly or not at all, even if the handler of Ctrl-C or another signal
    raises: signals wait until the call ends.

    Sessions in different threads run in parallel. One session serves one thread at a time: a call
    while another thread is in one raises LifecycleError at once. ``exclusively`` joins several
    calls.

    A call that comes too early or too late raises LifecycleError, which names the missing call. A
    name that is taken, a tensor that does not belong there, and a number out of range raise
    ConfigError.
    """

    def __init__(
        self,
        backend: str = "cpu",
        seed: int = 0,
        n_threads: int | None = None,
        matmul_precision: str | None = None,
        *,
        checkpointing: bool = False,
        keep_attention: bool = False,
        recompute_cheap: bool = False,
        activations: str = "float32",
        prepack: str = "never",
    ) -> None:
        checks.thread_count("Session", n_threads)
        self.backend = backends.get(backend, n_threads)
        self.seed = seed
        chosen = matmul_precision or precision.get_float32_matmul_precision()
        if chosen == "auto":
            chosen, _ = self.backend.automatic_precision()
        self.matmul_precision = precision.checked(chosen, precision.ALL_PRECISIONS)
        if chosen == "int8" and chosen not in self.backend.multiplies_in():
            raise ConfigError(
                "matmul precision int8 needs the backend cpu, at the ISA level avx2 or above, or "
                "neon with sdot (CPUs with AVX2 or FEAT_DotProd); toynn.show_config() says what is "
                "here. Choose medium"
            )
        self._busy = threading.RLock()  # a thread uses the session
        self._self = weakref.ref(self)  # for tensors: they do not keep the session alive
        self.tape = self._new_tape()
        self.trained: Tape | None = None  # the tape of the last step or micro-batch
        self._storage = Storage(self.backend, self._self)
        self._updates = Updates(
            self._storage,
            checkpointing=checkpointing,
            keep_attention=keep_attention,
            recompute_cheap=recompute_cheap,
            activations=activations,
        )
        self._known: set[Tensor] = set()  # uploaded, or computed by a run
        self._compiled: dict[Tape, CompiledTape] = {}
        self._memory = MemoryUse(
            self.backend, self._storage, self._compiled, checked("prepack", prepack, PREPACK)
        )
        self._recorded: OrderedDict[Any, tuple[Tape, Any]] = OrderedDict()  # oldest use first
        self._names: set[str] = set()  # of weights
        self._first_values: dict[Tensor, NDArray[np.float32]] = {}  # until weights are allocated
        self._finalized, self._closed, self.changes = False, False, 0  # of weights so far
        #: whether the rows of products recorded now must not depend on each other, to the bit
        self.by_row = False
        self._records = False  # whether a further tape is being recorded

    @property
    def n_threads(self) -> int | None:
        """The most threads of the host that a run may use; None: the backend decides."""
        return self.backend.n_threads

    @n_threads.setter
    def n_threads(self, n: int | None) -> None:
        self.backend.n_threads = n

    # -- Declaring -----------------------------------------------------------------------------

    @exclusive
    def parameter(self, name: str, shape: Sequence[int] | NDArray[Any]) -> Tensor:
        """Declare a trained weight by its shape, or by an array of initial values.

        The array is copied, and uploaded when the weights are finalized. A list or a tuple is a
        shape. Raises ShapeError for an impossible shape or impossible values.
        """
        return self._weight(name, shape, Role.PARAMETER)

    @exclusive
    def constant(
        self, name: str, shape: Sequence[int] | NDArray[Any], dtype: str = "f32"
    ) -> Tensor:
        """Declare a frozen weight, for which no gradient is computed.

        An array in place of a shape is the values, as for ``parameter``, if ``dtype`` is "f32". A
        weight of a quantized type (see ``toynn.numerics.dtypes``) is uploaded as bytes, and
        ``download`` dequantizes it. Raises ConfigError for an unknown dtype.
        """
        return self._weight(name, shape, Role.CONSTANT, dtype)

    @exclusive
    def mapped(
        self,
        name: str,
        array: NDArray[np.float32] | NDArray[np.uint8],
        dtype: str = "f32",
        shape: Sequence[int] | None = None,
    ) -> Tensor:
        """Declare a frozen weight that stays where it is, such as in a memory-mapped file.

        ``array`` is C-contiguous, and neither copied nor written: float32, or, for a quantized type
        (see ``toynn.numerics.dtypes``), the bytes of a weight of this ``shape``. The ops ``linear``
        and ``embedding`` take such a weight. ``download`` dequantizes it.
        """
        dimensions = checks.held_by(name, array, dtype, shape)
        self._check_new(name)
        tensor = self._storage.map(name, array, dtype, dimensions)
        self._names.add(name)
        self._known.add(tensor)
        return tensor

    @exclusive
    def input(
        self, name: str, shape: Sequence[int], dtype: str = "f32", count: Tensor | None = None
    ) -> Tensor:
        """Declare an input of the current tape; its values stay until the next upload.

        ``count``, an input i32 (), is the number of valid rows in a run. Other rows, and everything
        that depends on them, are not computed. Raises ShapeError if ``count`` is not such an input.
        """
        self._check_recording(f"input({name!r})")
        return self.tape.input(name, shape, dtype, count)

    @exclusive
    def persistent(self, name: str, shape: Sequence[int]) -> Tensor:
        """Declare, at any time, a tensor that keeps its values from run to run; zeros at first."""
        dimensions = checks.dimensions(name, shape)
        self._check_new(name)
        tensor = self._storage.keep(name, dimensions)
        self._names.add(name)
        return tensor

    @exclusive
    def release(self, tensors: Iterable[Tensor]) -> None:
        """Free persistent tensors, their names, and the recorded tapes that use them.

        Raises ConfigError for a tensor that is not a persistent one of this session. Raises
        LifecycleError if the session's own tape uses one, or while another tape is being recorded.
        """
        self._check_open()
        gone = set(tensors)
        for tensor in gone:
            self._check_persistent("release", tensor)
        if self._records:
            _refuse("release()", "while another tape is being recorded")
        if not gone.isdisjoint(self.tape.roots):
            _refuse("release()", "of a tensor that the session's own tape uses")
        for key, (tape, _) in list(self._recorded.items()):
            if not gone.isdisjoint(tape.roots):
                self._drop(self._recorded.pop(key)[0])
        for tensor in gone:
            self._storage.release(tensor)
            self._names.remove(tensor.name)
        self._known -= gone

    @exclusive
    def output(self, tensor: Tensor) -> Tensor:
        """Keep an activation until the next run, so that it can be downloaded."""
        self._check_recording("output()")
        if tensor.whole not in self.tape.written:
            raise ConfigError(f"output: {tensor!r} is not computed on this tape")
        self.tape.outputs.add(tensor.whole)
        return tensor

    def _check_new(self, name: str) -> None:
        self._check_open()
        if name in self._names:
            raise ConfigError(f"{name}: this session has a weight of that name already")

    def _weight(
        self, name: str, shape: Sequence[int] | NDArray[Any], role: Role, dtype: str = "f32"
    ) -> Tensor:
        self._check_open()
        if self._finalized:
            _refuse(
                f"{role.value}({name!r})", "after finalize_weights(): declare weights before it"
            )
        values = checks.first_values(name, shape, dtype) if hasattr(shape, "__array__") else None
        sizes: Any = shape if values is None else values.shape
        dimensions = checks.stored_as(name, dtype, checks.dimensions(name, sizes))
        self._check_new(name)
        self._names.add(name)
        tensor = self._storage.declare(name, dimensions, role, dtype)
        if values is not None:
            self._first_values[tensor] = values
        return tensor

    @exclusive
    def finalize_weights(self) -> None:
        """Allocate the weights: now they can be uploaded, and no more can be declared."""
        self._check_open()
        if self._finalized:
            _refuse("finalize_weights()", "once only: it has been called already")
        self._storage.allocate(Role.PARAMETER, Role.STATE)
        self._finalized = True
        for tensor, values in self._first_values.items():
            self._storage.write(tensor, values)
        self._known.update(self._first_values)
        self.changes += len(self._first_values)
        self._first_values.clear()

    # -- Recording -----------------------------------------------------------------------------

    @exclusive
    def set_loss(self, loss: Tensor) -> None:
        """Set the loss, from which the backward pass starts: one number, in any shape.

        Raises ShapeError for more numbers.
        """
        self._check_recording("set_loss()")
        if loss.size != 1:
            raise ShapeError(
                f"set_loss: the loss is a scalar; got {loss!r}: take its .mean() or .sum()"
            )
        if self.tape.loss is not None:
            _refuse("set_loss()", f"once a tape: the loss is {self.tape.loss.name} already")
        self.tape.loss = self.output(loss).whole

    @exclusive
    def build_backward(self) -> None:
        """Record the gradients of the parameters that the loss depends on, and of ``gradient_of``.

        Raises ConfigError if the loss does not depend on a tensor of ``gradient_of``.
        """
        self._check_recording("build_backward()")
        if self.tape.loss is None:
            _refuse("build_backward()", "before set_loss()")
        if self.tape.gradients is not None:
            _refuse("build_backward()", "once a tape: it has been called already")
        self._updates.build_backward(self.tape, self.tape.loss)

    @exclusive
    def gradient_of(self, tensor: Tensor) -> Tensor:
        """Ask for the gradient of an input or activation; return the tensor that will hold it.

        It is kept until the next run, for ``download``. Gradients of parameters need not be asked
        for: see ``grad``. Raises ConfigError for any other tensor, and for integers. Raises
        LifecycleError after ``build_backward``.
        """
        self._check_recording("gradient_of()")
        if self.tape.gradients is not None:
            _refuse(f"gradient_of({tensor.name})", "after build_backward(): ask for it before")
        tensor = tensor.whole
        if (
            tensor not in self.tape.written.union(self.tape.inputs.values())
            or tensor.dtype != "f32"
        ):
            raise ConfigError(
                f"gradient_of: needs an input or activation of this tape, in f32; got {tensor!r}"
            )
        if tensor not in self.tape.wanted:
            gradient = replace(self.tape.new("", tensor.shape), name=f"d_{tensor.name}")
            self.tape.wanted[tensor] = gradient
            self.tape.outputs.add(gradient)
        return self.tape.wanted[tensor]

    def grad(self, tensor: Tensor) -> Tensor:
        """Return the gradient of a tensor with respect to the loss."""
        tensor = tensor.whole
        if self.tape.gradients is None:
            _refuse("grad()", "before build_backward()")
        if tensor not in self.tape.gradients and tensor.role is Role.INPUT:
            why = "before build_backward(), to have its gradient"
            raise ConfigError(f"grad: {tensor.name} is an input: call gradient_of() {why}")
        if tensor not in self.tape.gradients:
            raise ConfigError(f"grad: the loss does not depend on {tensor.name}, or it is frozen")
        return self.tape.gradients[tensor]

    @exclusive
    def opt_step_adamw(self, w: Tensor, g: Tensor, hp: Tensor) -> tuple[Tensor, Tensor]:
        """Record an AdamW update of parameter w by gradient g; return its moments (m, v)."""
        self._check_update("opt_step_adamw", w, g)
        m, v = self._updates.record(self, w, hp, ops.adamw_step, "mv")
        return m, v

    @exclusive
    def opt_step_muon(self, w: Tensor, g: Tensor, hp: Tensor) -> Tensor:
        """Record a Muon update of the matrix w by gradient g; return its momentum.

        It reads lr, beta1 (the momentum) and weight_decay of hp. Muon is for hidden matrices;
        tables of embeddings, heads and vectors take ``opt_step_adamw``. Raises ShapeError for a
        parameter that is not a matrix.
        """
        self._check_update("opt_step_muon", w, g)
        if len(w.shape) != 2:
            raise ShapeError(f"opt_step_muon: needs a matrix (R, C); got {w.name} {w.shape}")
        (m,) = self._updates.record(self, w, hp, ops.muon_step, "m")
        return m

    def _check_update(self, call: str, w: Tensor, g: Tensor) -> None:
        self._check_recording(f"{call}()")
        if self.tape.gradients is None:
            _refuse(f"{call}()", "before build_backward()")
        if w.role is not Role.PARAMETER or self.tape.gradients.get(w) is not g:
            raise ConfigError(f"{call}: needs a parameter and its grad(); got {w!r}, {g!r}")

    @exclusive
    def minimize(
        self,
        loss: Tensor,
        lr: float | Callable[[int], float] = 1e-3,
        *,
        muon: Collection[Tensor] = (),
        **hyperparameters: float,
    ) -> Step:
        """Record the gradients of a loss and AdamW for each parameter; return the compiled step.

            step = s.minimize(loss, lr=1e-2)
            loss = step(x=..., labels=...)

        It calls ``finalize_weights``, ``set_loss`` and ``build_backward`` unless they were called
        before, then ``opt_step_adamw`` and ``realize``. After that ``s.grad(w)`` is the gradient.

        ``lr`` is the learning rate, or a function of the step, from 0 on, such as
        ``toynn.optim.Schedule``. ``hyperparameters`` are beta1, beta2, eps and weight_decay. Their
        defaults and convention (bias correction by step) are those of ``AdamW.for_lora()``.
        Parameters that the loss does not depend on stay as they are. Clipping: ``max_grad_norm``.
        ``muon`` are matrices that Muon updates instead, with beta1 as momentum: hidden ones.

        Raises ConfigError for unknown hyperparameters, for values out of range, and if the loss
        depends on no parameter. Raises ShapeError if the loss is not a scalar. The tape is
        unchanged then.
        """
        self._check_recording("minimize()")
        names = ("beta1", "beta2", "eps", "weight_decay")
        for name in hyperparameters:
            if name not in names:
                raise ConfigError(f"minimize: expected lr, {', '.join(names)}; got {name!r}")
        schedule = lr if callable(lr) else None
        adamw = AdamW.for_lora(lr(0) if callable(lr) else lr, **hyperparameters)
        adamw.hp_for_step(0)  # refuses values out of range
        tape, inputs = self.tape, dict(self.tape.inputs)
        if any(node.phase == "U" for node in tape.nodes):
            _refuse("minimize()", "after opt_step_adamw() on the same tape: use one of the two")
        with tape.undoable():
            if tape.loss is not loss:
                self.set_loss(loss)
            if tape.gradients is None:
                self.build_backward()
            trained = [w for w in tape.gradients or () if w.role is Role.PARAMETER]
            if not trained:
                raise ConfigError(f"minimize: {loss.name} depends on no parameter()")
            row = self.input("adamw.hp", (len(SLOTS),))
            for w in trained:
                step = self.opt_step_muon if w in muon else self.opt_step_adamw
                step(w, self.grad(w), row)
        if not self._finalized:
            self.finalize_weights()
        self.realize()

        def run(values: Mapping[Tensor, ArrayLike]) -> float:
            self.feed(values, tape)
            self.run(tape=tape)
            return float(self.download(loss).item())

        return Step(inputs, row, adamw, schedule, run, self.exclusively)

    @exclusive
    def realize(self) -> None:
        """Plan the memory of the tape and compile it; after that it can run."""
        self._check_recording("realize()")
        if not self._finalized:
            _refuse("realize()", "before finalize_weights()")
        if not self.tape.nodes:
            _refuse("realize()", "of an empty tape: record an op first")
        if self.matmul_precision == "int8" and not {"int8", "int8 by row"} & self.tape.precisions():
            raise ConfigError(
                "matmul precision int8 is for frozen quantized weights; this model has none. "
                "Choose medium"
            )
        self._storage.allocate(Role.GRADIENT, Role.MOMENT)
        storage = self._storage
        lowered = lower(self.tape, storage.places, self.backend)
        self._memory.decide_prepack(lowered)
        compiled = compile_tape(lowered, storage.buffers)
        for tensor, offset in compiled.offsets.items():
            storage.hold(tensor, compiled.arena, offset)
        self.tape.places = lowered.places
        self.tape.walks.clear()
        self._compiled[self.tape] = compiled

    @exclusive
    def record(self, key: object, build: Callable[[], T]) -> T:
        """Record and realize a further tape over the same weights, once; return build's result.

        It is for other shapes, or for evaluation. ``build`` records on ``self.tape``, a new tape.
        The session keeps MOST_RECORDED such tapes, and drops the least recently used one with its
        arena. A dropped tape is recorded again when its key is requested.
        """
        if key not in self._recorded:
            if self._records:
                _refuse("record()", "while another tape is being recorded")
            self._records, main, self.tape = True, self.tape, self._new_tape()
            try:
                built = build()
                self.realize()
                self._recorded[key] = self.tape, built
                if len(self._recorded) > MOST_RECORDED:
                    self._drop(self._recorded.popitem(last=False)[1][0])
            finally:
                self._records, self.tape = False, main
        self._recorded.move_to_end(key)
        return self._recorded[key][1]  # type: ignore[no-any-return]

    def _drop(self, tape: Tape) -> None:
        """Free a compiled tape: its program, its arena, and the records about it."""
        compiled = self._compiled.pop(tape)
        for tensor in compiled.offsets:
            del self._storage.held[tensor]
        roles = (Role.INPUT, Role.ACTIVATION)
        gone = compiled.written["update"].union(compiled.offsets)
        self._known -= {tensor for tensor in gone if tensor.role in roles}

    # -- Data ----------------------------------------------------------------------------------

    @exclusive
    def upload(self, tensor: Tensor, array: ArrayLike) -> None:
        """Copy values into a weight, moment or input; ids and labels are checked."""
        kind = "f32" if tensor in self._storage.mapped else tensor.dtype  # refused below
        values = checks.converted(tensor.name, array, tensor.shape, kind)
        self._check_held(tensor, "upload")
        if tensor in self._storage.mapped or tensor.role in _COMPUTED:
            _refuse(f"upload({tensor.name})", "into a mapped weight or a computed tensor")
        recording = () if self.tape in self._compiled else (self.tape,)
        for tape in (*recording, *self._compiled):
            for check in tape.checks.get(tensor, ()):
                check(tensor.name, values)
        if tensor.dtype == "i32":
            checks.fits_i32(tensor.name, values)
        checks.still_finite(tensor.name, array, values)
        self._storage.write(tensor, values)
        self._known.add(tensor)
        self.changes += tensor.role in (Role.PARAMETER, Role.CONSTANT)

    @exclusive
    def feed(self, inputs: Mapping[Tensor, ArrayLike], tape: Tape | None = None) -> None:
        """Upload several inputs of a realized tape, in one compiled call if they are plain arrays.

        Raises what ``upload`` raises.
        """
        tape = tape or self.tape
        feeds, key = self._check_realized("feed()", tape).feeds, tuple(inputs)
        if key not in feeds:
            for tensor in key:
                self._check_held(tensor, "feed")
            feeds[key] = compiled_feed(self.backend, self._storage, tape, key)
        feed = feeds[key]
        if feed is not None and passes_checks(tape, inputs) and feed.put(tuple(inputs.values())):
            self._known.update(key)
            return
        for tensor, array in inputs.items():
            self.upload(tensor, array)

    @exclusive
    def download(self, tensor: Tensor) -> NDArray[Any]:
        """Return a copy of a weight, moment, gradient, input or kept output.

        Gradients of several micro-batches are returned as their weighted mean.
        """
        tensor, shape = tensor.whole, tensor.shape
        self._check_held(tensor, "download")
        values = self._storage.read(tensor).reshape(shape)
        zeros = (Role.MOMENT, Role.STATE, Role.PERSISTENT)
        if tensor not in self._known and tensor.role not in zeros:
            before = "run()" if tensor.role in _COMPUTED else f"upload({tensor.name})"
            _refuse(f"download({tensor.name})", f"before {before}")
        is_gradient = any(tensor in compiled.gradients for compiled in self._compiled.values())
        return values / np.float32(self._updates.divisor) if is_gradient else values

    @exclusive
    def copy(self, tensor: Tensor, source: int, target: int, count: int) -> None:
        """Copy ``count`` elements of a persistent tensor, from number ``source`` to ``target`` on.

        Raises ConfigError for a tensor that is not a persistent one of this session.
        """
        self._check_persistent("copy", tensor)
        self._storage.copy(tensor, source, target, count)

    def _check_persistent(self, call: str, tensor: Tensor) -> None:
        self._check_open()
        if tensor.role is not Role.PERSISTENT or tensor not in self._storage.held:
            raise ConfigError(f"{call}: {tensor!r} is not a persistent tensor of this session")

    def _check_held(self, tensor: Tensor, verb: str) -> None:
        self._check_open()
        if tensor in self._storage.held:
            return
        if tensor.role in (Role.PARAMETER, Role.CONSTANT):
            _refuse(f"{verb}({tensor.name})", "before finalize_weights()")
        if self.tape in self._compiled and tensor.role is Role.ACTIVATION:
            why = "not kept: call output(), or record() a replaced tape again"
            _refuse(f"{verb}({tensor.name})", f"of an activation that is {why}")
        if self.tape in self._compiled and tensor.role is Role.INPUT:
            _refuse(f"{verb}({tensor.name})", _REPLACED)
        _refuse(f"{verb}({tensor.name})", "before realize()")

    # -- Running -------------------------------------------------------------------------------

    @exclusive
    def reset(self, moments: bool) -> None:
        """Zero the gradients, and with ``moments`` AdamW's moments; forget micro-batches."""
        self._check_realized("reset()", self.tape)
        self._known.update(self._updates.zero_gradients())
        if moments:
            self.reset_moments()

    @exclusive
    def reset_moments(self) -> None:
        """Zero the moments of AdamW."""
        self._check_realized("reset_moments()", self.tape)
        self._updates.zero_moments()

    @exclusive
    def run(
        self,
        to: str = "update",
        *,
        weight: float = 1.0,
        tape: Tape | None = None,
        look: Look | None = None,
    ) -> None:
        """Run the tape up to "loss", "grads" or "update"; or "apply" gradients of earlier runs.

        - "loss" leaves gradients and moments unchanged.
        - "grads" adds this micro-batch's gradients, times ``weight``, to the sum.
        - "update" does the same, then divides by the sum of the weights, clips to
          ``max_grad_norm``, and runs the recorded AdamW updates.
        - "apply" only updates, with the gradients that runs to "grads" have summed.

        Raises NonFiniteError if the norm of the gradients is not finite; weights and moments are
        unchanged then. Raises BackendError if the device fails, now or in the next call that waits
        for it. Weights and moments are then those before the step, and micro-batches are forgotten.

        ``look(i, done, read)`` is called before and after each node i; ``read(tensor)`` returns the
        values of any tensor of the tape at that moment. Such a run takes a Python call for each
        node. If ``look`` raises, micro-batches are forgotten, and an update may be half done.
        Raises ConfigError for a backend that runs only whole phases.

        If a function of ``ops.numpy`` raises, or returns another shape, no weight has changed, and
        micro-batches are forgotten. Raises BackendError or ShapeError, which names the function.
        """
        tape = tape or self.tape
        compiled = self._check_realized("run()", tape)
        if to not in compiled.phases:
            raise ConfigError(f"run: to must be loss, grads, update or apply; got {to!r}")
        if to in ("grads", "apply") and tape.gradients is None:
            _refuse(f"run(to={to!r})", "before build_backward()")
        if to == "apply" and not self.pending:
            _refuse("run(to='apply')", "before run(to='grads')")
        if not (isfinite(weight) and weight > 0):
            raise ConfigError(f"run: weight must be a finite number above 0; got {weight}")
        if not compiled.needed[to] <= self._known:
            missing = sorted(t.name for t in compiled.needed[to] - self._known)
            _refuse("run()", f"before upload({missing[0]})")
        if look is not None:
            check_stops(compiled.program)
        accumulate = self.pending
        if to in ("grads", "update"):
            self.trained = tape
        if to != "loss" and tape.gradients is not None:
            self._updates.begin(weight, to)
        try:
            if look is None:
                compiled.program.run(compiled.phases[to], accumulate)
            else:
                buffers = {**self._storage.buffers, "arena": compiled.arena}
                run_looking(compiled.program, tape, compiled.phases[to], accumulate, buffers, look)
        except BaseException:  # of look, or of a function of NumPy
            self._forget()
            raise
        self.changes += to in ("update", "apply")
        self._known |= compiled.written[to]
        if self._updates.norm in compiled.written[to] and (why := self._updates.refused()):
            raise NonFiniteError(f"{why}; weights and moments were left as they were")

    def exclusively(self, call: str, signals: bool = False) -> Section:
        """Return a critical section in which no other thread uses this session.

            with s.exclusively("a step"):
                s.upload(x, values)
                s.run()

        If another thread uses the session, entering raises LifecycleError, which names ``call``.
        Signals wait until the section ends; with ``signals``, handlers run between the calls
        inside. A thread may nest sections.
        """
        return _section(self._busy, call, self._forget, signals)

    def _new_tape(self) -> Tape:
        return Tape(exclusively=partial(_section, self._busy), owner=self._self)

    def _forget(self) -> None:
        """Undo the step in which the device failed.

        The backend has restored weights and moments; gradients are undefined.
        """
        self._updates.forget()
        self._known = {tensor for tensor in self._known if tensor.role not in _COMPUTED}

    # -- Gradients of micro-batches ------------------------------------------------------------

    @property
    def max_grad_norm(self) -> float | None:
        """The norm to which all gradients together are clipped; None: no clipping.

        Raises ConfigError for a norm that is not a finite number above 0.
        """
        return self._updates.max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, norm: float | None) -> None:
        if norm is not None and not (isfinite(norm) and norm > 0):
            raise ConfigError(f"max_grad_norm must be None or a finite number above 0; got {norm}")
        self._updates.max_grad_norm = norm

    @property
    def grad_norm(self) -> float:
        """Norm of all gradients in the last update, before clipping."""
        return float(self.download(self._updates.norm))

    @property
    def gradient_bytes(self) -> int:
        """The bytes of all gradients, as ``combine`` passes them."""
        return self._storage.nbytes["gradients"]

    @property
    def pending(self) -> bool:
        """Whether gradients of micro-batches wait for an update."""
        return self._updates.pending > 0

    @exclusive
    def waiting(self) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """Return the weight of micro-batches that wait for an update, and their gradients' sums."""
        self._check_realized("waiting()", self.tape)
        return self._updates.pending, self._updates.sums() if self.pending else {}

    @exclusive
    def wait(self, weight: float, sums: Mapping[str, NDArray[np.float32]]) -> None:
        """Restore what ``waiting`` returned, as if these micro-batches had been run here."""
        self._check_realized("wait()", self.tape)
        self._known.update(self._updates.resume(weight, sums))

    @exclusive
    def combine(
        self, weight: float, change: Callable[[NDArray[np.float32]], object], block: int
    ) -> None:
        """Let ``change`` modify the waiting sums of gradients; ``weight`` is their new weight.

        The sums are one flat array. ``change`` gets it in order, in blocks of at most ``block``
        elements, and modifies each block in place. Without waiting micro-batches they are zeros.
        """
        self._check_realized("combine()", self.tape)
        self._known.update(self._updates.combine(weight, change, block))

    # -- Looking -------------------------------------------------------------------------------

    @exclusive
    def memory(self) -> Memory:
        """Return the bytes that the tapes recorded so far need; works before allocation."""
        self._check_open()
        if self.tape in self._compiled:
            return self._memory.total()
        lowered = lower(self.tape, self._storage.places, self.backend)
        return self._memory.total(lowered, self._memory.prepack_of(lowered))

    @exclusive
    def costs(
        self, prepack: Iterable[str], choices: Mapping[str, bool | str] | None = None
    ) -> dict[str, Cost]:
        """Return what a training step of the tape takes, by each choice of prepacking.

        ``choices`` are arguments of the session that say what the backward pass recomputes and how
        activations are kept. The costs are those of a backward pass by them; the tape's own stays.
        Works before allocation only.
        """
        self._check_recording("costs()")
        tape = self.tape
        own = tape.nodes, tape.gradients, tape.phase
        try:
            if choices is not None and tape.loss is not None:
                self._updates.build_backward(tape, tape.loss, choices)
            lowered = lower(tape, self._storage.places, self.backend)
        finally:
            tape.nodes, tape.gradients, tape.phase = own
        return {
            each: self._memory.cost(lowered, checked("prepack", each, PREPACK)) for each in prepack
        }

    @exclusive
    def profile(self, tape: Tape | None = None) -> Profile:
        """Return the time per op over all runs of a tape so far."""
        program = self._check_realized("profile()", tape := tape or self.tape).program
        rows = (
            (node.op.kernel, calls, spent, node.flops, node.nbytes, node.at_most)
            for node, (calls, spent) in zip(tape.nodes, program.times(), strict=True)
        )
        return Profile.of(rows, program.notes())

    @exclusive
    def times(self, tape: Tape | None = None) -> list[tuple[int, int]]:
        """Return (calls, nanoseconds) of each node of a tape, over all runs so far."""
        return self._check_realized("times()", tape or self.tape).program.times()

    @exclusive
    def places(self, tape: Tape | None = None) -> Mapping[Tensor, Place]:
        """Return where the tensors of a tape are stored, or will be; works before allocation.

        Parts of tensors have no place of their own.
        """
        self._check_open()
        tape = tape or self.tape
        return tape.places or lower(tape, self._storage.places, self.backend).places

    # -- Life cycle ----------------------------------------------------------------------------

    @exclusive
    def close(self) -> None:
        """Free all memory; the session can no longer be used."""
        if self._closed:
            return
        self._closed = True
        self.backend.wait()
        self._compiled.clear()
        self._recorded.clear()
        self._first_values.clear()
        self._storage.free()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "Session(closed)"
        try:
            memory = self.memory()
        except LifecycleError:
            return f"Session({self.backend.name}, another thread uses it)"
        weights = f"{len(self._names)} weights, {memory.weights / 1e6:.1f} MB"
        return f"Session({self.backend.name}, {weights}, {self.tape!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Session cannot be pickled: download its weights and save those")

    def _check_open(self) -> None:
        if self._closed:
            raise LifecycleError("this session is closed")

    def _check_recording(self, call: str) -> None:
        self._check_open()
        if self.tape in self._compiled:
            _refuse(call, "after realize(): the tape is compiled")

    def _check_realized(self, call: str, tape: Tape) -> CompiledTape:
        self._check_open()
        if tape not in self._compiled:
            _refuse(call, _REPLACED if tape.sealed else "before realize()")
        return self._compiled[tape]


def _refuse(call: str, why: str) -> NoReturn:
    raise LifecycleError(f"{call} {why}")


def _section(
    lock: threading.RLock,
    call: str,
    failed: Callable[[], object] | None = None,
    signals: bool = False,
) -> Section:
    why = f"{call} while another thread uses this session: wait for it"
    return Section(lock, why, failed, signals)
