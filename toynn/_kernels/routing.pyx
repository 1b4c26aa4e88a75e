"""Routing: the experts that a row goes to, and what each of them counts.

    experts[n,:]   = the K experts e with the largest p[n,e], largest first; of equals, the first
    weights[n,j]   = s p[n,e_j] / Z[n]      e_j = experts[n,j];  Z = sum_j p[n,e_j], or 1
    dp[n,e_j]      = s dw[n,j]                                   without Z
                     (s dw[n,j] - sum_i dw[n,i] w[n,i]) / Z[n]   with it (normalized)
    dp[n,e]        = 0                                           for the others

N rows, E experts, K of them chosen; p (N,E) are scores of at least 0, a softmax or a sigmoid of the
router's logits; s is the scale. float32, experts int32, C-contiguous; nothing may share memory.
All outputs are overwritten. Saved for backward: weights and experts, which are outputs anyway. The
choice itself has no gradient. NaN counts as larger than any number: so a row that has one shows it.
Source: Shazeer et al. 2017, arXiv:1701.06538, section 2.1; with Z: Jiang et al. 2024,
arXiv:2401.04088; with a sigmoid and s: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.
"""
from libc.string cimport memset

from toynn._kernels._common cimport at2
from toynn._kernels._entry cimport entry
from toynn._kernels._parallel cimport parallel_for
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef inline bint _is_larger(float x, float y) noexcept nogil:
    return x > y or (x != x and y == y)


cdef inline void _choose(int* experts, const float* p, Py_ssize_t E, Py_ssize_t K) noexcept nogil:
    """The K largest of E, in order: each is put in front of those that are smaller."""
    cdef Py_ssize_t e, j, count = 0
    for e in range(E):
        j = count
        if count < K:
            count += 1
        elif not _is_larger(p[e], p[experts[K - 1]]):
            continue
        else:
            j = K - 1
        while j > 0 and _is_larger(p[e], p[experts[j - 1]]):
            experts[j] = experts[j - 1]
            j -= 1
        experts[j] = e


cdef inline float _total(const float* p, const int* experts, Py_ssize_t K) noexcept nogil:
    cdef Py_ssize_t j
    cdef float total = 0
    for j in range(K):
        total += p[experts[j]]
    return total


cdef inline void _row_forward(
    float* weights, int* experts, const float* p, Py_ssize_t E, Py_ssize_t K, bint normalized,
    float scale,
) noexcept nogil:
    cdef Py_ssize_t j
    _choose(experts, p, E, K)
    cdef float factor = scale / _total(p, experts, K) if normalized else scale
    for j in range(K):
        weights[j] = p[experts[j]] * factor


cdef inline void _row_backward(
    float* dp, const float* dw, const float* p, const float* w, const int* experts, Py_ssize_t E,
    Py_ssize_t K, bint normalized, float scale,
) noexcept nogil:
    cdef Py_ssize_t j
    cdef float common = 0, factor = 1
    memset(dp, 0, E * sizeof(float))
    if normalized:
        for j in range(K):
            common += dw[j] * w[j]
        factor = <float>1.0 / _total(p, experts, K)
    for j in range(K):
        dp[experts[j]] = (scale * dw[j] - common) * factor


cdef void _forward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* weights = <float*>a.t[0]
    cdef int* experts = <int*>a.t[1]
    cdef const float* p = <const float*>a.t[2]
    cdef Py_ssize_t n, E = a.n[1], K = a.n[2], normalized = a.n[3]
    cdef float scale = a.f[0]
    for n in range(first, last):
        _row_forward(weights + n * K, experts + n * K, p + n * E, E, K, normalized, scale)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0]
    parallel_for(_forward_rows, a, N)


cdef void _backward_rows(KernelArgs* a, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef float* dp = <float*>a.t[0]
    cdef const float* dweights = <const float*>a.t[1]
    cdef const float* p = <const float*>a.t[2]
    cdef const float* weights = <const float*>a.t[3]
    cdef const int* experts = <const int*>a.t[4]
    cdef Py_ssize_t n, E = a.n[1], K = a.n[2], normalized = a.n[3]
    cdef float scale = a.f[0]
    for n in range(first, last):
        _row_backward(
            dp + n * E, dweights + n * K, p + n * E, weights + n * K, experts + n * K, E, K,
            normalized, scale,
        )


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef Py_ssize_t N = a.n[0], E = a.n[1]
    parallel_for(_backward_rows, a, N if E else 0)  # rows of nothing take no time


cdef inline void* _ids2(const int[:, ::1] x) noexcept:
    return <void*>&x[0, 0] if x.shape[0] and x.shape[1] else NULL


def forward(
    float[:, ::1] weights, int[:, ::1] experts, const float[:, ::1] p, bint normalized=False,
    float scale=1.0, int n_threads=1,
):
    """Overwrite weights and experts (N,K) from scores p (N,E)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = p.shape[0], E = p.shape[1], K = weights.shape[1]
    check(
        "routing.forward", f"p ({N}, {E}), {K} of them", n_threads, weights=(weights, (N, K)),
        experts=(experts, (N, K)),
    )
    if not 1 <= K <= E:
        raise ValueError(f"routing.forward: needs 1 to {E} experts of p ({N}, {E}); got {K}")
    a.t[0], a.t[1], a.t[2] = at2(weights), _ids2(experts), at2(p)
    a.n[0], a.n[1], a.n[2], a.n[3] = N, E, K, normalized
    a.f[0] = scale
    a.n_threads = n_threads
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dp, const float[:, ::1] dweights, const float[:, ::1] p,
    const float[:, ::1] weights, const int[:, ::1] experts, bint normalized=False,
    float scale=1.0, int n_threads=1,
):
    """Overwrite dp (N,E) from dweights (N,K), p (N,E) and what forward made of it, (N,K)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = p.shape[0], E = p.shape[1], K = weights.shape[1]
    cdef Py_ssize_t n, j
    check(
        "routing.backward", f"p ({N}, {E}), {K} of them", n_threads, dp=(dp, (N, E)), p=(p, (N, E)),
        dweights=(dweights, (N, K)), weights=(weights, (N, K)), experts=(experts, (N, K)),
    )
    for n in range(N if K else 0):
        for j in range(K):
            if not 0 <= experts[n, j] < E:
                raise ValueError(
                    f"routing.backward: row {n}: expert {experts[n, j]} is outside 0..{E - 1}"
                )
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(dp), at2(dweights), at2(p), at2(weights)
    a.t[4] = _ids2(experts)
    a.n[0], a.n[1], a.n[2], a.n[3] = N, E, K, normalized
    a.f[0] = scale
    a.n_threads = n_threads
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "weights experts p", sizes="N E K normalized", options="scale"),
    "backward": entry(
        _backward, "dp dweights p weights experts", sizes="N E K normalized", options="scale"
    ),
}
