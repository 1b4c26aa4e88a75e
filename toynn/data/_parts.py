"""Sources of pictures and labels; each picture can be had at any size."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.data import _picture
from toynn.data._picture import Picture
from toynn.errors import DataError

Labels = NDArray[np.int32]


def skip(error: DataError, unreadable: list[str] | None) -> None:
    """Note a file that cannot be read. Raises DataError if such files are not skipped."""
    if unreadable is None:
        advice = "(skip_unreadable=True|--skip-unreadable skips such files)"
        raise DataError(f"{error} {advice}") from error
    unreadable.append(str(error))


class Pictures(Protocol):
    """A sequence of pictures."""

    def __len__(self) -> int:
        """Return the number of pictures."""

    def fitted(self, index: int, side: int, channels: int) -> Picture:
        """Return one as (side, side, channels). Raises DataError if it cannot be read."""

    def select(self, indices: NDArray[np.int64]) -> "Pictures":
        """Return those with these indices."""


@dataclass(frozen=True)
class Pixels:
    """Pictures of one size, in memory: uint8 (N, H, W, C)."""

    array: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.array)

    def fitted(self, index: int, side: int, channels: int) -> Picture:
        """Return one as (side, side, channels)."""
        return _picture.fit(self.array[index], side, channels)

    def select(self, indices: NDArray[np.int64]) -> "Pixels":
        """Return those with these indices."""
        return Pixels(self.array[indices])


@dataclass(frozen=True)
class Files:
    """Pictures in files, decoded when they are needed."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def fitted(self, index: int, side: int, channels: int) -> Picture:
        """Return one as (side, side, channels)."""
        return _picture.read_file(self.paths[index], side, channels)

    def select(self, indices: NDArray[np.int64]) -> "Files":
        """Return those with these indices."""
        return Files([self.paths[i] for i in indices])


@dataclass(frozen=True)
class Labelled:
    """Pictures, and the label of each."""

    pictures: Pictures
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, seed: int, classes: Sequence[str], where: str) -> tuple["Labelled", "Labelled"]:
        """Split off a fifth of each class, at least one picture; keep the order.

        Raises DataError for a class of fewer than two pictures.
        """
        random = np.random.default_rng(seed)
        held = np.zeros(len(self), bool)
        for label, name in enumerate(classes):
            of_class = np.flatnonzero(self.labels == label)
            if len(of_class) < 2:
                raise DataError(
                    f"{where}: class {name} has {len(of_class)} pictures; expected 2 or more: one "
                    "to train on, one held out"
                )
            held[random.permutation(of_class)[: max(1, round(len(of_class) / 5))]] = True
        return self._select(np.flatnonzero(~held)), self._select(np.flatnonzero(held))

    def _select(self, indices: NDArray[np.int64]) -> "Labelled":
        return Labelled(self.pictures.select(indices), self.labels[indices])


@dataclass(frozen=True)
class Source:
    """The contents of a source. If it has no held-out part, the caller splits one off."""

    name: str
    classes: tuple[str, ...]
    channels: int
    side: int | None  # the shorter one, if all pictures have one size
    train: Labelled
    valid: Labelled | None = None
    animated: int = 0  # files of several frames; the first frame is the picture
