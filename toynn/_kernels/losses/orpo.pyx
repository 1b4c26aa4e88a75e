"""ORPO: cross-entropy of the chosen completion, plus a loss for its odds against the rejected one.

    a[s]     = -sums[s,1] / len[s],   len[s] = bounds[2s+2] - bounds[2s+1],   c = 2i, r = 2i + 1
    o        = log odds(a[c]) - log odds(a[r]),   log odds(a) = a - log(1 - e^a)
    nll      = sum over pairs of (sums[c,0] + sums[c,1]) / (tokens of all chosen, prompts too)
    forward  loss = nll + beta/pairs sum softplus(-o)
    backward dsums[s,1] = +-dloss beta/pairs sigmoid(-o) / (len[s] (1 - e^a[s])),  + where s is c
             dsums[c,:] += dloss / tokens

sums (S,2) and bounds (2S+1,) are those of token_sums. count (1,), int32, is the number of
sequences, two per pair. A certain completion (a = 0) has infinite odds, so a is clamped to at most
-1e-12. The other dsums are 0. float32, with double inside; outputs are overwritten. One thread:
there are only a few numbers per pair.
Source: Hong et al. 2024, arXiv:2403.07691, equations 4 to 7.
"""
from libc.math cimport exp, expm1, log, log1p
from libc.string cimport memset

from toynn._kernels.losses._preference cimport completion, sigmoid, softplus
from toynn._kernels.args.orpo cimport Backward, Forward
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import completions

cdef double CERTAIN = -1e-12


cdef inline Py_ssize_t _length(const int* bounds, Py_ssize_t s) noexcept nogil:
    return bounds[2 * s + 2] - bounds[2 * s + 1]


cdef inline double _average(const float* sums, const int* bounds, Py_ssize_t s) noexcept nogil:
    """a[s], clamped; NaN stays NaN."""
    cdef double found = completion(sums, s) / _length(bounds, s)
    return CERTAIN if found > CERTAIN else found


cdef inline double _log_odds(double a) noexcept nogil:
    return a - (log(-expm1(a)) if a > -0.69 else log1p(-exp(a)))


cdef inline double _ratio(const float* sums, const int* bounds, Py_ssize_t i) noexcept nogil:
    """o of pair i."""
    cdef double chosen = _log_odds(_average(sums, bounds, 2 * i))
    return chosen - _log_odds(_average(sums, bounds, 2 * i + 1))


cdef inline Py_ssize_t _tokens(const int* bounds, Py_ssize_t pairs) noexcept nogil:
    cdef Py_ssize_t i, total = 0
    for i in range(pairs):
        total += bounds[4 * i + 2] - bounds[4 * i]
    return total


cdef inline void forward_once(Forward* a) noexcept nogil:
    cdef Py_ssize_t i, pairs = min(a.count[0], a.S) // 2
    cdef double total = 0, nll = 0
    for i in range(pairs):
        nll += <double>a.sums[4 * i] + a.sums[4 * i + 1]
        total += softplus(-_ratio(a.sums, a.bounds, i))
    a.loss[0] = <float>(nll / _tokens(a.bounds, pairs) + a.beta * total / pairs)


cdef inline void backward_once(Backward* a) noexcept nogil:
    cdef Py_ssize_t i, s, pairs = min(a.count[0], a.S) // 2
    cdef double d, against, each = <double>a.dloss[0] / _tokens(a.bounds, pairs)
    if a.S:
        memset(a.dsums, 0, 2 * a.S * sizeof(float))
    for i in range(pairs):
        d = a.dloss[0] * <double>a.beta / pairs * sigmoid(-_ratio(a.sums, a.bounds, i))
        for s in range(2 * i, 2 * i + 2):
            against = -expm1(_average(a.sums, a.bounds, s))  # 1 - e^a
            a.dsums[2 * s + 1] = <float>(d / (against * _length(a.bounds, s)))
        a.dsums[4 * i + 3] = -a.dsums[4 * i + 3]
        a.dsums[4 * i] = <float>each
        a.dsums[4 * i + 1] += <float>each


forward = entry(
    "once: loss[1] "
    "<- sums[S 2] i32 bounds[2*S+1] i32 count[1] | float beta",
    completions,
)
backward = entry(
    "once: dsums[S 2] "
    "<- dloss[1] sums[S 2] i32 bounds[2*S+1] i32 count[1] | float beta",
    completions,
)
