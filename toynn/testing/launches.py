"""A call of the op-case table as a launch: on any backend, as a program of that one launch."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

import toynn._kernels as kernels
from toynn import precision
from toynn.backends.protocol import Accumulate, Backend, Launch, Place, aligned
from toynn.signature import Signature
from toynn.testing.cases import CASES, Array, Call, cached_attention

__all__ = ["OPS", "entries", "named", "run"]

#: The ops of the table that programs call.
OPS = [op for op in CASES if getattr(getattr(kernels, op), "entries", None)]


def entries() -> Iterator[tuple[str, Signature]]:
    """Yield the name of each entry ("rmsnorm.forward") and its signature."""
    for op in kernels.OPS:
        for name, entry in getattr(getattr(kernels, op), "entries", {}).items():
            yield f"{op}.{name}", entry.signature


def named(op: str, call: Call, shape: Mapping[str, int]) -> tuple[dict[str, int], dict[str, float]]:
    """Return the sizes and options of a call by the names of its kernel."""
    signature = getattr(kernels, op).entries[call.entry].signature
    sizes: dict[str, float] = {"precision": 0, "type": 0, "window": 0, "cap": 0}
    sizes |= {**shape, **call.options, **call.sizes}
    if "attention" in op:
        H, KV, D = (int(sizes[key]) for key in ("H", "KV", "D"))
        sizes |= {"ldq": H * D, "ldk": KV * D, "ldv": KV * D}
        sizes["scale"] = call.options.get("scale", 1 / math.sqrt(max(D, 1)))
    sizes |= {"type": shape.get("type", 0), "activation": shape.get("activation", 0)}
    if "precision" in call.options:
        sizes["precision"] = precision.PRECISIONS.index(call.options["precision"])
    return (
        {key: int(sizes[key]) for key in signature.sizes},
        {key: float(sizes[key]) for key in signature.options},
    )


def run(
    backend: Backend, op: str, call: Call, shape: Mapping[str, int], accumulate: bool = False
) -> dict[str, Array]:
    """Run a call on any backend but the CPU's; return its outputs by name.

    A cache of keys is kept in the order of (B, KV, S, D) there.
    """
    signature = getattr(kernels, op).entries[call.entry].signature
    arrays = {key: np.array(array) for key, array in call.arrays.items()}
    if op == "cached_attention":
        arrays["kc"] = cached_attention.plain(arrays["kc"])
    if accumulate:
        arrays |= {key: np.ones_like(arrays[key]) for key in call.accumulates}
    places, end = {}, 0
    for key, array in arrays.items():
        places[key], end = Place("arena", end), end + aligned(array.nbytes)
    sizes, options = named(op, call, shape)
    tensors = {key: places.get(key) for key in signature.tensors}
    kernel, adds = f"{op}.{call.entry}", Accumulate.MICRO_BATCH
    launch = Launch("F", kernel, tensors, sizes, options, adds, 0, 0)
    arena = backend.allocate(end)
    for key, array in arrays.items():
        arena.upload(places[key].offset, np.ascontiguousarray(array))
    backend.compile([launch], {"arena": arena}).run("F", accumulate)
    found = {}
    for key, value in call.expected.items():
        kind = "f32" if value.dtype.kind == "f" else "i32"
        found[key] = arena.download(places[key].offset, value.shape, kind)
    if op == "cached_attention":
        found["kc"] = cached_attention.blocked(found["kc"])
    return found
