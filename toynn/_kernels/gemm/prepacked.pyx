"""Prepacking: pack a matrix w (N,K) once for many runs.

    pack    panels = w, as matmul.forward or matmul.backward_input packs it

``product`` says which of the two. ``form`` says what the panels hold: floats, pairs or parts of
bfloat16, or 8-bit codes. The panels are, bit for bit, those that the product would pack itself.
_product.pxd describes their layout.
Source: packing in advance, as in Khudia et al. 2021, FBGEMM, arXiv:2101.05615, section 3.
"""
from toynn._kernels.base._parallel cimport parallel_for, part_fn
from toynn._kernels.gemm._prepacked cimport Prepacked, prepacked_operand, terms_of
from toynn._kernels.gemm._product cimport (
    BACKWARD_INPUT, FORWARD, NR, STRETCH, Entry, Operand, Product, blocks_of, form_of, is_packed,
    kept_floats, kept_start, pack as pack_panels, product_of, units,
)
from toynn._kernels.base.abi cimport kernel_fn
from toynn._kernels.args.prepacked cimport Pack
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import countable

PRODUCTS = ("forward", "backward_input")  # of matmul and experts, as _product.pxd numbers them

cdef enum:
    TOGETHER = STRETCH // NR  # panels packed at once: a run of a quantized row is dequantized once

cdef int _units = units()


cdef void _pack_groups(Pack* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Pack groups of panels first .. last - 1, counted through all passes."""
    cdef Prepacked its = Prepacked(a.panels, a.product, a.form, a.N, a.K)
    cdef Operand b = prepacked_operand(&its, a.w, a.type)
    cdef Py_ssize_t i, p0, p1, k, kc, most = b.form.pass_terms, K = terms_of(&its)
    cdef Py_ssize_t groups = blocks_of(b.panels, TOGETHER)
    for i in range(first, last):
        p0 = i % groups * TOGETHER
        p1 = min(p0 + TOGETHER, b.panels)
        k = i // groups * most
        kc = min(most, K - k)
        pack_panels(a.panels + kept_start(&b, p0, k, kc), &b, p0, p1, k, kc)


cdef void _pack(Pack* a) noexcept nogil:
    cdef Prepacked its = Prepacked(NULL, a.product, a.form, a.N, a.K)
    cdef Operand b = prepacked_operand(&its, NULL, a.type)
    cdef Py_ssize_t passes = blocks_of(terms_of(&its), b.form.pass_terms)
    parallel_for(<part_fn>_pack_groups, a, passes * blocks_of(b.panels, TOGETHER))


def form(str product, Py_ssize_t M, Py_ssize_t N, Py_ssize_t K, int precision, int type=0):
    """Return the form in which a product packs w (N,K) for M rows in a precision; None if unpacked.

    Form 0 is floats; 1, pairs of bfloat16; 2, 3 and 4, one, two and three parts of bfloat16 for
    tiles; 5, 6 and 7, quads of 8-bit codes for units 0, 1 and 2 of gemm_int8.h. Raises ValueError
    for sizes at which the bytes of x, w or y cannot be counted.
    """
    for name, shape in (("x", (M, K)), ("w", (N, K)), ("y", (M, N))):
        countable("prepacked.form", name, shape)
    cdef Entry which = FORWARD if product == "forward" else BACKWARD_INPUT
    cdef Product p = product_of(which, NULL, NULL, NULL, M, N, K, type, precision, _units)
    return p.b.form.number if is_packed(&p) else None


def nbytes(str product, int form, Py_ssize_t N, Py_ssize_t K):
    """Return the bytes of the panels of w (N,K) in a form.

    Raises ValueError if they are too many, or if this level does not know the form.
    """
    countable("prepacked.nbytes", "w", (N, K))
    if form_of(form) == NULL:
        raise ValueError(f"prepacked.nbytes: form {form} is none that this level packs")
    cdef Prepacked its = Prepacked(NULL, PRODUCTS.index(product), form, N, K)
    cdef Operand b = prepacked_operand(&its, NULL, 0)
    return kept_floats(&b, terms_of(&its)) * sizeof(float)


def _checked(where, arrays, sizes, options):
    product, needed = sizes["product"], 0
    if product not in range(len(PRODUCTS)):
        raise ValueError(f"{where}: product needs 0 to {len(PRODUCTS) - 1}; got {product}")
    needed = nbytes(PRODUCTS[product], sizes["form"], sizes["N"], sizes["K"])
    if 4 * sizes["P"] != needed:
        raise ValueError(f"{where}: panels needs {needed} bytes; got {4 * sizes['P']}")


pack = entry(
    <kernel_fn>_pack, "panels[P] <- type w[N K] | product form type=F32", NULL, _checked
)
