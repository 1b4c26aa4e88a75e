"""Batches of pictures: at the model's size, decoded when needed, in a seeded order."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data._picture import Picture
from toynn.data.augment import Augment
from toynn.data.batch import Batch
from toynn.data.images import Part
from toynn.errors import DataError

__all__ = ["Fitted", "HeldOut", "LaterBatch", "RandomImages"]

CACHE_BYTES = 512 * 2**20
ORDER, CHANGE = 0, 1  # what a random generator is for


class LaterBatch(Batch):
    """A batch that has no arrays until ``read``: never, where it is another process's."""

    def __init__(self, rows: int, read: Callable[[], Batch]) -> None:
        self.rows = rows
        self._read = cache(read)

    def read(self) -> Batch:
        """Return the batch with its arrays, which are read once."""
        return self._read()

    def __iter__(self) -> Iterator[Any]:
        """Yield its arrays, as a batch does."""
        return iter(self.read())


def _batch(pictures: list[Picture], labels: NDArray[np.int32]) -> Batch:
    """Return pictures (B, H, W, C) in uint8, of which the head reads the class token."""
    return Batch(np.stack(pictures), np.zeros(1, np.int32), labels)


class Fitted:
    """The pictures of a part at one size, some of them kept.

    The first that fill CACHE_BYTES are kept and none is ever dropped: where each epoch has another
    order, throwing out the oldest would throw out just what comes next.
    """

    def __init__(
        self, part: Part, side: int, channels: int, unreadable: list[str] | None = None
    ) -> None:
        self.labels = part.labels
        self._pictures, self._side, self._channels = part.pictures, side, channels
        self._unreadable = unreadable
        self._bad: set[int] = set()
        self._kept: dict[int, Picture] = {}
        self._room = CACHE_BYTES // (side * side * channels)

    @property
    def skips(self) -> bool:
        """Whether unreadable pictures are passed over."""
        return self._unreadable is not None

    def __len__(self) -> int:
        return len(self.labels)

    def get(self, index: int) -> Picture | None:
        """Return a picture, or None for an unreadable one that is skipped. Raises DataError."""
        if index in self._bad:
            return None
        if index in self._kept:
            return self._kept[index]
        try:
            picture = self._pictures.fitted(index, self._side, self._channels)
        except DataError as error:
            if self._unreadable is None:
                raise DataError(
                    f"{error} (skip_unreadable=True|--skip-unreadable passes over such files)"
                ) from error
            self._unreadable.append(str(error))
            self._bad.add(index)
            if len(self._bad) == len(self):
                raise DataError(f"none of {len(self)} pictures can be read; {error}") from error
            return None
        if len(self._kept) < self._room:
            self._kept[index] = picture
        return picture


class RandomImages:
    """Endless training batches: every picture once, in random order, then again in another."""

    def __init__(
        self, images: Fitted, classes: int, batch: int, seed: int, augment: Augment | None = None
    ) -> None:
        self._images, self._classes, self._batch = images, classes, batch
        self._augment = augment or Augment()
        self._seed, self._position = seed, 0  # pictures drawn so far
        self._epoch, self._order = -1, np.zeros(0, np.int64)
        self.examples = len(images)
        #: batches that have every picture once
        self.per_epoch = len(images) / batch

    def __iter__(self) -> "RandomImages":
        return self

    def __next__(self) -> LaterBatch:
        """Draw a batch. Where unreadable pictures are skipped, it is read now: others follow."""
        random = np.random.default_rng((self._seed, CHANGE, self._position))
        drawn: list[int] = []
        while len(drawn) < self._batch:
            index = self._draw()
            if not self._images.skips or self._images.get(index) is not None:
                drawn.append(index)
        return LaterBatch(len(drawn), lambda: self._read(drawn, random))

    def _read(self, drawn: list[int], random: np.random.Generator) -> Batch:
        pictures = [picture for each in drawn if (picture := self._images.get(each)) is not None]
        batch = _batch(pictures, self._images.labels[drawn])
        image, labels = self._augment(batch.inputs, batch.labels, self._classes, random)
        return replace(batch, inputs=image, labels=labels)

    def _draw(self) -> int:
        epoch, place = divmod(self._position, len(self._images))
        if epoch != self._epoch:
            random = np.random.default_rng((self._seed, ORDER, epoch))
            self._epoch, self._order = epoch, random.permutation(len(self._images))
        self._position += 1
        return int(self._order[place])

    @property
    def state(self) -> dict[str, int]:
        """What comes next: set it again and the same batches follow."""
        return {"seed": self._seed, "position": self._position}

    @state.setter
    def state(self, state: dict[str, int]) -> None:
        self._seed, self._position = state["seed"], state["position"]
        self._epoch = -1


class HeldOut:
    """Batches to evaluate on, the same each time; the last one may be smaller.

    Of more than ``limit`` pictures, evenly spaced ones are taken.
    """

    def __init__(self, images: Fitted, batch: int, limit: int) -> None:
        self._images, self._batch = images, batch
        count = min(len(images), limit)
        self._indices = np.arange(count) * len(images) // count

    def __len__(self) -> int:
        """Return how many batches there are at most: unreadable pictures may be passed over."""
        return -(-len(self._indices) // self._batch)

    def __iter__(self) -> Iterator[Batch]:
        pictures: list[Picture] = []
        drawn: list[int] = []
        for index in self._indices.tolist():
            picture = self._images.get(index)
            if picture is not None:
                pictures.append(picture)
                drawn.append(index)
            if len(drawn) == self._batch:
                yield _batch(pictures, self._images.labels[drawn])
                pictures, drawn = [], []
        if drawn:
            yield _batch(pictures, self._images.labels[drawn])
