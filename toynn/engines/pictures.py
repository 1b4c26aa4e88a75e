"""Convert users' pictures, token indices and labels to a tape's inputs."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.errors import LabelError, ShapeError
from toynn.models import ViTConfig

__all__ = ["as_labels", "as_patches", "as_tokens"]

#: (x / 255 - 0.5) / 0.5 for each byte x: what most vision transformers are trained on.
_NORMALIZED = ((np.arange(256) / 255 - 0.5) / 0.5).astype(np.float32)


def as_patches(grid: ViTConfig, image: ArrayLike) -> NDArray[Any]:
    """Return patches (B, n_patches, patch_size) from pixels or patches of one or more pictures.

    A patch is flat, in the order (row, column, channel). uint8 becomes (x / 255 - 0.5) / 0.5.

    Raises ShapeError.
    """
    array = np.asarray(image)
    pixels = (grid.image, grid.image, grid.channels)
    patches = (grid.n_patches, grid.patch_size)
    are_patches = array.ndim in (2, 3) and array.shape[-2:] == patches
    are_pixels = array.ndim in (3, 4) and array.shape[-3:] == pixels
    if not array.size or not (are_patches or are_pixels):
        raise ShapeError(
            f"image: expected pixels {pixels} or patches {patches}, or several "
            f"such pictures; got {array.shape}"
        )
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise ShapeError(f"image: expected uint8 (0..255) or floats; got {array.dtype}")
    if not are_patches:
        side, P = grid.image // grid.patch, grid.patch
        cut = array.reshape(-1, side, P, side, P, grid.channels)
        array = cut.transpose(0, 1, 3, 2, 4, 5)  # (B, row, column, row and column in it, channel)
    array = array.reshape(-1, *patches)
    return _NORMALIZED[array] if array.dtype == np.uint8 else array


def as_tokens(grid: ViTConfig, cls_idx: ArrayLike | None, batch: int) -> NDArray[np.int64]:
    """Return the token that the head reads for each picture, (B,), from one index or B.

    Raises ShapeError, or LabelError for a token that does not exist.
    """
    tokens = np.asarray([0] if cls_idx is None else cls_idx)
    if tokens.dtype.kind not in "iu" or tokens.shape not in ((), (1,), (batch,)):
        raise ShapeError(
            f"cls_idx: expected one whole number, or one of each of {batch} pictures; got "
            f"{tokens.dtype} {tokens.shape}"
        )
    if tokens.min() < 0 or tokens.max() > grid.n_patches:
        raise LabelError(
            f"cls_idx: a token is 0 (the class token) or 1..{grid.n_patches} (a patch); got "
            f"{tokens.tolist()}"
        )
    return np.broadcast_to(tokens.astype(np.int64), (batch,))


def as_labels(grid: ViTConfig, labels: ArrayLike, batch: int) -> NDArray[Any]:
    """Return labels as whole numbers (B,), or dense (B, classes). Raises LabelError."""
    array = np.asarray(labels)
    shape, dense = array.shape, (batch, grid.classes)
    if array.dtype.kind in "iu" and (shape == (batch,) or (batch == 1 and shape == ())):
        return array.reshape(batch)
    if array.dtype.kind in "fiu" and (shape == dense or (batch == 1 and shape == dense[1:])):
        return array.reshape(dense).astype(np.float32)
    raise LabelError(
        f"labels: {batch} picture(s) need whole numbers ({batch},) or dense labels {dense}; got "
        f"{array.dtype} {array.shape}"
    )
