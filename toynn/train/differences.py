"""What has changed since a run was started: configuration, data, base; each by its name."""

from collections.abc import Mapping
from typing import Any

from toynn.errors import CheckpointError

__all__ = ["check_alike", "differences"]


def differences(before: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> list[str]:
    """Return a line for each value that is not the same in two tables of tables."""
    found = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{at}{name}.")
        elif _plain(old) != _plain(new):
            found.append(f"{at}{name}: {_said(old)} then, {_said(new)} now")
    return found


def check_alike(path: object, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise CheckpointError, with all differences, unless a run is the one that was saved."""
    if found := differences(before, now):
        raise CheckpointError(
            f"{path}: the run would not be the same: {'; '.join(found)}; make it so, or force it "
            "(--force-resume, force=True)"
        )


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _said(value: Any) -> str:
    return "none" if value is None else repr(value)
