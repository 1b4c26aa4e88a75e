"""Ops of n elements, each by itself: how they are dealt to threads, and the doors of two kinds.

unary: y from x, dx from dy and what was saved.  gated: y from gate and up, dgate and dup.
A door checks the shapes, fills in the slots but for options, and calls the kernel.
"""
from toynn._kernels._common cimport at1
from toynn._kernels._parallel cimport parallel_blocks, part_fn
from toynn._kernels.abi cimport KernelArgs, kernel_fn

cdef enum:
    BLOCK = 4096  # elements per task: 16 KiB of each array


cdef inline void parallel_elements(part_fn part, KernelArgs* a, Py_ssize_t n) noexcept nogil:
    """Have a.n_threads threads compute the elements 0 .. n - 1, in stretches of whole blocks."""
    parallel_blocks(part, a, n, BLOCK)


cdef inline _run(kernel_fn kernel, KernelArgs* a, Py_ssize_t n, int n_threads):
    a.n[0] = n
    a.n_threads = n_threads
    with nogil:
        kernel(a)


cdef inline unary_forward(
    str where, kernel_fn kernel, KernelArgs* a, float[::1] y, const float[::1] x, int n_threads
):
    """Have a kernel overwrite y (n,) from x (n,)."""
    from toynn._kernels._check import check
    cdef Py_ssize_t n = x.shape[0]
    check(where, f"x ({n},)", n_threads, y=(y, (n,)))
    a.t[0], a.t[1] = at1(y), at1(x)
    _run(kernel, a, n, n_threads)


cdef inline unary_backward(
    str where, kernel_fn kernel, KernelArgs* a, float[::1] dx, const float[::1] dy, str name,
    const float[::1] saved, int n_threads,
):
    """Have a kernel overwrite dx (n,) from dy (n,) and what is saved (n,), called ``name``."""
    from toynn._kernels._check import check
    cdef Py_ssize_t n = saved.shape[0]
    check(where, f"{name} ({n},)", n_threads, dx=(dx, (n,)), dy=(dy, (n,)))
    a.t[0], a.t[1], a.t[2] = at1(dx), at1(dy), at1(saved)
    _run(kernel, a, n, n_threads)


cdef inline gated_forward(
    str where, kernel_fn kernel, KernelArgs* a, float[::1] y, const float[::1] gate,
    const float[::1] up, int n_threads,
):
    """Have a kernel overwrite y (n,) from gate (n,) and up (n,)."""
    from toynn._kernels._check import check
    cdef Py_ssize_t n = gate.shape[0]
    check(where, f"gate ({n},)", n_threads, y=(y, (n,)), up=(up, (n,)))
    a.t[0], a.t[1], a.t[2] = at1(y), at1(gate), at1(up)
    _run(kernel, a, n, n_threads)


cdef inline gated_backward(
    str where, kernel_fn kernel, KernelArgs* a, float[::1] dgate, float[::1] dup,
    const float[::1] dy, const float[::1] gate, const float[::1] up, int n_threads,
):
    """Have a kernel overwrite dgate (n,) and dup (n,) from dy, gate and up (n,)."""
    from toynn._kernels._check import check
    cdef Py_ssize_t n = gate.shape[0]
    check(
        where, f"gate ({n},)", n_threads, dgate=(dgate, (n,)), dup=(dup, (n,)), dy=(dy, (n,)),
        up=(up, (n,)),
    )
    a.t[0], a.t[1], a.t[2], a.t[3], a.t[4] = at1(dgate), at1(dup), at1(dy), at1(gate), at1(up)
    _run(kernel, a, n, n_threads)
