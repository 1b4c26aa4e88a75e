// Shared by the attention kernels: which keys a row sees, the cap of scores, and products of tiles. A tile holds
// rows of one head in threadgroup memory.
//
// A group has GROUP threads: 8 lines of LINE. A tile is LINE x LINE numbers, rows SPAN apart. In a product of two
// tiles, the thread of line l and place p has four numbers of column p. They are in rows l, l + 8, l + 16, l + 24.
// So a line has whole rows, and line_sum and line_max go along a row.

constant constexpr uint SPAN = LINE + 1;
constant constexpr uint LINES = GROUP / LINE;
constant constexpr uint OWN = LINE / LINES;  // rows of a thread
constant constexpr uint WIDE = 128;          // columns of a head whose sums a group holds; grids.py knows it too
constant constexpr uint PARTS = WIDE / LINE;

// The first key that row i sees, if its segment begins at row `from`. `window` counts the keys that a row sees, up
// to its own; 0 means no window.
static inline uint first_key(uint i, uint from, uint window) {
    return window != 0 && i + 1 > window ? max(from, i + 1 - window) : from;
}

// cap tanh(score / cap) and its slope; the score itself if cap is 0.
static inline float capped(float score, float cap, thread float& slope) {
    slope = 1.0f;
    if (cap == 0.0f) return score;
    const float t = precise::tanh(score / cap);
    slope = 1.0f - t * t;
    return cap * t;
}

// Copy rows `row` .. row + LINE - 1 and columns `column` .. column + LINE - 1 of x to a tile. Rows of x are `stride`
// apart; rows from `rows` on and columns from `columns` on do not exist and become 0.
static inline void take(threadgroup float* tile, device const float* x, uint stride, uint rows, uint columns,
                        uint row, uint column, uint tid) {
    for (uint i = tid / LINE; i < LINE; i += LINES) {
        const uint n = row + i, c = column + tid % LINE;
        tile[i * SPAN + tid % LINE] = n < rows && c < columns ? x[n * stride + c] : 0.0f;
    }
}

// sums[i] += a[row i] . b[row of this place]: for a b^T.
static inline void add_rows(thread float* sums, threadgroup const float* a, threadgroup const float* b, uint tid) {
    for (uint d = 0; d < LINE; ++d) {
        const float own = b[tid % LINE * SPAN + d];
        for (uint i = 0; i < OWN; ++i) sums[i] = fma(a[(tid / LINE + LINES * i) * SPAN + d], own, sums[i]);
    }
}

// sums[i] += sum_j p[row i, j] v[j, this place]: for p v.
static inline void add_columns(thread float* sums, threadgroup const float* p, threadgroup const float* v, uint tid) {
    for (uint j = 0; j < LINE; ++j) {
        const float own = v[j * SPAN + tid % LINE];
        for (uint i = 0; i < OWN; ++i) sums[i] = fma(p[(tid / LINE + LINES * i) * SPAN + j], own, sums[i]);
    }
}

// sums[i] += sum_j p[j, row i] v[j, this place]: for p^T v.
static inline void add_turned(thread float* sums, threadgroup const float* p, threadgroup const float* v, uint tid) {
    for (uint j = 0; j < LINE; ++j) {
        const float own = v[j * SPAN + tid % LINE];
        for (uint i = 0; i < OWN; ++i) sums[i] = fma(p[j * SPAN + tid / LINE + LINES * i], own, sums[i]);
    }
}
