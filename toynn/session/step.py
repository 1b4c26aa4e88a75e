"""A training step as one call: inputs by name in, the loss out."""

from collections.abc import Callable, Mapping

from numpy.typing import ArrayLike

from toynn.errors import ConfigError
from toynn.graph.tape import Tensor
from toynn.optim import AdamW
from toynn.system.critical import Section


class Step:
    """One training step: ``step(x=..., labels=...)`` uploads, runs, and returns the loss.

    The loss is the one before the update. Each call takes all inputs of the tape by name, as
    ``Session.upload`` takes them. ``step_index`` counts the steps taken. ``adamw`` has the
    hyperparameters of the next step; all but its mode may be changed. Ctrl-C waits until a step has
    ended.

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

        Raises ConfigError for an unknown or missing input, and for hyperparameters out of range.
        Raises also what ``Session.upload`` and ``Session.run`` raise. The step is not counted then.
        """
        if unknown := [name for name in values if name not in self._inputs]:
            names = ", ".join(self._inputs) or "none"
            raise ConfigError(f"step: no input is called {unknown[0]!r}; the inputs are: {names}")
        if missing := [name for name in self._inputs if name not in values]:
            raise ConfigError(f"step: give a value for each input; missing: {', '.join(missing)}")
        with self._exclusively("step()"):
            if self._schedule is not None:
                self.adamw.lr = self._schedule(self.step_index)
            inputs = {self._inputs[name]: array for name, array in values.items()}
            loss = self._run({**inputs, self._row: self.adamw.hp_for_step(self.step_index)})
            self.step_index += 1
        return loss

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self._inputs.values()))
        return f"Step({self.step_index} steps taken; inputs: {inputs or 'none'})"
