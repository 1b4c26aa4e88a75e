"""The five loops of a matrix product: C (+)= A B, both sides packed in panels.

The loops are numbered as in Van Zee & van de Geijn 2015 (BLIS), doi:10.1145/2764454. In BLIS B is
packed for all threads, and each thread packs its part of A. Here the smaller side is *resident*: it
is packed for all threads. The larger side is *streamed*: each thread packs its share just before
use.

    LOOP 5   slices of the resident side, so that a packed slice stays in L3
    LOOP 4   passes of KC terms of the sums; not parallel, since passes add to the same C
             the resident slice is packed, by all threads
    LOOP 3   groups of streamed panels, which the threads take; a packed group stays in L2
             the streamed group is packed
    LOOP 2   panels of the resident slice; each stays in L1
    LOOP 1   panels of the streamed group
             a tile of C, in registers; after the last pass bias and activation

If the streamed side fits into the memory of all threads' groups, it is *common*: all threads pack
both sides of a pass. Then they take blocks of tiles, which are smaller than groups. So many threads
share a product of few panels evenly, and a slow core holds nobody up for long.

PANELS_RESIDENT swaps LOOPs 4 and 3: a block of C then stays in L2 through all passes.
"""

from libc.string cimport memcpy

from toynn._kernels.base._common cimport flush_denormals, fpstate, restore_fpstate
from toynn._kernels.activations._gelu cimport gelu_exact, gelu_tanh
from toynn._kernels.gemm._gemm cimport copy_tile, multiply_rows
from toynn._kernels.gemm._product cimport (
    FLOATS, GELU_EXACT, GELU_TANH, KC, LINE, NONE, NR, PANELS_RESIDENT, SIDE, Form, Operand,
    Product, aligned, blocks_of, floats_at, is_floats, kept_start, pack, pack_as, panel_floats,
    panel_start, steps,
)
from toynn._kernels.gemm._squares cimport sum_tiles
from toynn._kernels.base.pool cimport run_on_threads, take, work_fn
from toynn._kernels.quants._blocks cimport RUN

cdef enum:
    RESIDENT = 3 << 18        # floats of a packed resident slice (3 MB): it stays in L3
    STREAMED_BESIDE_C = 5 << 15  # of a streamed group (640 KB) if a block of C shares L2 with it
    NEAR = 3 << 15            # of resident panels of B (384 KB) that stay in L2
    BLOCKS = 8                # least blocks of tiles for each thread, if a side is common

cdef struct Plan:
    const Operand* resident
    const Operand* streamed
    Py_ssize_t slice   # resident panels that are packed at a time
    bint common        # the streamed side is common: packed by all threads
    Py_ssize_t groups  # number of groups of streamed panels; common: of single panels
    Py_ssize_t parts   # common: parts of the resident slice, each multiplied by each group
    Py_ssize_t pass_floats           # memory of one pass of the whole resident side
    Py_ssize_t resident_floats       # memory of a slice; with PANELS_RESIDENT of all its passes
    Py_ssize_t streamed_floats       # memory of a group, per thread
    Py_ssize_t most_streamed_floats  # the same for any number of threads: a run may use fewer


cdef inline Plan plan_of(const Product* p, int n_threads) noexcept nogil:
    cdef Plan plan
    cdef bint a_is_smaller = p.a.size <= p.b.size, all_terms = p.way == PANELS_RESIDENT
    cdef Py_ssize_t kc = min(p.K, p.a.form.pass_terms), passes = blocks_of(p.K, max(kc, 1))
    cdef Py_ssize_t room = STREAMED_BESIDE_C if all_terms else p.a.form.group
    plan.resident = &p.a if a_is_smaller else &p.b
    plan.streamed = &p.b if a_is_smaller else &p.a
    cdef Py_ssize_t resident_panel = panel_floats(plan.resident, kc)
    cdef Py_ssize_t streamed_panel = panel_floats(plan.streamed, kc)
    plan.slice = plan.resident.panels
    if not all_terms:
        plan.slice = min(plan.slice, RESIDENT // resident_panel)
    plan.pass_floats = plan.resident.panels * resident_panel
    plan.resident_floats = plan.slice * resident_panel * (passes if all_terms else 1)
    plan.most_streamed_floats = (
        min(plan.streamed.panels, room // streamed_panel) * streamed_panel
    )
    plan.parts = 1
    plan.common = not all_terms and n_threads > 1 and (
        plan.streamed.panels * streamed_panel <= n_threads * plan.most_streamed_floats
    )
    if plan.common:
        plan.groups = plan.streamed.panels
        plan.parts = min(blocks_of(BLOCKS * n_threads, plan.groups), plan.slice)
        return plan
    plan.groups = blocks_of(plan.streamed.panels, room // streamed_panel)
    plan.groups = blocks_of(plan.groups, n_threads) * n_threads  # the same number for each thread
    plan.groups = min(plan.groups, plan.streamed.panels)
    plan.streamed_floats = blocks_of(plan.streamed.panels, plan.groups) * streamed_panel
    return plan


cdef inline Py_ssize_t loops_floats(const Product* p, int n_threads) noexcept nogil:
    """Floats of scratch memory that the loops need on up to n_threads threads."""
    cdef Plan plan = plan_of(p, n_threads)
    return plan.resident_floats + n_threads * plan.most_streamed_floats + LINE


cdef inline void pack_resident(
    const Plan* plan, float* packed, Py_ssize_t s0, Py_ssize_t s1, Py_ssize_t j, int parts,
    Py_ssize_t k, Py_ssize_t kc,
) noexcept nogil:
    """Pack part j of resident panels s0 .. s1 - 1, terms k .. k + kc - 1, unless prepacked."""
    cdef Py_ssize_t first = j * (s1 - s0) // parts, last = (j + 1) * (s1 - s0) // parts
    if plan.resident.packed == NULL:
        pack(
            packed + first * panel_floats(plan.resident, kc), plan.resident, s0 + first, s0 + last,
            k, kc,
        )


cdef inline void multiply_panels(
    const Form* form, float* c, Py_ssize_t ldc, const float* a, const float* b, int rows,
    Py_ssize_t columns, Py_ssize_t n, bint add,
) noexcept nogil:
    """C (rows, columns) (+)= packed panel of A times packed panel of B, in n steps."""
    cdef float tile[SIDE * NR]
    if columns == NR:
        form.multiply(rows, n, a, b, c, ldc, add)
        return
    if add:
        copy_tile(tile, NR, c, ldc, rows, columns, False)
    form.multiply(rows, n, a, b, tile, NR, add)
    copy_tile(c, ldc, tile, NR, rows, columns, False)


cdef inline void _multiply_as_floats(
    const Product* p, Py_ssize_t a, Py_ssize_t b, Py_ssize_t k, Py_ssize_t kc
) noexcept nogil:
    """Panel a by panel b from the unpacked operands; right for numbers of any size."""
    cdef Py_ssize_t N = p.b.size, row = panel_start(&p.a, a), t, first
    cdef Operand rows = floats_at(
        p.a.x + row * p.a.stride, panel_start(&p.a, a + 1) - row, p.a.stride, p.a.k_stride, True
    )
    cdef Operand columns = p.b
    pack_as(&columns, FLOATS)
    for t in range(blocks_of(kc, KC)):
        first = t * KC
        multiply_rows(
            p.c + row * N + panel_start(&p.b, b), N, &rows, NULL, &columns, NULL, b, k + first,
            min(KC, kc - first), p.add or k + first > 0,
        )


cdef inline void multiply_tile(
    const Product* p, Py_ssize_t a, const float* a_packed, Py_ssize_t b, const float* b_packed,
    Py_ssize_t k, Py_ssize_t kc, Py_ssize_t n,
) noexcept nogil:
    """Panel a by panel b, in n steps: one tile of C."""
    cdef const Form* form = p.a.form
    cdef Py_ssize_t N = p.b.size
    cdef Py_ssize_t row = panel_start(&p.a, a), column = panel_start(&p.b, b)
    if form.fits == NULL or form.fits(n, a_packed, b_packed):
        multiply_panels(
            form, p.c + row * N + column, N, a_packed, b_packed, panel_start(&p.a, a + 1) - row,
            panel_start(&p.b, b + 1) - column, n, p.add or k > 0,
        )
    else:
        _multiply_as_floats(p, a, b, k, kc)


cdef inline bint is_sum(const Product* p) noexcept nogil:
    """Whether an element is finished when its sum is complete."""
    return p.bias == NULL and p.y == p.c and p.activation == NONE


cdef inline void _add_bias_gelu(
    float* y, float* c, const float* bias, Py_ssize_t n, bint exact
) noexcept nogil:
    """c += bias, and y = gelu(c), in one pass; y is not c."""
    cdef Py_ssize_t j
    cdef float x
    for j in range(n):
        x = c[j] + bias[j]
        c[j] = x
        y[j] = gelu_exact(x) if exact else gelu_tanh(x)


cdef inline void finish_row(
    const Product* p, Py_ssize_t at, Py_ssize_t column, Py_ssize_t n
) noexcept nogil:
    """Bias and activation for n elements of C from ``at`` on; their sums are complete."""
    cdef float* c = p.c + at
    cdef float* y = p.y + at
    cdef Py_ssize_t j
    if p.bias != NULL and y != c and p.activation == GELU_TANH:
        _add_bias_gelu(y, c, p.bias + column, n, False)
        return
    if p.bias != NULL and y != c and p.activation == GELU_EXACT:
        _add_bias_gelu(y, c, p.bias + column, n, True)
        return
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


cdef inline void finish(
    const Product* p, Py_ssize_t a0, Py_ssize_t a1, Py_ssize_t b0, Py_ssize_t b1
) noexcept nogil:
    """Bias, activation and squares for panels a0 .. a1 - 1 by b0 .. b1 - 1."""
    cdef Py_ssize_t i
    cdef Py_ssize_t column = panel_start(&p.b, b0), columns = panel_start(&p.b, b1) - column
    if p.squares != NULL:
        sum_tiles(p.squares, p.c, &p.a, &p.b, a0, a1, b0, b1)
    if is_sum(p):
        return
    for i in range(panel_start(&p.a, a0), panel_start(&p.a, a1)):
        finish_row(p, i * p.b.size + column, column, columns)


cdef inline void _multiply_block(
    const Product* p, const Plan* plan, const float* resident, const float* streamed,
    Py_ssize_t s0, Py_ssize_t s1, Py_ssize_t o0, Py_ssize_t o1, Py_ssize_t k, Py_ssize_t kc,
) noexcept nogil:
    """LOOPs 2 and 1: resident panels s0 .. s1 - 1 by streamed panels o0 .. o1 - 1, all packed."""
    cdef const Operand* a = &p.a
    cdef bint a_resident = plan.resident.is_a
    cdef Py_ssize_t a0 = s0 if a_resident else o0, a1 = s1 if a_resident else o1
    cdef Py_ssize_t b0 = o0 if a_resident else s0, b1 = o1 if a_resident else s1
    cdef Py_ssize_t a_step = panel_floats(a, kc), b_step = panel_floats(&p.b, kc)
    cdef const float* a_packed = resident if a_resident else streamed
    cdef const float* b_packed = streamed if a_resident else resident
    cdef bint near = (b1 - b0) * b_step <= NEAR, is_last = k + kc == p.K
    cdef Py_ssize_t i, j, n = steps(a, kc)
    if a_resident or near or a.form.by_rows:
        # C is walked along its rows: LOOP 1 runs over the panels of B. So bias and activation get
        # whole rows, not a panel's columns of many rows that lie far apart.
        for i in range(a0, a1):
            for j in range(b0, b1):
                multiply_tile(
                    p, i, a_packed + (i - a0) * a_step, j, b_packed + (j - b0) * b_step, k, kc, n
                )
            if is_last:
                finish(p, i, i + 1, b0, b1)
        return
    for j in range(b0, b1):
        for i in range(a0, a1):
            multiply_tile(
                p, i, a_packed + (i - a0) * a_step, j, b_packed + (j - b0) * b_step, k, kc, n
            )
        if is_last:
            finish(p, a0, a1, j, j + 1)


cdef inline void multiply_group(
    const Product* p, const Plan* plan, const float* resident, float* room,
    Py_ssize_t s0, Py_ssize_t s1, Py_ssize_t g, Py_ssize_t k, Py_ssize_t kc,
) noexcept nogil:
    """Resident panels s0 .. s1 - 1 by streamed group g, which is packed in ``room``."""
    cdef Py_ssize_t o0 = g * plan.streamed.panels // plan.groups
    cdef Py_ssize_t o1 = (g + 1) * plan.streamed.panels // plan.groups
    cdef const float* streamed = room
    if plan.streamed.packed == NULL:
        pack(room, plan.streamed, o0, o1, k, kc)
    else:
        streamed = plan.streamed.packed + kept_start(plan.streamed, o0, k, kc)
    if plan.resident.packed != NULL:
        resident = plan.resident.packed + kept_start(plan.resident, s0, k, kc)
    _multiply_block(p, plan, resident, streamed, s0, s1, o0, o1, k, kc)


cdef inline fpstate begin(const Product* p) noexcept nogil:
    """What a thread does before it multiplies packed panels of a product."""
    if p.a.form.begin != NULL:
        p.a.form.begin()
    return flush_denormals()


cdef inline void end(const Product* p, fpstate before) noexcept nogil:
    if p.a.form.end != NULL:
        p.a.form.end()
    restore_fpstate(before)


cdef struct Pass:
    const Product* p
    const Plan* plan
    float* resident       # packed
    float* rooms          # scratch memory of the threads, for streamed groups
    Py_ssize_t s0, s1     # resident panels
    Py_ssize_t k, kc      # terms
    Py_ssize_t taken      # groups, blocks of tiles or panels that a thread has taken


cdef inline Pass _whole_pass(const Product* p, const Plan* plan, void* workspace) noexcept nogil:
    cdef float* resident = aligned(workspace)
    return Pass(p, plan, resident, resident + plan.resident_floats, 0, plan.slice, 0, 0, 0)


cdef inline void _pack_pass(void* task, int i, int m) noexcept nogil:
    """Pack part i of m of the resident panels of a pass."""
    cdef const Pass* x = <const Pass*>task
    cdef fpstate before = flush_denormals()
    pack_resident(x.plan, x.resident, x.s0, x.s1, i, m, x.k, x.kc)
    restore_fpstate(before)


cdef inline void _pack_passes(void* task, int i, int m) noexcept nogil:
    """Pack part i of m of the resident panels of all passes, one after the other."""
    cdef const Pass* x = <const Pass*>task
    cdef Pass one = x[0]
    cdef Py_ssize_t t, most = x.p.a.form.pass_terms
    for t in range(blocks_of(x.p.K, most)):
        one.k = t * most
        one.kc = min(most, x.p.K - one.k)
        one.resident = x.resident + t * x.plan.pass_floats
        _pack_pass(&one, i, m)


cdef inline void _pack_on_threads(work_fn pack_part, Pass* x, int n_threads) noexcept nogil:
    if x.plan.resident.packed == NULL:
        run_on_threads(pack_part, x, <int>min(<Py_ssize_t>n_threads, x.s1 - x.s0))


cdef inline void _multiply_groups(void* task, int i, int m) noexcept nogil:
    """LOOP 3: the streamed groups that this thread takes."""
    cdef Pass* x = <Pass*>task
    cdef float* room = x.rooms + i * x.plan.streamed_floats
    cdef fpstate before = begin(x.p)
    cdef Py_ssize_t g = take(&x.taken)
    while g < x.plan.groups:
        multiply_group(x.p, x.plan, x.resident, room, x.s0, x.s1, g, x.k, x.kc)
        g = take(&x.taken)
    end(x.p, before)


cdef inline void _pack_common(void* task, int i, int m) noexcept nogil:
    """Pack the panels that this thread takes: of the streamed side, then of the resident one."""
    cdef Pass* x = <Pass*>task
    cdef const Operand* streamed = x.plan.streamed
    cdef const Operand* resident = x.plan.resident
    cdef Py_ssize_t each = _packed_together(streamed), other = _packed_together(resident)
    cdef Py_ssize_t count = blocks_of(streamed.panels, each) if streamed.packed == NULL else 0
    cdef Py_ssize_t more = blocks_of(x.s1 - x.s0, other) if resident.packed == NULL else 0
    cdef Py_ssize_t t = take(&x.taken), first, last
    cdef fpstate before = flush_denormals()
    while t < count + more:
        if t < count:
            first, last = t * each, min((t + 1) * each, streamed.panels)
            pack(
                x.rooms + first * panel_floats(streamed, x.kc), streamed, first, last, x.k, x.kc
            )
        else:
            first = (t - count) * other
            last = min(first + other, x.s1 - x.s0)
            pack(
                x.resident + first * panel_floats(resident, x.kc), resident, x.s0 + first,
                x.s0 + last, x.k, x.kc,
            )
        t = take(&x.taken)
    restore_fpstate(before)


cdef inline Py_ssize_t _packed_together(const Operand* side) noexcept nogil:
    """How many panels are packed at once: those that share blocks of a quantized type."""
    return 1 if is_floats(side) or side.along_k else max(1, RUN // NR)


cdef inline void _multiply_blocks(void* task, int i, int m) noexcept nogil:
    """The blocks of tiles that this thread takes: one streamed panel by a part of the slice."""
    cdef Pass* x = <Pass*>task
    cdef Py_ssize_t parts = x.plan.parts, panel = panel_floats(x.plan.streamed, x.kc)
    cdef Py_ssize_t step = panel_floats(x.plan.resident, x.kc), o, s0, s1
    cdef const float* streamed = x.rooms
    cdef const float* resident = x.resident
    cdef fpstate before = begin(x.p)
    cdef Py_ssize_t t = take(&x.taken)
    if x.plan.streamed.packed != NULL:
        streamed = x.plan.streamed.packed + kept_start(x.plan.streamed, 0, x.k, x.kc)
    if x.plan.resident.packed != NULL:
        resident = x.plan.resident.packed + kept_start(x.plan.resident, x.s0, x.k, x.kc)
    while t < x.plan.groups * parts:
        o = t // parts
        s0 = t % parts * (x.s1 - x.s0) // parts
        s1 = (t % parts + 1) * (x.s1 - x.s0) // parts
        _multiply_block(
            x.p, x.plan, resident + s0 * step, streamed + o * panel, x.s0 + s0, x.s0 + s1,
            o, o + 1, x.k, x.kc,
        )
        t = take(&x.taken)
    end(x.p, before)


cdef inline void _take_all(work_fn work, Pass* x, int n_threads) noexcept nogil:
    """Let threads take tasks until none is left."""
    x.taken = 0
    run_on_threads(work, x, n_threads)


cdef inline void multiply_in_loops(
    const Product* p, void* workspace, int n_threads
) noexcept nogil:
    """LOOPs 5 to 3. No thread multiplies before all have packed."""
    cdef Plan plan = plan_of(p, n_threads)
    cdef Pass x = _whole_pass(p, &plan, workspace)
    cdef Py_ssize_t i, t, most = p.a.form.pass_terms
    cdef int m = <int>min(<Py_ssize_t>n_threads, plan.groups * plan.parts)
    # LOOP 5
    for i in range(blocks_of(plan.resident.panels, plan.slice)):
        x.s0 = i * plan.slice
        x.s1 = min(x.s0 + plan.slice, plan.resident.panels)
        # LOOP 4
        for t in range(blocks_of(p.K, most)):
            x.k = t * most
            x.kc = min(most, p.K - x.k)
            if plan.common:
                _take_all(_pack_common, &x, m)
                _take_all(_multiply_blocks, &x, m)
            else:
                _pack_on_threads(_pack_pass, &x, n_threads)
                _take_all(_multiply_groups, &x, m)


cdef inline void _multiply_passes(void* task, int i, int m) noexcept nogil:
    """LOOP 4 within LOOP 3: share i of m of the groups, with all terms of the resident side."""
    cdef const Pass* x = <const Pass*>task
    cdef Py_ssize_t g, t, k, most = x.p.a.form.pass_terms
    cdef fpstate before = begin(x.p)
    for g in range(i * x.plan.groups // m, (i + 1) * x.plan.groups // m):
        for t in range(blocks_of(x.p.K, most)):
            k = t * most
            multiply_group(
                x.p, x.plan, x.resident + t * x.plan.pass_floats,
                x.rooms + i * x.plan.streamed_floats, 0, x.plan.slice, g, k, min(most, x.p.K - k),
            )
    end(x.p, before)


cdef inline void multiply_with_resident(
    const Product* p, void* workspace, int n_threads
) noexcept nogil:
    """PANELS_RESIDENT: all of the resident side is packed, then LOOP 3 runs once."""
    cdef Plan plan = plan_of(p, n_threads)
    cdef Pass x = _whole_pass(p, &plan, workspace)
    _pack_on_threads(_pack_passes, &x, n_threads)
    run_on_threads(_multiply_passes, &x, <int>min(<Py_ssize_t>n_threads, plan.groups))
