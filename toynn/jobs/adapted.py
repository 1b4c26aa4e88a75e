"""Find an adapter's base model, by its run's config.toml or PEFT's adapter_config.json."""

from pathlib import Path
from typing import Any, NamedTuple

from toynn.errors import ConfigError
from toynn.formats.objects import PEFT_CONFIG, read_object
from toynn.jobs.directory import Directory
from toynn.jobs.paths import RUN_CONFIG
from toynn.system.reading import read_bytes


class UnknownBase(ConfigError):
    """Nothing names the base model of an adapter, or the base no longer exists."""


class Origin(NamedTuple):
    """The paths of a base model, and of its tokenizer if another one was used."""

    model: str
    tokenizer: str | None = None


def origin_of(adapter: Path) -> Origin:
    """Return the base model and tokenizer that an adapter was trained on.

    The adapter is a run folder, a file in one, or a PEFT folder whose base is a local path. Raises
    UnknownBase if nothing names the base or the base no longer exists, ConfigError if config.toml
    is damaged or the adapter does not exist, AdapterError for a folder without an adapter.
    """
    from toynn.formats import adapters

    if not adapter.exists():
        raise ConfigError(f"--adapter {adapter}: no such file or folder exists")
    adapters.refuse_others(adapter)
    folder = adapter if adapter.is_dir() else adapter.parent
    run, peft = folder / RUN_CONFIG, folder / PEFT_CONFIG
    named = _of_run(run) if run.is_file() else None
    where = run
    if named is None and peft.is_file():
        base, where = read_object(peft).get("base_model_name_or_path"), peft
        named = Origin(base) if isinstance(base, str) and base else None
    if named is None:
        raise UnknownBase(
            f"--adapter {adapter}: nothing beside it names its base model: expected {RUN_CONFIG} "
            f"of a run of `toynn train lora`, or {PEFT_CONFIG}; name the base by --model"
        )
    for what, path in zip(("base model", "tokenizer"), named, strict=True):
        if path is not None and not Path(path).exists():
            flag = "--model" if path == named.model else "--tokenizer"
            raise UnknownBase(
                f"--adapter {adapter}: {where} names the {what} {path}, which does not exist: name "
                f"it by {flag}"
            )
    return named


def _of_run(config: Path) -> Origin | None:
    """Return the base that config.toml names; None if the run has none."""
    import tomllib

    try:
        tables: dict[str, Any] = tomllib.loads(read_bytes(config, ConfigError).decode())
        run, train = tables.get("run", {}), tables.get("train", {})
        directory, model = Directory(run.get("directory")), train.get("model")
        if not isinstance(model, str):
            return None
        tokenizer = train.get("tokenizer")
        return Origin(directory.path_of(model), tokenizer and directory.path_of(tokenizer))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{config}: not the configuration of a run: {error}") from error
