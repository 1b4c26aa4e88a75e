"""Paths on the command line."""

from pathlib import Path

from toynn.errors import ConfigError
from toynn.formats.adapters.peft import CONFIG as PEFT_CONFIG
from toynn.formats.hf.config import CONFIG

__all__ = ["model_file", "text_model"]


def model_file(path: str) -> str:
    """Return the file that a path to a model means: of a run's folder, the model.gguf in it."""
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
    if not (path / CONFIG).exists():
        raise ConfigError(
            f"{option} {path}: expected a .gguf file, or a folder with model.gguf, as `toynn "
            f"train` leaves it, or with {CONFIG}, as Hugging Face's have; got a folder without"
        )
    return path
