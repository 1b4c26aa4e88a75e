"""The matrix that makes keys and values from latents: one in toynn, two in llama.cpp's files.

    blk.{n}.attn_kv_b (H (P + E), C)      for each head P rows of its key, then E of its value
    blk.{n}.attn_k_b (H, C, P)            the rows of the keys, transposed
    blk.{n}.attn_v_b (H, E, C)            the rows of the values

llama.cpp multiplies queries by attn_k_b and the output of attention by attn_v_b. It applies
adapters of neither. toynn reads and writes files as if they had the one matrix. Joined from two
tensors, the matrix is float32.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import GGUFError
from toynn.formats.gguf.deferred import Deferred, Tensors, stored_as
from toynn.formats.gguf.tensors import BLOCKS, TensorInfo
from toynn.formats.quants import dequantize

Floats = NDArray[np.float32]
WHOLE, _KEYS, _VALUES = ".attn_kv_b.weight", ".attn_k_b.weight", ".attn_v_b.weight"


def parts_of(tensors: Mapping[str, TensorInfo]) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """Return the pairs of tensors that fit together, by the name of the whole matrix."""
    halves = {}
    for name, k in tensors.items():
        block = name.removesuffix(_KEYS)
        v = tensors.get(block + _VALUES)
        if block == name or v is None or len(k.shape) != 3 or len(v.shape) != 3:
            continue
        if (k.shape[0], k.shape[1]) == (v.shape[0], v.shape[2]) and block + WHOLE not in tensors:
            halves[block + WHOLE] = k, v
    return halves


def joined(name: str, k: TensorInfo, v: TensorInfo) -> TensorInfo:
    """Describe the whole matrix that two tensors make."""
    H, C, P = k.shape
    rows = H * (P + v.shape[1])
    return TensorInfo(name, "F32", (rows, C), k.offset, 4 * rows * C)


def whole_of(k: Floats, v: Floats) -> Floats:
    """Return the whole matrix (H (P + E), C) from k (H, C, P) and v (H, E, C)."""
    both = np.concatenate([k.swapaxes(1, 2), v], axis=1, dtype=np.float32)
    return np.ascontiguousarray(both.reshape(-1, both.shape[2]))


def apart(metadata: Mapping[str, Any], tensors: Tensors) -> Tensors:
    """Return a file's tensors; a whole matrix becomes two if the metadata describe latents.

    Raises GGUFError where the metadata do not fit.
    """
    if not any(name.endswith(WHOLE) for name in tensors):
        return tensors
    prefix = _plain(metadata.get("general.architecture"))
    keys = ("attention.head_count", "attention.key_length_mla", "rope.dimension_count")
    H, D, R = (_plain(metadata.get(f"{prefix}.{key}")) for key in keys)
    if D is None:
        return tensors
    if not all(isinstance(n, int) for n in (H, D, R)) or H < 1 or D <= R:
        raise GGUFError(f"{prefix}: {', '.join(keys)}: expected heads of D > R; got {H}, {D}, {R}")
    parts = dict[str, tuple[Any, str]]()
    for name, (array, type) in tensors.items():
        if name.endswith(WHOLE):
            parts |= _parts(name.removesuffix(WHOLE), array, type, H, D - R)
        else:
            parts[name] = array, type
    return parts


def _parts(
    block: str, array: Any, type: str, H: int, P: int
) -> Iterable[tuple[str, tuple[Deferred, str]]]:
    rows, C = array.shape[0], _columns(array, type)
    E = rows // H - P
    if rows % H or E < 1:
        raise GGUFError(f"{block}{WHOLE}: expected {H} heads of more than {P} rows; got {rows}")
    shapes = {block + _KEYS: (H, C, P), block + _VALUES: (H, E, C)}

    def make(name: str) -> Floats:
        heads = floats_of(array, type).reshape(H, P + E, C)
        part = heads[:, :P].swapaxes(1, 2) if name.endswith(_KEYS) else heads[:, P:]
        return np.ascontiguousarray(part)

    for name, shape in shapes.items():
        part = Deferred(shape, np.dtype(np.float32), partial(make, name))
        yield name, (part, stored_as(name, shape, type.lower()))


def _columns(array: Any, type: str) -> int:
    """Return the columns of an array of floats, or of blocks of a type."""
    if array.dtype != np.uint8:
        return int(array.shape[1])
    elements, nbytes = BLOCKS[type.upper()]
    return int(array.shape[1] // nbytes * elements)


def floats_of(array: Any, type: str) -> Floats:
    """Return a matrix of floats, or of blocks of a type, in float32."""
    values = array.make() if isinstance(array, Deferred) else array
    floats: Floats = values
    if values.dtype == np.uint8:
        floats = dequantize(values, type.upper(), (array.shape[0], _columns(array, type)))
    return floats.astype(np.float32, copy=False)


def _plain(value: Any) -> Any:
    """Return the value of a key, without its type."""
    return value[0] if isinstance(value, tuple) else value
