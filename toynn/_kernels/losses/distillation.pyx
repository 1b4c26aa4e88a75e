"""Divergence from a teacher's log probabilities, mixed with cross-entropy, for a chunk of rows.

A row has K + 1 outcomes: the K tokens ids[n,:], and any other token, the rest.

    p         teacher:  p_k = e^log_p[n,k],   p_rest = e^log_rest[n]
    q         student:  q_k = s[ids[n,k]],    q_rest = sum_v s[v] over all other v
              s[v]    = e^(x[n,v]/T) / sum_u e^(x[n,u]/T),   T = temperature
    m         = beta p + (1 - beta) q
    D[n]      = beta sum_o p_o log(p_o/m_o) + (1 - beta) sum_o q_o log(q_o/m_o)
                beta = 0: sum_o p_o log(p_o/q_o);   beta = 1: sum_o q_o log(q_o/p_o)
    forward   losses[n]    = (1 - w) CE[n] + w D[n],   CE[n] = log sum_v e^x[n,v] - x[n,labels[n]]
    backward  h_o          = (1 - beta) q_o log(q_o/m_o);   -p_o;   q_o log(q_o/p_o)
              dx_k         = (h_k - q_k sum_o h_o) / T
              dx_v         = s[v] (h_rest/q_rest - sum_o h_o) / T           v is of the rest
              dlogits[n,v] = dloss/rows ((1 - w) dCE/dx_v + w dx_v);  losses too

h is q dD/dq without constants that the softmax cancels; its three forms are those of D. x are the
logits of N rows, V classes each, w = weight[0]; with w = 0 the teacher's arrays are not read, and
the loss is cross-entropy. q_rest is a sum of its own: 1 - sum_k q_k would cancel. p_rest and q_rest
count as at least 1e-30. Without a rest (K = V), log_rest is -inf. A row whose label is -100
has none: its loss and dlogits are 0. float32, outcomes in double; labels and ids int32, no id twice
in a row. losses and dlogits are overwritten; dlogits may be the logits. The mean of the losses, and
the number of rows: chunked_cross_entropy.pyx.
Sources: Hinton et al. 2015, arXiv:1503.02531, without its factor T^2; Agarwal et al. 2024,
arXiv:2306.13649, section 3: D as TRL's GKDTrainer computes it.
"""
from libc.math cimport exp, log
from libc.string cimport memcpy, memset

from toynn._kernels.base._common cimport exp_, max_, sum_
from toynn._kernels.base.entry cimport entry
from toynn._kernels.losses._logits cimport BLOCK, exp_sum

cdef double LEAST = log(1e-30)


cdef inline double _term(double* h, double log_q, double log_p, double beta) noexcept nogil:
    """Return an outcome's part of D, and its h."""
    cdef double q = exp(log_q), p = exp(log_p), log_m
    if beta == 0:
        h[0] = -p
        return p * (log_p - log_q)
    if beta == 1:
        h[0] = q * (log_q - log_p)
        return h[0]
    log_m = log(beta * p + (1 - beta) * q)
    h[0] = (1 - beta) * q * (log_q - log_m)
    return beta * p * (log_p - log_m) + h[0]


cdef inline double _at_least(double log_p) noexcept nogil:
    return LEAST if log_p < LEAST else log_p  # NaN stays NaN


cdef inline float _row(
    float* dx, const float* x, int label, const int* ids, const float* log_p, float log_rest,
    float weight, float scale, Py_ssize_t V, Py_ssize_t K, float beta, float temperature,
) noexcept nogil:
    """Return the loss of a row; store its gradient in dx (which may be x) unless dx is NULL."""
    cdef float terms[BLOCK]
    cdef float top, own, other, cooling = 1 / temperature
    cdef double loss, total, rest = 0, D = 0, H = 0, h, log_q, log_total, each
    cdef Py_ssize_t v, k, b, size, blocks = (V + BLOCK - 1) // BLOCK
    if not 0 <= label < V:
        if dx != NULL:
            memset(dx, 0, V * sizeof(float))
        return 0
    top = max_(x, V)
    total = exp_sum(NULL, x, top, V)
    loss = (1 - weight) * (top - x[label] + log(total))
    own = <float>((1 - weight) * scale / total)
    other = each = 0
    if weight != 0:
        for b in range(blocks):
            size = min(BLOCK, V - b * BLOCK)
            for v in range(size):
                terms[v] = exp_((x[b * BLOCK + v] - top) * cooling)
            for k in range(K):
                if 0 <= ids[k] - b * BLOCK < size:
                    terms[ids[k] - b * BLOCK] = 0
            rest += sum_(terms, size)
        total = rest
        for k in range(K):
            total += exp(<double>(x[ids[k]] - top) * cooling)
        log_total = log(total)
        for k in range(K):
            D += _term(&h, <double>(x[ids[k]] - top) * cooling - log_total, log_p[k], beta)
            H += h
        log_q = _at_least(log(rest) - log_total)
        D += _term(&h, log_q, _at_least(log_rest), beta)
        H += h
        loss += weight * D
        each = <double>weight * scale * cooling
        other = <float>(each * (h / exp(log_q) - H) / total)
    if dx == NULL:
        return <float>loss
    for b in range(blocks):
        size = min(BLOCK, V - b * BLOCK)
        for v in range(size):
            terms[v] = own * exp_(x[b * BLOCK + v] - top)
        if weight != 0:
            for v in range(size):
                terms[v] += other * exp_((x[b * BLOCK + v] - top) * cooling)
            for k in range(K):
                v = ids[k] - b * BLOCK
                if 0 <= v < size:
                    log_q = <double>(x[ids[k]] - top) * cooling - log_total
                    _term(&h, log_q, log_p[k], beta)
                    terms[v] = own * exp_(x[ids[k]] - top) + <float>(each * (h - exp(log_q) * H))
        memcpy(dx + b * BLOCK, terms, size * sizeof(float))
    dx[label] -= (1 - weight) * scale
    return <float>loss


cdef inline void forward_row(
    float* losses, const float* logits, int labels, const int* ids, const float* log_p,
    float log_rest, float weight, Py_ssize_t V, Py_ssize_t K, float beta, float temperature,
) noexcept nogil:
    losses[0] = _row(
        NULL, logits, labels, ids, log_p, log_rest, weight, 0, V, K, beta, temperature
    )


cdef inline void backward_row(
    float* dlogits, float* losses, float dloss, const float* logits, int labels, const int* ids,
    const float* log_p, float log_rest, float weight, float rows, Py_ssize_t V, Py_ssize_t K,
    float beta, float temperature,
) noexcept nogil:
    losses[0] = _row(
        dlogits, logits, labels, ids, log_p, log_rest, weight, dloss / rows, V, K, beta,
        temperature,
    )


forward = entry(
    "rows N: losses[N] <- logits[N V] i32 labels[N]<V,-100 i32 ids[N K]<V log_p[N K] log_rest[N] "
    "weight[1] | beta=0.0 temperature=1.0"
)
backward = entry(
    "rows N: dlogits[N V]=logits losses[N] <- dloss[1] logits[N V] i32 labels[N]<V,-100 "
    "i32 ids[N K]<V log_p[N K] log_rest[N] weight[1] rows[1] | beta=0.0 temperature=1.0"
)
