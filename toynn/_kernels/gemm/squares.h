/* The sum of squares of a tile of C: down each column, then across two registers, then over lanes by
   halves. All callers get this order. */
#ifndef TOYNN_SQUARES_H
#define TOYNN_SQUARES_H

#include "gemm.h"

static inline float tn_sum_squares(const float* c, ptrdiff_t ldc, ptrdiff_t rows,
                                   ptrdiff_t columns) {
    float lane[TN_V];
#if TN_GNU
    tn_vec sum[2] = {{0}, {0}};
    if (columns == TN_NR) {
        for (ptrdiff_t i = 0; i < rows; i++) {
            const tn_vec x = tn_load(c + i * ldc), y = tn_load(c + i * ldc + TN_V);
            sum[0] += x * x;
            sum[1] += y * y;
        }
    } else {
        for (ptrdiff_t i = 0; i < rows; i++) {
            float row[TN_NR] = {0};
            for (ptrdiff_t j = 0; j < columns; j++) row[j] = c[i * ldc + j];
            const tn_vec x = tn_load(row), y = tn_load(row + TN_V);
            sum[0] += x * x;
            sum[1] += y * y;
        }
    }
    tn_store(lane, sum[0] + sum[1]);
#else
    float sum[TN_NR] = {0};
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t j = 0; j < columns; j++) sum[j] += c[i * ldc + j] * c[i * ldc + j];
    for (int j = 0; j < TN_V; j++) lane[j] = sum[j] + sum[j + TN_V];
#endif
    for (int width = TN_V / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) lane[j] += lane[j + width];
    return lane[0];
}

#endif
