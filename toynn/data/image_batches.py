"""Batches of pictures: at the model's size, decoded when needed, in a seeded order."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data._parts import Labelled, skip
from toynn.data._picture import Picture
from toynn.data.augment import Augment
from toynn.data.batch import Batch
from toynn.errors import DataError

CACHE_BYTES = 512 * 2**20
ORDER, CHANGE = 0, 1  # seeds of the generators of the order and of the augmentation


class LaterBatch(Batch):
    """A batch without arrays until ``read``. A batch of another rank is never read."""

    def __init__(self, rows: int, read: Callable[[], Batch]) -> None:
        self.rows = rows
        self._read = cache(read)

    def read(self) -> Batch:
        """Return the batch with its arrays, which are read only once."""
        return self._read()

    def __iter__(self) -> Iterator[Any]:
        """Yield its arrays, as a batch does."""
        return iter(self.read())


def _batch(pictures: list[Picture], labels: NDArray[np.int32]) -> Batch:
    """Return a batch of uint8 pictures (B, H, W, C), whose class token the head reads."""
    return Batch(np.stack(pictures), np.zeros(1, np.int32), labels)


class Fitted:
    """The pictures of a part at one size, with a cache.

    The cache keeps the first pictures that fill CACHE_BYTES, and never drops one. Each epoch has
    another order, so evicting the oldest would gain nothing.
    """

    def __init__(
        self, part: Labelled, side: int, channels: int, unreadable: list[str] | None = None
    ) -> None:
        self.labels = part.labels
        self._pictures, self._side, self._channels = part.pictures, side, channels
        self._unreadable = unreadable
        self._bad: set[int] = set()
        self._kept: dict[int, Picture] = {}
        self._room = CACHE_BYTES // (side * side * channels)

    @property
    def skips(self) -> bool:
        """Whether unreadable pictures are skipped."""
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
            skip(error, self._unreadable)
            self._bad.add(index)
            if len(self._bad) == len(self):
                raise DataError(f"none of {len(self)} pictures can be read; {error}") from error
            return None
        if len(self._kept) < self._room:
            self._kept[index] = picture
        return picture


class RandomImages(Iterator[Batch]):
    """Endless training batches: every picture once an epoch, in a new random order."""

    def __init__(
        self, images: Fitted, classes: int, batch: int, seed: int, augment: Augment | None = None
    ) -> None:
        self._images, self._classes, self._batch = images, classes, batch
        self._augment = augment or Augment()
        self._seed, self._position = seed, 0  # pictures drawn so far
        self._epoch, self._order = -1, np.zeros(0, np.int64)
        self.examples = len(images)
        #: batches in an epoch
        self.per_epoch = len(images) / batch

    def __next__(self) -> LaterBatch:
        """Draw a batch. If unreadable pictures are skipped, read it now, to replace them."""
        random = np.random.default_rng((self._seed, CHANGE, self._position))
        drawn: list[int] = []
        while len(drawn) < self._batch:
            index = self._draw()
            if not self._images.skips or self._images.get(index) is not None:
                drawn.append(index)
        return LaterBatch(len(drawn), lambda: self._read(drawn, random))

    def _read(self, drawn: list[int], random: "np.random.Generator") -> Batch:
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
        """The position: set it again and the same batches follow."""
        return {"seed": self._seed, "position": self._position}

    @state.setter
    def state(self, state: dict[str, int]) -> None:
        self._seed, self._position = state["seed"], state["position"]
        self._epoch = -1


class HeldOut:
    """Validation batches, the same each time; the last one may be smaller.

    If there are more than ``limit`` pictures, ``limit`` evenly spaced ones are used.
    """

    def __init__(self, images: Fitted, batch: int, limit: int) -> None:
        self._images, self._batch = images, batch
        count = min(len(images), limit)
        self._indices = np.arange(count) * len(images) // count

    def __len__(self) -> int:
        """Return the most batches there can be: unreadable pictures may be skipped."""
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
