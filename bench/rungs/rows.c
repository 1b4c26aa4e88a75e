/* The rungs of softmax, and one naive step of LayerNorm and of cross-entropy. N rows of C numbers. */
#include "rows.h"

/* 1. The definition. The largest number of a row cancels, and keeps e^x finite. */
void softmax_plain(float* y, const float* x, size N, size C) {
    for (size n = 0; n < N; n++, x += C, y += C) {
        float top = -INFINITY, sum = 0;
        for (size c = 0; c < C; c++) top = fmaxf(top, x[c]);
        for (size c = 0; c < C; c++) sum += expf(x[c] - top);
        for (size c = 0; c < C; c++) y[c] = expf(x[c] - top) / sum;
    }
}

/* 2. Maximum and sum in one pass: where the maximum grows, the sum so far shrinks. */
void softmax_online(float* y, const float* x, size N, size C) {
    for (size n = 0; n < N; n++, x += C, y += C) {
        float top = -FLT_MAX, sum = 0;
        for (size c = 0; c < C; c++) {
            if (x[c] > top) {
                sum *= expf(top - x[c]);
                top = x[c];
            }
            sum += expf(x[c] - top);
        }
        for (size c = 0; c < C; c++) y[c] = expf(x[c] - top) / sum;
    }
}

/* 3. No branches, 16 sums side by side, one exponential for each number: whole registers. */
void softmax_lanes(float* y, const float* x, size N, size C) {
    for (size n = 0; n < N; n++, x += C, y += C) {
        float most[16], sums[16] = {0}, top = -FLT_MAX, sum = 0;
        for (int l = 0; l < 16; l++) most[l] = -FLT_MAX;
        for (size c = 0; c + 16 <= C; c += 16)
            for (int l = 0; l < 16; l++) most[l] = most[l] > x[c + l] ? most[l] : x[c + l];
        for (int l = 0; l < 16; l++) top = top > most[l] ? top : most[l];
        for (size c = C / 16 * 16; c < C; c++) top = top > x[c] ? top : x[c];
        for (size c = 0; c < C; c++) y[c] = power(x[c] - top);
        for (size c = 0; c + 16 <= C; c += 16)
            for (int l = 0; l < 16; l++) sums[l] += y[c + l];
        for (int l = 0; l < 16; l++) sum += sums[l];
        for (size c = C / 16 * 16; c < C; c++) sum += y[c];
        for (size c = 0; c < C; c++) y[c] *= 1 / sum;
    }
}

void softmax_plain_backward(float* dx, const float* dy, const float* y, size N, size C) {
    for (size n = 0; n < N; n++, dx += C, dy += C, y += C) {
        float total = 0;
        for (size c = 0; c < C; c++) total += dy[c] * y[c];
        for (size c = 0; c < C; c++) dx[c] = y[c] * (dy[c] - total);
    }
}

void layernorm_plain(float* y, float* mean, float* r, const float* x, const float* w,
                     const float* b, size N, size C) {
    for (size n = 0; n < N; n++, x += C, y += C) {
        float sum = 0, squares = 0;
        for (size c = 0; c < C; c++) sum += x[c];
        mean[n] = sum / C;
        for (size c = 0; c < C; c++) squares += (x[c] - mean[n]) * (x[c] - mean[n]);
        r[n] = 1 / sqrtf(squares / C + 1e-5f);
        for (size c = 0; c < C; c++) y[c] = (x[c] - mean[n]) * r[n] * w[c] + b[c];
    }
}

void layernorm_plain_backward(float* dx, float* dw, float* db, const float* dy, const float* x,
                              const float* w, const float* mean, const float* r, size N, size C) {
    memset(dw, 0, C * sizeof(float));
    memset(db, 0, C * sizeof(float));
    for (size n = 0; n < N; n++, dx += C, dy += C, x += C) {
        float g = 0, gh = 0;
        for (size c = 0; c < C; c++) {
            float h = (x[c] - mean[n]) * r[n];
            dw[c] += dy[c] * h;
            db[c] += dy[c];
            g += w[c] * dy[c];
            gh += w[c] * dy[c] * h;
        }
        for (size c = 0; c < C; c++)
            dx[c] = r[n] * (w[c] * dy[c] - g / C - (x[c] - mean[n]) * r[n] * gh / C);
    }
}

/* The mean over the rows that have a label of -log softmax(logits)[label]; -100: a row has none. */
void cross_entropy_plain(float* loss, float* lse, float* rows, const float* logits,
                         const int* labels, size N, size V) {
    double total = 0;
    *rows = 0;
    for (size n = 0; n < N; n++, logits += V) {
        float top = -INFINITY, sum = 0;
        for (size v = 0; v < V; v++) top = fmaxf(top, logits[v]);
        for (size v = 0; v < V; v++) sum += expf(logits[v] - top);
        lse[n] = top + logf(sum);
        if (labels[n] < 0) continue;
        total += logf(sum) + (top - logits[labels[n]]);
        *rows += 1;
    }
    *loss = total / *rows;
}

/* (softmax - onehot) / rows */
void cross_entropy_plain_backward(float* dlogits, const float* dloss, const float* logits,
                                  const int* labels, const float* lse, const float* rows, size N,
                                  size V) {
    for (size n = 0; n < N; n++, logits += V, dlogits += V) {
        float share = labels[n] < 0 ? 0 : *dloss / *rows;
        for (size v = 0; v < V; v++) dlogits[v] = share * expf(logits[v] - lse[n]);
        if (labels[n] >= 0) dlogits[labels[n]] -= share;
    }
}
