/* The tile of gemm_int8.h with one kind of instruction; gemm_int8.c defines it before. */

TN_INLINE TN_ASKED void TN_UNIT(tn_body)(int h, ptrdiff_t steps, const float* a, const float* b,
                                         float* c, ptrdiff_t ldc, int add) {
    tn_ints sum[TN_MR][2];
    int begin[TN_MR];
    memcpy(begin, a + TN_MR, sizeof begin);
    TN_UNROLL for (int i = 0; i < h; i++) sum[i][0] = sum[i][1] = begin[i] - (tn_ints){0};
    tn_expect(h, 2, c, ldc);
    const float* q = a + 2 * TN_MR;
    const float* r = b + TN_NR;
    for (ptrdiff_t p = 0; p < TN_WORDS * steps; p++) {
        const tn_vec r0 = tn_load(r + p * TN_NR), r1 = tn_load(r + p * TN_NR + TN_V);
        TN_UNROLL for (int i = 0; i < h; i++) {
            if (TN_V == 4) TN_IN_ORDER;
            const tn_vec x = tn_same(q[p * TN_MR + i]);
            sum[i][0] = TN_DOT(sum[i][0], r0, x);
            sum[i][1] = TN_DOT(sum[i][1], r1, x);
        }
    }
    tn_finish_codes(h, sum, a, b, c, ldc, add);
}

TN_ASKED static void TN_UNIT(tn_multiply)(int h, ptrdiff_t steps, const float* a, const float* b,
                                          float* c, ptrdiff_t ldc, int add) {
    TN_ALL_HEIGHTS(TN_UNIT(tn_body), steps, a, b, c, ldc, add)
}

#undef TN_UNIT
#undef TN_ASKED
#undef TN_WORDS
#undef TN_DOT
