"""Small pictures for tests, and the folders and files in which they come."""

import gzip
import struct

import numpy as np
from PIL import Image

SHADES = np.random.default_rng(0)


def noise(*shape):
    """Pixels of any value."""
    return SHADES.integers(0, 256, shape, dtype=np.uint8)


def save(pixels, path, **options):
    """Write pixels (H, W), (H, W, 3) or (H, W, 4) as the kind of file that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def of_class(label, side=8):
    """A picture that a small model can tell from those of other classes: a noisy shade."""
    return noise(side, side) // 4 + np.uint8(90 * label)


def class_folders(root, counts, side=8):
    """Write folders of pictures: counts is how many of each class."""
    for label, (name, count) in enumerate(counts.items()):
        for i in range(count):
            save(of_class(label, side), root / name / f"{i:02}.png")
    return root


def idx(array):
    """An array of bytes as an IDX file."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder, counts, pack=False):
    """Write MNIST's files: counts is how many pictures each of its parts has."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in counts.items():
        images = np.stack([of_class(i % 3) for i in range(count)])
        labels = (np.arange(count) % 3).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(array)
            name = f"{part}-{kind}-ubyte"
            if pack:
                name, content = f"{name}.gz", gzip.compress(content)
            (folder / name).write_bytes(content)
    return folder
