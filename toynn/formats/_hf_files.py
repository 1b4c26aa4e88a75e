"""The two kinds of files of a Hugging Face folder: JSON objects and safetensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from toynn.errors import DataError
from toynn.formats import quants
from toynn.formats._gguf_tensors import TensorInfo
from toynn.formats.safetensors import METADATA

__all__ = ["SafeTensors", "read_object"]


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises DataError."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected an object; got {type(found).__name__}")
    return found


class SafeTensors:
    """An open safetensors file: `tensors` by name, file[name] is an array, `metadata` is text.

    Tensors whose names end in one of `passed_over` may be of any type; they are not there.
    """

    def __init__(self, path: Path, passed_over: tuple[str, ...] = ()) -> None:
        self.path = path
        try:
            with safe_open(path, "numpy"):  # the library finds it sound, or raises
                pass
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                table = json.loads(file.read(size))
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path}: cannot read: {error}") from error
        self.metadata: dict[str, str] = table.pop(METADATA, None) or {}
        self.tensors: dict[str, TensorInfo] = {}
        for name, entry in table.items():
            begin, end = entry["data_offsets"]
            if entry["dtype"] not in ("F32", "F16", "BF16"):
                if name.endswith(passed_over):
                    continue
                raise DataError(f"{path}: {name} must be F32, F16 or BF16; got {entry['dtype']}")
            shape = tuple(entry["shape"])
            info = TensorInfo(name, entry["dtype"], shape, 8 + size + begin, end - begin)
            self.tensors[name] = info
        self._raw = np.memmap(path, np.uint8, "r")

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """Return a tensor in float32; it must be finite."""
        info = self.tensors[name]
        raw = np.asarray(self._raw[info.offset : info.offset + info.nbytes])
        values = quants.dequantize(raw, info.type, info.shape)
        if not np.isfinite(values).all():
            raise DataError(f"{self.path}: {name} has weights that are NaN or infinite")
        return values

    def close(self) -> None:
        """Let go of the file."""
        del self._raw
