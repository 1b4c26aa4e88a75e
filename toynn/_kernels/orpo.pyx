"""ORPO: the chosen completion is learned, and its odds shall exceed those of the rejected one.

    a[s]     = -sums[s,1] / len[s],   len[s] = bounds[2s+2] - bounds[2s+1],   c = 2i, r = 2i + 1
    o        = log odds(a[c]) - log odds(a[r]),   log odds(a) = a - log(1 - e^a)
    nll      = sum over pairs of (sums[c,0] + sums[c,1]) / (tokens of all chosen, prompts too)
    forward  loss = nll + beta/pairs sum softplus(-o)
    backward dsums[s,1] = +-dloss beta/pairs sigmoid(-o) / (len[s] (1 - e^a[s])),  + where s is c
             dsums[c,:] += dloss / tokens

sums (S,2) from token_sums and bounds (2S+1,) as there; count (1,), int32: how many sequences there
are, two a pair. A completion that is certain (a = 0) has no odds: a is at most -1e-12. The other
dsums are 0. float32, inside double; outputs are overwritten. One thread: a few numbers a pair.
Source: Hong et al. 2024, arXiv:2403.07691, equations 4 to 7.
"""
from libc.math cimport exp, expm1, log, log1p
from libc.string cimport memset

from toynn._kernels._common cimport at1, at2, ids1
from toynn._kernels._entry cimport entry
from toynn._kernels._preference cimport completion, sigmoid, softplus
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check, sequences

cdef double CERTAIN = -1e-12


cdef inline Py_ssize_t _length(const int* bounds, Py_ssize_t s) noexcept nogil:
    return bounds[2 * s + 2] - bounds[2 * s + 1]


cdef inline double _average(const float* sums, const int* bounds, Py_ssize_t s) noexcept nogil:
    """a[s]; NaN stays NaN."""
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


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef float* loss = <float*>a.t[0]
    cdef const float* sums = <const float*>a.t[1]
    cdef const int* bounds = <const int*>a.t[2]
    cdef const int* count = <const int*>a.t[3]
    cdef float beta = a.f[0]
    cdef Py_ssize_t i, S = a.n[0], pairs = min(count[0], S) // 2
    cdef double total = 0, nll = 0
    for i in range(pairs):
        nll += <double>sums[4 * i] + sums[4 * i + 1]
        total += softplus(-_ratio(sums, bounds, i))
    loss[0] = <float>(nll / _tokens(bounds, pairs) + beta * total / pairs)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef float* dsums = <float*>a.t[0]
    cdef const float* dloss = <const float*>a.t[1]
    cdef const float* sums = <const float*>a.t[2]
    cdef const int* bounds = <const int*>a.t[3]
    cdef const int* count = <const int*>a.t[4]
    cdef float beta = a.f[0]
    cdef Py_ssize_t i, s, S = a.n[0], pairs = min(count[0], S) // 2
    cdef double d, each = <double>dloss[0] / _tokens(bounds, pairs)
    if S:
        memset(dsums, 0, 2 * S * sizeof(float))
    for i in range(pairs):
        d = dloss[0] * <double>beta / pairs * sigmoid(-_ratio(sums, bounds, i))
        for s in range(2 * i, 2 * i + 2):
            dsums[2 * s + 1] = <float>(d / (-expm1(_average(sums, bounds, s)) * _length(bounds, s)))
        dsums[4 * i + 3] = -dsums[4 * i + 3]
        dsums[4 * i] = <float>each
        dsums[4 * i + 1] += <float>each


def _checked(where, const float[:, ::1] sums, const int[::1] bounds, const int[::1] count):
    """Raise ValueError unless there are two sequences or more, with tokens in each completion."""
    cdef Py_ssize_t s
    sequences(where, count[0], sums.shape[0], of=2)
    for s in range(count[0]):
        if bounds[2 * s] > bounds[2 * s + 1] or bounds[2 * s + 1] >= bounds[2 * s + 2]:
            raise ValueError(f"{where}: bounds must rise, in the completion of sequence {s} too")


def forward(
    float[::1] loss, const float[:, ::1] sums, const int[::1] bounds, const int[::1] count,
    float beta, int n_threads=1,
):
    """Overwrite loss (1,) from sums (S,2), bounds (2S+1,) and count (1,)."""
    cdef KernelArgs a
    cdef Py_ssize_t S = sums.shape[0]
    check(
        "orpo.forward", f"sums ({S}, 2)", n_threads, loss=(loss, (1,)), sums=(sums, (S, 2)),
        bounds=(bounds, (2 * S + 1,)), count=(count, (1,)),
    )
    _checked("orpo.forward", sums, bounds, count)
    a.t[0], a.t[1], a.t[2], a.t[3] = at1(loss), at2(sums), ids1(bounds), ids1(count)
    a.f[0] = beta
    a.n[0] = S
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dsums, const float[::1] dloss, const float[:, ::1] sums, const int[::1] bounds,
    const int[::1] count, float beta, int n_threads=1,
):
    """Overwrite dsums (S,2) from dloss (1,) and what forward has read."""
    cdef KernelArgs a
    cdef Py_ssize_t S = sums.shape[0]
    check(
        "orpo.backward", f"sums ({S}, 2)", n_threads, dsums=(dsums, (S, 2)), dloss=(dloss, (1,)),
        sums=(sums, (S, 2)), bounds=(bounds, (2 * S + 1,)), count=(count, (1,)),
    )
    _checked("orpo.backward", sums, bounds, count)
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(dsums), at1(dloss), at2(sums), ids1(bounds)
    a.t[4] = ids1(count)
    a.n[0] = S
    a.f[0] = beta
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(_forward, "loss sums bounds count", sizes="S", options="beta"),
    "backward": entry(_backward, "dsums dloss sums bounds count", sizes="S", options="beta"),
}
