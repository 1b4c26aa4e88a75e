"""The five loops of a matrix product: C (+)= A B, both sides packed in panels.

The loops are numbered as in Van Zee & van de Geijn 2015 (BLIS), doi:10.1145/2764454. There B is
packed for all threads and A by each of them; here the smaller side is *resident*, packed for all
threads, and the larger one is *streamed*: each thread packs its share just before use.

    LOOP 5   slices of the resident side, so that a packed slice stays in L3
    LOOP 4   passes: KC terms of the sums; not parallel, since passes add to the same C
             the resident slice is packed, by all threads
    LOOP 3   groups of streamed panels, dealt to the threads; a packed group stays in L2
             the streamed group is packed
    LOOP 2   panels of the resident slice; each stays in L1
    LOOP 1   panels of the streamed group
             a tile of C, in registers; after the last pass bias and activation

PANELS_RESIDENT turns LOOPs 4 and 3 around: then a block of C stays in L2 through all passes.
"""
from cython.parallel cimport parallel, prange, threadid

from toynn._kernels._common cimport flush_denormals, fpstate, restore_fpstate, team
from toynn._kernels.gemm._finish cimport finish
from toynn._kernels.gemm._gemm cimport begin_tiles, end_tiles
from toynn._kernels.gemm._panels cimport (
    LINE, Operand, aligned, blocks_of, kept_start, pack, packed_panels, panel_floats, panels,
    parts_of, terms_per_pass,
)
from toynn._kernels.gemm._product cimport PANELS_RESIDENT, Product
from toynn._kernels.gemm._tile cimport multiply_tile

cdef enum:
    RESIDENT = 3 << 18        # floats of a packed resident slice (3 MB): it stays in L3
    STREAMED = 3 << 15        # floats of a packed streamed group (384 KB): it stays in L2
    STREAMED_TILES = 5 << 16  # the same for tiles (1.25 MB): CPUs that have them have 2 MB of L2
    STREAMED_BESIDE_C = 5 << 15  # the same (640 KB) where a block of C is to stay in L2 beside it

cdef struct Plan:
    const Operand* resident
    const Operand* streamed
    Py_ssize_t slice   # resident panels that are packed at a time
    Py_ssize_t groups  # in which streamed panels are cut
    Py_ssize_t pass_floats           # room for one pass of all of the resident side
    Py_ssize_t resident_floats       # room for a slice, of PANELS_RESIDENT for all passes
    Py_ssize_t streamed_floats       # room for a group, per thread
    Py_ssize_t most_streamed_floats  # the same for any number of threads: a run may use fewer


cdef inline Plan plan_of(const Product* p, int n_threads) noexcept nogil:
    cdef Plan plan
    cdef bint a_is_smaller = p.a.size <= p.b.size, all_terms = p.way == PANELS_RESIDENT
    cdef Py_ssize_t kc = min(p.K, terms_per_pass(&p.a)), passes = blocks_of(p.K, max(kc, 1))
    cdef Py_ssize_t room = STREAMED_TILES if parts_of(&p.a) else STREAMED
    plan.resident = &p.a if a_is_smaller else &p.b
    plan.streamed = &p.b if a_is_smaller else &p.a
    cdef Py_ssize_t resident_panel = panel_floats(plan.resident, kc)
    cdef Py_ssize_t streamed_panel = panel_floats(plan.streamed, kc)
    if all_terms:
        room = STREAMED_BESIDE_C
    plan.slice = panels(plan.resident)
    if not all_terms:
        plan.slice = min(plan.slice, RESIDENT // resident_panel)
    plan.pass_floats = panels(plan.resident) * resident_panel
    plan.resident_floats = plan.slice * resident_panel * (passes if all_terms else 1)
    plan.groups = blocks_of(panels(plan.streamed), room // streamed_panel)
    plan.groups = blocks_of(plan.groups, n_threads) * n_threads  # each thread gets as many
    plan.groups = min(plan.groups, panels(plan.streamed))
    plan.streamed_floats = blocks_of(panels(plan.streamed), plan.groups) * streamed_panel
    plan.most_streamed_floats = (
        min(panels(plan.streamed), room // streamed_panel) * streamed_panel
    )
    return plan


cdef inline Py_ssize_t loops_floats(const Product* p, int n_threads) noexcept nogil:
    """Floats of scratch memory that the loops need on up to n_threads threads."""
    cdef Plan plan = plan_of(p, n_threads)
    return plan.resident_floats + n_threads * plan.most_streamed_floats + LINE


cdef inline void pack_resident(
    const Plan* plan, float* packed, Py_ssize_t s0, Py_ssize_t s1, Py_ssize_t j, int parts,
    Py_ssize_t k, Py_ssize_t kc,
) noexcept nogil:
    """Part j of resident panels s0 .. s1 - 1, for terms k .. k + kc - 1, unless prepacked."""
    cdef Py_ssize_t first = j * (s1 - s0) // parts, last = (j + 1) * (s1 - s0) // parts
    if plan.resident.packed == NULL:
        pack(
            packed + first * panel_floats(plan.resident, kc), plan.resident, s0 + first, s0 + last,
            k, kc,
        )


cdef inline void multiply_group(
    const Product* p, const Plan* plan, const float* resident, float* room,
    Py_ssize_t s0, Py_ssize_t s1, Py_ssize_t g, Py_ssize_t k, Py_ssize_t kc,
) noexcept nogil:
    """LOOPs 2 and 1: resident panels s0 .. s1 - 1 by streamed group g, packed in ``room``."""
    cdef Py_ssize_t o, s
    cdef Py_ssize_t o0 = g * panels(plan.streamed) // plan.groups
    cdef Py_ssize_t o1 = (g + 1) * panels(plan.streamed) // plan.groups
    cdef Py_ssize_t resident_step = panel_floats(plan.resident, kc)
    cdef Py_ssize_t streamed_step = panel_floats(plan.streamed, kc)
    cdef bint is_last = k + kc == p.K
    cdef const float* at_s
    cdef const float* at_o
    cdef const float* streamed = packed_panels(room, plan.streamed, o0, o1, k, kc)
    if plan.resident.packed != NULL:
        resident = plan.resident.packed + kept_start(plan.resident, s0, k, kc)
    if parts_of(&p.a) and not plan.resident.is_a:
        # In tiles C is passed over along its rows: the resident panels, of B, in LOOP 1.
        for o in range(o0, o1):
            at_o = streamed + (o - o0) * streamed_step
            for s in range(s0, s1):
                multiply_tile(p, o, at_o, s, resident + (s - s0) * resident_step, k, kc)
            if is_last:
                finish(p, o, o + 1, s0, s1)
        return
    # LOOP 2
    for s in range(s0, s1):
        at_s = resident + (s - s0) * resident_step
        # LOOP 1
        for o in range(o0, o1):
            at_o = streamed + (o - o0) * streamed_step
            if plan.resident.is_a:
                multiply_tile(p, s, at_s, o, at_o, k, kc)
            else:
                multiply_tile(p, o, at_o, s, at_s, k, kc)
        if is_last and plan.resident.is_a:
            finish(p, s, s + 1, o0, o1)
        elif is_last:
            finish(p, o0, o1, s, s + 1)


cdef inline fpstate _begin(const Product* p) noexcept nogil:
    if parts_of(&p.a):
        begin_tiles()
    return flush_denormals()


cdef inline void _end(const Product* p, fpstate before) noexcept nogil:
    if parts_of(&p.a):
        end_tiles()
    restore_fpstate(before)


cdef inline void multiply_in_loops(
    const Product* p, void* workspace, int n_threads
) noexcept nogil:
    """LOOPs 5 to 3. Every prange ends in a barrier: no panel is read before it is packed."""
    cdef Plan plan = plan_of(p, n_threads)
    cdef float* resident = aligned(workspace)
    cdef float* rooms = resident + plan.resident_floats
    cdef Py_ssize_t most = terms_per_pass(&p.a)
    cdef Py_ssize_t g, i = 0, j, t = 0, s0 = 0, s1 = 0, k = 0, kc = 0
    cdef fpstate before = 0
    with parallel(num_threads=team(n_threads)):
        before = _begin(p)
        # LOOP 5
        for i in range(blocks_of(panels(plan.resident), plan.slice)):
            s0 = i * plan.slice
            s1 = min(s0 + plan.slice, panels(plan.resident))
            # LOOP 4
            for t in range(blocks_of(p.K, most)):
                k = t * most
                kc = min(most, p.K - k)
                for j in prange(n_threads, schedule="static"):
                    pack_resident(&plan, resident, s0, s1, j, n_threads, k, kc)
                # LOOP 3
                for g in prange(plan.groups, schedule="static"):
                    multiply_group(
                        p, &plan, resident, rooms + threadid() * plan.streamed_floats, s0, s1, g, k,
                        kc,
                    )
        _end(p, before)


cdef inline void _multiply_passes(
    const Product* p, const Plan* plan, const float* resident, float* room, Py_ssize_t g
) noexcept nogil:
    """LOOP 4 within LOOP 3: group g with all terms of the resident side."""
    cdef Py_ssize_t t, k, most = terms_per_pass(&p.a)
    for t in range(blocks_of(p.K, most)):
        k = t * most
        multiply_group(
            p, plan, resident + t * plan.pass_floats, room, 0, plan.slice, g, k,
            min(most, p.K - k),
        )


cdef inline void multiply_with_resident(
    const Product* p, void* workspace, int n_threads
) noexcept nogil:
    """PANELS_RESIDENT: all of the resident side is packed, then LOOP 3 runs once."""
    cdef Plan plan = plan_of(p, n_threads)
    cdef float* resident = aligned(workspace)
    cdef float* rooms = resident + plan.resident_floats
    cdef Py_ssize_t g, j, t = 0, k = 0, kc = 0, most = terms_per_pass(&p.a)
    cdef fpstate before = 0
    with parallel(num_threads=team(n_threads)):
        before = _begin(p)
        for t in range(blocks_of(p.K, most)):
            k = t * most
            kc = min(most, p.K - k)
            for j in prange(n_threads, schedule="static"):
                pack_resident(
                    &plan, resident + t * plan.pass_floats, 0, plan.slice, j, n_threads, k, kc
                )
        # LOOP 3
        for g in prange(plan.groups, schedule="static"):
            _multiply_passes(p, &plan, resident, rooms + threadid() * plan.streamed_floats, g)
        _end(p, before)
