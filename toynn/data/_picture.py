"""Turn one picture, a file that Pillow reads or an array, into uint8 pixels of a given size.

The largest square in the middle is scaled to the size, bicubic. Grey becomes RGB, or RGB becomes
grey (ITU-R 601 luma). Transparent pixels are blended with white. 16 bits become 8. The orientation
in a camera's EXIF data is applied. A file of several frames gives its first frame.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError, DataError

Picture = NDArray[np.uint8]  # (H, W, C)

#: The formats that are opened: common ones, and none for which Pillow starts another program.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "TGA")


@cache
def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError("pictures need Pillow: pip install pillow") from error
    Image.init()
    return Image


@contextmanager
def _opened(path: str | PathLike[str]) -> Iterator[Any]:
    """Open a file as a picture; every error of the file is a DataError."""
    image = _pillow()
    formats = [name for name in FORMATS if name in image.OPEN]
    try:
        if not Path(path).is_file():  # a pipe would never end
            Path(path).stat()
            raise DataError(f"{path}: not a file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tags and palettes, which do not matter here
            warnings.simplefilter("error", image.DecompressionBombWarning)
            with image.open(path, formats=formats) as picture:
                yield picture
    except DataError:
        raise
    except MemoryError as error:  # a damaged header asks for gigabytes
        raise DataError(f"{path}: cannot read the picture: not enough memory") from error
    except image.UnidentifiedImageError:
        raise DataError(f"{path}: not a picture in a format that toynn reads") from None
    except (image.DecompressionBombWarning, image.DecompressionBombError) as error:
        limit = f"more than {image.MAX_IMAGE_PIXELS:,} pixels"
        raise DataError(f"{path}: too large: {limit}; scale it down") from error
    except Exception as error:  # Pillow's decoders raise many kinds on a damaged file
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path}: cannot read the picture: {reason}") from error


def check_file(path: str | PathLike[str]) -> bool:
    """Return whether a picture has several frames; read no pixels. Raises DataError."""
    with _opened(path) as picture:
        # MPO files, which many phones write, hold smaller copies after the picture.
        return picture.format != "MPO" and bool(getattr(picture, "is_animated", False))


def read_file(path: str | PathLike[str], side: int, channels: int) -> Picture:
    """Return a file's picture as (side, side, channels). Raises DataError."""
    with _opened(path) as picture:
        from PIL import ImageOps

        picture.draft(None, (2 * side, 2 * side))  # JPEG: decode no more than twice the size
        upright = ImageOps.exif_transpose(picture)
        return _fitted(_in_8_bits(upright, path), side, channels)


def fit(pixels: Picture, side: int, channels: int) -> Picture:
    """Return pixels (H, W, C), C of 1, 3 or 4 (RGBA), as (side, side, channels)."""
    if pixels.shape == (side, side, channels):
        return pixels
    if pixels.shape == (side, side, 1):
        return pixels.repeat(channels, axis=2)
    squeezed = np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    return _fitted(_pillow().fromarray(squeezed), side, channels)


def _in_8_bits(picture: Any, path: str | PathLike[str]) -> Any:
    """Reduce a picture of 16 bits to 8 (white stays white); return any other unchanged."""
    if picture.mode != "I" and not picture.mode.startswith(("I;16", "F")):
        return picture
    pixels = np.asarray(picture)
    if picture.mode.startswith("F") or pixels.min() < 0 or pixels.max() > 65535:
        raise DataError(
            f"{path}: pixels of mode {picture.mode}; expected whole numbers of at most 16 bits"
        )
    grey = (pixels.astype(np.int64) * 255 + 32767) // 65535
    return _pillow().fromarray(grey.astype(np.uint8))


def _fitted(picture: Any, side: int, channels: int) -> Picture:
    image = _pillow()
    if picture.has_transparency_data:
        above = picture.convert("RGBA")
        picture = image.alpha_composite(image.new("RGBA", above.size, "white"), above)
    picture = picture.convert("L" if channels == 1 else "RGB")
    width, height = picture.size
    short = min(width, height)
    left, top = (width - short) / 2, (height - short) / 2
    box = (left, top, left + short, top + short)
    pixels = np.asarray(picture.resize((side, side), image.Resampling.BICUBIC, box=box))
    return pixels.reshape(side, side, channels)
