"""Read pictures from arrays: .npz, MNIST's IDX files, CIFAR-10's binary files.

    DATA.npz     images (N, H, W) or (N, H, W, C), uint8, C of 1, 3 or 4, and labels (N,), whole
                 numbers from 0; or x_train, y_train, x_test, y_test; perhaps classes (names)
    DIR          train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-..., each perhaps .gz
    DIR          data_batch_1.bin ..., test_batch.bin, batches.meta.txt

Whatever a file says, these readers allocate at most MAX_BYTES. Pickles are refused.
Formats: http://yann.lecun.com/exdb/mnist, https://www.cs.toronto.edu/~kriz/cifar.html.
"""

import gzip
import math
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from toynn.data._parts import Labelled, Pixels, Source
from toynn.errors import DataError
from toynn.system.reading import open_file, read_bytes

MAX_BYTES = 8 * 2**30
CHUNK = 2**24
MAX_CLASSES = 100_000
CIFAR_RECORD = 1 + 3 * 32 * 32  # the label, then red, green and blue

Array = NDArray[Any]


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turn the errors of reading a damaged file into a DataError."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except OSError as error:  # BadGzipFile too
        raise DataError(f"{path}: cannot read: {error.strerror or error}") from error
    except Exception as error:  # zipfile, NumPy and decompressors raise many kinds
        raise DataError(f"{path}: damaged or of another kind: {error}") from error


def source_of(
    name: str,
    train: tuple[Array, Array],
    valid: tuple[Array, Array] | None = None,
    classes: Sequence[str] | None = None,
) -> Source:
    """Check arrays of pictures and labels. Raises DataError."""
    parts = [train] if valid is None else [train, valid]
    pixels = [_pictures(images, name) for images, _ in parts]
    if len({array.shape[1:] for array in pixels}) > 1:
        raise DataError(f"{name}: pictures of {pixels[0].shape[1:]} and of {pixels[1].shape[1:]}")
    largest = max(
        _checked_labels(labels, array, name)
        for (_, labels), array in zip(parts, pixels, strict=True)
    )
    count = MAX_CLASSES if classes is None else min(len(classes), MAX_CLASSES)
    if largest >= count:
        raise DataError(f"{name}: label {largest} is out of range; expected 0..{count - 1}")
    names = tuple(map(str, range(largest + 1) if classes is None else classes))
    labels = [np.asarray(labels).astype(np.int32).reshape(-1) for _, labels in parts]
    counts = np.bincount(labels[0], minlength=len(names))
    if np.count_nonzero(counts) < 2:
        raise DataError(f"{name}: all training pictures are of one class; expected 2 or more")
    if not counts.all():
        empty = names[int(counts.argmin())]
        raise DataError(f"{name}: class {empty} has no training picture; labels count from 0")
    sets = [Labelled(Pixels(array), numbers) for array, numbers in zip(pixels, labels, strict=True)]
    _, height, width, channels = pixels[0].shape
    shape = (1 if channels == 1 else 3, min(height, width))
    return Source(name, names, *shape, sets[0], sets[1] if valid is not None else None)


def _pictures(images: Array, name: str) -> NDArray[np.uint8]:
    """Return pictures as (N, H, W, C)."""
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[3] not in (1, 3, 4) or not images.size:
        raise DataError(
            f"{name}: pictures of shape {images.shape}; expected (N, H, W) or (N, H, W, C), "
            "C of 1, 3 or 4"
        )
    if images.dtype != np.uint8:
        raise DataError(f"{name}: pictures of {images.dtype}; expected uint8, 0 to 255")
    return images


def _checked_labels(labels: Array, pixels: Array, name: str) -> int:
    """Return the largest label."""
    if labels.shape not in ((len(pixels),), (len(pixels), 1)) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{name}: labels {labels.shape} of {labels.dtype}; expected one whole number for each "
            f"of {len(pixels)} pictures"
        )
    if (least := int(labels.min())) < 0:
        row = int(labels.reshape(-1).argmin())
        raise DataError(f"{name}: label {least} of picture {row}; labels count from 0")
    return int(labels.max())


def read_npz(path: Path) -> Source:
    """Read a .npz file."""
    with _errors_of(path), open_file(path) as file, zipfile.ZipFile(file) as archive:
        members = Counter(name.removesuffix(".npy") for name in archive.namelist())
        names = members.keys()
        for name, count in members.most_common(1):
            if count > 1:
                raise DataError(
                    f"{path}: expected arrays of different names; {name!r} comes {count} times"
                )

        def pair(images: str, labels: str) -> tuple[Array, Array]:
            return _member(archive, images, path), _member(archive, labels, path)

        classes = _names(_member(archive, "classes", path), path) if "classes" in names else None
        if {"images", "labels"} <= names:
            return source_of(str(path), pair("images", "labels"), None, classes)
        if {"x_train", "y_train"} <= names:
            test = pair("x_test", "y_test") if {"x_test", "y_test"} <= names else None
            return source_of(str(path), pair("x_train", "y_train"), test, classes)
    raise DataError(
        f"{path}: holds {', '.join(sorted(names)) or 'nothing'}; expected images and labels, or "
        "x_train, y_train, x_test and y_test"
    )


def _names(classes: Array, path: Path) -> list[str]:
    """Return the names of the classes."""
    if classes.ndim != 1 or classes.dtype.kind not in "Uiu":
        raise DataError(
            f"{path}: classes {classes.shape} of {classes.dtype}; expected texts, (C,), one for "
            "each label"
        )
    return [str(name) for name in classes.tolist()]


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    """Read one array, after checking the size in its header."""
    with archive.open(f"{name}.npy") as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise DataError(f"{path}: {name} holds Python objects; expected numbers")
        needed = math.prod(shape) * dtype.itemsize
        _check_size(needed, f"{path}: {name}")
        if needed > (held := archive.getinfo(f"{name}.npy").file_size):
            raise DataError(f"{path}: {name}: {shape} needs {needed} bytes; the file has {held}")
        body = b"".join(_chunks(file, needed))
    if needed > len(body):
        raise DataError(f"{path}: {name}: {shape} needs {needed} bytes; the file has {len(body)}")
    return np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")


def _chunks(file: Any, size: int) -> Iterator[bytes]:
    """Yield up to ``size`` bytes of a file; allocate no more than the file has."""
    while size > 0 and (chunk := file.read(min(size, CHUNK))):
        yield chunk
        size -= len(chunk)


def _check_size(nbytes: int, what: str) -> None:
    if nbytes > MAX_BYTES:
        raise DataError(
            f"{what}: {nbytes:,} bytes; at most {MAX_BYTES:,} can be read: use a folder of pictures"
        )


def _idx_files(folder: Path, part: str) -> list[Path]:
    """Return the picture and label files of a part of MNIST that exist."""
    kinds = ("images{}idx3-ubyte{}", "labels{}idx1-ubyte{}")
    paths = []
    for kind in kinds:
        names = (folder / f"{part}-{kind.format(s, end)}" for s in "-." for end in ("", ".gz"))
        paths += [path for path in names if path.is_file()][:1]
    return paths


def is_idx(folder: Path) -> bool:
    """Return whether a folder holds MNIST's files."""
    return bool(_idx_files(folder, "train"))


def read_idx(folder: Path) -> Source:
    """Read a folder with MNIST's files, or others in their format."""
    parts: list[tuple[Array, Array] | None] = []
    for part in ("train", "t10k"):
        paths = _idx_files(folder, part)
        if len(paths) == 1:
            raise DataError(f"{folder}: expected pictures and labels; found only {paths[0].name}")
        parts.append((_read_idx(paths[0], 3), _read_idx(paths[1], 1)) if paths else None)
    train, test = parts
    if train is None:
        raise DataError(
            f"{folder}: expected MNIST's training files (train-images... and train-labels...)"
        )
    return source_of(str(folder), train, test)


def _read_idx(path: Path, rank: int) -> NDArray[np.uint8]:
    """Read one file: two zero bytes, 8 for uint8, the rank, big-endian sizes, the values."""
    with _errors_of(path), _open_maybe_gz(path) as file:
        head = file.read(4 + 4 * rank)
        if len(head) < 4 + 4 * rank or head[:4] != bytes((0, 0, 8, rank)):
            raise DataError(f"{path}: starts with {head[:4]!r}; expected an IDX file, rank {rank}")
        shape = tuple(int(size) for size in np.frombuffer(head, ">u4", rank, 4))
        _check_size(math.prod(shape), str(path))
        body = b"".join(_chunks(file, math.prod(shape) + 1))
    if len(body) != math.prod(shape):
        raise DataError(f"{path}: {shape} needs {math.prod(shape)} bytes; got {len(body)}")
    return np.frombuffer(body, np.uint8).reshape(shape)


@contextmanager
def _open_maybe_gz(path: Path) -> Iterator[Any]:
    with open_file(path) as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.open(file, "rb") as unpacked:
            yield unpacked


def is_cifar(folder: Path) -> bool:
    """Return whether a folder holds CIFAR-10's binary files."""
    return any(folder.glob("data_batch_*.bin"))


def read_cifar(folder: Path) -> Source:
    """Read a folder with CIFAR-10's binary files."""
    batches = [_read_cifar(path) for path in sorted(folder.glob("data_batch_*.bin"))]
    train = (np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches]))
    test = folder / "test_batch.bin"
    meta = folder / "batches.meta.txt"
    classes = None
    if meta.is_file():
        with _errors_of(meta):
            classes = read_bytes(meta).decode("utf-8").split()
    return source_of(str(folder), train, _read_cifar(test) if test.is_file() else None, classes)


def _read_cifar(path: Path) -> tuple[Array, Array]:
    with _errors_of(path), open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(size, str(path))
        content = np.fromfile(file, np.uint8)
    if not size or size % CIFAR_RECORD:
        raise DataError(f"{path}: {size} bytes; expected a multiple of {CIFAR_RECORD}")
    records = content.reshape(-1, CIFAR_RECORD)
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0]
