"""Open the safetensors files of a folder: one, or several that an index names.

    model.safetensors                           all weights; preferred if it exists
    model.safetensors.index.json                {"weight_map": {name: file, ...}}

Only files in the index's folder are opened, and no pickled ones.
"""

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from toynn.errors import DataError
from toynn.formats.gguf.tensors import TensorInfo
from toynn.formats.hf.config import WEIGHTS
from toynn.formats.objects import read_object
from toynn.formats.safetensors import SafeTensors
from toynn.system.reading import Unchanged

INDEX = f"{WEIGHTS}.index.json"
_SHOWN = 3
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class Shards:
    """Open files of weights: `tensors` by the files' names, and their mapped bytes.

    Raises DataError for files that are missing, damaged, outside of the folder, or that
    contradict the index.
    """

    def __init__(
        self, folder: Path, passed_over: tuple[str, ...], raw_suffixes: tuple[str, ...] = ()
    ) -> None:
        index = folder / INDEX
        self._watched: list[Unchanged] = []  # used after close() too: views stay mapped
        if (folder / WEIGHTS).exists() or not index.exists():
            _refuse_others(folder)
            paths, placed = [folder / WEIGHTS], None
        else:
            self._watched.append(Unchanged.of(index))
            placed = _weight_map(index)
            paths = _files(index, placed)
        self._files: list[SafeTensors] = []
        self._places: dict[str, SafeTensors] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            for path in paths:
                self._add(SafeTensors(path, passed_over, raw_suffixes))
            if placed is not None:
                self._check_placed(index, placed, passed_over)
        except DataError:
            self.close()
            raise
        self.nbytes = sum(file.watched.size for file in self._files)

    def _add(self, file: SafeTensors) -> None:
        self._files.append(file)
        self._watched.append(file.watched)
        for name, info in file.tensors.items():
            if name in self._places:
                raise DataError(f"{file.path}: {name} is also in {self._places[name].path.name}")
            self._places[name], self.tensors[name] = file, info

    def _check_placed(
        self, index: Path, placed: Mapping[str, str], passed_over: tuple[str, ...]
    ) -> None:
        """Raise DataError unless the index places every tensor correctly."""
        for name, file in placed.items():
            stored = self._places.get(name)
            if stored is None and not name.endswith(passed_over):
                raise DataError(f"{index}: expected {name} in {file}; it is missing")
            if stored is not None and stored.path.name != file:
                raise DataError(f"{index}: expected {name} in {file}; it is in {stored.path.name}")

    def __str__(self) -> str:
        count = len(self._files)
        return self._files[0].path.name if count == 1 else f"{count} files"

    def path_of(self, name: str) -> Path:
        """Return the file that a tensor is stored in."""
        return self._places[name].path

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor as stored: a read-only view."""
        return self._places[name].raw(name)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """Return a tensor in float32; it must be finite."""
        return self._places[name][name]

    def check_unchanged(self) -> None:
        """Raise DataError if a file has changed since it was opened."""
        for file in self._watched:
            file.check()

    def close(self) -> None:
        """Release the files. Views taken from them stay valid."""
        for file in self._files:
            with closing(file):
                pass
        self._files, self._places = [], {}


def _refuse_others(folder: Path) -> None:
    """Raise DataError for a folder with weights in another format; say what to do."""
    if (folder / WEIGHTS).exists():
        return
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if pickled := [name for name in names if name.endswith(_PICKLED)]:
        raise DataError(
            f"{folder / pickled[0]}: pickled weights can run any code when they are opened, so "
            f"toynn refuses them; download {WEIGHTS}, or write one where you trust the "
            "file: transformers' AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    if ggufs := [name for name in names if name.endswith(".gguf")]:
        raise DataError(f"{folder}: no {WEIGHTS}; name a file in it: {folder / ggufs[0]}")


def _weight_map(index: Path) -> dict[str, str]:
    """Return the index: the file of each tensor."""
    files: Any = read_object(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        _refuse(index, f"weight_map: expected the file of each tensor by its name; got {files!r}")
    for name, file in files.items():
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            _refuse(index, f"weight_map: {name}: expected a .safetensors file; got {file!r:.80}")
        if Path(file).name != file or "\\" in file:
            _refuse(
                index,
                f"weight_map: {name}: expected a file in the index's folder; got {file!r:.80}",
            )
    return files


def _files(index: Path, placed: Mapping[str, str]) -> list[Path]:
    """Return the paths of the files; all must exist."""
    names = sorted(set(placed.values()))
    missing = [name for name in names if not os.path.exists(index.parent / name)]  # or too long
    if missing:
        shown = [name if len(name) < 100 else f"{name[:80]}..." for name in missing[:_SHOWN]]
        others = f" and {len(missing) - _SHOWN} others" if len(missing) > _SHOWN else ""
        _refuse(
            index,
            f"expected {len(names)} files next to it; missing: {', '.join(shown)}"
            f"{others}; complete the download",
        )
    return [index.parent / name for name in names]


def _refuse(index: Path, what: str) -> NoReturn:
    raise DataError(f"{index}: {what}")
