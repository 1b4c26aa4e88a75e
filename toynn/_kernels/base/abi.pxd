"""What a compiled program and a kernel agree on: one struct, two kinds of function.

A kernel reads the struct by the names of its signature: ``Forward`` of rmsnorm, laid out as
KernelArgs. loops.py writes it, and prints it; setup.py puts it in ``toynn._kernels.args.rmsnorm``.
"""

cdef enum:
    MAX_TENSORS = 12
    MAX_SIZES = 12
    MAX_OPTIONS = 4

cdef struct KernelArgs:
    void* t[MAX_TENSORS]       # outputs, saved, inputs: in the order of the signature
    Py_ssize_t n[MAX_SIZES]    # sizes, strides, switches
    float f[MAX_OPTIONS]       # real options: eps, scale
    void* workspace            # scratch memory, 64-byte aligned, as many bytes as it asked for
    int accumulate             # 0: parameter gradients are overwritten, 1: added to
    int n_threads
    const void* kept           # what the program keeps for this call between runs, or NULL

ctypedef void (*kernel_fn)(KernelArgs*) noexcept nogil
ctypedef Py_ssize_t (*scratch_fn)(KernelArgs*) noexcept nogil
