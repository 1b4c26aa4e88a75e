"""Grouped products: each expert's matrix times the rows that were sent to it.

    forward           y[r,n]    = sum_k x[r,k] w[e,n,k] + b[e,n]
    backward_input    dx[r,k]   = sum_n dy[r,n] w[e,n,k]
    backward_weight   dw[e,n,k] = sum_r dy[r,n] x[r,k]
    backward_bias     db[e,n]   = sum_r dy[r,n]            offsets[e] <= r < offsets[e+1]

M rows, sorted by expert (expert_rows.pyx), of which the first offsets[E] are there; E experts of N
outputs and K inputs. float32, C-contiguous; outputs never alias inputs. Nothing is saved. y is
overwritten; dx, dw and db are overwritten, or added to if accumulate is set. Rows beyond
offsets[E] are neither read nor written.

For forward and backward_input w may be stored in blocks of any type of _format.pxd. An expert
without rows is not read, and none is expanded as a whole: threads take tasks, each some columns of
one expert's product (_tasks.pxd), and expand what they pack. Precision counts as in matmul.pyx.
Source: Gale et al. 2022, MegaBlocks, arXiv:2211.15841, section 4.
"""
from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from toynn._kernels._blocked cimport Product
from toynn._kernels._common cimport (
    at2, at3, flush_denormals, fpstate, ids1, restore_fpstate, team,
)
from toynn._kernels._entry cimport entry
from toynn._kernels._format cimport Format, format_of, row_bytes
from toynn._kernels._gemm cimport begin_tiles, end_tiles
from toynn._kernels._panels cimport HAS_PAIRS, HAS_TILES
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels._products cimport (
    BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, MEDIUM, Entry, product_of,
)
from toynn._kernels._tasks cimport multiply_task, task_floats, tasks_of
from toynn._kernels.abi cimport KernelArgs, kernel_fn

from toynn._kernels._check import check, precision_index, row_length
from toynn.dtypes import GGUF_TYPES
from toynn._kernels.cpu import gains_by_pairs

cdef double MOST = 2.0 ** 56  # elements of a matrix: their bytes can be counted

cdef bint _pairs = HAS_PAIRS and gains_by_pairs()

cdef struct Experts:
    Entry which
    float* c              # what is written
    const float* a        # x or dy
    const void* b         # w or x
    const float* bias
    const int* offsets
    Py_ssize_t E, N, K, type, precision
    bint add


cdef inline Product _product_of_expert(const Experts* x, Py_ssize_t e) noexcept nogil:
    """The product of expert e with its rows."""
    cdef Py_ssize_t first = x.offsets[e], M = x.offsets[e + 1] - first, N = x.N, K = x.K
    cdef Format format = format_of(x.type)
    cdef Product p
    if x.which == FORWARD:
        p = product_of(
            FORWARD, x.c + first * N, x.a + first * K,
            <const uint8_t*>x.b + e * N * row_bytes(&format, K), M, N, K, x.type, x.precision,
            _pairs,
        )
        if x.bias != NULL:
            p.bias = x.bias + e * N
    elif x.which == BACKWARD_INPUT:
        p = product_of(
            BACKWARD_INPUT, x.c + first * K, x.a + first * N,
            <const uint8_t*>x.b + e * N * row_bytes(&format, K), M, N, K, x.type, x.precision,
            _pairs,
        )
    else:
        p = product_of(
            BACKWARD_WEIGHT, x.c + e * N * K, x.a + first * N, <const float*>x.b + first * K, M, N,
            K, 0, x.precision, _pairs,
        )
    p.add = x.add
    return p


cdef inline void _task(
    const Experts* x, Py_ssize_t i, Py_ssize_t most, void* workspace
) noexcept nogil:
    """Task i % most of expert i / most, which may have fewer."""
    cdef Product p = _product_of_expert(x, i // most)
    if i % most < tasks_of(&p):
        multiply_task(&p, workspace, i % most)


cdef void _multiply(
    const Experts* x, float* workspace, Py_ssize_t floats, int n_threads
) noexcept nogil:
    """All products: tasks of unlike size, so a thread takes the next when it is done with one."""
    cdef Product p
    cdef Py_ssize_t e, i, most = 0
    cdef fpstate before = 0
    for e in range(x.E):
        p = _product_of_expert(x, e)
        most = max(most, tasks_of(&p))
    with parallel(num_threads=team(n_threads)):
        before = flush_denormals()
        if HAS_TILES:
            begin_tiles()
        for i in prange(x.E * most, schedule="dynamic"):
            _task(x, i, most, workspace + threadid() * floats)
        if HAS_TILES:
            end_tiles()
        restore_fpstate(before)


cdef inline Py_ssize_t _floats(
    Entry which, Py_ssize_t M, Py_ssize_t N, Py_ssize_t K, Py_ssize_t precision
) noexcept nogil:
    """Floats of scratch memory for a thread: as many as if one expert had all rows, or more."""
    cdef Product p = product_of(which, NULL, NULL, NULL, M, N, K, 0, precision, _pairs)
    return task_floats(&p)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef const void* w = a.t[2]
    cdef const float* b = <const float*>a.t[3]
    cdef const int* offsets = <const int*>a.t[4]
    cdef Py_ssize_t E = a.n[0], M = a.n[1], N = a.n[2], K = a.n[3]
    cdef Py_ssize_t precision = a.n[4], type = a.n[5]
    cdef Experts all = Experts(
        FORWARD, y, x, w, b, offsets, E, N, K, type, precision, False
    )
    _multiply(&all, <float*>a.workspace, _floats(FORWARD, M, N, K, precision), a.n_threads)


cdef void _backward_input(KernelArgs* a) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const void* w = a.t[2]
    cdef const int* offsets = <const int*>a.t[3]
    cdef Py_ssize_t E = a.n[0], M = a.n[1], N = a.n[2], K = a.n[3]
    cdef Py_ssize_t precision = a.n[4], type = a.n[5]
    cdef Experts all = Experts(
        BACKWARD_INPUT, dx, dy, w, NULL, offsets, E, N, K, type, precision, a.accumulate
    )
    _multiply(&all, <float*>a.workspace, _floats(BACKWARD_INPUT, M, N, K, precision), a.n_threads)


cdef void _backward_weight(KernelArgs* a) noexcept nogil:
    cdef float* dw = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const void* x = a.t[2]
    cdef const int* offsets = <const int*>a.t[3]
    cdef Py_ssize_t E = a.n[0], M = a.n[1], N = a.n[2], K = a.n[3], precision = a.n[4]
    cdef Experts all = Experts(
        BACKWARD_WEIGHT, dw, dy, x, NULL, offsets, E, N, K, 0, precision, a.accumulate
    )
    _multiply(&all, <float*>a.workspace, _floats(BACKWARD_WEIGHT, M, N, K, precision), a.n_threads)


cdef void _bias_experts(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* db = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const int* offsets = <const int*>a.t[2]
    cdef Py_ssize_t e, r, n, M = a.n[1], N = a.n[2]
    for e in range(first, last):
        if not a.accumulate:
            memset(db + e * N, 0, N * sizeof(float))
        for r in range(offsets[e], min(offsets[e + 1], M)):
            for n in range(N):
                db[e * N + n] += dy[r * N + n]


cdef void _backward_bias(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t E = a.n[0]
    parallel_for(_bias_experts, a, E)


_ENTRIES = dict(forward=FORWARD, backward_input=BACKWARD_INPUT, backward_weight=BACKWARD_WEIGHT)


def workspace(
    str name, Py_ssize_t E, Py_ssize_t M, Py_ssize_t N, Py_ssize_t K=0, int precision=0,
    int type=0, int n_threads=1,
):
    """Bytes of scratch memory that an entry needs at these sizes; 0 where it needs none."""
    cdef double most = max(<double>M * N, <double>N * K * E, <double>M * K)
    if most > MOST:
        raise ValueError(
            f"experts.workspace: matrices of at most 2^56 elements; got E, M, N, K = {E}, {M}, "
            f"{N}, {K}"
        )
    if min(E, M, N, K) < 0 or not 0 <= precision <= MEDIUM or n_threads < 1:
        raise ValueError(
            f"experts.workspace: needs E, M, N, K >= 0, precision 0 to {MEDIUM} and "
            f"n_threads >= 1; got {E}, {M}, {N}, {K}, {precision} and {n_threads}"
        )
    if name not in _ENTRIES:
        return 0
    return n_threads * _floats(_ENTRIES[name], M, N, K, precision) * sizeof(float)


def _check_offsets(where, const int[::1] offsets, Py_ssize_t M):
    """Raise ValueError unless offsets ascend from 0 to at most M."""
    cdef Py_ssize_t e, E = offsets.shape[0] - 1
    if E < 0 or offsets[0] != 0:
        raise ValueError(f"{where}: offsets needs E + 1 numbers from 0 on; got {list(offsets)}")
    for e in range(E):
        if offsets[e + 1] < offsets[e]:
            raise ValueError(f"{where}: offsets must not descend: {offsets[e + 1]} at {e + 1}")
    if offsets[E] > M:
        raise ValueError(f"{where}: offsets end at {offsets[E]}; there are {M} rows")


cdef int _run(str name, kernel_fn kernel, KernelArgs* a, str precision) except -1:
    """Run a kernel in a precision, with scratch memory of its own."""
    cdef int kind = precision_index(f"experts.{name}", precision)
    cdef Py_ssize_t nbytes = workspace(
        name, a.n[0], a.n[1], a.n[2], a.n[3], kind, n_threads=a.n_threads
    )
    a.n[4] = kind
    a.workspace = malloc(nbytes) if nbytes else NULL
    if nbytes and a.workspace == NULL:
        raise MemoryError(f"experts.{name}: no {nbytes} bytes of scratch memory")
    with nogil:
        kernel(a)
    free(a.workspace)
    return 0


cdef void* _matrices_at(w, str type) except? NULL:
    """The address of the experts' matrices: floats, or else bytes."""
    cdef const float[:, :, ::1] values
    cdef const uint8_t[:, :, ::1] blocks
    if type == "F32":
        values = w
        return at3(values)
    blocks = w
    return <void*>&blocks[0, 0, 0] if blocks.size else NULL


def forward(
    float[:, ::1] y, const float[:, ::1] x, w, const float[:, ::1] b, const int[::1] offsets,
    str type="F32", int n_threads=1, str precision="highest",
):
    """Overwrite y (M,N) from x (M,K), w (E,N,K), b (E,N) or None, and offsets (E+1,).

    Of a ``type`` other than "F32", w holds bytes: (E, N, bytes of a row of K elements).
    ``precision`` is "highest", "high" or "medium".
    """
    cdef KernelArgs a
    cdef Py_ssize_t M = x.shape[0], K = x.shape[1], N = y.shape[1], E = offsets.shape[0] - 1
    needed = {"y": (y, (M, N)), "w": (w, (E, N, row_length("experts.forward", type, K)))}
    if b is not None:
        needed["b"] = (b, (E, N))
    check("experts.forward", f"x ({M}, {K}), offsets ({E + 1},)", n_threads, **needed)
    _check_offsets("experts.forward", offsets, M)
    a.t[0], a.t[1], a.t[2], a.t[4] = at2(y), at2(x), _matrices_at(w, type), ids1(offsets)
    a.t[3] = NULL if b is None else at2(b)
    a.n[0], a.n[1], a.n[2], a.n[3], a.n[5] = E, M, N, K, GGUF_TYPES[type]
    a.n_threads = n_threads
    _run("forward", _forward, &a, precision)


def backward_input(
    float[:, ::1] dx, const float[:, ::1] dy, w, const int[::1] offsets, str type="F32",
    bint accumulate=False, int n_threads=1, str precision="highest",
):
    """Overwrite dx (M,K), or add to it, from dy (M,N), w (E,N,K) and offsets (E+1,)."""
    cdef KernelArgs a
    cdef Py_ssize_t M = dy.shape[0], N = dy.shape[1], K = dx.shape[1], E = offsets.shape[0] - 1
    check(
        "experts.backward_input", f"dy ({M}, {N}), {K} inputs, offsets ({E + 1},)", n_threads,
        dx=(dx, (M, K)), w=(w, (E, N, row_length("experts.backward_input", type, K))),
    )
    _check_offsets("experts.backward_input", offsets, M)
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(dx), at2(dy), _matrices_at(w, type), ids1(offsets)
    a.n[0], a.n[1], a.n[2], a.n[3], a.n[5] = E, M, N, K, GGUF_TYPES[type]
    a.accumulate = accumulate
    a.n_threads = n_threads
    _run("backward_input", _backward_input, &a, precision)


def backward_weight(
    float[:, :, ::1] dw, const float[:, ::1] dy, const float[:, ::1] x, const int[::1] offsets,
    bint accumulate=False, int n_threads=1, str precision="highest",
):
    """Overwrite dw (E,N,K), or add to it, from dy (M,N), x (M,K) and offsets (E+1,)."""
    cdef KernelArgs a
    cdef Py_ssize_t M = dy.shape[0], N = dy.shape[1], K = x.shape[1], E = offsets.shape[0] - 1
    check(
        "experts.backward_weight", f"dy ({M}, {N}), offsets ({E + 1},)", n_threads,
        dw=(dw, (E, N, K)), x=(x, (M, K)),
    )
    _check_offsets("experts.backward_weight", offsets, M)
    a.t[0], a.t[1], a.t[2], a.t[3] = at3(dw), at2(dy), at2(x), ids1(offsets)
    a.n[0], a.n[1], a.n[2], a.n[3] = E, M, N, K
    a.accumulate = accumulate
    a.n_threads = n_threads
    _run("backward_weight", _backward_weight, &a, precision)


def backward_bias(
    float[:, ::1] db, const float[:, ::1] dy, const int[::1] offsets, bint accumulate=False,
    int n_threads=1,
):
    """Overwrite db (E,N), or add to it, from dy (M,N) and offsets (E+1,)."""
    cdef KernelArgs a
    cdef Py_ssize_t M = dy.shape[0], N = dy.shape[1], E = offsets.shape[0] - 1
    check(
        "experts.backward_bias", f"dy ({M}, {N}), offsets ({E + 1},)", n_threads, db=(db, (E, N))
    )
    _check_offsets("experts.backward_bias", offsets, M)
    a.t[0], a.t[1], a.t[2] = at2(db), at2(dy), ids1(offsets)
    a.n[0], a.n[1], a.n[2] = E, M, N
    a.accumulate = accumulate
    a.n_threads = n_threads
    with nogil:
        _backward_bias(&a)


entries = {
    "forward": entry(_forward, "y x w b? offsets", sizes="E M N K precision type"),
    "backward_input": entry(_backward_input, "dx dy w offsets", sizes="E M N K precision type"),
    "backward_weight": entry(_backward_weight, "dw dy x offsets", sizes="E M N K precision"),
    "backward_bias": entry(_backward_bias, "db dy offsets", sizes="E M N"),
}
