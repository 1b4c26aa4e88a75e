"""config.toml: options of a run, for the options that are not given.

    [run]               recipe = "gpt2"; directory: where relative paths start; steps: the number
                        planned, also if epochs were given. Other keys are not read.
    [train]             options by name: steps = 1500, lr = 0.003, flip = true
    [data], [model]     for information; not read

Given options take precedence over the file's. A run writes its config.toml in the form that
--config reads. A file of an older run may have old names of options: see ``toynn.options.RENAMED``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toynn import distributed
from toynn.errors import ConfigError
from toynn.jobs.directory import Directory
from toynn.jobs.options import checked
from toynn.jobs.peers import hint
from toynn.optim.schedule import usual_warmup
from toynn.options import Option, renamed
from toynn.system.reading import read_bytes

TABLES = ("run", "data", "rewards", "model", "train")


def read_config(
    named: str | None,
    resumed: str | None,
    recipe: str | None,
    recipes: Mapping[str, Mapping[str, Option]],
) -> tuple[str, dict[str, Any], Directory]:
    """Return the recipe and the options of the file that --config names, and the run's directory.

    --resume DIR alone means the file in that run's folder. ``recipe`` is the requested one, or
    None. If several processes read the same file, only rank 0 reads: others may not have the
    folder.

    Raises ConfigError for a file that is damaged, or of another recipe.
    """
    group, arguments = distributed.current(), [named, resumed, recipe]
    alike = all(each == arguments for each in group.gather(arguments))
    config = None
    if not alike or group.rank == 0:
        config = _read_config(named, resumed, recipe, recipes)
    return group.tell(config) if alike else config  # type: ignore[return-value]


def _read_config(
    named: str | None,
    resumed: str | None,
    asked: str | None,
    recipes: Mapping[str, Mapping[str, Option]],
) -> tuple[str, dict[str, Any], Directory]:
    path = Path(named) if named is not None else _config_of(Path(str(resumed)))
    if path.is_dir():
        raise ConfigError(f"--config {path}: expected a file, such as {path / 'config.toml'}")
    tables = _read(path)
    recipe = tables.get("run", {}).get("recipe", asked)
    if recipe is None:
        raise ConfigError(f"{path}: run.recipe: missing; set it, or type it after `toynn train`")
    if not isinstance(recipe, str) or recipe not in recipes:
        names = ", ".join(recipes)
        raise ConfigError(f"{path}: run.recipe: expected one of {names}; got {recipe!r}")
    if asked not in (None, recipe):
        raise ConfigError(f"{path}: this file belongs to a run of {recipe}, not of {asked}")
    options = {name: each for name, each in recipes[recipe].items() if each.in_config}
    values = renamed(tables.get("train", {}))
    run = tables.get("run", {})
    if resumed is None and _is_derived(run.get("steps", values.get("steps")), values.get("warmup")):
        del values["warmup"]  # derived again from the run's own number of steps
    first = run.get("directory")
    if not isinstance(first, str | None):
        raise ConfigError(f"{path}: run.directory: expected a path; got {first!r}")
    directory = Directory(first)
    here = {name: directory.resolved(options.get(name), value) for name, value in values.items()}
    try:
        return recipe, checked(options, here, recipe), directory
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _is_derived(steps: Any, warmup: Any) -> bool:
    """Whether a warmup is the default one for this number of steps."""
    return type(steps) is int and type(warmup) is int and warmup == usual_warmup(steps)


def _config_of(folder: Path) -> Path:
    """Return the config.toml of a run's folder, or of the run that a checkpoint is in."""
    if not folder.exists():
        raise ConfigError(f"--resume {folder}: no such run folder exists")
    inside, above = (each / "config.toml" for each in (folder, folder.absolute().parent))
    if not (inside.is_file() or above.is_file()):
        raise ConfigError(
            f"--resume {folder}: expected the folder of a run, or a checkpoint in it; neither "
            "this folder nor the one above has a config.toml"
        )
    return inside if inside.is_file() else above


def _read(path: Path) -> dict[str, dict[str, Any]]:
    import tomllib

    try:
        tables = tomllib.loads(read_bytes(path, ConfigError).decode("utf-8"))
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    for name, table in tables.items():
        if name not in TABLES:
            advice = hint(name, TABLES) or f"expected {', '.join(TABLES)}"
            raise ConfigError(f"{path}: {name} is not known; {advice}")
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name}: expected a table, [{name}]; got {table!r}")
    return tables
