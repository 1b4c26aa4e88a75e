"""DPO: raise the odds of the chosen completion over the rejected one, relative to a reference.

    m        = beta ((lp[c] - ref[c]) - (lp[r] - ref[r])),   lp[s] = -sums[s,1], c = 2i, r = 2i + 1
    forward  loss = mean over pairs i of (1 - e) softplus(-m) + e softplus(m)
    backward dsums[c,1] = -dsums[r,1] = dloss beta / pairs ((1 - e) sigmoid(-m) - e sigmoid(m))

sums (S,2) come from token_sums; reference (S,) is lp of the reference model. count (1,), int32, is
the number of sequences, two per pair; e is label smoothing. The other dsums are 0. float32, with
double inside; outputs are overwritten. One thread: there are only a few numbers per pair.
Sources: Rafailov et al. 2023, arXiv:2305.18290, equation 7; Mitchell 2023, cDPO (e).
"""
from libc.string cimport memset

from toynn._kernels.losses._preference cimport completion, sigmoid, softplus
from toynn._kernels.args.dpo cimport Backward, Forward
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import pairs as in_pairs


cdef inline double _margin(
    const float* sums, const float* reference, Py_ssize_t i, float beta
) noexcept nogil:
    cdef double chosen = completion(sums, 2 * i) - reference[2 * i]
    return beta * (chosen - (completion(sums, 2 * i + 1) - reference[2 * i + 1]))


cdef inline void forward_once(Forward* a) noexcept nogil:
    cdef Py_ssize_t i, pairs = min(a.count[0], a.S) // 2
    cdef double m, total = 0
    for i in range(pairs):
        m = _margin(a.sums, a.reference, i, a.beta)
        total += (1 - a.smoothing) * softplus(-m) + a.smoothing * softplus(m)
    a.loss[0] = <float>(total / pairs)


cdef inline void backward_once(Backward* a) noexcept nogil:
    cdef Py_ssize_t i, pairs = min(a.count[0], a.S) // 2
    cdef double m, d, scale = a.dloss[0] * <double>a.beta / pairs
    if a.S:
        memset(a.dsums, 0, 2 * a.S * sizeof(float))
    for i in range(pairs):
        m = _margin(a.sums, a.reference, i, a.beta)
        d = scale * ((1 - a.smoothing) * sigmoid(-m) - a.smoothing * sigmoid(m))
        a.dsums[4 * i + 1] = <float>d
        a.dsums[4 * i + 3] = <float>-d


forward = entry(
    "once: loss[1] "
    "<- sums[S 2] reference[S] i32 count[1] | float beta float smoothing",
    in_pairs,
)
backward = entry(
    "once: dsums[S 2] "
    "<- dloss[1] sums[S 2] reference[S] i32 count[1] | float beta float smoothing",
    in_pairs,
)
