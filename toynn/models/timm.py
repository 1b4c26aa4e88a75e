"""Vision transformers in safetensors files, by timm's names and shapes.

A file that toynn wrote has its configuration in its metadata; for any other file it is derived from
the shapes. No tensor is ignored silently: an unknown one is refused by name.
"""

import json
from collections.abc import Collection, Mapping
from math import isqrt
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from toynn.errors import DataError
from toynn.formats.safetensors import SafeTensors
from toynn.models.tables import Floats

Shapes = Mapping[str, tuple[int, ...]]

CONFIG, NAMES = "toynn.vit", "toynn.class_names"
_HEAD_CHANNELS = 64  # channels of a head, in all of timm's ViTs from tiny to large
_CUBIC = -0.5  # the parameter of the cubic kernel, as in Pillow and PyTorch's antialias=True


def metadata_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """Return a file's metadata; readers that use torch need the key ``format``."""
    metadata = {"format": "pt", CONFIG: json.dumps(dict(fields))}
    return metadata | ({NAMES: json.dumps(names)} if names else {})


def class_names(file: SafeTensors, classes: int) -> tuple[str, ...]:
    """Return the names of the classes, or () if the file has none.

    Raises DataError if the metadata is not a list of ``classes`` names.
    """
    names = _read(file, NAMES, [])
    fits = isinstance(names, list) and len(names) in (0, classes)
    if not fits or not all(isinstance(name, str) for name in names):
        _refuse(file, f"{NAMES} must be {classes} names; got {names!r}")
    return tuple(names)


def described(file: SafeTensors, known: Collection[str], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a file's configuration; classes is None if the file has no head.

    ``known`` are the names of all fields. ``told`` are the caller's n_heads, act and norm_eps,
    which shapes do not give; None means unknown. They must agree with a file that toynn wrote.

    Raises DataError for a file without such a model.
    """
    told = {name: value for name, value in told.items() if value is not None}
    stored = _read(file, CONFIG, None)
    if stored is None:
        return _from_shapes(file) | told
    if not isinstance(stored, dict) or stored.keys() != set(known):
        _refuse(file, f"{CONFIG} must have {', '.join(known)}; got {stored!r}")
    for name, value in told.items():
        if stored[name] != value:
            _refuse(file, f"its {name} is {stored[name]!r}; got {value!r}: leave it out")
    if stored["n_layers"] != _blocks(file):
        _refuse(file, f"{CONFIG} has {stored['n_layers']!r} layers, the file {_blocks(file)}")
    return stored


def _from_shapes(file: SafeTensors) -> dict[str, Any]:
    d_model, channels, patch, width = _shape(file, "patch_embed.proj.weight", 4)
    tokens, hidden = _shape(file, "pos_embed", 3)[1], _shape(file, "blocks.0.mlp.fc1.weight", 2)[0]
    side = isqrt(max(0, tokens - 1))
    if side * side != tokens - 1 or side == 0 or patch != width:
        _refuse(
            file,
            f"needs square pictures and patches, and a class token; got pos_embed of {tokens} "
            f"rows, patches of {patch} x {width}",
        )
    head = _shape(file, "head.weight", 2) if "head.weight" in file.tensors else None
    return {
        "image": side * patch,
        "patch": patch,
        "channels": channels,
        "d_model": d_model,
        "n_heads": max(1, d_model // _HEAD_CHANNELS),
        "d_ff": hidden,
        "n_layers": _blocks(file),
        "classes": head[0] if head else None,
        "norm": "layernorm" if "norm.bias" in file.tensors else "rmsnorm",
        "bias": "patch_embed.proj.bias" in file.tensors,
    }


def _blocks(file: SafeTensors) -> int:
    return len({name.split(".")[1] for name in file.tensors if name.startswith("blocks.")})


def check_tensors(file: SafeTensors, shapes: Shapes, passed_over: Collection[str] = ()) -> None:
    """Raise DataError unless a file has exactly these tensors, with these shapes.

    Tensors in ``passed_over`` may be missing or have any shape.
    """
    for name, shape in shapes.items():
        if name in passed_over:
            continue
        if name not in file.tensors:
            _refuse(file, f"tensor {name} is missing")
        stored = file.tensors[name].shape
        if stored != shape:
            _refuse(file, f"tensor {name} has the wrong shape: expected {shape}; got {stored}")
    if unknown := sorted(file.tensors.keys() - shapes.keys()):
        _refuse(file, f"unknown tensors: {', '.join(unknown[:5])}")


def resampled(positions: Floats, side: int) -> Floats:
    """Return a position table (1, 1 + n, C) for pictures of side x side patches.

    The class token's row stays. The grid of the other rows is resized as a picture would be, by
    cubic interpolation; the kernel widens when the grid shrinks. Source: Keys 1981, doi:10.1109/
    TASSP.1981.1163711; Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.2.
    """
    old = isqrt(positions.shape[1] - 1)
    grid = positions[0, 1:].reshape(old, old, -1).astype(np.float64)
    along = _resizing(old, side)
    resized = np.einsum("ai,bj,ijc->abc", along, along, grid, optimize=True)
    rows = resized.reshape(1, side * side, -1).astype(np.float32)
    return np.concatenate([positions[:, :1], rows], axis=1)


def _resizing(old: int, new: int) -> NDArray[np.float64]:
    """Return the matrix (new, old) that resizes one axis."""
    scale = old / new
    stretch = max(scale, 1.0)
    centres = (np.arange(new) + 0.5) * scale - 0.5
    x = np.abs(np.arange(old) - centres[:, None]) / stretch
    a = _CUBIC
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    weights = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float64)


def _shape(file: SafeTensors, name: str, dimensions: int) -> tuple[int, ...]:
    if name not in file.tensors:
        _refuse(file, f"tensor {name} is missing: not a vision transformer with timm's names")
    shape = file.tensors[name].shape
    if len(shape) != dimensions or 0 in shape:
        _refuse(file, f"tensor {name} needs {dimensions} dimensions; got {shape}")
    return shape


def _read(file: SafeTensors, key: str, default: Any) -> Any:
    try:
        return json.loads(file.metadata[key]) if key in file.metadata else default
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file.path}: {key}: not JSON: {error}") from error


def _refuse(file: SafeTensors, what: str) -> NoReturn:
    raise DataError(f"{file.path}: {what}")
