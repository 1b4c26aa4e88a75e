"""A product as tasks for single threads: for many products at once, such as those of experts.

Each thread packs both operands of its task into its own scratch memory. How a product is cut
depends on its shape alone. Each element of C is the sum that matmul makes, in the same order. So
the bits depend neither on the number of threads nor on which thread takes a task.
"""
from libc.string cimport memset

from toynn._kernels.base._common cimport fpstate
from toynn._kernels.gemm._direct cimport dot_rows, dot_rows_in_int8, multiply_share
from toynn._kernels.gemm._int8 cimport round_rows
from toynn._kernels.gemm._loops cimport (
    Plan, begin, end, multiply_group, pack_resident, plan_of,
)
from toynn._kernels.gemm._product cimport (
    GEMV, GEMV_INT8, LINE, Product, aligned, blocks_of, is_packed, panel_floats,
)

cdef enum:
    COLUMNS = 256  # of y per task of GEMV


cdef inline Plan _plan_alone(const Product* p) noexcept nogil:
    """A plan for one thread; the packed smaller side has no more memory than the larger."""
    cdef Plan plan = plan_of(p, 1)
    cdef Py_ssize_t panel = panel_floats(plan.resident, min(p.K, p.a.form.pass_terms))
    plan.slice = min(plan.slice, p.a.form.group // panel)
    plan.resident_floats = plan.slice * panel
    return plan


cdef inline Py_ssize_t task_floats(const Product* p) noexcept nogil:
    """Floats of scratch memory for a thread: enough for this and for any smaller product."""
    return 2 * p.a.form.group + LINE if is_packed(p) else 0


cdef inline Py_ssize_t tasks_of(const Product* p) noexcept nogil:
    """How many tasks a product is cut into; 0 if C is empty."""
    if p.a.size == 0 or p.b.size == 0:
        return 0
    if p.way == GEMV_INT8 or p.way == GEMV:
        return blocks_of(p.b.size, COLUMNS)
    return _plan_alone(p).groups if is_packed(p) else 1


cdef inline void multiply_task(const Product* p, void* workspace, Py_ssize_t i) noexcept nogil:
    """Compute task i."""
    cdef Plan plan
    cdef fpstate before
    cdef float* resident = aligned(workspace)
    cdef Py_ssize_t s, s0, s1, t, k, kc, most = p.a.form.pass_terms
    cdef Py_ssize_t n0 = i * COLUMNS, n1 = min(n0 + COLUMNS, p.b.size)
    if p.way == GEMV_INT8:
        # Each task rounds x again: that costs little beside COLUMNS columns.
        round_rows(resident, p.a.x, p.a.size, p.K, p.int8_unit)
        dot_rows_in_int8(p, resident, n0, n1)
        return
    if p.way == GEMV:
        dot_rows(p, n0, n1)
        return
    if not is_packed(p):
        if p.K == 0 and not p.add:
            memset(p.c, 0, p.a.size * p.b.size * sizeof(float))
        multiply_share(p, 0, 1)
        return
    plan = _plan_alone(p)
    before = begin(p)
    for s in range(blocks_of(plan.resident.panels, plan.slice)):
        s0 = s * plan.slice
        s1 = min(s0 + plan.slice, plan.resident.panels)
        for t in range(blocks_of(p.K, most)):
            k = t * most
            kc = min(most, p.K - k)
            pack_resident(&plan, resident, s0, s1, 0, 1, k, kc)
            multiply_group(p, &plan, resident, resident + plan.resident_floats, s0, s1, i, k, kc)
    end(p, before)
