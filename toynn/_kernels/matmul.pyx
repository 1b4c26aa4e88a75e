"""The three products of a linear layer, with bias and GELU applied while a block is in cache.

    forward           y[m,n]  = act(sum_k x[m,k] w[n,k] + b[n]);  pre = the argument of act
    backward_input    dx[m,k] = sum_n dy[m,n] w[n,k]
    backward_weight   dw[n,k] = sum_m dy[m,n] x[m,k]

M rows (B*T flattened), N outputs, K inputs. float32, C-contiguous; outputs never alias inputs.
Saved for backward: pre (M,N), if there is an activation. y is overwritten; dx and dw are
overwritten, or added to if accumulate is set. Which operand is read along which axis is said in
_products.pxd; the loops, after Van Zee & van de Geijn 2015 (BLIS), doi:10.1145/2764454, are in
_blocked.pxd. A program may have backward_weight sum the squares of dw by tile (_squares.pxd).

For forward and backward_input w may be stored in blocks of any type of _format.pxd. It is expanded
while it is packed; the results are, bit for bit, those of its float32 expansion. Where x has but a
few rows, w is not packed: y is then made of dot products of rows, and each row of w is read once.
In "medium", and if multiplies_int8(), up to 16 rows are rounded to 8 bits, and blocks of Q4_0,
Q8_0, Q4_K and Q6_K multiplied as they are (dot_int8.h). A program may keep w packed (copies.pyx);
bits are the same.

Precision counts for products that are neither small nor thin (_blocked.pxd). With "medium", and if
multiplies_pairs(), both sides are rounded to bfloat16 while they are packed, and products of pairs
are added up in float32 (gemm_bf16.h). At the level amx, each precision packs one to three bfloat16
parts of each float (gemm_amx.h), where that pays (_products.pxd). All else is float32 throughout.
"""
from libc.stdlib cimport free, malloc

from toynn._kernels._blocked cimport (
    FEW_IN_INT8, GELU_EXACT, GELU_TANH, NONE, Activation, Product, can_sum_squares,
    multiply_matrices, scratch_floats,
)
from toynn._kernels._common cimport at1, at2
from toynn._kernels._copies cimport read_copy
from toynn._kernels._entry cimport entry
from toynn._kernels._format cimport rows_at
from toynn._kernels._int8 cimport HAS_INT8, VNNI_OF_BUILD, int8_floats
from toynn._kernels._panels cimport HAS_PAIRS, HAS_TILES
from toynn._kernels._products cimport (
    BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, MEDIUM, PAIRS, Entry, product_of, rounds_few,
    units_of,
)
from toynn._kernels._squares cimport Squares
from toynn._kernels.abi cimport KernelArgs, kernel_fn

from toynn._kernels._check import check, precision_index, row_length
from toynn.dtypes import GGUF_TYPES
from toynn._kernels.cpu import gains_by_pairs, int8_unit

cdef double MOST = 2.0 ** 56  # elements of a matrix: their bytes can be counted

cdef str _int8 = int8_unit(VNNI_OF_BUILD) if HAS_INT8 else ""
cdef int _units = units_of(HAS_PAIRS and gains_by_pairs(), _int8)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef float* y = <float*>a.t[0]
    cdef float* pre = <float*>a.t[1]
    cdef const float* x = <const float*>a.t[2]
    cdef const void* w = a.t[3]
    cdef const float* b = <const float*>a.t[4]
    cdef Py_ssize_t M = a.n[0], N = a.n[1], K = a.n[2], precision = a.n[3], type = a.n[5]
    cdef float* sums = y if pre == NULL else pre
    cdef Product p = product_of(FORWARD, sums, x, w, M, N, K, type, precision, _units)
    p.y = y
    p.bias = b
    p.activation = <Activation>a.n[4]
    read_copy(&p, a.kept)
    multiply_matrices(&p, a.workspace, a.n_threads)


cdef void _backward_input(KernelArgs* a) noexcept nogil:
    cdef float* dx = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const void* w = a.t[2]
    cdef Py_ssize_t M = a.n[0], N = a.n[1], K = a.n[2], precision = a.n[3], type = a.n[4]
    cdef Product p = product_of(BACKWARD_INPUT, dx, dy, w, M, N, K, type, precision, _units)
    p.add = a.accumulate
    read_copy(&p, a.kept)
    multiply_matrices(&p, a.workspace, a.n_threads)


cdef void _backward_weight(KernelArgs* a) noexcept nogil:
    cdef float* dw = <float*>a.t[0]
    cdef const float* dy = <const float*>a.t[1]
    cdef const void* x = a.t[2]
    cdef Py_ssize_t M = a.n[0], N = a.n[1], K = a.n[2], precision = a.n[3]
    cdef Squares* squares = <Squares*>a.kept
    cdef Product p = product_of(BACKWARD_WEIGHT, dw, dy, x, M, N, K, 0, precision, _units)
    p.add = a.accumulate
    if squares != NULL:
        squares.valid = can_sum_squares(&p)
        p.squares = squares.sums if squares.valid else NULL
    multiply_matrices(&p, a.workspace, a.n_threads)


_ENTRIES = dict(forward=FORWARD, backward_input=BACKWARD_INPUT, backward_weight=BACKWARD_WEIGHT)
_ACTIVATIONS = {"none": NONE, "gelu_tanh": GELU_TANH, "gelu_exact": GELU_EXACT}


def _known(where, value, values):
    if value not in values:
        raise ValueError(f"{where} needs one of {', '.join(values)}; got {value!r}")
    return values[value]


def multiplies_pairs():
    """Whether "medium" multiplies bfloat16 pairs at this level on this CPU, and not floats."""
    return bool(_units & PAIRS)


def multiplies_int8():
    """With what "medium" multiplies a few rows by blocks in 8 bits: "AVX2", ..; "": it does not."""
    return _int8


def multiplies_tiles():
    """Whether this level multiplies bfloat16 parts of floats in the tiles of AMX."""
    return bool(HAS_TILES)


def workspace(
    str name, Py_ssize_t M, Py_ssize_t N, Py_ssize_t K, int precision=0, int activation=0,
    int type=0, int n_threads=1,
):
    """Bytes of scratch memory that an entry needs at these sizes; 0 where it needs none.

    The activation does not matter, and the type of w only where a few rows are rounded to 8 bits.
    """
    cdef Entry which = _known("matmul.workspace", name, _ENTRIES)
    cdef double most = max(<double>M * N, <double>N * K, <double>M * K)
    cdef Product p
    cdef Py_ssize_t floats
    if most > MOST:
        raise ValueError(
            f"matmul.workspace: matrices of at most 2^56 elements; got M, N, K = {M}, {N}, {K}"
        )
    if min(M, N, K) < 0 or not 0 <= precision <= MEDIUM or n_threads < 1:
        raise ValueError(
            f"matmul.workspace: needs M, N, K >= 0, precision 0 to {MEDIUM} and n_threads >= 1; "
            f"got {M}, {N}, {K}, {precision} and {n_threads}"
        )
    p = product_of(which, NULL, NULL, NULL, M, N, K, 0, precision, _units)
    floats = scratch_floats(&p, n_threads)
    if rounds_few(which, type, precision, _units):
        floats = max(floats, int8_floats(min(M, FEW_IN_INT8), K))  # a run may have fewer rows
    return floats * sizeof(float)


cdef int _run(
    str name, kernel_fn kernel, KernelArgs* a, str precision, int type=0, size_t kept=0
) except -1:
    """Run a kernel in a precision, with scratch memory of its own."""
    cdef int kind = precision_index(f"matmul.{name}", precision)
    cdef Py_ssize_t nbytes = workspace(
        name, a.n[0], a.n[1], a.n[2], kind, type=type, n_threads=a.n_threads
    )
    a.n[3] = kind
    a.kept = <void*>kept
    a.workspace = malloc(nbytes) if nbytes else NULL
    if nbytes and a.workspace == NULL:
        raise MemoryError(f"matmul.{name}: no {nbytes} bytes of scratch memory")
    with nogil:
        kernel(a)
    free(a.workspace)
    return 0


def forward(
    float[:, ::1] y, float[:, ::1] pre, const float[:, ::1] x, w, const float[::1] b,
    str activation="none", str type="F32", int n_threads=1, str precision="highest",
):
    """Overwrite y (M,N), and pre (M,N) unless None, from x (M,K), w (N,K) and b (N,) or None.

    ``activation`` is "none", "gelu_tanh" or "gelu_exact". Of a ``type`` other than "F32", w holds
    bytes: (N, bytes of a row of K elements). ``precision`` is "highest", "high" or "medium".
    """
    cdef KernelArgs a
    cdef Py_ssize_t M = x.shape[0], K = x.shape[1], N = w.shape[0]
    cdef Py_ssize_t kind = _known("matmul.forward: activation", activation, _ACTIVATIONS)
    needed = {"y": (y, (M, N)), "w": (w, (N, row_length("matmul.forward", type, K)))}
    if pre is not None:
        needed["pre"] = (pre, (M, N))
    if b is not None:
        needed["b"] = (b, (N,))
    check("matmul.forward", f"x ({M}, {K}), {N} outputs", n_threads, **needed)
    a.t[0], a.t[2], a.t[3] = at2(y), at2(x), rows_at(w, type)
    a.t[1] = NULL if pre is None else at2(pre)
    a.t[4] = NULL if b is None else at1(b)
    a.n[0], a.n[1], a.n[2], a.n[4], a.n[5] = M, N, K, kind, GGUF_TYPES[type]
    a.n_threads = n_threads
    _run("forward", _forward, &a, precision, GGUF_TYPES[type])


def backward_input(
    float[:, ::1] dx, const float[:, ::1] dy, w, str type="F32", bint accumulate=False,
    int n_threads=1, str precision="highest",
):
    """Overwrite dx (M,K), or add to it, from dy (M,N) and w (N,K): floats, or bytes of ``type``."""
    cdef KernelArgs a
    cdef Py_ssize_t M = dy.shape[0], N = dy.shape[1], K = dx.shape[1]
    check(
        "matmul.backward_input", f"dy ({M}, {N}), {K} inputs", n_threads, dx=(dx, (M, K)),
        w=(w, (N, row_length("matmul.backward_input", type, K))),
    )
    a.t[0], a.t[1], a.t[2] = at2(dx), at2(dy), rows_at(w, type)
    a.n[0], a.n[1], a.n[2], a.n[4] = M, N, K, GGUF_TYPES[type]
    a.accumulate = accumulate
    a.n_threads = n_threads
    _run("backward_input", _backward_input, &a, precision)


def backward_weight(
    float[:, ::1] dw, const float[:, ::1] dy, const float[:, ::1] x, bint accumulate=False,
    int n_threads=1, str precision="highest", size_t kept=0,
):
    """Overwrite dw (N,K), or add to it when ``accumulate`` is set, from dy (M,N) and x (M,K).

    ``kept`` is the address of where it is to leave the sums of its squares (_squares.pxd), if any.
    """
    cdef KernelArgs a
    cdef Py_ssize_t M = dy.shape[0], N = dy.shape[1], K = x.shape[1]
    check(
        "matmul.backward_weight", f"dy ({M}, {N}), {K} inputs", n_threads, dw=(dw, (N, K)),
        x=(x, (M, K)),
    )
    a.t[0], a.t[1], a.t[2] = at2(dw), at2(dy), at2(x)
    a.n[0], a.n[1], a.n[2] = M, N, K
    a.accumulate = accumulate
    a.n_threads = n_threads
    _run("backward_weight", _backward_weight, &a, precision, 0, kept)


entries = {
    "forward": entry(_forward, "y pre? x w b?", sizes="M N K precision activation type"),
    "backward_input": entry(_backward_input, "dx dy w", sizes="M N K precision type"),
    "backward_weight": entry(_backward_weight, "dw dy x", sizes="M N K precision"),
}
