"""Augmentation: random changes to training pictures."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Augment:
    """The changes to a batch of pictures, applied in this order.

    Raises ConfigError for a number that is out of range.

    Attributes
    ----------
    crop
        Pixels by which a picture may move in each direction; the edge is repeated to fill the gap.
    flip
        Whether half of the pictures are mirrored, left to right.
    mixup
        The a of mixup: x' = l x + (1 - l) x2, where x2 is another picture of the batch; labels are
        mixed likewise. l is drawn from Beta(a, a) once for a batch. 0 mixes nothing.
        arXiv:1710.09412
    smoothing
        The share of a label that is spread evenly over all classes. arXiv:1512.00567, section 7
    """

    crop: int = 0
    flip: bool = False
    mixup: float = 0.0
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.crop < 0 or not self.mixup >= 0 or not 0 <= self.smoothing < 1:
            raise ConfigError(
                "Augment: crop and mixup must not be negative and smoothing must be from 0 to "
                f"below 1; got {self.crop}, {self.mixup} and {self.smoothing}"
            )

    def __call__(
        self, images: Images, labels: NDArray[np.int32], classes: int, random: "np.random.Generator"
    ) -> tuple[Images, NDArray[Any]]:
        """Return images (B, H, W, C) and labels: (B,), or (B, classes) with mixup or smoothing."""
        if self.crop:
            images = self._moved(images, random)
        if self.flip:
            mirrored = random.random(len(images)) < 0.5
            images = np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
        if not self.mixup and not self.smoothing:
            return images, labels
        dense = np.full((len(labels), classes), self.smoothing / classes)
        dense[np.arange(len(labels)), labels] += 1 - self.smoothing
        if self.mixup:
            share = random.beta(self.mixup, self.mixup)
            # A batch is in random order, so its reverse pairs each picture with a random other.
            mixed = share * images + (1 - share) * images[::-1].astype(np.float64)
            images = np.rint(mixed).astype(np.uint8)
            dense = share * dense + (1 - share) * dense[::-1]
        return images, dense.astype(np.float32)

    def _moved(self, images: Images, random: "np.random.Generator") -> Images:
        count, height, width, _ = images.shape
        edge = (self.crop, self.crop)
        padded = np.pad(images, ((0, 0), edge, edge, (0, 0)), mode="edge")
        moved = np.empty_like(images)
        for i, (y, x) in enumerate(random.integers(0, 2 * self.crop + 1, (count, 2))):
            moved[i] = padded[i, y : y + height, x : x + width]
        return moved
