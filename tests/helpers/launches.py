"""A call of the op-case table as a launch: on any backend, as a program of that one launch."""

import math

import numpy as np

import toynn._kernels as kernels
from toynn import precision
from toynn.backends.protocol import Accumulate, Launch, Place, aligned
from toynn.testing.cases import CASES, cached_attention

#: The ops of the table that programs call.
OPS = [op for op in CASES if getattr(getattr(kernels, op), "entries", None)]


def entries():
    for op in kernels.OPS:
        for name, entry in getattr(getattr(kernels, op), "entries", {}).items():
            yield f"{op}.{name}", entry.signature


def named(op, call, shape):
    """Return the sizes and options of a call by the names of its kernel."""
    signature = getattr(kernels, op).entries[call.entry].signature
    sizes = {"precision": 0, "type": 0, "window": 0, "cap": 0}
    sizes |= dict(shape) | call.options | dict(call.sizes)
    if "attention" in op:
        H, KV, D = (sizes[key] for key in ("H", "KV", "D"))
        sizes |= {"ldq": H * D, "ldk": KV * D, "ldv": KV * D}
        sizes["scale"] = call.options.get("scale", 1 / math.sqrt(max(D, 1)))
    sizes |= {"type": shape.get("type", 0), "activation": shape.get("activation", 0)}
    if "precision" in call.options:
        sizes["precision"] = precision.PRECISIONS.index(call.options["precision"])
    return (
        {key: int(sizes[key]) for key in signature.sizes},
        {key: float(sizes[key]) for key in signature.options},
    )


def to_plain(op, key, array):
    """Return an array in the order in which all backends but the CPU keep it."""
    return cached_attention.plain(array) if (op, key) == ("cached_attention", "kc") else array


def from_plain(op, key, array):
    return cached_attention.blocked(array) if (op, key) == ("cached_attention", "kc") else array


def run(backend, op, call, shape, accumulate=False):
    """Run a call on a backend; return its outputs by name."""
    signature = getattr(kernels, op).entries[call.entry].signature
    arrays = {key: to_plain(op, key, value) for key, value in call.arrays.items()}
    if accumulate:
        arrays |= {key: np.ones_like(arrays[key]) for key in call.accumulates}
    places, end = {}, 0
    for key, array in arrays.items():
        places[key], end = Place("arena", end), end + aligned(array.nbytes)
    launch = Launch(
        *("F", f"{op}.{call.entry}", {key: places.get(key) for key in signature.tensors}),
        *named(op, call, shape),
        *(Accumulate.MICRO_BATCH, 0, 0),
    )
    arena = backend.allocate(end)
    for key, array in arrays.items():
        arena.upload(places[key].offset, np.ascontiguousarray(array))
    backend.compile([launch], {"arena": arena}).run("F", accumulate)
    return {
        key: from_plain(op, key, arena.download(places[key].offset, value.shape, _kind(value)))
        for key, value in call.expected.items()
    }


def _kind(expected):
    return "f32" if expected.dtype.kind == "f" else "i32"
