"""Paths on the command line."""

import contextlib
import tomllib
from argparse import ArgumentTypeError
from pathlib import Path

from toynn.errors import ConfigError, DataError
from toynn.formats import hub
from toynn.formats.adapters.peft import CONFIG as PEFT_CONFIG
from toynn.formats.hf.config import CONFIG
from toynn.formats.objects import read_object
from toynn.system.reading import read_bytes

__all__ = ["local_path", "model_file", "of_pictures", "picture_model", "text_model"]

RUN = "config.toml"
#: The recipe whose models are of pictures.
PICTURES = "vit"


def local_path(text: str) -> Path:
    """Return the path that a model's name means: a path, or hf:OWNER/NAME, which is downloaded."""
    try:
        return hub.fetched(text) if text.startswith(hub.PREFIX) else Path(text)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from error


def model_file(text: str) -> str:
    """Return the file that a model's name means: of a run's folder, the model.gguf in it."""
    path = str(local_path(text)) if text.startswith(hub.PREFIX) else text
    inside = Path(path) / "model.gguf"
    return str(inside) if inside.is_file() else path


def text_model(path: Path, option: str = "--model") -> Path:
    """Return the file, or Hugging Face folder, that an option means where it must be of text.

    Raises ConfigError for a folder without a model of text.
    """
    if not path.is_dir():
        return path
    if any((path / name).exists() for name in ("adapter.gguf", PEFT_CONFIG)):
        raise ConfigError(
            f"{option} {path}: it has an adapter; name the model that this is for, and the folder "
            f"as --adapter {path}"
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
            f"{option} {path}: expected a .gguf file, or a folder with model.gguf, as `toynn "
            f"train` leaves it, or with {CONFIG}, as Hugging Face's have; got a folder without"
        )
    return path


def of_pictures(path: Path) -> bool:
    """Whether a path means a model of pictures: a run's of vit, or a safetensors file."""
    if path.suffix == ".safetensors" or _recipe(path) == PICTURES:
        return True
    others = any((path / name).exists() for name in ("model.gguf", "adapter.gguf", PEFT_CONFIG))
    return (path / "model.safetensors").is_file() and not others and not _has_words(path)


def picture_model(path: Path, option: str = "--model") -> Path:
    """Return the safetensors file that an option means where it must be of pictures.

    Raises ConfigError for what holds a model of text, or no model yet.
    """
    kind = "this run" if _recipe(path) is not None else "it"
    if any((path / name).exists() for name in ("adapter.gguf", PEFT_CONFIG)):
        raise ConfigError(
            f"{option} {path}: {kind} is an adapter of a text model; `toynn generate --model BASE "
            f"--adapter {path}` writes with both"
        )
    of_text = path.suffix == ".gguf" or (path / "model.gguf").exists()
    if of_text or _recipe(path) not in (None, PICTURES) or _has_words(path):
        raise ConfigError(
            f"{option} {path}: {kind} is a text model, and predict is for models of pictures, as "
            f"`toynn train vit` leaves them; `toynn generate --model {path}` writes with this one"
        )
    if not path.is_dir():
        return path
    found = path / "model.safetensors"
    if not found.exists():
        _refuse_unfinished(path, option)
        raise ConfigError(
            f"{option} {path}: expected a .safetensors file, or a folder with {found.name}, as "
            "`toynn train vit` leaves it; got a folder without"
        )
    return found


def _has_words(folder: Path) -> bool:
    """Whether a folder is a text model's as Hugging Face has them: it has a vocabulary."""
    with contextlib.suppress(DataError):
        found = read_object(folder / CONFIG)
        return "vocab_size" in found or "text_config" in found
    return False


def _recipe(folder: Path) -> str | None:
    """Return by which recipe a folder's run was trained; None where it is no run's."""
    with contextlib.suppress(DataError, ValueError, RecursionError):
        found = tomllib.loads(read_bytes(folder / RUN).decode()).get("run")
        name = found.get("recipe") if isinstance(found, dict) else None
        return name if isinstance(name, str) else None
    return None


def _refuse_unfinished(folder: Path, option: str) -> None:
    """Raise ConfigError for the folder of a run that has not come to its end."""
    if _recipe(folder) is not None:
        raise ConfigError(
            f"{option} {folder}: this run has no model yet: it was stopped, or is still running; "
            f"`toynn train --resume {folder}` goes on with it"
        )
