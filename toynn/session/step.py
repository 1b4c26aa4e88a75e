"""A step of training as one call: inputs by name in, the loss out."""

from collections.abc import Callable, Mapping

from numpy.typing import ArrayLike

from toynn.errors import ConfigError
from toynn.graph.tape import Tensor
from toynn.optim import AdamW
from toynn.system.critical import Section

__all__ = ["Step"]


class Step:
    """One training step: ``step(x=..., labels=...)`` uploads, runs, and returns the loss.

    The loss is that before the step's update. Each input of the tape is given in each call, by its
    name, as ``Session.upload`` takes it. ``step_index`` counts the steps taken; ``adamw`` has the
    hyperparameters of the next one, where nothing but its mode must stay as it is. Ctrl-C waits
    until a step has ended.

    ``Session.minimize`` makes steps.
    """

    def __init__(
        self,
        inputs: Mapping[str, Tensor],
        row: Tensor,
        adamw: AdamW,
        schedule: Callable[[int], float] | None,
        run: Callable[[Mapping[Tensor, ArrayLike]], float],
        exclusively: Callable[[str], Section],  # the session's
    ) -> None:
        self.adamw, self.step_index = adamw, 0
        self._inputs, self._row, self._schedule, self._run = dict(inputs), row, schedule, run
        self._exclusively = exclusively

    def __call__(self, /, **values: ArrayLike) -> float:
        """Take a step; return the loss before its update.

        Raises ConfigError for a name that is no input, an input that is missing, and
        hyperparameters out of range; what ``Session.upload`` raises for values, and
        ``Session.run`` for a step that cannot be taken. The step does not count then.
        """
        if unknown := [name for name in values if name not in self._inputs]:
            known = ", ".join(self._inputs) or "none"
            raise ConfigError(f"step: no input is called {unknown[0]!r}; the inputs are: {known}")
        if missing := [name for name in self._inputs if name not in values]:
            raise ConfigError(f"step: give a value for each input; missing: {', '.join(missing)}")
        with self._exclusively("step()"):
            if self._schedule is not None:
                self.adamw.lr = self._schedule(self.step_index)
            given = {self._inputs[name]: array for name, array in values.items()}
            loss = self._run({**given, self._row: self.adamw.hp_for_step(self.step_index)})
            self.step_index += 1
        return loss

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self._inputs.values()))
        return f"Step({self.step_index} steps taken; inputs: {inputs or 'none'})"
