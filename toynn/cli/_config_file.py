"""config.toml: the flags of a run, which ``toynn train --config FILE`` takes as if they were typed.

    [run]               recipe = "gpt2"; version is not read
    [train]             flags by name: steps = 1500, grad_accum = 8, checkpointing = true
    [data], [model]     what came of them; not read

Flags that are typed go before those of the file. A run writes its own as it takes it.
"""

import difflib
import tomllib
from argparse import BooleanOptionalAction
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toynn.cli._flags import Flag
from toynn.errors import ConfigError
from toynn.reading import read_bytes
from toynn.train.plan import Begun, warmup_of

__all__ = ["NOT_KEPT", "expanded", "flag_values"]

TABLES = ("run", "data", "model", "train")
#: Flags that say where a run is read from and written to, not what it does.
NOT_KEPT = ("out", "config", "resume", "force_resume")


def flag_values(flags: Iterable[Flag], arguments: Any, source: str) -> dict[str, Any]:
    """Return the flags of a run that config.toml keeps; not those that its source leaves no choice.

    ``source`` is the argument that names a model or an adapter to start from.
    """
    started = getattr(arguments, source, None) is not None
    values = {
        flag.name: getattr(arguments, flag.name)
        for flag in flags
        if flag.name not in NOT_KEPT and not (started and flag.source == "own")
    }
    return {name: value for name, value in values.items() if value is not None}


def expanded(words: Sequence[str], recipes: Mapping[str, Sequence[Flag]]) -> list[str]:
    """Return the words of ``toynn train`` with those of the file that --config names put in.

    --resume DIR alone means the file in that run's folder. A recipe need not be typed then.
    """
    words = list(words)
    named, resumed = _value_of(words, "--config"), _value_of(words, "--resume")
    if named is None and resumed is None:
        return words
    typed = words.pop(0) if words and not words[0].startswith("-") else None
    path = Path(named) if named is not None else _config_of(Path(str(resumed)))
    tables = _read(path)
    recipe = tables.get("run", {}).get("recipe", typed)
    if recipe is None:
        raise ConfigError(f"{path}: run.recipe: missing; say it there, or behind `toynn train`")
    if not isinstance(recipe, str) or recipe not in recipes:
        raise ConfigError(f"{path}: run.recipe: expected one of {_listed(recipes)}; got {recipe!r}")
    if typed not in (None, recipe):
        raise ConfigError(f"{path}: it is of a run of {recipe}, not of {typed}")
    flags = {flag.name: flag for flag in recipes[recipe] if flag.name not in NOT_KEPT}
    more: list[str] = []
    kept_flags = dict(tables.get("train", {}))
    if resumed is None and _is_derived(kept_flags):
        del kept_flags["warmup"]  # of as many steps it is the same, and of others it fits
    if _value_of(words, "--steps") is not None:
        kept_flags.pop("epochs", None)  # which would go before steps that are typed
    for name, value in kept_flags.items():
        if name not in flags:
            _refuse(path, f"train.{name}", name, flags)
        kept = _typed(path, flags[name], value)
        if _value_of(words, flags[name].option) is None:
            more += kept  # else what is typed stands in its place
    return [recipe, *more, *words]


def _is_derived(values: Mapping[str, Any]) -> bool:
    """Whether a warmup is that of so many steps where none is typed."""
    steps, warmup = values.get("steps"), values.get("warmup")
    return type(steps) is int and type(warmup) is int and warmup == warmup_of(steps, Begun(1))


def _value_of(words: Sequence[str], option: str) -> str | None:
    """Return what follows an option, as argparse would take it."""
    found = None
    for word, following in zip(words, [*words[1:], None], strict=False):
        if word == option:
            found = following
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def _config_of(folder: Path) -> Path:
    """Return the config.toml of a run's folder, or of the run that a checkpoint lies in."""
    if not folder.exists():
        raise ConfigError(f"--resume {folder}: there is no such folder of a run")
    inside = folder / "config.toml"
    return inside if inside.is_file() else folder.absolute().parent / "config.toml"


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = tomllib.loads(read_bytes(path, ConfigError).decode("utf-8"))
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    for name, table in found.items():
        if name not in TABLES:
            _refuse(path, name, name, TABLES)
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name}: expected a table, [{name}]; got {table!r}")
    return found


def _refuse(path: Path, where: str, name: str, known: Iterable[str]) -> None:
    """Raise ConfigError: a name is not known."""
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    hint = f"; did you mean {near[0]}?" if near else f"; expected {_listed(known)}"
    raise ConfigError(f"{path}: {where} is not known{hint}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _typed(path: Path, flag: Flag, value: Any) -> list[str]:
    """Return a flag as it would be typed."""
    switch = flag.action is BooleanOptionalAction or flag.action == "store_true"
    if flag.nargs and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return [flag.option, *value]
    if switch != isinstance(value, bool) or isinstance(value, list | dict):
        expected = "true or false" if switch else "a number or a text"
        raise ConfigError(f"{path}: train.{flag.name}: expected {expected}; got {value!r}")
    if not switch:
        return [f"{flag.option}={value}"]
    if flag.action is BooleanOptionalAction:
        return [flag.option if value else f"--no-{flag.option[2:]}"]
    return [flag.option] if value else []
