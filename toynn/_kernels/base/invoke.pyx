"""One call of a kernel outside of a program."""
from cpython.buffer cimport PyBUF_FULL_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from toynn._kernels.base.abi cimport KernelArgs, kernel_fn, scratch_fn


cdef int _fill(
    KernelArgs* a, list tensors, tuple sizes, tuple options, int n_threads
) except -1:
    cdef Py_buffer buffer
    memset(a, 0, sizeof(KernelArgs))
    for i in range(len(tensors)):
        if tensors[i] is not None:
            PyObject_GetBuffer(tensors[i], &buffer, PyBUF_FULL_RO)
            a.t[i] = buffer.buf
            PyBuffer_Release(&buffer)  # the caller keeps the array alive
    for i in range(len(sizes)):
        a.n[i] = sizes[i]
    for i in range(len(options)):
        a.f[i] = options[i]
    a.n_threads = n_threads
    return 0


def scratch_bytes(scratch, tuple sizes, int n_threads, int slot=0, Py_ssize_t rows=1):
    """Return the bytes of scratch memory that a kernel needs at these sizes.

    The size in ``slot`` is that of so many ``rows``. The result serves any smaller number, too.
    """
    cdef KernelArgs a
    cdef scratch_fn needed = <scratch_fn>PyCapsule_GetPointer(scratch, "toynn.scratch")
    cdef Py_ssize_t each, count, most
    _fill(&a, [], sizes, (), n_threads)
    most, each = needed(&a), a.n[slot] // rows
    for count in range(1, rows):
        a.n[slot] = each * count
        most = max(most, needed(&a))
    return most


def invoke(
    kernel, list tensors, tuple sizes, tuple options, Py_ssize_t scratch, bint accumulate,
    int n_threads, size_t kept,
):
    """Call a kernel, given as a capsule, with tensors (arrays or None), sizes and options.

    Raises MemoryError if ``scratch`` bytes of scratch memory cannot be allocated.
    """
    cdef KernelArgs a
    cdef kernel_fn function = <kernel_fn>PyCapsule_GetPointer(kernel, "toynn.kernel")
    _fill(&a, tensors, sizes, options, n_threads)
    a.accumulate = accumulate
    a.kept = <const void*>kept
    a.workspace = malloc(scratch) if scratch else NULL
    if scratch and a.workspace == NULL:
        raise MemoryError(f"cannot allocate {scratch} bytes of scratch memory")
    with nogil:
        function(&a)
    free(a.workspace)
