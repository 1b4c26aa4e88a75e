// A tile of a matrix product: what a group of threads adds up, and how operands are copied to threadgroup memory.
//
//   sums[i,j] += sum_r A[i,r] B[r,j]           i, j < TILE, r < TERMS
//
// A and B have the same layout in threadgroup memory as in their matrices. If terms run along a row ("by row"),
// there are TILE rows of TERMS, PITCH apart; otherwise TERMS rows of TILE, TILE_PITCH apart. T is float, or
// bfloat if the precision allows. PRODUCT threads are four SIMD groups, each with 4 x 4 matrices of 8 x 8 sums.
// Without SIMD groups they are a grid of 8 x 16 threads, each with 8 x 4 sums. All sums are float32.
// Source: the sizes of the tiles are MLX's (Apple, mlx/backend/metal/kernels/steel/gemm).
#include "quantized.metal"

constant constexpr uint TILE = 64;
constant constexpr uint TERMS = 32;
constant constexpr uint PRODUCT = 128;
constant constexpr uint PITCH = TERMS + 4;
constant constexpr uint TILE_PITCH = TILE + 4;
constant constexpr uint ROOM = TILE * PITCH;  // numbers of an operand; TERMS * TILE_PITCH is less
constant constexpr uint OWN = TILE * TILE / PRODUCT;  // sums of a thread

#if __METAL_VERSION__ >= 310
typedef bfloat rough;
#else
typedef float rough;  // an older Metal has no bfloat
#endif

// Copy `height` rows and `width` columns of a matrix (., columns), from row `row` and column `column` on, to a tile.
// `column` is a multiple of RUN. Rows from `rows` on and columns from `columns` on do not exist and become 0.
template <typename T>
static inline void fetch(threadgroup T* tile, device const uchar* w, uint type, uint rows, uint columns,
                         uint row, uint column, uint height, uint width, uint pitch, uint tid) {
    float run[RUN];
    const uint runs = width / RUN;
    for (uint at = tid; at < height * runs; at += PRODUCT) {
        const uint i = at / runs, j = at % runs * RUN;
        if (row + i < rows && column + j < columns) {
            dequantize(run, w, type, row + i, columns, column + j);
        } else {
            for (uint k = 0; k < RUN; ++k) run[k] = 0.0f;
        }
        for (uint k = 0; k < RUN; ++k) tile[i * pitch + j + k] = T(run[k]);
    }
}

#if TOYNN_SIMDGROUPS

struct Sums {
    simdgroup_matrix<float, 8, 8> of[4][4];
};

static inline void clear(thread Sums& sums) {
    for (uint i = 0; i < 4; ++i) {
        for (uint j = 0; j < 4; ++j) sums.of[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
}

template <bool A_BY_ROW, bool B_BY_ROW, typename T>
static inline void multiply(thread Sums& sums, threadgroup const T* A, threadgroup const T* B, uint tid) {
    const uint top = tid / LINE / 2 * 32, left = tid / LINE % 2 * 32;
    for (uint r = 0; r < TERMS; r += 8) {
        simdgroup_matrix<T, 8, 8> a[4], b[4];
        for (uint i = 0; i < 4; ++i) {
            if (A_BY_ROW) simdgroup_load(a[i], A + (top + 8 * i) * PITCH + r, PITCH);
            else simdgroup_load(a[i], A + r * TILE_PITCH + top + 8 * i, TILE_PITCH, 0, true);
            if (B_BY_ROW) simdgroup_load(b[i], B + (left + 8 * i) * PITCH + r, PITCH, 0, true);
            else simdgroup_load(b[i], B + r * TILE_PITCH + left + 8 * i, TILE_PITCH);
        }
        for (uint i = 0; i < 4; ++i) {
            for (uint j = 0; j < 4; ++j) simdgroup_multiply_accumulate(sums.of[i][j], a[i], b[j], sums.of[i][j]);
        }
    }
}

// Sum number e of a thread, and its row and column in the tile. Every thread must ask for every e in order, because
// a matrix goes through threadgroup memory. `part` has room for 64 numbers of each SIMD group.
static inline float sum_of(thread Sums& sums, uint e, threadgroup float* part, uint tid, thread uint2& place) {
    const uint matrix = e / 2, own = tid % LINE * 2 + e % 2;
    threadgroup float* patch = part + tid / LINE * 64;
    if (e % 2 == 0) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_store(sums.of[matrix / 4][matrix % 4], patch, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    place = uint2(tid / LINE / 2 * 32 + matrix / 4 * 8 + own / 8, tid / LINE % 2 * 32 + matrix % 4 * 8 + own % 8);
    return patch[own];
}

#else

struct Sums {
    float of[8][4];
};

static inline void clear(thread Sums& sums) {
    for (uint e = 0; e < OWN; ++e) sums.of[e / 4][e % 4] = 0.0f;
}

template <bool A_BY_ROW, bool B_BY_ROW, typename T>
static inline void multiply(thread Sums& sums, threadgroup const T* A, threadgroup const T* B, uint tid) {
    const uint top = tid / 16, left = tid % 16;
    for (uint r = 0; r < TERMS; ++r) {
        float a[8], b[4];
        for (uint i = 0; i < 8; ++i) {
            a[i] = float(A_BY_ROW ? A[(top + 8 * i) * PITCH + r] : A[r * TILE_PITCH + top + 8 * i]);
        }
        for (uint j = 0; j < 4; ++j) {
            b[j] = float(B_BY_ROW ? B[(left + 16 * j) * PITCH + r] : B[r * TILE_PITCH + left + 16 * j]);
        }
        for (uint i = 0; i < 8; ++i) {
            for (uint j = 0; j < 4; ++j) sums.of[i][j] = fma(a[i], b[j], sums.of[i][j]);
        }
    }
}

// Sum number e of a thread, and its row and column in the tile.
static inline float sum_of(thread Sums& sums, uint e, threadgroup float*, uint tid, thread uint2& place) {
    place = uint2(tid / 16 + e / 4 * 8, tid % 16 + e % 4 * 16);
    return sums.of[e / 4][e % 4];
}

#endif
