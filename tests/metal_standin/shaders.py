"""Run one entry of the Metal backend's shaders over NumPy arrays: no Objective-C, no session.

    shaders.run("rmsnorm.forward", arrays, {"N": 3, "C": 20}, {"eps": 1e-5}, checked=True)

Structs of arguments and grids are the backend's own; each array is a buffer of its own, so that the
checker knows the bounds of each tensor.
"""

import ctypes
import itertools
import shutil
from collections.abc import Mapping
from functools import cache

import msl
import numpy as np
import standin

import toynn._kernels as kernels
from toynn.backends.metal import arguments, grids, sources

__all__ = ["ShaderError", "available", "run", "run_case"]


class ShaderError(Exception):
    """What a kernel did wrong while it ran."""


def available() -> str | None:
    """Return why shaders cannot be compiled here, or None."""
    if shutil.which(msl.COMPILER) is None:
        return f"{msl.COMPILER} is not installed (Debian: clang-19)"
    return None


# -- What is compiled ------------------------------------------------------------------------------


class Size(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]


class Dispatch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p * 31),
        ("nbytes", ctypes.c_ulong * 31),
        ("groups", Size),
        ("threads", Size),
    ]


class Kernel(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("run", ctypes.c_void_p),
        ("n_arguments", ctypes.c_int),
        ("arguments", ctypes.c_void_p),
    ]


@cache
def _loaded() -> ctypes.CDLL:
    soft = ctypes.CDLL(str(standin.runtime()), ctypes.RTLD_GLOBAL)
    for name in ("soft_memory_add", "soft_memory_remove", "soft_library_add"):
        getattr(soft, name).restype = None
    soft.soft_memory_add.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int]
    soft.soft_memory_remove.argtypes = soft.soft_library_add.argtypes = [ctypes.c_void_p]
    soft.soft_run.argtypes = [
        *(ctypes.POINTER(Dispatch), ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong)
    ]
    return soft


@cache
def _functions(text: str, checked: bool) -> tuple[dict[str, int], ctypes.CDLL]:
    soft, shared = _loaded(), ctypes.CDLL(str(msl.compiled(text, checked)))
    start = ctypes.addressof(Kernel.in_dll(shared, "soft_kernels"))
    soft.soft_library_add(start)
    addresses = {}
    for i in itertools.count():
        address = start + i * ctypes.sizeof(Kernel)
        name = Kernel.from_address(address).name
        if name is None:
            return addresses, shared
        addresses[name.decode()] = address


# -- What is run -----------------------------------------------------------------------------------


def run(
    kernel: str,
    arrays: Mapping[str, np.ndarray | None],
    sizes: Mapping[str, int],
    options: Mapping[str, float] | None = None,
    *,
    accumulate: bool = False,
    checked: bool = False,
    seed: int | None = None,
    simdgroups: bool = False,
    planned: Mapping[str, int] | None = None,
    text: str | None = None,
) -> None:
    """Run an entry, in place on C-contiguous arrays. Raises ShaderError and msl.Refused.

    ``planned``: the sizes from which the grid is made, where others are known when it runs.
    ``text``: of the library, where it is not the package's own.
    """
    op, _, entry = kernel.partition(".")
    signature = arguments.entries(op)[entry]
    text = sources.source(op, simdgroups) if text is None else text
    functions, _held = _functions(text, checked)
    there = signature.there(arrays)
    values = {**sizes, **(options or {}), **there, "accumulate": int(accumulate)}
    known = {**(planned or sizes), **there}
    bound = [arrays.get(name) for name in signature.tensors]
    bound = [np.full(4, np.nan, np.float32) if a is None or not a.size else a for a in bound]
    bound.append(np.frombuffer(bytearray(arguments.pack(signature, values)), np.uint8))
    if kernel in grids.SCRATCH:
        bound.append(np.full(max(1, grids.SCRATCH[kernel](known) // 4), np.nan, np.float32))
    assert all(array.flags.c_contiguous for array in bound)
    for one in grids.dispatches_of(kernel, signature, known):
        _dispatch(functions[one.function], bound, one, seed or 0)


def _dispatch(function: int, bound: list[np.ndarray], one: grids.Dispatch, seed: int) -> None:
    soft, message = _loaded(), ctypes.create_string_buffer(2048)
    dispatch = Dispatch(kernel=function, groups=Size(*one.groups), threads=Size(*one.threads))
    for i, array in enumerate(bound):
        dispatch.buffers[i], dispatch.nbytes[i] = array.ctypes.data, array.nbytes
        soft.soft_memory_add(array.ctypes.data, array.nbytes, 0)
    failed = soft.soft_run(ctypes.byref(dispatch), seed, message, len(message))
    for array in bound:
        soft.soft_memory_remove(array.ctypes.data)
    if failed:
        raise ShaderError(message.value.decode(errors="replace"))


def run_case(
    op: str,
    call,
    accumulate: bool = False,
    more: Mapping[str, int] | None = None,
    replaced: Mapping[str, np.ndarray] | None = None,
    **how,
):
    """Run a call of the op-case table; return its outputs by name, for ``calls.check``.

    ``more``: by how much sizes were larger when the grid was planned. ``replaced``: other arrays.
    """
    kernel = f"{op}.{call.entry}"
    signature = getattr(kernels, op).entries[call.entry].signature
    arrays = {name: np.array(array, order="C") for name, array in call.arrays.items()}
    arrays |= replaced or {}
    if op == "cached_attention":
        from toynn.testing.cases import cached_attention

        arrays["kc"] = np.ascontiguousarray(cached_attention.plain(arrays["kc"]))
    if accumulate:
        arrays |= {name: np.ones_like(arrays[name]) for name in call.accumulates}
    sizes, options = call.named()
    run(
        kernel,
        {name: arrays.get(name) for name in signature.tensors},
        sizes,
        options,
        accumulate=accumulate,
        planned={name: size + (more or {}).get(name, 0) for name, size in sizes.items()},
        **how,
    )
    if op == "cached_attention":
        arrays["kc"] = cached_attention.blocked(arrays["kc"])
    return {name: arrays[name] for name in call.expected}
