"""Compare a run with a saved run: configuration, data, base."""

from collections.abc import Mapping
from typing import Any

from toynn.errors import CheckpointError
from toynn.optim import AdamW, Schedule
from toynn.options import absent, renamed
from toynn.system.printing import counted
from toynn.train.begin import Begun
from toynn.train.checkpoint import Checkpoint
from toynn.train.options import LoopOptions


def differences(before: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> list[str]:
    """Return a line for each value that differs between two nested tables."""
    lines = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differences(old, new, f"{at}{name}.")
        elif _plain(old) != _plain(new):
            lines.append(f"{at}{name}: {_said(old)} then, {_said(new)} now")
    return lines


def completed(
    before: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the saved table, with ``defaults`` for keys that it is too old to have."""
    return {name: defaults[name] for name in now.keys() & defaults.keys()} | dict(before)


def check_alike(
    checkpoint: Checkpoint, now: Mapping[str, Any], begun: Begun, options: LoopOptions, force: bool
) -> None:
    """Raise CheckpointError, with all differences, unless a run matches the saved one.

    More steps are allowed; fewer are a difference. ``force`` allows all differences, but not a run
    that has taken more steps than it should, or that has ended early.
    """
    before = checkpoint.state["identity"]
    if isinstance(before.get("config"), dict):
        before = before | {"config": renamed(before["config"])}
    if "training" in before and "training" in now:
        before = before | {"training": _training(before["training"], now["training"])}
    path, lines = checkpoint.path, [] if force else differences(before, now)
    if not lines:
        _check_length(path, begun, options)
    if begun.length is not None and options.steps < begun.length.steps and not force:
        lines += differences({"steps": begun.length.steps}, {"steps": options.steps})
    if lines:
        raise CheckpointError(
            f"{path}: the run would not be the same: {'; '.join(lines)}; change these back, or "
            "force it (force=True|--force-resume)"
        )


def _training(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved settings of a run's loop, with the old values of newer fields."""
    values = completed(before, now, absent(LoopOptions))
    for name, kind in (("schedule", Schedule), ("optimizer", AdamW)):
        old, new = values.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            values[name] = completed(old, new, absent(kind))
    return values


def _check_length(path: object, begun: Begun, options: LoopOptions) -> None:
    """Raise CheckpointError if a run would become shorter, or cannot be extended."""
    length, batches = begun.length, options.batches
    if length is None:
        return
    if options.steps < begun.done or (batches is not None and batches < begun.drawn):
        got = f"steps: {options.steps}" if batches is None else f"batches: {batches}"
        raise CheckpointError(
            f"{path}: the run has taken {counted(begun.done, 'step')} (batches: {begun.drawn}): "
            f"expected at least as many; got {got}; give more --steps or --epochs, or resume "
            "from an earlier checkpoint (--resume RUN/checkpoint-N)"
        )
    if options.steps > length.steps and 0 < options.early_stopping <= begun.not_better:
        raise CheckpointError(
            f"{path}: the run has ended early, after {begun.not_better} evaluations "
            f"without a better one; --early-stopping is {options.early_stopping}: "
            "give a larger number, or 0, to take more steps"
        )


def _plain(value: Any) -> Any:
    """Return a value as it comes back from JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _said(value: Any) -> str:
    return "none" if value is None else repr(value)
