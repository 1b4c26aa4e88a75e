"""Run a call of the op-case table on any backend, as a program of one launch."""

from collections.abc import Iterator

import numpy as np

import toynn._kernels as kernels
from toynn._kernels.base.signature import Signature
from toynn.backends.protocol import Accumulate, Backend, Launch, Place, aligned
from toynn.testing.cases import CASES, Array, Call, cached_attention

#: The ops of the table that compiled programs can call.
OPS = [op for op in CASES if getattr(getattr(kernels, op), "entries", None)]


def entries() -> Iterator[tuple[str, Signature]]:
    """Yield the name of each entry ("rmsnorm.forward") and its signature."""
    for op in kernels.OPS:
        for name, entry in getattr(getattr(kernels, op), "entries", {}).items():
            yield f"{op}.{name}", entry.signature


def run(backend: Backend, op: str, call: Call, accumulate: bool = False) -> dict[str, Array]:
    """Run a call on any backend but the CPU's; return its outputs by name.

    Such backends store the cache of keys as (B, KV, S, D), without blocks.
    """
    signature = kernels.find(f"{op}.{call.entry}").signature
    arrays = {key: np.array(array) for key, array in call.arrays.items()}
    if op == "cached_attention":
        arrays["kc"] = cached_attention.plain(arrays["kc"])
    if accumulate:
        arrays |= {key: np.ones_like(arrays[key]) for key in call.accumulates}
    places, end = {}, 0
    for key, array in arrays.items():
        places[key], end = Place("arena", end), end + aligned(array.nbytes)
    sizes, options = call.named()
    tensors = {key: places.get(key) for key in signature.tensors}
    kernel, adds = f"{op}.{call.entry}", Accumulate.MICRO_BATCH
    launch = Launch("F", kernel, tensors, sizes, options, adds, 0, 0)
    arena = backend.allocate(end)
    for key, array in arrays.items():
        arena.upload(places[key].offset, np.ascontiguousarray(array))
    backend.compile([launch], {"arena": arena}).run("F", accumulate)
    contents = {}
    for key, value in call.expected.items():
        kind = {"f": "f32", "u": "u16"}.get(value.dtype.kind, "i32")
        contents[key] = arena.download(places[key].offset, value.shape, kind)
    if op == "cached_attention":
        contents["kc"] = cached_attention.blocked(contents["kc"])
    return contents
