"""Read safetensors files tensor by tensor; write them so that equal weights give equal bytes.

    8 bytes     the length of the header, little-endian
    header      JSON: {"__metadata__": {key: text}, name: {"dtype", "shape", "data_offsets"}, ...},
                and spaces up to a multiple of 8 bytes
    data        the tensors, one after the other

The library's own writer orders metadata differently in every process. Without metadata the bytes
are the same as the library's. Source: https://github.com/huggingface/safetensors.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from toynn.errors import DataError
from toynn.formats import quants
from toynn.formats.gguf.tensors import TensorInfo
from toynn.system.reading import Unchanged, open_file

Weights = Mapping[str, NDArray[np.float32]]

METADATA = "__metadata__"
ALIGNMENT = 8


def encode(weights: Weights, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a file of float32 tensors, in the order of their names."""
    return b"".join(parts(weights, metadata))


def parts(weights: Weights, metadata: Mapping[str, str] | None = None) -> list[bytes | memoryview]:
    """Return a file of float32 tensors as a list of parts; no weight is copied."""
    shapes = {name: np.shape(array) for name, array in weights.items()}
    return list(streamed(shapes, weights.__getitem__, metadata))


def streamed(
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], NDArray[np.float32]],
    metadata: Mapping[str, str] | None = None,
) -> Iterator[bytes | memoryview]:
    """Yield a file in parts; each tensor is read when needed, so only one is in memory."""
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in sorted(shapes):
        begin, end = end, end + 4 * prod(shapes[name])
        header[name] = {
            "dtype": "F32",
            "shape": list(shapes[name]),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in sorted(shapes):
        yield np.ascontiguousarray(read(name), "<f4").data


class SafeTensors:
    """An open safetensors file: `tensors` by name, file[name] is an array, `metadata` is text.

    Tensors with a suffix in `passed_over` may have any type, and are left out unless float. Tensors
    with a suffix in `raw_suffixes` may be bytes (U8), which only `raw` returns.

    Raises DataError for a file that cannot be read, and for other types.
    """

    def __init__(
        self, path: Path, passed_over: tuple[str, ...] = (), raw_suffixes: tuple[str, ...] = ()
    ) -> None:
        self.path = path
        try:
            with open_file(path) as file, safe_open(path, "numpy"):  # safe_open checks it
                size = int.from_bytes(file.read(8), "little")
                table = json.loads(file.read(size))
                #: the file, which must not change while it is mapped
                self.watched = Unchanged.of(path, file=file)
                self._raw = np.memmap(file, np.uint8, "r")
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path}: cannot read: {error}") from error
        self.metadata: dict[str, str] = table.pop(METADATA, None) or {}
        self.tensors: dict[str, TensorInfo] = {}
        for name, entry in table.items():
            begin, end = entry["data_offsets"]
            is_raw = entry["dtype"] == "U8" and name.endswith(raw_suffixes)
            if entry["dtype"] not in ("F32", "F16", "BF16") and not is_raw:
                if name.endswith(passed_over):
                    continue
                raise DataError(f"{path}: {name} must be F32, F16 or BF16; got {entry['dtype']}")
            shape = tuple(entry["shape"])
            info = TensorInfo(name, entry["dtype"], shape, 8 + size + begin, end - begin)
            self.tensors[name] = info

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor as stored: a read-only view."""
        info = self.tensors[name]
        return np.asarray(self._raw[info.offset : info.offset + info.nbytes])

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """Return a tensor in float32. Raises DataError if it is not finite."""
        info = self.tensors[name]
        values = quants.dequantize(self.raw(name), info.type, info.shape)
        if not np.isfinite(values).all():
            raise DataError(f"{self.path}: {name} has weights that are NaN or infinite")
        return values

    def close(self) -> None:
        """Release the file."""
        del self._raw
