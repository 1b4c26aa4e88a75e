"""Grouped products: each expert's matrix times the rows that were sent to it.

    forward           y[r,n]    = sum_k x[r,k] w[e,n,k] + b[e,n]
    backward_input    dx[r,k]   = sum_n dy[r,n] w[e,n,k]
    backward_weight   dw[e,n,k] = sum_r dy[r,n] x[r,k]
    backward_bias     db[e,n]   = sum_r dy[r,n]            offsets[e] <= r < offsets[e+1]

M rows, sorted by expert (expert_rows.pyx); E experts of N outputs and K inputs. Rows from
offsets[E] on belong to no expert and are not touched.

For forward and backward_input w may have any type of _types.pxd. Experts without rows are not
read. A task is some columns of one expert's product (_tasks.pxd). It dequantizes only the part of
the matrix that it packs, so that no expert is ever dequantized as a whole. Precision means the same
as in matmul.pyx, for an expert with few rows too.
Source: Gale et al. 2022, MegaBlocks, arXiv:2211.15841, section 4.
"""
from libc.stdint cimport uint8_t
from libc.string cimport memset

from toynn._kernels.args.experts cimport BackwardBias, BackwardInput, BackwardWeight, Forward
from toynn._kernels.base._common cimport flush_denormals, fpstate, restore_fpstate
from toynn._kernels.base._parallel cimport parallel_for, part_fn
from toynn._kernels.base.abi cimport kernel_fn, scratch_fn
from toynn._kernels.base.entry cimport entry
from toynn._kernels.base.pool cimport run_on_threads, take
from toynn._kernels.gemm._prepacked cimport Prepacked, read_prepacked
from toynn._kernels.gemm._product cimport (
    BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Entry, Product, gemv_floats, kept_floats, product_of,
    units,
)
from toynn._kernels.gemm._tasks cimport multiply_task, task_floats, tasks_of
from toynn._kernels.quants._types cimport Type, row_bytes, type_of

# kept: from toynn._kernels.gemm._prepacked cimport Prepacked

cdef int _units = units()

cdef struct Experts:
    Entry which
    float* c              # the output
    const float* a        # x or dy
    const void* b         # w or x
    const float* bias
    const int* offsets
    Py_ssize_t E, M, N, K, type, precision
    bint add
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
        x.type, x.precision, _units,
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


cdef inline Py_ssize_t _floats_for(const Experts* x) noexcept nogil:
    """Floats of scratch memory for a thread: enough for an expert with any number of the M rows."""
    cdef Product p = product_of(
        x.which, NULL, NULL, NULL, x.M, x.N, x.K, x.type, x.precision, _units
    )
    return max(task_floats(&p), gemv_floats(x.which, x.M, x.K, x.type, x.precision, _units))


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


cdef inline void _multiply_experts(
    const Experts* x, void* workspace, int n_threads
) noexcept nogil:
    """Compute the products of all experts."""
    cdef Tasks all = Tasks(x, 0, <float*>workspace, _floats_for(x), 0)
    cdef Product p
    cdef Py_ssize_t e
    for e in range(x.E):
        p = _product_of_expert(x, e)
        all.most = max(all.most, tasks_of(&p))
    run_on_threads(_take_tasks, &all, n_threads)


ctypedef fused Args:
    Forward
    BackwardInput
    BackwardWeight


cdef inline Experts _experts(Args* a) noexcept nogil:
    if Args is Forward:
        return Experts(
            FORWARD, a.y, a.x, a.w, a.b, a.offsets, a.E, a.M, a.N, a.K, a.type, a.precision, False,
            a.kept,
        )
    elif Args is BackwardInput:
        return Experts(
            BACKWARD_INPUT, a.dx, a.dy, a.w, NULL, a.offsets, a.E, a.M, a.N, a.K, a.type,
            a.precision, a.accumulate, a.kept,
        )
    else:
        return Experts(
            BACKWARD_WEIGHT, a.dw, a.dy, a.x, NULL, a.offsets, a.E, a.M, a.N, a.K, 0, a.precision,
            a.accumulate, NULL,
        )


cdef void _multiply(Args* a) noexcept nogil:
    cdef Experts all = _experts(a)
    _multiply_experts(&all, a.workspace, a.n_threads)


cdef Py_ssize_t _scratch(Args* a) noexcept nogil:
    cdef Experts all = _experts(a)
    return a.n_threads * _floats_for(&all) * sizeof(float)


cdef void _bias_experts(BackwardBias* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t e, r, n, N = a.N
    for e in range(first, last):
        if N and not a.accumulate:
            memset(a.db + e * N, 0, N * sizeof(float))
        for r in range(a.offsets[e], min(a.offsets[e + 1], a.M)):
            for n in range(N):
                a.db[e * N + n] += a.dy[r * N + n]


cdef void _backward_bias(BackwardBias* a) noexcept nogil:
    parallel_for(<part_fn>_bias_experts, a, a.E)


def _checked(where, arrays, sizes, options):
    """Refuse offsets that do not ascend from 0 to at most M."""
    cdef const int[::1] offsets = arrays["offsets"]
    cdef Py_ssize_t e, E = offsets.shape[0] - 1, M = sizes["M"]
    if E < 0 or offsets[0] != 0:
        raise ValueError(
            f"{where}: offsets needs E + 1 numbers that begin with 0; got {list(offsets)}"
        )
    for e in range(E):
        if offsets[e + 1] < offsets[e]:
            raise ValueError(
                f"{where}: offsets must not descend; offsets[{e + 1}] is {offsets[e + 1]} after "
                f"{offsets[e]}"
            )
    if offsets[E] > M:
        raise ValueError(f"{where}: offsets end at {offsets[E]}; there are {M} rows")


forward = entry(
    <kernel_fn>_multiply[Forward],
    "y[M N] <- x[M K] type w[E N K] b[E N]? i32 offsets[E+1] "
    "| precision=highest type=F32 kept Prepacked",
    <scratch_fn>_scratch[Forward],
    _checked,
)
backward_input = entry(
    <kernel_fn>_multiply[BackwardInput],
    "dx[M K]+ <- dy[M N] type w[E N K] i32 offsets[E+1] "
    "| precision=highest type=F32 kept Prepacked",
    <scratch_fn>_scratch[BackwardInput],
    _checked,
)
backward_weight = entry(
    <kernel_fn>_multiply[BackwardWeight],
    "dw[E N K]+ <- dy[M N] x[M K] i32 offsets[E+1] | precision=highest",
    <scratch_fn>_scratch[BackwardWeight],
    _checked,
)
backward_bias = entry(
    <kernel_fn>_backward_bias, "db[E N]+ <- dy[M N] i32 offsets[E+1]", NULL, _checked
)
