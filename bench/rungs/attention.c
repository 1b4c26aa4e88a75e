/* The rungs of attention: one causal head of T rows, q, k, v (T,D), forward and backward.

       s[i,j] = q[i] . k[j] / sqrt(D)     p[i,j] = e^(s[i,j] - lse[i]),  j <= i     o[i] = sum_j p v[j]

   Read from the top: each pair of functions adds one idea to the pair before. */
#include "rows.h"

#define R 64 /* rows of a block, of queries and of keys */

static float dot(const float* x, const float* y, size n) {
    float sum = 0;
    for (size c = 0; c < n; c++) sum += x[c] * y[c];
    return sum;
}

static void add(float* y, float factor, const float* x, size n) {
    for (size c = 0; c < n; c++) y[c] += factor * x[c];
}

/* 1. Plain: all scores of a head are in memory, p (T,T), until the backward has read them. */
void plain(float* o, float* p, const float* q, const float* k, const float* v, size T, size D) {
    for (size i = 0; i < T; i++, p += T, q += D, o += D) {
        float top = -INFINITY, sum = 0;
        for (size j = 0; j <= i; j++) p[j] = dot(q, k + j * D, D) / sqrtf(D);
        for (size j = 0; j <= i; j++) top = fmaxf(top, p[j]);
        for (size j = 0; j <= i; j++) sum += p[j] = expf(p[j] - top);
        memset(o, 0, D * sizeof(float));
        for (size j = 0; j <= i; j++) add(o, p[j] /= sum, v + j * D, D);
    }
}

void plain_backward(float* dq, float* dk, float* dv, const float* go, const float* p,
                    const float* q, const float* k, const float* v, size T, size D) {
    memset(dq, 0, T * D * sizeof(float));
    memset(dk, 0, T * D * sizeof(float));
    memset(dv, 0, T * D * sizeof(float));
    for (size i = 0; i < T; i++, p += T, q += D, go += D, dq += D) {
        float total = 0;
        for (size j = 0; j <= i; j++) total += p[j] * dot(go, v + j * D, D);
        for (size j = 0; j <= i; j++) {
            float ds = p[j] * (dot(go, v + j * D, D) - total) / sqrtf(D);
            add(dq, ds, k + j * D, D);
            add(dk + j * D, ds, q, D);
            add(dv + j * D, p[j], go, D);
        }
    }
}

/* 2. Online: one pass over the keys keeps the maximum, the sum and the result so far. Only lse (T,)
   is saved: with it the backward computes any p again. */
void online(float* o, float* lse, const float* q, const float* k, const float* v, size T, size D) {
    for (size i = 0; i < T; i++, q += D, o += D) {
        float m = -INFINITY, l = 0;
        memset(o, 0, D * sizeof(float));
        for (size j = 0; j <= i; j++) {
            float s = dot(q, k + j * D, D) / sqrtf(D);
            if (s > m) {
                float shrink = expf(m - s);
                l *= shrink;
                for (size d = 0; d < D; d++) o[d] *= shrink;
                m = s;
            }
            l += expf(s - m);
            add(o, expf(s - m), v + j * D, D);
        }
        for (size d = 0; d < D; d++) o[d] /= l;
        lse[i] = m + logf(l);
    }
}

void online_backward(float* dq, float* dk, float* dv, const float* go, const float* o,
                     const float* lse, const float* q, const float* k, const float* v, size T,
                     size D) {
    memset(dq, 0, T * D * sizeof(float));
    memset(dk, 0, T * D * sizeof(float));
    memset(dv, 0, T * D * sizeof(float));
    for (size i = 0; i < T; i++, q += D, o += D, go += D, dq += D) {
        float delta = dot(go, o, D); /* sum_j p[j] (go . v[j]) */
        for (size j = 0; j <= i; j++) {
            float p = expf(dot(q, k + j * D, D) / sqrtf(D) - lse[i]);
            float ds = p * (dot(go, v + j * D, D) - delta) / sqrtf(D);
            add(dq, ds, k + j * D, D);
            add(dk + j * D, ds, q, D);
            add(dv + j * D, p, go, D);
        }
    }
}

/* Three products of a block. s = x y^T: rows of x against keys of y, which is transposed first. */
static void rows_by_rows(float s[R][R], const float* x, const float* y, size rows, size keys, size D) {
    float t[D][R];
    for (size d = 0; d < D; d++)
        for (size j = 0; j < R; j++) t[d][j] = j < keys ? y[j * D + d] : 0;
    for (size i = 0; i < rows; i++) {
        float sum[R] = {0};
        for (size d = 0; d < D; d++)
            for (size j = 0; j < R; j++) sum[j] += x[i * D + d] * t[d][j];
        memcpy(s[i], sum, sizeof sum);
    }
}

static void add_rows(float* y, float s[R][R], const float* x, size rows, size keys, size D) {
    for (size i = 0; i < rows; i++)
        for (size j = 0; j < keys; j++) add(y + i * D, s[i][j], x + j * D, D); /* y += s x */
}

static void add_columns(float* y, float s[R][R], const float* x, size rows, size keys, size D) {
    for (size i = 0; i < rows; i++)
        for (size j = 0; j < keys; j++) add(y + j * D, s[i][j], x + i * D, D); /* y += s^T x */
}

static size least(size a, size b) { return a < b ? a : b; }

/* 3. Blocks: R queries against R keys. Scores stay in L1, and the loops run along registers. */
void blocks(float* o, float* lse, const float* q, const float* k, const float* v, size T, size D) {
    const float scale = 1 / sqrtf(D);
    float s[R][R], m[R], l[R];
    memset(o, 0, T * D * sizeof(float));
    for (size i = 0; i < T; i += R) {
        size rows = least(R, T - i);
        for (size r = 0; r < rows; r++) m[r] = -INFINITY, l[r] = 0;
        for (size j = 0; j <= i; j += R) {
            size keys = least(R, T - j);
            rows_by_rows(s, q + i * D, k + j * D, rows, keys, D);
            for (size r = 0; r < rows; r++) {
                size seen = j == i ? r + 1 : keys; /* on the diagonal a query sees j <= i */
                float top = m[r], sum = 0;
                for (size n = 0; n < seen; n++) top = fmaxf(top, scale * s[r][n]);
                for (size n = 0; n < R; n++) s[r][n] = n < seen ? power(scale * s[r][n] - top) : 0;
                for (size n = 0; n < seen; n++) sum += s[r][n];
                float shrink = power(m[r] - top);
                for (size d = 0; d < D; d++) o[(i + r) * D + d] *= shrink;
                l[r] = l[r] * shrink + sum;
                m[r] = top;
            }
            add_rows(o + i * D, s, v + j * D, rows, keys, D);
        }
        for (size r = 0; r < rows; r++) {
            lse[i + r] = m[r] + logf(l[r]);
            for (size d = 0; d < D; d++) o[(i + r) * D + d] /= l[r];
        }
    }
}

void blocks_backward(float* dq, float* dk, float* dv, const float* go, const float* o,
                     const float* lse, const float* q, const float* k, const float* v, size T,
                     size D) {
    const float scale = 1 / sqrtf(D);
    float p[R][R], ds[R][R];
    memset(dq, 0, T * D * sizeof(float));
    memset(dk, 0, T * D * sizeof(float));
    memset(dv, 0, T * D * sizeof(float));
    for (size j = 0; j < T; j += R)
        for (size i = j; i < T; i += R) {
            size rows = least(R, T - i), keys = least(R, T - j);
            rows_by_rows(p, q + i * D, k + j * D, rows, keys, D);
            rows_by_rows(ds, go + i * D, v + j * D, rows, keys, D);
            for (size r = 0; r < rows; r++) {
                size seen = j == i ? r + 1 : keys;
                float delta = dot(go + (i + r) * D, o + (i + r) * D, D), norm = lse[i + r];
                for (size n = 0; n < R; n++) {
                    p[r][n] = n < seen ? power(scale * p[r][n] - norm) : 0;
                    ds[r][n] = n < seen ? scale * p[r][n] * (ds[r][n] - delta) : 0;
                }
            }
            add_columns(dv + j * D, p, go + i * D, rows, keys, D);
            add_columns(dk + j * D, ds, q + i * D, rows, keys, D);
            add_rows(dq + i * D, ds, k + j * D, rows, keys, D);
        }
}

/* 4. Packed segments: row i's example starts at first[i]. Blocks begin where examples begin, so an
   example has the bits and the cost of a sequence of its own. */
void segments(float* o, float* lse, const float* q, const float* k, const float* v,
              const int* first, size T, size D) {
    for (size i = 0, end; i < T; i = end) {
        for (end = i + 1; end < T && first[end] == i;) end++;
        blocks(o + i * D, lse + i, q + i * D, k + i * D, v + i * D, end - i, D);
    }
}

void segments_backward(float* dq, float* dk, float* dv, const float* go, const float* o,
                       const float* lse, const float* q, const float* k, const float* v,
                       const int* first, size T, size D) {
    for (size i = 0, end; i < T; i = end) {
        for (end = i + 1; end < T && first[end] == i;) end++;
        size at = i * D;
        blocks_backward(dq + at, dk + at, dv + at, go + at, o + at, lse + i, q + at, k + at,
                        v + at, end - i, D);
    }
}
