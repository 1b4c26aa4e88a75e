"""Labelled pictures to train on: folders, arrays, or the handwritten digits of scikit-learn."""

import zipfile
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np

from toynn.data import _image_arrays as arrays
from toynn.data._image_folder import read_folder
from toynn.data._parts import Files, Labelled, Source
from toynn.data._picture import Picture, read_file
from toynn.errors import ConfigError, DataError

__all__ = ["Files", "ImageData", "Labelled", "Picture", "read_picture"]

read_picture = read_file  # one file as (side, side, channels)


@dataclass(frozen=True)
class ImageData:
    """Training and validation pictures, and the names of their classes.

    Attributes
    ----------
    name
        The source of the pictures.
    classes
        Names, by label.
    channels
        1 if all pictures are known to be grey, else 3.
    side
        The shorter side in pixels, for arrays; None for files, which may have any sizes.
    train, valid
        The training part and the held-out part: the source's own, or a fifth of each class.
    unreadable
        The files that were skipped, with the reason; None if an unreadable file is an error.
    animated
        The number of files of several frames. The first frame is the picture.
    """

    name: str
    classes: tuple[str, ...]
    channels: int
    side: int | None
    train: Labelled
    valid: Labelled
    unreadable: list[str] | None = field(default=None, compare=False)
    animated: int = 0

    @classmethod
    def digits(cls, seed: int = 0) -> "ImageData":
        """Return 1797 handwritten digits: grey scans of 8x8, 16 shades. Needs scikit-learn.

        Source: UCI, Optical Recognition of Handwritten Digits, doi:10.24432/C50P49.

        Raises ConfigError where scikit-learn is not installed.
        """
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise ConfigError(
                "the handwritten digits come with scikit-learn, which is not installed: pip "
                "install scikit-learn, or name other pictures (--data)"
            ) from error
        bunch = load_digits()
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
        return cls._split(
            arrays.source_of("scikit-learn's digits", (images, bunch.target)), None, seed
        )

    @classmethod
    def read(
        cls, path: str | PathLike[str], seed: int = 0, *, skip_unreadable: bool = False
    ) -> "ImageData":
        """Read a folder of class folders, a .npz file, or a folder of MNIST or CIFAR-10.

        With ``skip_unreadable``, files that are not pictures are skipped. Pixels of class folders
        are read only when needed. Raises DataError, with the file.
        """
        return cls._split(*cls._source(path, skip_unreadable), seed)

    @classmethod
    def to_measure(cls, path: str | PathLike[str], *, skip_unreadable: bool = False) -> "ImageData":
        """Read pictures as ``read`` does, but if none are held out, ``valid`` is all of them.

        Raises DataError.
        """
        source, unreadable = cls._source(path, skip_unreadable)
        return cls._of(source, source.train, source.valid or source.train, unreadable)

    @staticmethod
    def _source(
        path: str | PathLike[str], skip_unreadable: bool
    ) -> tuple[Source, list[str] | None]:
        where = Path(path)
        unreadable: list[str] | None = [] if skip_unreadable else None
        try:
            where.stat()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{path!s}: cannot read: {reason}") from error
        named = where.suffix.lower() == ".npz"
        if where.is_file() and not named and not zipfile.is_zipfile(where):
            raise DataError(
                f"{path!s}: expected pictures: a folder with one folder per class, a .npz file, or "
                "a folder of MNIST or CIFAR-10 files; got another file"
            )
        if not where.is_dir():
            source = arrays.read_npz(where)
        elif arrays.is_idx(where):
            source = arrays.read_idx(where)
        elif arrays.is_cifar(where):
            source = arrays.read_cifar(where)
        else:
            source = read_folder(where, unreadable)
        return source, unreadable

    @classmethod
    def _split(cls, source: Source, unreadable: list[str] | None, seed: int) -> "ImageData":
        train, valid = source.train, source.valid
        if valid is None:
            train, valid = train.split(seed, source.classes, source.name)
        return cls._of(source, train, valid, unreadable)

    @classmethod
    def _of(
        cls, source: Source, train: Labelled, valid: Labelled, unreadable: list[str] | None
    ) -> "ImageData":
        rest = (source.channels, source.side, train, valid, unreadable, source.animated)
        return cls(source.name, source.classes, *rest)
