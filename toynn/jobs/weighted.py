"""PATH:WEIGHT, for adapters that are added up and data that are mixed."""

import math
from collections.abc import Sequence
from pathlib import Path

from toynn.errors import ConfigError

__all__ = ["STRICT", "path_and_weight", "source_names", "sources"]

STRICT = "fail, instead of warn, if an adapter was trained on another model"


def path_and_weight(text: str, option: str) -> tuple[Path, float | None]:
    """Parse PATH or PATH:WEIGHT. What is a file or a folder as a whole is a path.

    Raises ConfigError for a weight that is infinite or no number, "nan".
    """
    path, colon, number = text.rpartition(":")
    if not colon or not path or Path(text).exists():
        return Path(text), None
    try:
        weight = float(number)
    except ValueError:
        return Path(text), None
    if not math.isfinite(weight):
        raise ConfigError(f"{option} {text}: expected a finite number behind the colon")
    return Path(path), weight


def source_names(paths: list[Path]) -> list[str]:
    """Return what paths are called: by their last part, where that tells them apart."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def sources(words: Sequence[str], option: str = "--data") -> str | tuple[str, ...]:
    """Return the path of data, or, of several, all of them as they were given.

    Raises ConfigError for weights that are none, or not of all, and for a path that is there twice.
    """
    found = [path_and_weight(word, option) for word in words]
    paths, weights = [path for path, _ in found], [weight for _, weight in found]
    for word, weight in zip(words, weights, strict=True):
        if weight is not None and weight <= 0:
            raise ConfigError(f"{option} {word}: expected a weight above 0")
    if None in weights and any(weight is not None for weight in weights):
        bare = words[weights.index(None)]
        raise ConfigError(
            f"{option} {bare}: it has no weight, and others have: give one to each "
            f"({bare}:0.5), or to none for shares as large as the data"
        )
    if len(set(paths)) < len(paths):
        twice = next(path for k, path in enumerate(paths) if path in paths[:k])
        raise ConfigError(f"{option} {twice}: named twice")
    return str(paths[0]) if len(paths) == 1 else tuple(words)
