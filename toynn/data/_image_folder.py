"""Read pictures from folders: one folder per class, named after it, holding its pictures.

    DIR/cat/1.jpg  DIR/dog/7.png                                  a fifth of each class is held out
    DIR/train/cat/1.jpg  DIR/train/dog/2.png  DIR/valid/cat/9.jpg        the held-out part is given

Labels number the folders' sorted names from 0. Hidden files are skipped, and so are files next to
the class folders, such as a README.
"""

from pathlib import Path

import numpy as np

from toynn.data._parts import Files, Labelled, Source, skip
from toynn.data._picture import check_file
from toynn.errors import DataError
from toynn.system.reading import readable

HELD_OUT = ("valid", "val", "test")  # the first one found next to train
SYSTEM_FILES = ("Thumbs.db", "desktop.ini")


def read_folder(root: Path, unreadable: list[str] | None) -> Source:
    """Find the pictures below a folder, reading only the header of each file.

    A file that is not a picture is an error; given ``unreadable``, it is added there and skipped.
    """
    train_root, valid_root = root, None
    if (root / "train").is_dir():
        train_root = root / "train"
        valid_root = next((root / name for name in HELD_OUT if (root / name).is_dir()), None)
    classes = tuple(path.name for path in _folders(train_root))
    if len(classes) < 2:
        raise DataError(
            f"{train_root}: {len(classes)} folders with pictures; expected one for each of 2 or "
            f"more classes{f'; found only {classes[0]}' if classes else ''}"
        )
    scan = _Scan(classes, unreadable)
    train = scan.part(train_root)
    for label, name in enumerate(classes):
        if not (train.labels == label).any():
            raise DataError(f"{train_root / name}: the class has no picture")
    valid = None if valid_root is None else scan.part(valid_root)
    if valid is not None and not len(valid):
        raise DataError(f"{valid_root}: the folder has no picture; remove it, or fill it")
    return Source(str(root), classes, 3, None, train, valid, scan.animated)


def _listed(folder: Path) -> list[Path]:
    with readable(folder):
        paths = sorted(folder.iterdir())
    return [p for p in paths if not p.name.startswith(".") and p.name not in SYSTEM_FILES]


def _folders(root: Path) -> list[Path]:
    return [path for path in _listed(root) if path.is_dir()]


class _Scan:
    """Walk class folders; count animated pictures, and note unreadable ones."""

    def __init__(self, classes: tuple[str, ...], unreadable: list[str] | None) -> None:
        self._numbers = {name: label for label, name in enumerate(classes)}
        self._unreadable = unreadable
        self.animated = 0

    def part(self, root: Path) -> Labelled:
        """Return the pictures of the class folders in root."""
        paths: list[Path] = []
        labels: list[int] = []
        for folder in _folders(root):
            if folder.name not in self._numbers:
                raise DataError(f"{folder}: the training pictures have no such class")
            good = [path for path in _listed(folder) if self._is_picture(path)]
            paths += good
            labels += [self._numbers[folder.name]] * len(good)
        return Labelled(Files(paths), np.array(labels, np.int32))

    def _is_picture(self, path: Path) -> bool:
        try:
            self.animated += check_file(path)
        except DataError as error:
            skip(error, self._unreadable)
            return False
        return True
