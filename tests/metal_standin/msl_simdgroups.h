// Simdgroup functions: lanes exchange what they have in groups of 32. Included within metal.

#define SOFT_REDUCE(name, T, start, step) \
    SOFT_OWN T name(T mine) { \
        T all[SOFT_LANES], r = start; \
        const uint there = soft_exchange(&mine, sizeof mine, all, SOFT_SITE); \
        for (uint i = 0; i < SOFT_LANES; i++) \
            if (there >> i & 1) { const T a = all[i]; r = step; } \
        return r; \
    }
SOFT_REDUCE(simd_sum, float, 0, r + a)
SOFT_REDUCE(simd_sum, int, 0, r + a)
SOFT_REDUCE(simd_sum, uint, 0, r + a)
SOFT_REDUCE(simd_max, float, -INFINITY, (a > r ? a : r))
SOFT_REDUCE(simd_min, float, INFINITY, (a < r ? a : r))

#define SOFT_SHUFFLE(T) \
    SOFT_OWN T simd_shuffle(T mine, ushort lane) { \
        T all[SOFT_LANES]; \
        soft_exchange(&mine, sizeof mine, all, SOFT_SITE); \
        return all[lane % SOFT_LANES]; \
    } \
    SOFT_OWN T simd_broadcast(T mine, ushort lane) { \
        T all[SOFT_LANES]; \
        soft_exchange(&mine, sizeof mine, all, SOFT_SITE); \
        return all[lane % SOFT_LANES]; \
    } \
    SOFT_OWN T simd_shuffle_down(T mine, ushort delta) { \
        T all[SOFT_LANES]; \
        soft_exchange(&mine, sizeof mine, all, SOFT_SITE); \
        const uint lane = soft_lane() + delta; \
        return lane < SOFT_LANES ? all[lane] : mine; \
    } \
    SOFT_OWN T simd_shuffle_xor(T mine, ushort mask) { \
        T all[SOFT_LANES]; \
        soft_exchange(&mine, sizeof mine, all, SOFT_SITE); \
        return all[(soft_lane() ^ mask) % SOFT_LANES]; \
    }
SOFT_SHUFFLE(float) SOFT_SHUFFLE(int) SOFT_SHUFFLE(uint)

// Matrices of 8 x 8: two elements a lane.
template <class T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "simdgroup_matrix is 8 x 8");
    T v[2];
    simdgroup_matrix() { v[0] = v[1] = (T)NAN; } // until it is loaded or filled
    explicit simdgroup_matrix(T d) {
        uint r, c;
        place(soft_lane(), r, c);
        v[0] = r == c ? d : (T)0;
        v[1] = r == c + 1 ? d : (T)0;
    }
    static void place(uint lane, uint &r, uint &c) {
        const uint quad = lane / 4;
        r = (quad & 4) + lane / 2 % 4;
        c = (quad & 2) * 2 + lane % 2 * 2;
    }
    static __attribute__((always_inline)) uint lane_of(uint r, uint c) { return (r & 4) * 4 + (c & 4) * 2 + r % 4 * 2 + c / 2 % 2; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

template <class T, int R, int C> SOFT_INLINE simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T x) {
    simdgroup_matrix<T, R, C> m;
    m.v[0] = m.v[1] = x;
    return m;
}

template <class T, class P>
SOFT_CALL void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, P p, ulong row = 8, ulong2 at = 0, bool transposed = false) {
    uint r, c;
    m.place(soft_lane(), r, c);
    soft_simd_barrier(0, SOFT_SITE);
    for (uint i = 0; i < 2; i++)
        m.v[i] = p[(at.y + (transposed ? c + i : r)) * row + at.x + (transposed ? r : c + i)];
}

template <class T, class P>
SOFT_CALL void simdgroup_store(const simdgroup_matrix<T, 8, 8> &m, P p, ulong row = 8, ulong2 at = 0, bool transposed = false) {
    uint r, c;
    m.place(soft_lane(), r, c);
    soft_simd_barrier(0, SOFT_SITE);
    for (uint i = 0; i < 2; i++)
        p[(at.y + (transposed ? c + i : r)) * row + at.x + (transposed ? r : c + i)] = m.v[i];
}

template <class D, class A, class B, class C>
SOFT_OWN void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                                            const simdgroup_matrix<B, 8, 8> &b, const simdgroup_matrix<C, 8, 8> &c) {
    struct Pair { float a[2], b[2]; };
    Pair mine = {{(float)a.v[0], (float)a.v[1]}, {(float)b.v[0], (float)b.v[1]}}, all[SOFT_LANES];
    soft_exchange(&mine, sizeof mine, all, SOFT_SITE);
    uint row, column;
    d.place(soft_lane(), row, column);
    for (uint i = 0; i < 2; i++) {
        float sum = (float)c.v[i];
        for (uint k = 0; k < 8; k++)
            sum = __builtin_fmaf(all[d.lane_of(row, k)].a[k % 2], all[d.lane_of(k, column)].b[i], sum);
        d.v[i] = (D)sum;
    }
}
