"""PATH:WEIGHT, for adapters to add up and data to mix."""

import math
from collections.abc import Sequence
from pathlib import Path

from toynn.errors import ConfigError

STRICT = "fail, instead of warn, if an adapter was trained on another model"


def path_and_weight(text: str, option: str) -> tuple[Path, float | None]:
    """Parse PATH or PATH:WEIGHT. A text that names an existing file or folder is a PATH.

    Raises ConfigError for a weight that is infinite or "nan".
    """
    path, colon, number = text.rpartition(":")
    if not colon or not path or Path(text).exists():
        return Path(text), None
    try:
        weight = float(number)
    except ValueError:
        return Path(text), None
    if not math.isfinite(weight):
        raise ConfigError(f"{option} {text}: expected a finite number after the colon")
    return Path(path), weight


def source_names(paths: list[Path]) -> list[str]:
    """Return short names for paths: their last parts, or whole paths if two names are equal."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def sources(words: Sequence[str]) -> str | tuple[str, ...]:
    """Return the path of data; for several, all words as given.

    Raises ConfigError for weights that are not above 0 or missing for some paths, and for a path
    that is named twice.
    """
    weighted = [path_and_weight(word, "--data") for word in words]
    paths, weights = [path for path, _ in weighted], [weight for _, weight in weighted]
    for word, weight in zip(words, weights, strict=True):
        if weight is not None and weight <= 0:
            raise ConfigError(f"--data {word}: expected a weight above 0")
    if None in weights and any(weight is not None for weight in weights):
        bare = words[weights.index(None)]
        raise ConfigError(
            f"--data {bare}: it has no weight, but others have one: give each a weight "
            f"({bare}:0.5), or give none: then the sizes of the data decide"
        )
    if len(set(paths)) < len(paths):
        twice = next(path for k, path in enumerate(paths) if path in paths[:k])
        raise ConfigError(f"--data {twice}: named twice")
    return str(paths[0]) if len(paths) == 1 else tuple(words)
