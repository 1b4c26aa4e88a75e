"""Paths on the command line."""

from pathlib import Path

from toynn.errors import ConfigError

__all__ = ["model_file", "text_model"]


def model_file(path: str) -> str:
    """Return the file that a path to a model means: of a run's folder, the model.gguf in it."""
    inside = Path(path) / "model.gguf"
    return str(inside) if inside.is_file() else path


def text_model(path: Path) -> Path:
    """Return the file that --model means where it must be a model, and not one of pictures."""
    if not path.is_dir():
        return path
    if (path / "adapter.gguf").exists():
        raise ConfigError(
            f"--model {path}: it has an adapter; name the model that this is for, and the folder "
            f"as --adapter {path}"
        )
    if not (path / "model.gguf").exists():
        raise ConfigError(
            f"--model {path}: expected a .gguf file, or a folder with model.gguf, as `toynn train` "
            "leaves it; got a folder without"
        )
    return path / "model.gguf"
