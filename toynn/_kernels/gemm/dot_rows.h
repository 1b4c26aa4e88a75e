/* The end of dot_int8_rows.h and of dot_neon_rows.h: tn_rows for any number of rows of x, by type. */

TN_INLINE TN_ASKED void TN_UNIT(tn_dots)(int type, float* y, ptrdiff_t y_row, const uint8_t* w,
                                         ptrdiff_t w_row, ptrdiff_t N, const float* x,
                                         ptrdiff_t x_row, ptrdiff_t M, ptrdiff_t n) {
    for (; M >= 4; M -= 4, x += 4 * x_row, y += 4 * y_row)
        TN_UNIT(tn_rows)(type, y, y_row, w, w_row, N, x, x_row, 4, n);
    if (M & 2) TN_UNIT(tn_rows)(type, y, y_row, w, w_row, N, x, x_row, 2, n);
    x += (M & 2) * x_row;
    y += (M & 2) * y_row;
    if (M & 1) TN_UNIT(tn_rows)(type, y, y_row, w, w_row, N, x, x_row, 1, n);
}

#define TN_DOTS(name, type)                                                                        \
    TN_ASKED static void TN_UNIT(tn_dot_##name)(                                                   \
        float* y, ptrdiff_t y_row, const uint8_t* w, ptrdiff_t w_row, ptrdiff_t N, const float* x, \
        ptrdiff_t x_row, ptrdiff_t M, ptrdiff_t n) {                                               \
        TN_UNIT(tn_dots)(type, y, y_row, w, w_row, N, x, x_row, M, n);                             \
    }
TN_DOTS(q4_0, TN_Q4_0)
TN_DOTS(q8_0, TN_Q8_0)
TN_DOTS(q4_k, TN_Q4_K)
TN_DOTS(q6_k, TN_Q6_K)

static inline tn_dot_fn TN_UNIT(tn_dot_int8_of)(int type) {
    switch (type) {
    case TN_Q4_0: return TN_UNIT(tn_dot_q4_0);
    case TN_Q8_0: return TN_UNIT(tn_dot_q8_0);
    case TN_Q4_K: return TN_UNIT(tn_dot_q4_k);
    case TN_Q6_K: return TN_UNIT(tn_dot_q6_k);
    }
    return NULL;
}

#undef TN_DOTS
#undef TN_UNIT
#undef TN_ASKED
