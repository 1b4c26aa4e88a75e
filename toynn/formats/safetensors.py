"""Writing safetensors files, so that equal weights make equal bytes.

    8 bytes     the length of the header, little-endian
    header      JSON: {"__metadata__": {key: text}, name: {"dtype", "shape", "data_offsets"}, ...},
                and spaces up to a multiple of 8 bytes
    data        the tensors, one behind the other

The library's own writer puts the metadata in another order in every process. All else is as there:
without metadata the bytes are the same. Source: https://github.com/huggingface/safetensors.
"""

import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["METADATA", "encode", "parts"]

Weights = Mapping[str, NDArray[np.float32]]

METADATA = "__metadata__"
ALIGNMENT = 8


def encode(weights: Weights, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a file of float32 tensors, in the order of their names."""
    return b"".join(parts(weights, metadata))


def parts(weights: Weights, metadata: Mapping[str, str] | None = None) -> list[bytes | memoryview]:
    """Return the same in parts, to be written one after another: no weight is copied."""
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    arrays = [(name, np.ascontiguousarray(weights[name], "<f4")) for name in sorted(weights)]
    end = 0
    for name, array in arrays:
        begin, end = end, end + array.nbytes
        shape = list(np.shape(weights[name]))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return [len(text).to_bytes(8, "little"), text, *(array.data for _, array in arrays)]
