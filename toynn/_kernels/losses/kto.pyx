"""KTO: make wanted completions likelier than under a reference model, unwanted ones less likely.

    g        = beta (lp[s] - reference[s] - kl),   lp[s] = -sums[s,1]
    forward  loss = mean over s of good (1 - sigmoid(g)) if wanted[s], else bad (1 - sigmoid(-g))
    backward dsums[s,1] = +-dloss w beta / count sigmoid(g) sigmoid(-g),   + and w = good if wanted,
                          - and w = bad if not

sums (S,2) come from token_sums; reference (S,) is lp of the reference model. kl (1,) is how far the
model is from the reference on other completions, and has no gradient. wanted (S,) and count (1,),
the number of sequences, are int32. The other dsums are 0. float32, with double inside; outputs are
overwritten. One thread: there are only a few numbers per sequence.
Source: Ethayarajh et al. 2024, arXiv:2402.01306, equations 7 and 8.
"""
from libc.string cimport memset

from toynn._kernels.losses._preference cimport completion, sigmoid
from toynn._kernels.args.kto cimport Backward, Forward
from toynn._kernels.base.entry cimport entry

from toynn._kernels.base._check import sequences


cdef inline void forward_once(Forward* a) noexcept nogil:
    cdef Py_ssize_t s
    cdef double g, total = 0
    for s in range(min(a.count[0], a.S)):
        g = a.beta * (completion(a.sums, s) - a.reference[s] - a.kl[0])
        total += a.good * sigmoid(-g) if a.wanted[s] else a.bad * sigmoid(g)
    a.loss[0] = <float>(total / a.count[0])


cdef inline void backward_once(Backward* a) noexcept nogil:
    cdef Py_ssize_t s
    cdef double g, w, scale = a.dloss[0] * <double>a.beta / a.count[0]
    if a.S:
        memset(a.dsums, 0, 2 * a.S * sizeof(float))
    for s in range(min(a.count[0], a.S)):
        g = a.beta * (completion(a.sums, s) - a.reference[s] - a.kl[0])
        w = a.good if a.wanted[s] else -a.bad
        a.dsums[2 * s + 1] = <float>(scale * w * sigmoid(g) * sigmoid(-g))


forward = entry(
    "once: loss[1] "
    "<- sums[S 2] reference[S] kl[1] i32 wanted[S] i32 count[1] | float beta float good float bad",
    sequences,
)
backward = entry(
    "once: dsums[S 2] "
    "<- dloss[1] sums[S 2] reference[S] kl[1] i32 wanted[S] i32 count[1] "
    "| float beta float good float bad",
    sequences,
)
