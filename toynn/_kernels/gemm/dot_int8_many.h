/* The dot products of dot_int8.h for many rows of x: panels of 16 rows of w, one in each lane of
   a register. dot_int8.c includes it for vpdpbusd on whole registers (AVX512_VNNI).

   A register of codes has 4 terms of each of 16 rows of w, so eight of them add up all terms of a
   block as integers, before the block's sum is multiplied by its factors:

       acc += d s (sum of c q)    and - m s (sum of q) for Q4_K    block after block

   The order of a sum depends on no other row of x. It is not the order of dot_int8_rows.h.
   vpdpbusd wants c unsigned: Q8_0's codes get 128 more. What that adds, and Q4_0's offset, is
   taken off as an integer. Packing a panel costs as much as multiplying it by six rows of x. */

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

/* Where each lane's row begins, in bytes; row 0 instead of the rows from `count` on. */
TN_INLINE TN_ASKED __m512i tn_starts(int count, ptrdiff_t w_row) {
    const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
    const __mmask16 kept = _mm512_cmplt_epi32_mask(row, _mm512_set1_epi32(count));
    return _mm512_maskz_mullo_epi32(kept, row, _mm512_set1_epi32((int)w_row));
}

TN_INLINE TN_ASKED __m512 tn_lower_halves(__m512i x) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
}

/* The factors of `runs` blocks of 16 rows, which begin `at` bytes from w. */
TN_INLINE TN_ASKED void tn_pack_factors(int type, tn_panel* to, const uint8_t* w, __m512i at,
                                        int runs) {
    if (type != TN_Q4_K) {
        const ptrdiff_t nbytes = tn_bytes_of_256(type) / TN_RUNS;
        for (int j = 0; j < runs; j++)
            to->d[j] = tn_lower_halves(_mm512_i32gather_epi32(at, w + j * nbytes, 1));
        return;
    }
    __m512i s[4]; /* d and m, then the scales: see tn_d_q4_k */
    TN_UNROLL for (int i = 0; i < 4; i++) s[i] = _mm512_i32gather_epi32(at, w + 4 * i, 1);
    const __m512 d = tn_lower_halves(s[0]), m = tn_lower_halves(_mm512_srli_epi32(s[0], 16));
    const __m512i four = _mm512_set1_epi32(15), two = _mm512_set1_epi32(48);
    TN_UNROLL for (int j = 0; j < TN_RUNS; j++) {
        const int k = j % 4 * 8;
        __m512i x = _mm512_srli_epi32(s[1], k), y = _mm512_srli_epi32(s[2], k);
        if (j >= 4) {
            x = _mm512_and_si512(_mm512_srli_epi32(x, 2), two);
            y = _mm512_and_si512(_mm512_srli_epi32(y, 2), two);
            x = _mm512_or_si512(x, _mm512_and_si512(_mm512_srli_epi32(s[3], k), four));
            y = _mm512_or_si512(y, _mm512_and_si512(_mm512_srli_epi32(s[3], k + 4), four));
        }
        const __m512i six = _mm512_or_si512(four, two);
        to->d[j] = _mm512_cvtepi32_ps(_mm512_and_si512(x, six)) * d;
        to->m[j] = _mm512_cvtepi32_ps(_mm512_and_si512(y, six)) * m;
    }
}

/* The codes of blocks j and j + 1 of 16 rows, of which one may be missing. Of types of 4 bits both
   are turned at once. */
TN_INLINE TN_ASKED void tn_pack_codes(int type, __m512i (*to)[8], const uint8_t* const* w, int j,
                                      int both) {
    const __m512i low = _mm512_set1_epi8(15);
    __m256i codes[TN_PANEL];
    __m512i y[8];
    if (type == TN_Q8_0) {
        for (int i = j; i < j + 1 + both; i++) {
            TN_UNROLL for (int r = 0; r < TN_PANEL; r++) codes[r] = tn_codes(type, w[r], i);
            tn_turn(y, codes);
            TN_UNROLL for (int k = 0; k < 8; k++)
                to[i][k] = _mm512_xor_si512(y[k], _mm512_set1_epi8(-128));
        }
        return;
    }
    TN_UNROLL for (int r = 0; r < TN_PANEL; r++) {
        if (type == TN_Q4_K) {
            codes[r] = tn_bytes(((const tn_q4_k*)w[r])->low + 16 * j);
        } else {
            const tn_q4_0* block = (const tn_q4_0*)w[r] + j;
            codes[r] = _mm256_loadu2_m128i((const __m128i*)block[both].low,
                                           (const __m128i*)block->low);
        }
    }
    tn_turn(y, codes);
    TN_UNROLL for (int k = 0; k < 8; k++) {
        const __m512i lower = _mm512_and_si512(y[k], low);
        const __m512i upper = _mm512_and_si512(_mm512_srli_epi16(y[k], 4), low);
        if (type == TN_Q4_K) { /* a byte has a code of each block */
            to[j][k] = lower;
            to[j + 1][k] = upper;
        } else {
            to[j + k / 4][k % 4] = lower;
            to[j + k / 4][k % 4 + 4] = upper;
        }
    }
}

/* Add `runs` blocks of R rows of x to acc; `less` has minus the sums of its codes. */
TN_INLINE TN_ASKED void tn_add_panel(int type, int R, __m512* acc, const tn_panel* w,
                                     const int8_t* q, const float* scale, const float* sum,
                                     ptrdiff_t x_row, const int* less, int runs) {
    for (int j = 0; j < runs; j++) {
        __m512i total[TN_MANY];
        TN_UNROLL for (int r = 0; r < R; r++) {
            total[r] = _mm512_setzero_si512();
            if (type != TN_Q4_K)
                total[r] = _mm512_slli_epi32(_mm512_set1_epi32(less[r * x_row + j]),
                                             type == TN_Q8_0 ? 7 : 3);
        }
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
    __m512 acc[TN_MANY];
    const int8_t* q = (const int8_t*)row + b * TN_RUN;
    const float* scale = row + n / 4 + b;
    TN_UNROLL for (int r = 0; r < R; r++) {
        acc[r] = _mm512_setzero_ps();
        if (b) acc[r] = tn_in_order(_mm512_maskz_loadu_ps(kept, y + r * y_row));
    }
    for (int j = 0; j < all; j += TN_RUNS)
        tn_add_panel(type, R, acc, panel + j / TN_RUNS, q + TN_RUN * j, scale + j,
                     scale + tn_scales(n) + j, x_row,
                     (const int*)scale + 2 * tn_scales(n) + j, all - j < TN_RUNS ? all - j : TN_RUNS);
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
        const __m512i from = tn_starts(count, w_row);
        for (ptrdiff_t b = 0; b < blocks; b += TN_BLOCKS) {
            const int all = (int)(blocks - b < TN_BLOCKS ? blocks - b : TN_BLOCKS);
            for (int j = 0; j < all; j += TN_RUNS) {
                const uint8_t* first = w + i0 * w_row + (b + j) / TN_RUNS * nbytes;
                tn_panel* to = panel + j / TN_RUNS;
                const int runs = all - j < TN_RUNS ? all - j : TN_RUNS;
                const uint8_t* at[TN_PANEL];
                for (int i = 0; i < TN_PANEL; i++) { /* a panel's last rows may be missing */
                    at[i] = first + (i < count ? i : 0) * w_row;
                    for (ptrdiff_t e = 0; e < nbytes; e += 64)
                        __builtin_prefetch(at[i] + TN_PANEL * w_row + e, 0, 2);
                }
                tn_pack_factors(type, to, first, from, runs);
                for (int i = 0; i < runs; i += 2)
                    tn_pack_codes(type, to->codes, at, i, i + 1 < runs);
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
