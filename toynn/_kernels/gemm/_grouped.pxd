"""Products of the experts' matrices, each with its own rows, as tasks that threads share.

The rows of an expert are contiguous; offsets say where they begin. _product.pxd says along which
axis each operand is read, and _tasks.pxd how a product is cut into tasks.
"""
from libc.stdint cimport uint8_t

from toynn._kernels.base._common cimport flush_denormals, fpstate, restore_fpstate
from toynn._kernels.base.pool cimport run_on_threads, take
from toynn._kernels.quants._types cimport Type, row_bytes, type_of
from toynn._kernels.gemm._prepacked cimport Prepacked, read_prepacked
from toynn._kernels.gemm._product cimport (
    BACKWARD_WEIGHT, FORWARD, Entry, Product, gemv_floats, kept_floats, product_of,
)
from toynn._kernels.gemm._tasks cimport multiply_task, task_floats, tasks_of

cdef struct Experts:
    Entry which
    float* c              # the output
    const float* a        # x or dy
    const void* b         # w or x
    const float* bias
    const int* offsets
    Py_ssize_t E, M, N, K, type, precision
    bint add
    int units             # of this CPU: enum Unit
    const Prepacked* kept  # panels of all matrices, one after the other; NULL: not prepacked


cdef inline Product _product_of_expert(const Experts* x, Py_ssize_t e) noexcept nogil:
    """The product of expert e's matrix and its rows."""
    cdef Py_ssize_t first = x.offsets[e], M = x.offsets[e + 1] - first, N = x.N, K = x.K
    cdef Type type = type_of(x.type)
    cdef bint forward = x.which == FORWARD
    cdef Py_ssize_t c = first * (N if forward else K), b = e * N * row_bytes(&type, K)
    if x.which == BACKWARD_WEIGHT:
        c, b = e * N * K, first * K * sizeof(float)
    cdef Product p = product_of(
        x.which, x.c + c, x.a + first * (K if forward else N), <const uint8_t*>x.b + b, M, N, K,
        x.type, x.precision, x.units,
    )
    if x.bias != NULL:
        p.bias = x.bias + e * N
    p.add = x.add
    read_prepacked(&p, x.kept)
    if p.b.packed != NULL:
        p.b.packed += e * kept_floats(&p.b, p.K)
    return p


cdef inline void _task(
    const Experts* x, Py_ssize_t i, Py_ssize_t most, void* workspace
) noexcept nogil:
    """Compute task i % most of expert i / most, if that expert has so many tasks."""
    cdef Product p = _product_of_expert(x, i // most)
    if i % most < tasks_of(&p):
        multiply_task(&p, workspace, i % most)


cdef inline Py_ssize_t floats_for(const Experts* x) noexcept nogil:
    """Floats of scratch memory for a thread: enough for an expert with any number of the M rows."""
    cdef Product p = product_of(
        x.which, NULL, NULL, NULL, x.M, x.N, x.K, x.type, x.precision, x.units
    )
    return max(task_floats(&p), gemv_floats(x.which, x.M, x.K, x.type, x.precision, x.units))


cdef struct Tasks:
    const Experts* x
    Py_ssize_t most     # most tasks of any expert
    float* rooms        # scratch memory of all threads
    Py_ssize_t floats   # scratch memory of one thread
    Py_ssize_t taken


cdef inline void _take_tasks(void* tasks, int i, int m) noexcept nogil:
    """Compute tasks on one thread. They differ in size, so a thread takes one after another."""
    cdef Tasks* all = <Tasks*>tasks
    cdef Py_ssize_t task = take(&all.taken)
    cdef fpstate before = flush_denormals()
    while task < all.x.E * all.most:
        _task(all.x, task, all.most, all.rooms + i * all.floats)
        task = take(&all.taken)
    restore_fpstate(before)


cdef inline void multiply_experts(
    const Experts* x, void* workspace, int n_threads
) noexcept nogil:
    """Compute the products of all experts."""
    cdef Tasks all = Tasks(x, 0, <float*>workspace, floats_for(x), 0)
    cdef Product p
    cdef Py_ssize_t e
    for e in range(x.E):
        p = _product_of_expert(x, e)
        all.most = max(all.most, tasks_of(&p))
    run_on_threads(_take_tasks, &all, n_threads)
