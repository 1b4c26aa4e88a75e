"""Paths on the command line, and names on the hub: toynn/formats/hub.py."""

import contextlib
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path

from toynn.errors import ConfigError, DataError
from toynn.formats import hub
from toynn.formats.objects import CONFIG, PEFT_CONFIG, read_object
from toynn.jobs.weighted import path_and_weight
from toynn.options import not_empty
from toynn.system.reading import read_bytes

#: Takes a label and a line about a download.
Tell = Callable[[str, str], object]
RUN_CONFIG = "config.toml"
#: The recipe of picture models.
PICTURES = "vit"


def silent(label: str, text: str) -> None:
    """Drop a line about a download."""


def on_hub(text: str) -> bool:
    """Whether a path is a name on the hub, which is downloaded when a command runs."""
    return text.startswith(hub.PREFIX)


def path_or_name(text: str) -> Path:
    """Return a model's path as typed.

    Raises ArgumentTypeError for an empty text and a malformed hub name.
    """
    return Path(model_name(text))


def model_name(text: str) -> str:
    """Return what ``path_or_name`` returns, as a string."""
    return _checked(text, lambda: hub.named(text))


def data_name(text: str) -> str:
    """Return a path of data as typed, perhaps with a weight.

    Raises ArgumentTypeError for an empty text and a malformed hub name.
    """
    return _checked(text, lambda: hub.named(str(path_and_weight(text, "--data")[0]), data=True))


def _checked(text: str, check: Callable[[], object]) -> str:
    try:
        if on_hub(not_empty(text)):
            check()
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def local_path(path: str | Path) -> Path:
    """Return the path of a model; hf:OWNER/NAME is downloaded. Raises ConfigError."""
    return hub.fetched(str(path)) if on_hub(str(path)) else Path(path)


def model_file(text: str, _: Tell = silent) -> str:
    """Return the path of a model; for a run's folder, the model.gguf in it.

    Raises ConfigError if the hub does not have it.
    """
    path = str(local_path(text)) if on_hub(text) else text
    inside = Path(path) / "model.gguf"
    return str(inside) if inside.is_file() else path


def local_data(text: str, tell: Tell = silent) -> str:
    """Return the path of data, and its weight after a colon; hf:OWNER/NAME[:SPLIT] is downloaded.

    ``tell`` gets lines about other splits, and about files read from the cache if the hub cannot be
    reached. Raises ConfigError if the hub does not have the data. Raises DataError if the data do
    not have the split, or are several data sets.
    """
    path, weight = path_and_weight(text, "--data")
    if not on_hub(str(path)):
        return text
    from toynn.data import splits

    def choose(name: hub.Name, files: Sequence[str], cached: bool) -> tuple[Sequence[str], str]:
        split = splits.choose(name.text, files, name.file or "", name.split, cached=cached)
        if cached and split.path != name.file:
            tell("data", f"{name.text}: the hub cannot be reached: {split.path} is cached")
        if name.split is None and split.others:
            other = "validation" if "validation" in split.others else split.others[0]
            whole, at, revision = name.text.partition("@")
            tell(
                "data",
                f"{name.text}: train; other splits: {', '.join(split.others)} (such as "
                f"{whole}:{other}{at}{revision})",
            )
        return split.files, split.path

    local = hub.fetched_data(str(path), choose)
    return str(local) if weight is None else f"{local}:{weight:g}"


def text_model(path: Path, option: str = "--model") -> Path:
    """Return the file or Hugging Face folder of a text model that an option names.

    Raises ConfigError for a folder without a text model.
    """
    if not path.is_dir():
        return path
    if any((path / name).exists() for name in ("adapter.gguf", PEFT_CONFIG)):
        raise ConfigError(
            f"{option} {path}: this folder has an adapter; name the adapter's base model here, and "
            f"the folder by --adapter {path}"
        )
    if (path / "model.gguf").exists():
        return path / "model.gguf"
    if _recipe(path) == PICTURES:
        raise ConfigError(
            f"{option} {path}: this run is a model of pictures; `toynn predict --model {path} "
            "PICTURE` classifies with it"
        )
    if not (path / CONFIG).exists():
        _refuse_unfinished(path, option)
        raise ConfigError(
            f"{option} {path}: expected a .gguf file, a run folder with model.gguf, or a Hugging "
            f"Face folder with {CONFIG}; got a folder with neither"
        )
    return path


def of_pictures(path: Path) -> bool:
    """Whether a path is a picture model: a run of vit, or a safetensors file."""
    if path.suffix == ".safetensors" or _recipe(path) == PICTURES:
        return True
    others = any((path / name).exists() for name in ("model.gguf", "adapter.gguf", PEFT_CONFIG))
    return (path / "model.safetensors").is_file() and not others and not _has_words(path)


def picture_model(path: Path, option: str = "--model") -> Path:
    """Return the safetensors file of a picture model that an option names.

    Raises ConfigError for a text model, and for a run without a model yet.
    """
    kind = "this run" if _recipe(path) is not None else "it"
    if not path.exists():
        raise ConfigError(f"{option} {path}: no such file or folder exists")
    if any((path / name).exists() for name in ("adapter.gguf", PEFT_CONFIG)):
        raise ConfigError(
            f"{option} {path}: {kind} is an adapter of a text model; `toynn generate --model BASE "
            f"--adapter {path}` generates with both"
        )
    of_text = path.suffix == ".gguf" or (path / "model.gguf").exists()
    if of_text or _recipe(path) not in (None, PICTURES) or _has_words(path):
        raise ConfigError(
            f"{option} {path}: {kind} is a text model; predict takes models of `toynn train vit` "
            f"and classify. `toynn generate --model {path}` runs a text model"
        )
    if not path.is_dir():
        return path
    weights = path / "model.safetensors"
    if not weights.exists():
        _refuse_unfinished(path, option)
        raise ConfigError(
            f"{option} {path}: expected a run folder of `toynn train vit` or classify, or a "
            f".safetensors file; got a folder without {weights.name}"
        )
    return weights


def _has_words(folder: Path) -> bool:
    """Whether a folder is a text model of Hugging Face: its config.json has a vocabulary."""
    with contextlib.suppress(DataError):
        config = read_object(folder / CONFIG)
        return "vocab_size" in config or "text_config" in config
    return False


def _recipe(folder: Path) -> str | None:
    """Return the recipe of a run's folder; None for any other folder."""
    import tomllib

    with contextlib.suppress(DataError, ValueError, RecursionError):
        run = tomllib.loads(read_bytes(folder / RUN_CONFIG).decode()).get("run")
        name = run.get("recipe") if isinstance(run, dict) else None
        return name if isinstance(name, str) else None
    return None


def _refuse_unfinished(folder: Path, option: str) -> None:
    """Raise ConfigError for the folder of a run that has not finished."""
    if _recipe(folder) is not None:
        raise ConfigError(
            f"{option} {folder}: this run has no model yet: it was stopped, or is still running; "
            f"`toynn train --resume {folder}` continues it"
        )
