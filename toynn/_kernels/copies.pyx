"""Copies of a matrix w (N,K) that seldom changes, in panels: packed once for many runs.

    pack    panels = w, as matmul.forward or matmul.backward_input packs it

w is float32, or in blocks of any type of _format.pxd. The panels are floats, or the bfloat16 pairs
or parts that the entry multiplies (form); they hold what the product would pack by itself, bit for
bit, so that nothing depends on whether there is a copy. How panels look is said in _panels.pxd, in
which order they lie in _copies.pxd.
Source: packing ahead of time, as in Khudia et al. 2021, FBGEMM, arXiv:2101.05615, section 3.
"""
from toynn._kernels._blocked cimport Product, is_packed
from toynn._kernels._common cimport at1
from toynn._kernels._copies cimport MOST_COPIES, Copy, copied_operand, form_of, terms_of
from toynn._kernels._entry cimport entry
from toynn._kernels._format cimport rows_at
from toynn._kernels._int8 cimport HAS_INT8, VNNI_OF_BUILD
from toynn._kernels._panels cimport (
    HAS_PAIRS, NR, STRETCH, Operand, blocks_of, kept_floats, kept_start, pack as pack_panels,
    panels as panels_of, terms_per_pass,
)
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels._products cimport (
    BACKWARD_INPUT, FORWARD, MEDIUM, Entry, product_of, units_of,
)
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check, row_length
from toynn.dtypes import GGUF_TYPES
from toynn._kernels.cpu import gains_by_pairs, int8_unit

ENTRIES = ("forward", "backward_input")  # of matmul and experts, as _products.pxd numbers them
MOST = MOST_COPIES  # of a matrix, that an update keeps as the matrix is

cdef enum:
    TOGETHER = STRETCH // NR  # panels that are packed at once: a run of blocks is expanded once


cdef void _pack_groups(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Groups of panels first .. last - 1, counted through all passes."""
    cdef float* y = <float*>a.t[0]
    cdef Copy copy = Copy(y, a.n[0], a.n[1], a.n[2], a.n[3])
    cdef Operand b = copied_operand(&copy, a.t[1], a.n[4])
    cdef Py_ssize_t i, p0, p1, k, kc, most = terms_per_pass(&b), K = terms_of(&copy)
    cdef Py_ssize_t groups = blocks_of(panels_of(&b), TOGETHER)
    for i in range(first, last):
        p0 = i % groups * TOGETHER
        p1 = min(p0 + TOGETHER, panels_of(&b))
        k = i // groups * most
        kc = min(most, K - k)
        pack_panels(y + kept_start(&b, p0, k, kc), &b, p0, p1, k, kc)


cdef void _pack(KernelArgs* a) noexcept nogil:
    cdef Copy copy = Copy(NULL, a.n[0], a.n[1], a.n[2], a.n[3])
    cdef Operand b = copied_operand(&copy, NULL, a.n[4])
    cdef Py_ssize_t passes = blocks_of(terms_of(&copy), terms_per_pass(&b))
    parallel_for(_pack_groups, a, passes * blocks_of(panels_of(&b), TOGETHER))


def form(str name, Py_ssize_t M, Py_ssize_t N, Py_ssize_t K, int precision, int type=0):
    """In which form an entry packs w (N,K) for M rows in a precision; None where it does not.

    0 are floats, 1 pairs of bfloat16, 2, 4 and 6 one to three parts of bfloat16 for tiles.
    """
    cdef Entry which = FORWARD if name == "forward" else BACKWARD_INPUT
    cdef Product p = product_of(
        which, NULL, NULL, NULL, M, N, K, type, min(precision, MEDIUM),
        units_of(
            HAS_PAIRS and gains_by_pairs(), int8_unit(VNNI_OF_BUILD) if HAS_INT8 else ""
        ),
    )
    return form_of(&p.b) if is_packed(&p) else None


def nbytes(str name, int form, Py_ssize_t N, Py_ssize_t K):
    """Bytes of a copy of w (N,K) in the form in which an entry of matmul multiplies it."""
    cdef Copy copy = Copy(NULL, ENTRIES.index(name), form, N, K)
    cdef Operand b = copied_operand(&copy, NULL, 0)
    return kept_floats(&b, terms_of(&copy)) * sizeof(float)


def pack(
    float[::1] panels, w, str name, int form, Py_ssize_t K, str type="F32", int n_threads=1
):
    """Overwrite panels, of ``nbytes``, from w (N,K): floats, or bytes of ``type``."""
    cdef KernelArgs a
    cdef Py_ssize_t N = w.shape[0]
    check(
        "copies.pack", f"w ({N}, {K})", n_threads, w=(w, (N, row_length("copies.pack", type, K))),
        panels=(panels, (nbytes(name, form, N, K) // sizeof(float),)),
    )
    a.t[0], a.t[1] = at1(panels), rows_at(w, type)
    a.n[0], a.n[1], a.n[2], a.n[3] = ENTRIES.index(name), form, N, K
    a.n[4] = GGUF_TYPES[type]
    a.n_threads = n_threads
    with nogil:
        _pack(&a)


entries = {
    "pack": entry(_pack, "panels w", sizes="entry form N K type"),
}
