"""The loops of a matrix product: C (+)= A B, then bias and activation while a block is in cache.

The loops are numbered as in Van Zee & van de Geijn 2015 (BLIS), doi:10.1145/2764454; here the
smaller operand is packed once for all threads, and each thread packs its share of the larger one
just before use. Three kinds of products do without these loops: small ones, on one thread; thin
ones, which use a packed number but once, if threads can share what lies side by side; and y of a
few rows, which reads w once, in order.
"""
from cython.parallel cimport parallel, prange, threadid
from libc.string cimport memcpy, memset

from toynn._kernels._common cimport (
    LANES, add_products, flush_denormals, fpstate, restore_fpstate, sum_lanes, team,
)
from toynn._kernels._gelu cimport gelu_exact, gelu_tanh
from toynn._kernels.gemm._gemm cimport (
    begin_tiles, end_tiles, multiply, multiply_panels, multiply_panels_in_tiles, multiply_rows,
    splits_exactly,
)
from toynn._kernels.gemm._int8 cimport dot_fn, round_rows, rounded_row
from toynn._kernels.gemm._panels cimport (
    HAS_TILES, KC, LINE, MR, NR, V, Operand, aligned, blocks_of, floats_at, kept_start, pack,
    packed_panels, panel_floats, panel_start, panels, row_of, steps, stretch, terms_per_pass,
)
from toynn._kernels.gemm._squares cimport sum_tiles

cdef enum:
    SMALL = 1 << 21   # multiplications (20 us) for which threads and packing cost too much
    SMALL_TILES = 1 << 14  # the same for tiles of one part: they are 16 times as fast
    SHARED = 3 << 18  # floats of the packed smaller operand (3 MB): it stays in L3
    OWN = 3 << 15     # floats of a thread's packed share (384 KB): it stays in L2
    OWN_TILES = 5 << 16  # the same for tiles (1.25 MB): CPUs that have them have 2 MB of L2
    OWN_BESIDE_C = 5 << 15  # the same (640 KB) where a block of C is to stay in L2 beside it
    LARGE_C = 1 << 17  # numbers of C (512 KB) that do not stay in L2 from one pass to the next
    ALL_TERMS = 3 << 19  # floats of the packed smaller operand with all its terms (6 MB)
    FEW = 3           # rows of x for which packing w costs more time than it saves
    FEW_IN_INT8 = 16  # the same where they are rounded to 8 bits
    OUTPUTS = 16      # columns of y per task, for so few rows

cdef enum Activation:
    NONE
    GELU_TANH
    GELU_EXACT

cdef struct Product:
    Operand a
    Operand b
    Py_ssize_t K  # length of the sums
    float* c
    bint add
    bint few      # so few rows of x that w is not packed
    dot_fn int8   # and what multiplies its blocks as they are, by x in 8 bits; NULL: nothing
    # What happens to a finished element: y = act(c += bias). y may be c.
    const float* bias
    float* y
    Activation activation
    float* squares  # of the finished tiles, summed by tile; NULL: no one asks

cdef struct Plan:
    const Operand* shared  # the smaller side, and in how many panels a slice of it is packed
    Py_ssize_t slice
    const Operand* own     # the larger side, and in how many groups of panels it is cut
    Py_ssize_t groups
    Py_ssize_t shared_floats  # room for a slice
    Py_ssize_t own_floats     # room for a group, per thread
    Py_ssize_t most_own_floats  # the same for any number of threads: a run may use fewer
    bint once  # the smaller side is packed once, with all its terms: LOOP 4 goes inside
    Py_ssize_t pass_floats  # then: room for one pass of it


cdef inline Plan plan_of(const Product* p, int n_threads) noexcept nogil:
    cdef Plan plan
    cdef bint a_is_smaller = p.a.size <= p.b.size
    cdef Py_ssize_t kc = min(p.K, terms_per_pass(&p.a))
    cdef Py_ssize_t room = OWN_TILES if p.a.parts else OWN, passes = blocks_of(p.K, max(kc, 1))
    plan.shared = &p.a if a_is_smaller else &p.b
    plan.own = &p.b if a_is_smaller else &p.a
    cdef Py_ssize_t shared_panel = panel_floats(plan.shared, kc)
    cdef Py_ssize_t own_panel = panel_floats(plan.own, kc)
    plan.pass_floats = panels(plan.shared) * shared_panel
    plan.once = (
        p.a.parts > 0 and passes > 1 and p.a.size * p.b.size > LARGE_C
        and passes * plan.pass_floats <= ALL_TERMS
    )
    if plan.once:
        room = OWN_BESIDE_C
    plan.slice = panels(plan.shared)
    if not plan.once:
        plan.slice = min(plan.slice, SHARED // shared_panel)
    plan.most_own_floats = min(panels(plan.own), room // own_panel) * own_panel
    plan.groups = blocks_of(panels(plan.own), room // own_panel)
    plan.groups = blocks_of(plan.groups, n_threads) * n_threads  # each thread gets as many
    plan.groups = min(plan.groups, panels(plan.own))
    plan.shared_floats = plan.slice * shared_panel * (passes if plan.once else 1)
    plan.own_floats = blocks_of(panels(plan.own), plan.groups) * own_panel
    return plan


cdef inline bint is_small(const Product* p) noexcept nogil:
    return p.a.size * p.b.size * p.K <= (SMALL_TILES if p.a.parts == 1 else SMALL)


cdef inline bint is_thin(const Product* p) noexcept nogil:
    """Whether a side is a single panel: then packing is most of the work, and floats it is."""
    return p.b.size <= V or p.a.size <= MR


cdef inline bint _is_shared(const Product* p) noexcept nogil:
    """Whether it is thin, and threads can have shares of the other side where it is."""
    cdef bint in_place = p.b.size <= V or (p.b.expand == NULL and p.b.stride == 1)
    return is_thin(p) and in_place


cdef inline bint is_packed(const Product* p) noexcept nogil:
    return not (p.few or is_small(p) or _is_shared(p))


cdef inline bint can_sum_squares(const Product* p) noexcept nogil:
    """Whether its tiles are those of _squares.pxd."""
    return is_packed(p) and (p.a.parts > 0) == HAS_TILES


cdef inline Py_ssize_t scratch_floats(const Product* p, int n_threads) noexcept nogil:
    """Floats of scratch memory that a product needs on up to n_threads threads, in any type."""
    cdef Plan plan
    if p.few or is_small(p):
        return 0
    plan = plan_of(p, n_threads)
    return plan.shared_floats + n_threads * plan.most_own_floats + LINE


cdef inline void _finish_row(
    const Product* p, Py_ssize_t at, Py_ssize_t column, Py_ssize_t n
) noexcept nogil:
    """Bias and activation for n elements of C from ``at`` on, whose sums are complete."""
    cdef float* c = p.c + at
    cdef float* y = p.y + at
    cdef Py_ssize_t j
    if p.bias != NULL:
        for j in range(n):
            c[j] += p.bias[column + j]
    if y != c:
        memcpy(y, c, n * sizeof(float))
    if p.activation == GELU_TANH:
        for j in range(n):
            y[j] = gelu_tanh(y[j])
    elif p.activation == GELU_EXACT:
        for j in range(n):
            y[j] = gelu_exact(y[j])


cdef inline void _finish(
    const Product* p, Py_ssize_t a0, Py_ssize_t a1, Py_ssize_t b0, Py_ssize_t b1
) noexcept nogil:
    """Bias, activation and squares for panels a0 .. a1 - 1 by b0 .. b1 - 1."""
    cdef Py_ssize_t i
    cdef Py_ssize_t column = panel_start(&p.b, b0), columns = panel_start(&p.b, b1) - column
    if p.squares != NULL:
        sum_tiles(p.squares, p.c, &p.a, &p.b, a0, a1, b0, b1)
    if p.bias == NULL and p.y == p.c and p.activation == NONE:
        return
    for i in range(panel_start(&p.a, a0), panel_start(&p.a, a1)):
        _finish_row(p, i * p.b.size + column, column, columns)


cdef inline void _multiply_as_floats(
    const Product* p, Py_ssize_t a, Py_ssize_t b, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Panel a by panel b from the operands as they are, whatever their numbers."""
    cdef Py_ssize_t N = p.b.size, row = panel_start(&p.a, a), t, first
    cdef Operand rows = floats_at(
        p.a.x + row * p.a.stride, panel_start(&p.a, a + 1) - row, p.a.stride, p.a.k_stride, True
    )
    cdef Operand columns = p.b
    columns.parts = 0
    for t in range(blocks_of(kc, KC)):
        first = t * KC
        multiply_rows(
            p.c + row * N + panel_start(&p.b, b), N, &rows, NULL, &columns, b, k + first,
            min(KC, kc - first), p.add or k + first > 0,
        )


cdef inline void _multiply_panels(
    const Product* p, Py_ssize_t a, const float* a_packed, Py_ssize_t b, const float* b_packed,
    Py_ssize_t k, Py_ssize_t kc,
) noexcept nogil:
    """Panel a by panel b: one tile of C."""
    cdef Py_ssize_t N = p.b.size, n = steps(&p.a, kc)
    cdef Py_ssize_t row = panel_start(&p.a, a), rows = panel_start(&p.a, a + 1) - row
    cdef Py_ssize_t column = panel_start(&p.b, b), columns = panel_start(&p.b, b + 1) - column
    cdef float* c = p.c + row * N + column
    cdef bint add = p.add or k > 0
    if not p.a.parts:
        multiply_panels(c, N, a_packed, b_packed, rows, columns, n, p.a.pairs, add)
    elif p.a.parts == 1 or splits_exactly(p.a.parts, n, a_packed, b_packed):
        multiply_panels_in_tiles(c, N, a_packed, b_packed, rows, columns, p.a.parts, n, add)
    else:
        _multiply_as_floats(p, a, b, k, kc)


cdef inline void pack_part(
    const Plan* plan, float* shared, Py_ssize_t s0, Py_ssize_t s1, Py_ssize_t j, int parts,
    Py_ssize_t k, Py_ssize_t kc,
) noexcept nogil:
    """Part j of shared panels s0 .. s1 - 1, for terms k .. k + kc - 1, unless they are kept."""
    cdef Py_ssize_t first = j * (s1 - s0) // parts, last = (j + 1) * (s1 - s0) // parts
    if plan.shared.packed != NULL:
        return
    pack(
        shared + first * panel_floats(plan.shared, kc), plan.shared, s0 + first, s0 + last, k, kc
    )


cdef inline void multiply_group(
    const Product* p, const Plan* plan, const float* shared, float* own,
    Py_ssize_t s0, Py_ssize_t s1, Py_ssize_t g, Py_ssize_t k, Py_ssize_t kc,
) noexcept nogil:
    """Shared panels s0 .. s1 - 1 with those of group g, for terms k .. k + kc - 1."""
    cdef Py_ssize_t o, s
    cdef Py_ssize_t o0 = g * panels(plan.own) // plan.groups
    cdef Py_ssize_t o1 = (g + 1) * panels(plan.own) // plan.groups
    cdef Py_ssize_t shared_step = panel_floats(plan.shared, kc)
    cdef Py_ssize_t own_step = panel_floats(plan.own, kc)
    cdef const float* at_s
    cdef const float* at_o
    cdef const float* own_panels = packed_panels(own, plan.own, o0, o1, k, kc)
    cdef const float* shared_panels = shared
    if plan.shared.packed != NULL:
        shared_panels = plan.shared.packed + kept_start(plan.shared, s0, k, kc)
    if p.a.parts and not plan.shared.is_a:
        # In tiles C is passed over along its rows: the shared panels, of B, in LOOP 1.
        for o in range(o0, o1):
            at_o = own_panels + (o - o0) * own_step
            for s in range(s0, s1):
                _multiply_panels(p, o, at_o, s, shared_panels + (s - s0) * shared_step, k, kc)
            if k + kc == p.K:
                _finish(p, o, o + 1, s0, s1)
        return
    # LOOP 2 takes the shared panels one by one; each stays in L1 while
    # LOOP 1 runs over the thread's own panels, which stay in L2.
    for s in range(s0, s1):
        at_s = shared_panels + (s - s0) * shared_step
        for o in range(o0, o1):
            at_o = own_panels + (o - o0) * own_step
            if plan.shared.is_a:
                _multiply_panels(p, s, at_s, o, at_o, k, kc)
            else:
                _multiply_panels(p, o, at_o, s, at_s, k, kc)
        if k + kc < p.K:
            continue
        if plan.shared.is_a:
            _finish(p, s, s + 1, o0, o1)
        else:
            _finish(p, o0, o1, s, s + 1)


cdef inline void _multiply_group_once(
    const Product* p, const Plan* plan, const float* shared, float* own, Py_ssize_t g
) noexcept nogil:
    """Group g with all terms of the shared side: its block of C stays in L2."""
    cdef Py_ssize_t t, k, most = terms_per_pass(&p.a)
    for t in range(blocks_of(p.K, most)):
        k = t * most
        multiply_group(
            p, plan, shared + t * plan.pass_floats, own, 0, plan.slice, g, k, min(most, p.K - k)
        )


cdef inline void _multiply_blocked(const Product* p, void* workspace, int n_threads) noexcept nogil:
    """The five loops. Every prange ends in a barrier: no panel is read before it is packed."""
    cdef Plan plan = plan_of(p, n_threads)
    cdef float* shared = aligned(workspace)
    cdef float* own = shared + plan.shared_floats
    cdef Py_ssize_t slices = 0 if plan.once else blocks_of(panels(plan.shared), plan.slice)
    cdef Py_ssize_t g, i = 0, j, t = 0, s0 = 0, s1 = 0, k = 0, kc = 0
    cdef Py_ssize_t most = terms_per_pass(&p.a)
    cdef fpstate before = 0
    with parallel(num_threads=team(n_threads)):
        before = flush_denormals()
        if p.a.parts:
            begin_tiles()
        if plan.once:
            for t in range(blocks_of(p.K, most)):
                k = t * most
                kc = min(most, p.K - k)
                for j in prange(n_threads, schedule="static"):
                    pack_part(
                        &plan, shared + t * plan.pass_floats, 0, plan.slice, j, n_threads, k, kc
                    )
            for g in prange(plan.groups, schedule="static"):
                _multiply_group_once(p, &plan, shared, own + threadid() * plan.own_floats, g)
        # LOOP 5 cuts the smaller side, rows or columns, so that a packed slice stays in L3.
        for i in range(slices):
            s0 = i * plan.slice
            s1 = min(s0 + plan.slice, panels(plan.shared))
            # LOOP 4 cuts the sums into KC terms. Not parallel: its rounds add to the same C.
            for t in range(blocks_of(p.K, most)):
                k = t * most
                kc = min(most, p.K - k)
                for j in prange(n_threads, schedule="static"):
                    pack_part(&plan, shared, s0, s1, j, n_threads, k, kc)
                # LOOP 3 deals groups of the larger side's panels to the threads.
                for g in prange(plan.groups, schedule="static"):
                    multiply_group(
                        p, &plan, shared, own + threadid() * plan.own_floats, s0, s1, g, k, kc
                    )
        if p.a.parts:
            end_tiles()
        restore_fpstate(before)


cdef inline void multiply_share(const Product* p, Py_ssize_t i, int shares) noexcept nogil:
    """Unpacked, share i: rows of C, or columns if there are more of those."""
    cdef Operand a = p.a, b = p.b
    cdef Py_ssize_t row = 0, column = 0, N = b.size, last, r
    if a.size >= b.size:
        row, last = i * a.size // shares, (i + 1) * a.size // shares
        a.x += row * a.stride
        a.size = last - row
    elif shares > 1:  # thin: columns of B lie side by side, or are one panel, the last share's
        column = panel_start(&p.b, i * panels(&p.b) // shares)
        b.x += column
        b.size = panel_start(&p.b, (i + 1) * panels(&p.b) // shares) - column
    multiply(p.c + row * N + column, N, &a, &b, p.K, p.add)
    for r in range(row, row + a.size):
        _finish_row(p, r * N + column, column, b.size)


cdef inline void _multiply_unpacked(const Product* p, int n_threads) noexcept nogil:
    cdef Py_ssize_t i
    cdef fpstate before = 0
    if n_threads == 1 or not _is_shared(p):
        before = flush_denormals()
        multiply_share(p, 0, 1)
        restore_fpstate(before)
        return
    with parallel(num_threads=team(n_threads)):
        before = flush_denormals()
        for i in prange(n_threads, schedule="static"):
            multiply_share(p, i, n_threads)
        restore_fpstate(before)


cdef inline void dot_rows(const Product* p, Py_ssize_t n0, Py_ssize_t n1) noexcept nogil:
    """Columns n0 .. n1 - 1 of a few rows of y: the dot products of rows of x with rows of w."""
    cdef float buffer[KC + LINE]
    cdef float sums[FEW][LANES]
    cdef const float* w
    cdef Py_ssize_t m, n, t, k, kc, M = p.a.size, N = p.b.size
    for n in range(n0, n1):
        memset(sums, 0, M * LANES * sizeof(float))
        for t in range(blocks_of(p.K, KC)):
            k = t * KC
            kc = min(KC, p.K - k)
            w = stretch(&p.b, n, k, kc, aligned(buffer))
            for m in range(M):
                add_products(sums[m], p.a.x + m * p.K + k, w, kc)
        for m in range(M):
            p.c[m * N + n] = sum_lanes(sums[m])
    for m in range(M):
        _finish_row(p, m * N + n0, n0, n1 - n0)


cdef inline void dot_rows_in_int8(
    const Product* p, const float* rounded, Py_ssize_t n0, Py_ssize_t n1
) noexcept nogil:
    """The same of rows of x in 8 bits with rows of w as they are."""
    cdef Py_ssize_t m, M = p.a.size, N = p.b.size
    p.int8(
        p.c + n0, N, row_of(&p.b, n0), p.b.row_bytes, n1 - n0, rounded, rounded_row(p.K), M, p.K
    )
    for m in range(M):
        _finish_row(p, m * N + n0, n0, n1 - n0)


cdef inline void _multiply_few(const Product* p, void* workspace, int n_threads) noexcept nogil:
    """y = x w^T for so few rows of x that time goes into reading w: once, in order, as it is."""
    cdef Py_ssize_t i, n0, n1
    cdef float* rounded = aligned(workspace)
    cdef fpstate before = 0
    if p.int8 != NULL:
        round_rows(rounded, p.a.x, p.a.size, p.K)
    with parallel(num_threads=team(n_threads)):
        before = flush_denormals()
        for i in prange(blocks_of(p.b.size, OUTPUTS), schedule="static"):
            n0 = i * OUTPUTS
            n1 = min(n0 + OUTPUTS, p.b.size)
            if p.int8 != NULL:
                dot_rows_in_int8(p, rounded, n0, n1)
            else:
                dot_rows(p, n0, n1)
        restore_fpstate(before)


cdef inline void multiply_matrices(const Product* p, void* workspace, int n_threads) noexcept nogil:
    """The shape alone chooses the way, so that every thread count gives the same bits."""
    if p.a.size == 0 or p.b.size == 0:
        return
    if p.K == 0 and not p.add:
        memset(p.c, 0, p.a.size * p.b.size * sizeof(float))
    if p.few:
        _multiply_few(p, workspace, n_threads)
    elif is_packed(p):
        _multiply_blocked(p, workspace, n_threads)
    else:
        _multiply_unpacked(p, n_threads)
