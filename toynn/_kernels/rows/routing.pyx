"""Routing: the experts that a row goes to, and their weights.

    experts[n,:]   = the K experts e with the largest p[n,e] + b[e], largest first; of equals, the
                     first
    weights[n,j]   = s f[e_j] p[n,e_j] / Z[n]    e_j = experts[n,j];  Z = eps + sum_j p[n,e_j], or 1
    dp[n,e_j]      = s f[e_j] dw[n,j]                                   without Z
                     (s f[e_j] dw[n,j] - sum_i dw[n,i] w[n,i]) / Z[n]   with it (normalized)
    dp[n,e]        = 0                                                  for the others
    df[e]          = sum of s dw[n,j] p[n,e] / Z[n]                     over the n, j with e_j = e

With G groups of E / G experts, only experts of the L groups with the largest g are chosen:

    g[n,i]         = the sum of the two largest p[n,e] + b[e] of group i, or the largest (best 1)

N rows, E experts, K of them chosen. p (N,E) are scores of at least 0, a softmax or a sigmoid of the
router's logits; s is the scale. b (E,) balances loads and may be missing: it takes part in the
choice, not in the weights. f (E,), a factor of each expert, may be missing: then it is 1. float32,
experts int32, C-contiguous; nothing may share memory. All outputs are overwritten; df is added to
instead if accumulate is set. df may be missing. Saved for backward: weights and experts, which are
outputs anyway. Neither the choice nor b has a gradient. NaN counts as larger than any number, so a
row with NaN gets a weight of NaN.
Source: Shazeer et al. 2017, arXiv:1701.06538, section 2.1; with Z: Jiang et al. 2024,
arXiv:2401.04088; with a sigmoid, b, s and groups: DeepSeek-AI 2024, arXiv:2412.19437, section
2.1.2; with groups by their largest: section 2.1.3 of arXiv:2405.04434.
"""
from libc.math cimport INFINITY
from libc.string cimport memset

from toynn._kernels.base.entry cimport entry

cdef enum:
    GROUPS = 64  # most groups: their scores are kept on the stack


cdef inline bint _is_larger(float x, float y) noexcept nogil:
    return x > y or (x != x and y == y)


cdef inline float _score(const float* p, const float* b, Py_ssize_t e) noexcept nogil:
    return p[e] + b[e] if b != NULL else p[e]


cdef inline float _of_group(
    const float* p, const float* b, Py_ssize_t first, Py_ssize_t end, Py_ssize_t best
) noexcept nogil:
    """The sum of the ``best`` largest scores of a group, one or two."""
    cdef Py_ssize_t e
    cdef float score, most = -INFINITY, second = -INFINITY
    for e in range(first, end):
        score = _score(p, b, e)
        if _is_larger(score, most):
            most, second = score, most
        elif _is_larger(score, second):
            second = score
    return most + second if best > 1 else most


cdef inline void _stay(
    bint* stays, const float* p, const float* b, Py_ssize_t size, Py_ssize_t G, Py_ssize_t L,
    Py_ssize_t best,
) noexcept nogil:
    """Mark the L groups to choose from: those with fewer than L larger groups (ties: first)."""
    cdef float scores[GROUPS]
    cdef Py_ssize_t g, h, before
    for g in range(G):
        scores[g] = _of_group(p, b, g * size, (g + 1) * size, best)
    for g in range(G):
        before = 0
        for h in range(G):
            if _is_larger(scores[h], scores[g]) or (
                h < g and not _is_larger(scores[g], scores[h])
            ):
                before += 1
        stays[g] = before < L


cdef inline void _choose(
    int* experts, const float* p, const float* b, Py_ssize_t E, Py_ssize_t K, Py_ssize_t G,
    Py_ssize_t L, Py_ssize_t best,
) noexcept nogil:
    """Find the K largest of E, in order: insert each in front of those that are smaller."""
    cdef bint stays[GROUPS]
    cdef Py_ssize_t e, j, count = 0
    cdef float score
    if L < G:
        _stay(stays, p, b, E // G, G, L, best)
    for e in range(E):
        if L < G and not stays[e // (E // G)]:
            continue
        j = count
        score = _score(p, b, e)
        if count < K:
            count += 1
        elif not _is_larger(score, _score(p, b, experts[K - 1])):
            continue
        else:
            j = K - 1
        while j > 0 and _is_larger(score, _score(p, b, experts[j - 1])):
            experts[j] = experts[j - 1]
            j -= 1
        experts[j] = e


cdef inline float _total(
    const float* p, const int* experts, Py_ssize_t K, float eps
) noexcept nogil:
    cdef Py_ssize_t j
    cdef float total = eps
    for j in range(K):
        total += p[experts[j]]
    return total


cdef inline void forward_row(
    float* weights, int* experts, const float* p, const float* b, const float* f, Py_ssize_t E,
    Py_ssize_t K, Py_ssize_t G, Py_ssize_t L, Py_ssize_t best, bint normalized, float scale,
    float eps,
) noexcept nogil:
    cdef Py_ssize_t j
    _choose(experts, p, b, E, K, G, L, best)
    cdef float factor = scale / _total(p, experts, K, eps) if normalized else scale
    for j in range(K):
        weights[j] = p[experts[j]] * factor
        if f != NULL:
            weights[j] *= f[experts[j]]


cdef inline void backward_row(
    float* dp, const float* dweights, const float* p, const float* weights, const int* experts,
    const float* f, Py_ssize_t E, Py_ssize_t K, bint normalized, float scale, float eps,
) noexcept nogil:
    cdef Py_ssize_t j
    cdef float d, common = 0, factor = 1
    memset(dp, 0, E * sizeof(float))
    if normalized:
        for j in range(K):
            common += dweights[j] * weights[j]
        factor = <float>1.0 / _total(p, experts, K, eps)
    for j in range(K):
        d = scale * dweights[j]
        if f != NULL:
            d *= f[experts[j]]
        dp[experts[j]] = (d - common) * factor


cdef inline void backward_once(
    float* df, const float* dweights, const float* p, const int* experts, Py_ssize_t N,
    Py_ssize_t E, Py_ssize_t K, bint normalized, float scale, float eps, bint accumulate,
) noexcept nogil:
    """Compute df, on one thread: it has few numbers."""
    cdef Py_ssize_t n, j
    cdef float factor
    if not accumulate:
        memset(df, 0, E * sizeof(float))
    for n in range(N):
        factor = scale / _total(p + n * E, experts + n * K, K, eps) if normalized else scale
        for j in range(n * K, (n + 1) * K):
            df[experts[j]] += dweights[j] * p[n * E + experts[j]] * factor


def _checked(where, arrays, sizes, options):
    if not 1 <= sizes["K"] <= sizes["E"]:
        raise ValueError(
            f"{where}: needs 1 to {sizes['E']} experts of p {arrays['p'].shape}; got {sizes['K']}"
        )


def _in_groups(where, arrays, sizes, options):
    _checked(where, arrays, sizes, options)
    E, K, G, L = (sizes[name] for name in "EKGL")
    if G != 1 and not (2 <= G <= GROUPS and E % G == 0 and E >= 2 * G and 1 <= L <= G):
        raise ValueError(
            f"{where}: needs 1 to {GROUPS} groups of 2 or more of {E} experts, and 1 to all of "
            f"them; got {G} and {L}"
        )
    if sizes["best"] not in (1, 2):
        raise ValueError(f"{where}: needs best 1 or 2; got {sizes['best']}")
    if G == 1 != L or K > E // G * L:
        raise ValueError(
            f"{where}: needs K experts within {L} of {G} groups of {E // G}; got K {K}"
        )


forward = entry(
    "rows N: weights[N K] i32 experts[N K] <- p[N E] b[E]? f[E]? "
    "| G=1 L=1 best=2 normalized=0 scale=1.0 eps=0.0",
    _in_groups,
)
backward = entry(
    "rows N, once: "
    "dp[N E] df[E]?+ <- dweights[N K] p[N E] weights[N K] i32 experts[N K]<E f[E]? "
    "| normalized=0 scale=1.0 eps=0.0",
    _checked,
)
