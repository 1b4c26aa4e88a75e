"""Training state between runs: gradients, moments and micro-batches.

Each micro-batch runs with d_loss = its weight, so its gradients can be added to the earlier ones
directly. The update divides them by the sum of the weights.
"""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from toynn import ops
from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.narrowing import narrow_kept
from toynn.graph.storage import Storage
from toynn.graph.tape import Role, Tape, Tensor
from toynn.options import ACTIVATIONS, checked


def chosen(
    *, checkpointing: bool, keep_attention: bool, recompute_cheap: bool, activations: str
) -> tuple[bool, bool, bool, bool]:
    """Return arguments of a session as arguments of Backward, and whether to narrow what is kept.

    Raises ConfigError for what does not go together, and for unknown activations.
    """
    if keep_attention and not checkpointing:
        raise ConfigError(
            "keep_attention=True|--keep-attention is for checkpointing=True|--checkpointing"
        )
    narrowed = checked("activations", activations, ACTIVATIONS) == "bfloat16"
    return bool(checkpointing), bool(keep_attention), bool(recompute_cheap), narrowed


class Updates:
    """The gradients of a session's parameters, their moments, and the scalars of an update."""

    def __init__(self, storage: Storage, **choices: bool | str) -> None:
        """``choices`` are those of `chosen`."""
        self._storage = storage
        self._choices = choices
        chosen(**choices)  # type: ignore[arg-type]
        self._gradients: dict[Tensor, Tensor] = {}  # of each parameter
        self._moments: dict[Tensor, tuple[Tensor, ...]] = {}
        self.pending = 0.0  # weight of the micro-batches whose gradients wait for an update
        self.divisor = 1.0  # divides downloaded gradients
        self.max_grad_norm: float | None = None
        self._told: tuple[float, ...] = ()  # uploaded last: weight, clipping norm, 1 / weights
        self._seed, self.norm, self._factor, self._control = (
            storage.declare(name, shape, Role.STATE)
            for name, shape in (("d_loss", ()), ("norm", ()), ("factor", ()), ("control", (2,)))
        )

    # -- Recording -----------------------------------------------------------------------------

    def build_backward(
        self, tape: Tape, loss: Tensor, choices: Mapping[str, bool | str] | None = None
    ) -> None:
        """Record phase B, or record it again: then the forward pass and the updates stay.

        ``choices``, arguments of the session by their names, take the place of its own.

        Raises ConfigError unless the same parameters get gradients on every tape.
        """
        *walk, narrowed = chosen(**self._choices | dict(choices or {}))  # type: ignore[arg-type]
        updates = [node for node in tape.nodes if node.phase == "U"]
        if tape.gradients is None:
            tape.walks = {(): (tuple(tape.nodes), {})}
        if tuple(walk) not in tape.walks:
            tape.nodes = list(tape.walks[()][0])
            back = Backward(tape, self._gradient_of, ops.ADD, ops.ACCUMULATE, *walk)
            gradients = back.run(loss, self._seed)
            tape.walks[tuple(walk)] = tuple(tape.nodes), gradients
        nodes, gradients = tape.walks[tuple(walk)]
        tape.nodes = list(nodes)
        if narrowed:
            narrow_kept(tape, ops.NARROW, ops.WIDEN)
        for parameter in self._gradients:
            if parameter not in gradients:
                raise ConfigError(
                    f"build_backward: {parameter.name} gets no gradient here, but got one in the "
                    "session's first tape; train the same parameters in every tape"
                )
        tape.nodes += updates
        tape.gradients = gradients
        tape.phase = "U"

    def _gradient_of(self, parameter: Tensor) -> Tensor:
        if parameter not in self._gradients:
            if "gradients" in self._storage.buffers:
                raise ConfigError(
                    f"build_backward: {parameter.name} gets a gradient here, but got none in the "
                    "session's first tape; train the same parameters in every tape"
                )
            name = f"d_{parameter.name}"
            gradient = self._storage.declare(name, parameter.shape, Role.GRADIENT)
            self._gradients[parameter] = gradient
        return self._gradients[parameter]

    def record(
        self, s: ops.Recorder, w: Tensor, hp: Tensor, step: Callable[..., None], which: str
    ) -> tuple[Tensor, ...]:
        """Record the update of one parameter by an op; the first also records the norm of all.

        ``which`` has a letter for each moment of the parameter. Return the moments.

        Raises ConfigError if the parameter has an update already.
        """
        if s.tape.nodes[-1].phase != "U":
            every = self._storage.whole(Role.GRADIENT)
            ops.grad_norm(s, self.norm, self._factor, every, self._control)
        if w in s.tape.written:
            raise ConfigError(f"opt_step: {w.name} has its update on this tape already")
        if w not in self._moments:
            self._moments[w] = tuple(
                self._storage.declare(f"{w.name}.{letter}", w.shape, Role.MOMENT)
                for letter in which
            )
        step(s, w, *self._moments[w], self._gradients[w], hp, self._factor)
        return self._moments[w]

    # -- Running -------------------------------------------------------------------------------

    def begin(self, weight: float, to: str) -> None:
        """Upload the weight of a run's micro-batch and the divisor of the update.

        After an update no micro-batch waits. "apply" has no micro-batch of its own.
        """
        self.pending += weight if to != "apply" else 0.0
        self.divisor = self.pending
        told = weight, self.max_grad_norm or 0.0, 1 / self.pending
        if told != self._told:  # rarely: in most runs it does not change
            self._told = ()
            self._storage.write(self._seed, np.array(weight))
            self._storage.write(self._control, np.array(told[1:]))
            self._told = told
        if to != "grads":
            self.pending = 0.0

    def forget(self) -> None:
        """Forget the micro-batches and what was uploaded; the next one overwrites gradients."""
        self.pending, self.divisor, self._told = 0.0, 1.0, ()

    def zero_gradients(self) -> Iterable[Tensor]:
        """Zero and return all gradients; forget the micro-batches."""
        self.pending, self.divisor = 0.0, 1.0
        self._storage.clear(self._gradients.values())
        return self._gradients.values()

    def sums(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the sums of the micro-batches' gradients, by parameter name."""
        return {p.name: self._storage.read(gradient) for p, gradient in self._gradients.items()}

    def resume(self, weight: float, sums: Mapping[str, NDArray[np.float32]]) -> list[Tensor]:
        """Restore the result of ``sums`` and its weight; return the gradients."""
        for parameter, gradient in self._gradients.items():
            self._storage.write(gradient, sums[parameter.name])
        self.pending = self.divisor = weight
        return list(self._gradients.values())

    def combine(
        self, weight: float, change: Callable[[NDArray[np.float32]], object], block: int
    ) -> list[Tensor]:
        """Let ``change`` modify all sums, block by block; set their weight; return gradients."""
        if not self.pending:
            self.zero_gradients()
        for start, values in self._storage.blocks(Role.GRADIENT, block):
            change(values)
            self._storage.put(Role.GRADIENT, start, values)
        self.pending = self.divisor = weight
        return list(self._gradients.values())

    def zero_moments(self) -> None:
        """Zero the moments."""
        self._storage.clear(moment for pair in self._moments.values() for moment in pair)

    def refused(self) -> str | None:
        """Return why AdamW changed nothing in the last update; None if it did change weights."""
        if isfinite(self._storage.read(self._factor).item()):
            return None
        bad = "none (the sum of squares overflowed)"
        for parameter, gradient in self._gradients.items():
            if not np.isfinite(self._storage.read(gradient)).all():
                bad = parameter.name
                break
        return f"gradient norm is {self._storage.read(self.norm)}; first bad gradient: {bad}"
