/* The dot products of dot_int8.h for many rows of x: panels of 16 rows of w, one in each lane of
   a register. dot_int8.c includes it for vpdpbusd on whole registers (AVX512_VNNI).

   A register of codes has 4 terms of each of 16 rows of w, so eight of them add up all terms of a
   block as integers, before the block's sum is multiplied by its factors:

       acc += d s (sum of c q)    and - m s (sum of q) for Q4_K    block after block

   The order of a sum depends on no other row of x. It is not the order of dot_int8_rows.h.
   vpdpbusd wants c unsigned: Q8_0's codes get 128 more. What that adds, and Q4_0's offset, is
   taken off as an integer. Packing a panel costs as much as multiplying it by two rows of x. */

enum {
    TN_PANEL = 16, /* rows of w */
    TN_MANY = 8,   /* most rows of x that are taken at a time */
    TN_GROUPS = 8, /* most groups of 256 terms that are packed at a time: 40 KB */
    TN_BLOCKS = TN_GROUPS * TN_RUNS
};

#define TN_ASKED __attribute__((target("avx512vnni")))

/* 256 terms of a panel. Lanes of registers have rows 0-3, 8-11, 4-7, 12-15 of w. */
typedef struct {
    __m512i codes[TN_RUNS][8];
    __m512 d[TN_RUNS], m[TN_RUNS];
} tn_panel;

/* y[k] = number k of eight 4-byte numbers of each of 16 rows. */
TN_INLINE TN_ASKED void tn_turn(__m512i* y, const __m256i* rows) {
    __m512i z[8], t[8];
    TN_UNROLL for (int i = 0; i < 8; i++)
        z[i] = _mm512_inserti64x4(_mm512_castsi256_si512(rows[i]), rows[i + 8], 1);
    TN_UNROLL for (int h = 0; h < 8; h += 4) {
        const __m512i a = _mm512_unpacklo_epi32(z[h], z[h + 1]);
        const __m512i b = _mm512_unpackhi_epi32(z[h], z[h + 1]);
        const __m512i c = _mm512_unpacklo_epi32(z[h + 2], z[h + 3]);
        const __m512i d = _mm512_unpackhi_epi32(z[h + 2], z[h + 3]);
        t[h] = _mm512_unpacklo_epi64(a, c);
        t[h + 1] = _mm512_unpackhi_epi64(a, c);
        t[h + 2] = _mm512_unpacklo_epi64(b, d);
        t[h + 3] = _mm512_unpackhi_epi64(b, d);
    }
    TN_UNROLL for (int k = 0; k < 4; k++) {
        y[k] = _mm512_shuffle_i32x4(t[k], t[k + 4], 0x88);
        y[k + 4] = _mm512_shuffle_i32x4(t[k], t[k + 4], 0xDD);
    }
}

/* Exchange the order of lanes and the order of rows: either way. */
TN_INLINE TN_ASKED __m512 tn_in_order(__m512 x) { return _mm512_shuffle_f32x4(x, x, 0xD8); }

/* Pack `runs` blocks of 16 rows. */
TN_INLINE TN_ASKED void tn_pack_panel(int type, tn_panel* to, const uint8_t* const* w, int runs) {
    __m256i d[TN_PANEL], m[TN_PANEL], codes[TN_PANEL];
    TN_UNROLL for (int i = 0; i < TN_PANEL; i++) {
        __m256 least;
        d[i] = _mm256_castps_si256(tn_d_and_m(type, w[i], runs, &least));
        m[i] = _mm256_castps_si256(least);
    }
    tn_turn((__m512i*)to->d, d);
    if (type == TN_Q4_K) tn_turn((__m512i*)to->m, m);
    for (int j = 0; j < runs; j++) {
        TN_UNROLL for (int i = 0; i < TN_PANEL; i++) {
            codes[i] = tn_codes(type, w[i], j);
            if (type == TN_Q8_0) codes[i] = _mm256_xor_si256(codes[i], _mm256_set1_epi8(-128));
        }
        tn_turn(to->codes[j], codes);
    }
}

/* Add `runs` blocks of R rows of x to acc; `less` is what their integers begin with. */
TN_INLINE TN_ASKED void tn_add_panel(int type, int R, __m512* acc, const tn_panel* w,
                                     const int8_t* q, const float* scale, const float* sum,
                                     ptrdiff_t x_row, const int (*less)[TN_BLOCKS], int runs) {
    for (int j = 0; j < runs; j++) {
        __m512i total[TN_MANY];
        TN_UNROLL for (int r = 0; r < R; r++) total[r] = _mm512_set1_epi32(less[r][j]);
        TN_UNROLL for (int k = 0; k < 8; k++) {
            const __m512i codes = w->codes[j][k];
            TN_UNROLL for (int r = 0; r < R; r++) {
                int four;
                memcpy(&four, q + 4 * r * x_row + TN_RUN * j + 4 * k, sizeof four);
                total[r] = _mm512_dpbusd_epi32(total[r], codes, _mm512_set1_epi32(four));
            }
        }
        TN_UNROLL for (int r = 0; r < R; r++) {
            const __m512 by = w->d[j] * _mm512_set1_ps(scale[r * x_row + j]);
            if (type == TN_Q4_K)
                acc[r] = _mm512_fnmadd_ps(w->m[j], _mm512_set1_ps(sum[r * x_row + j]), acc[r]);
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total[r]), by, acc[r]);
        }
    }
}

/* `all` packed blocks from b on, of R rows of x, the first at `row`; y has earlier blocks. */
TN_INLINE TN_ASKED void tn_panel_rows(int type, int R, float* y, ptrdiff_t y_row, __mmask16 kept,
                                      const tn_panel* panel, const float* row, ptrdiff_t x_row,
                                      ptrdiff_t n, ptrdiff_t b, int all) {
    const int offset = type == TN_Q8_0 ? 128 : type == TN_Q4_0 ? 8 : 0;
    int less[TN_MANY][TN_BLOCKS];
    __m512 acc[TN_MANY];
    const int8_t* q = (const int8_t*)row + b * TN_RUN;
    const float* scale = row + n / 4 + b;
    TN_UNROLL for (int r = 0; r < R; r++) {
        acc[r] = _mm512_setzero_ps();
        if (b) acc[r] = tn_in_order(_mm512_maskz_loadu_ps(kept, y + r * y_row));
        for (int j = 0; j < all; j++) {
            const __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1),
                                                      tn_bytes(q + 4 * r * x_row + TN_RUN * j));
            less[r][j] = offset ? -offset * tn_total(fours) : 0;
        }
    }
    for (int j = 0; j < all; j += TN_RUNS)
        tn_add_panel(type, R, acc, panel + j / TN_RUNS, q + TN_RUN * j, scale + j,
                     scale + tn_scales(n) + j, x_row, (const int (*)[TN_BLOCKS])(less[0] + j),
                     all - j < TN_RUNS ? all - j : TN_RUNS);
    TN_UNROLL for (int r = 0; r < R; r++)
        _mm512_mask_storeu_ps(y + r * y_row, kept, tn_in_order(acc[r]));
}

#define TN_ROWS(R) tn_panel_rows(type, R, to, y_row, kept, panel, row, x_row, n, b, all)

TN_INLINE TN_ASKED void tn_many_dots(int type, float* y, ptrdiff_t y_row, const uint8_t* w,
                                     ptrdiff_t w_row, ptrdiff_t N, const float* x,
                                     ptrdiff_t x_row, ptrdiff_t M, ptrdiff_t n) {
    const ptrdiff_t nbytes = tn_bytes_of_256(type), blocks = n / TN_RUN;
    tn_panel panel[TN_GROUPS];
    for (ptrdiff_t i0 = 0; i0 < N; i0 += TN_PANEL, y += TN_PANEL) {
        const int count = (int)(N - i0 < TN_PANEL ? N - i0 : TN_PANEL);
        const __mmask16 kept = (__mmask16)((1u << count) - 1);
        for (ptrdiff_t b = 0; b < blocks; b += TN_BLOCKS) {
            const int all = (int)(blocks - b < TN_BLOCKS ? blocks - b : TN_BLOCKS);
            for (int j = 0; j < all; j += TN_RUNS) {
                const uint8_t* at[TN_PANEL];
                for (int i = 0; i < TN_PANEL; i++) { /* a panel's last rows may be missing */
                    at[i] = w + (i0 + (i < count ? i : 0)) * w_row + (b + j) / TN_RUNS * nbytes;
                    for (ptrdiff_t e = 0; e < nbytes; e += 64)
                        __builtin_prefetch(at[i] + nbytes + e);
                }
                tn_pack_panel(type, panel + j / TN_RUNS, at, all - j < TN_RUNS ? all - j : TN_RUNS);
            }
            for (ptrdiff_t m = 0; m < M;) {
                const int R = M - m >= TN_MANY ? TN_MANY : M - m >= 4 ? 4 : 1;
                float* to = y + m * y_row;
                const float* row = x + m * x_row;
                switch (R) {
                case TN_MANY: TN_ROWS(TN_MANY); break;
                case 4: TN_ROWS(4); break;
                case 1: TN_ROWS(1); break;
                }
                m += R;
            }
        }
    }
}

#define TN_DOTS(name, type)                                                                        \
    TN_ASKED static void tn_many_##name(                                                           \
        float* y, ptrdiff_t y_row, const uint8_t* w, ptrdiff_t w_row, ptrdiff_t N, const float* x, \
        ptrdiff_t x_row, ptrdiff_t M, ptrdiff_t n) {                                               \
        tn_many_dots(type, y, y_row, w, w_row, N, x, x_row, M, n);                                 \
    }
TN_DOTS(q4_0, TN_Q4_0)
TN_DOTS(q8_0, TN_Q8_0)
TN_DOTS(q4_k, TN_Q4_K)

static tn_dot_fn tn_many_of(int type) {
    switch (type) {
    case TN_Q4_0: return tn_many_q4_0;
    case TN_Q8_0: return tn_many_q8_0;
    case TN_Q4_K: return tn_many_q4_k;
    }
    return tn_dot_int8_of_vnni(type);
}

#undef TN_DOTS
#undef TN_ROWS
#undef TN_ASKED
