"""Paths on the command line."""

from pathlib import Path

__all__ = ["model_file"]


def model_file(path: str) -> str:
    """Return the file that a path to a model means: of a run's folder, the model.gguf in it."""
    inside = Path(path) / "model.gguf"
    return str(inside) if inside.is_file() else path
