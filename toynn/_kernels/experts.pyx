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
one expert's product (_grouped.pxd), and expand what they pack. Precision counts as in matmul.pyx,
that of an expert's few rows too.
Source: Gale et al. 2022, MegaBlocks, arXiv:2211.15841, section 4.
"""
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from toynn._kernels._common cimport at2, at3, ids1
from toynn._kernels._entry cimport entry
from toynn._kernels._grouped cimport Experts, floats_for, multiply_experts
from toynn._kernels._int8 cimport HAS_INT8, VNNI_OF_BUILD
from toynn._kernels._panels cimport HAS_PAIRS
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels._products cimport BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, MEDIUM, units_of
from toynn._kernels.abi cimport KernelArgs, kernel_fn

from toynn._kernels._check import check, precision_index, row_length
from toynn.dtypes import GGUF_TYPES
from toynn._kernels.cpu import gains_by_pairs, int8_unit

cdef double MOST = 2.0 ** 56  # elements of a matrix: their bytes can be counted

cdef int _units = units_of(
    HAS_PAIRS and gains_by_pairs(), int8_unit(VNNI_OF_BUILD) if HAS_INT8 else ""
)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef const float* x = <const float*>a.t[1]
    cdef const void* w = a.t[2]
    cdef const float* b = <const float*>a.t[3]
    cdef const int* offsets = <const int*>a.t[4]
    cdef Py_ssize_t E = a.n[0], M = a.n[1], N = a.n[2], K = a.n[3]
    cdef Py_ssize_t precision = a.n[4], type = a.n[5]
    cdef Experts all = Experts(
        FORWARD, y, x, w, b, offsets, E, M, N, K, type, precision, False, _units, a.kept
    )
    multiply_experts(&all, a.workspace, a.n_threads)


cdef void _backward_input(KernelArgs* a) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const void* w = a.t[2]
    cdef const int* offsets = <const int*>a.t[3]
    cdef Py_ssize_t E = a.n[0], M = a.n[1], N = a.n[2], K = a.n[3]
    cdef Py_ssize_t precision = a.n[4], type = a.n[5]
    cdef Experts all = Experts(
        BACKWARD_INPUT, dx, dy, w, NULL, offsets, E, M, N, K, type, precision, a.accumulate, _units,
        a.kept,
    )
    multiply_experts(&all, a.workspace, a.n_threads)


cdef void _backward_weight(KernelArgs* a) noexcept nogil:
    cdef float* dw = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const void* x = a.t[2]
    cdef const int* offsets = <const int*>a.t[3]
    cdef Py_ssize_t E = a.n[0], M = a.n[1], N = a.n[2], K = a.n[3], precision = a.n[4]
    cdef Experts all = Experts(
        BACKWARD_WEIGHT, dw, dy, x, NULL, offsets, E, M, N, K, 0, precision, a.accumulate, _units,
        NULL,
    )
    multiply_experts(&all, a.workspace, a.n_threads)


cdef void _bias_experts(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* db = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const int* offsets = <const int*>a.t[2]
    cdef Py_ssize_t e, r, n, M = a.n[1], N = a.n[2]
    for e in range(first, last):
        if N and not a.accumulate:
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
    cdef Experts all
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
    all = Experts(
        _ENTRIES[name], NULL, NULL, NULL, NULL, NULL, E, M, N, K, type, precision, False,
        _units, NULL,
    )
    return n_threads * floats_for(&all) * sizeof(float)


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


cdef int _run(
    str name, kernel_fn kernel, KernelArgs* a, str precision, int type=0
) except -1:
    """Run a kernel in a precision, with scratch memory of its own."""
    cdef int kind = precision_index(f"experts.{name}", precision)
    cdef Py_ssize_t nbytes = workspace(
        name, a.n[0], a.n[1], a.n[2], a.n[3], kind, type, n_threads=a.n_threads
    )
    a.n[4] = kind
    a.kept = NULL
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
    _run("forward", _forward, &a, precision, GGUF_TYPES[type])


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
