"""Use every function of bridge.h once, as the backend does: ``python drive.py BRIDGE.so``.

Prints "ok" if all is as it should be, and nothing of the device is left alive.
"""

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np

SHADER = b"""#include <metal_stdlib>
using namespace metal;
struct Numbers { uint n; float a; };
kernel void scale(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                  constant Numbers& numbers [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    if (i < numbers.n) y[i] = numbers.a * x[i];
}
"""
N, AT = 70, 64  # numbers, and at which byte they lie
POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t


class Limits(ctypes.Structure):
    _fields_ = [
        *(("name", ctypes.c_char * 128), ("family", ctypes.c_char * 32)),
        *(("simdgroups", ctypes.c_int), ("unified_memory", ctypes.c_int)),
        *(("max_buffer", ctypes.c_uint64), ("working_set", ctypes.c_uint64)),
        ("threadgroup", ctypes.c_uint64),
    ]


def main(path):
    bridge = ctypes.CDLL(path)  # which brings the device along
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("/libstandin.so"):
            device_of = ctypes.CDLL(line.split()[-1])
    live = device_of.standin_live
    live.restype = ctypes.c_long
    device_of.standin_fail_after.argtypes = [ctypes.c_long]

    def call(name, *arguments, result=POINTER):
        function = getattr(bridge, f"toynn_metal_{name}")
        function.restype = result
        return function(*arguments)

    error = ctypes.create_string_buffer(2048)
    device_of.standin_reset()
    device_of.standin_absent(1)
    assert call("device_open", error) is None and not error.value
    device_of.standin_absent(0)
    device_of.standin_checked(1)
    device = POINTER(call("device_open", error))
    assert device

    limits = Limits()
    call("device_describe", device, ctypes.byref(limits), result=None)
    assert limits.family == b"apple7" and limits.simdgroups == 1 and limits.unified_memory == 1
    assert limits.max_buffer == 1 << 34 and limits.threadgroup == 32768 and limits.working_set
    device_of.standin_simdgroups(0)
    call("device_describe", device, ctypes.byref(limits), result=None)
    assert limits.family == b"mac2" and limits.simdgroups == 0

    def allocate(nbytes):
        return POINTER(call("buffer_allocate", device, SIZE(nbytes)))

    def view(buffer, dtype, n):
        start = call("buffer_contents", buffer)
        assert start, "the CPU does not see it"
        kind = ctypes.c_uint8 * (n * np.dtype(dtype).itemsize)
        return np.frombuffer(kind.from_address(start), dtype)

    x, y, z, numbers = (allocate(AT + 4 * N) for _ in range(4))
    for buffer in (x, y, z):
        assert not view(buffer, np.float32, AT // 4 + N).any(), "fresh memory is zero"
    view(x, np.float32, AT // 4 + N)[AT // 4 :] = np.arange(N)
    view(numbers, np.uint32, 1)[0] = N
    view(numbers, np.float32, 2)[1] = 3
    device_of.standin_limit.argtypes = [ctypes.c_ulong]
    device_of.standin_limit(64)
    assert not allocate(128).value
    device_of.standin_limit(1 << 34)

    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    mapped = np.frombuffer(pages, np.float32)
    shared = POINTER(call("buffer_share", device, POINTER(mapped.ctypes.data), SIZE(len(pages))))
    assert call("buffer_contents", shared) == mapped.ctypes.data, "shared memory is the caller's"

    assert call("library_compile", device, b"kernel void f() { return 1 }", error) is None
    assert b"newLibraryWithSource: " in error.value and b"expected ';'" in error.value
    library = POINTER(call("library_compile", device, SHADER, error))
    assert library.value, error.value
    assert not device_of.standin_fast(), "fast math is off"
    assert call("pipeline_make", device, library, b"none", error) is None
    assert b"newFunctionWithName" in error.value
    pipeline = POINTER(call("pipeline_make", device, library, b"scale", error))
    assert call("pipeline_threads", pipeline, result=SIZE) == 1024

    def dispatch(commands, *bound):
        buffers = (POINTER * len(bound))(*(buffer for buffer, _ in bound))
        offsets = (SIZE * len(bound))(*(offset for _, offset in bound))
        extents = ctypes.c_uint32 * 3
        grid = extents(3, 1, 1), extents(32, 1, 1)
        call(
            "commands_dispatch",
            commands,
            pipeline,
            len(bound),
            buffers,
            offsets,
            *grid,
            result=None,
        )

    runs = []
    for pairs in ([(y, x), (z, y)], [(shared, z)]):  # two submissions before anybody waits
        commands = POINTER(call("commands_begin", device))
        for out, source in pairs:
            offset = 0 if out is shared else AT
            dispatch(commands, (out, offset), (source, AT), (numbers, 0))
        call("commands_commit", commands, result=None)
        runs.append(commands)
    for commands in runs:
        assert call("commands_wait", commands, error, result=ctypes.c_int) == 0, error.value
        assert call("commands_seconds", commands, result=ctypes.c_double) == 1e-3
    for buffer, factor in ((y, 3), (z, 9)):
        got = view(buffer, np.float32, AT // 4 + N)
        assert not got[: AT // 4].any() and np.array_equal(got[AT // 4 :], factor * np.arange(N))
    assert np.array_equal(mapped[:N], 27 * np.arange(N))

    commands = POINTER(call("commands_begin", device))
    dispatch(commands, (y, AT), (x, AT), (numbers, 0))
    call("commands_commit", commands, result=None)
    device_of.standin_fail_after(0)
    assert call("commands_wait", commands, error, result=ctypes.c_int) != 0
    assert b"command buffer: Insufficient Memory" in error.value
    given_up = POINTER(call("commands_begin", device))
    for each in (*runs, commands, given_up):
        call("commands_release", each, result=None)

    for buffer in (x, y, z, numbers, shared):
        call("buffer_release", buffer, result=None)
    call("pipeline_release", pipeline, result=None)
    call("library_release", library, result=None)
    call("device_close", device, result=None)
    call("device_close", POINTER(), result=None)
    assert live() == 0, f"{live()} objects are not released"
    print("ok")


main(sys.argv[1])
