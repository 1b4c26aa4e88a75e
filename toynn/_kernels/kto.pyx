"""KTO: a completion that is wanted shall gain on the reference, one that is not shall lose.

    g        = beta (lp[s] - reference[s] - kl),   lp[s] = -sums[s,1]
    forward  loss = mean over s of good (1 - sigmoid(g)) if wanted[s], else bad (1 - sigmoid(-g))
    backward dsums[s,1] = +-dloss w beta / count sigmoid(g) sigmoid(-g),   + and w = good if wanted,
                          - and w = bad if not

sums (S,2) from token_sums; reference (S,): what the model is held against has for lp; kl (1,): how
far the model is from it on other completions, of which no gradient is computed; wanted (S,) and
count (1,), how many sequences there are, int32. The other dsums are 0. float32, inside double;
outputs are overwritten. One thread: a few numbers a sequence.
Source: Ethayarajh et al. 2024, arXiv:2402.01306, equations 7 and 8.
"""
from libc.string cimport memset

from toynn._kernels._common cimport at1, at2, ids1
from toynn._kernels._entry cimport entry
from toynn._kernels._preference cimport completion, sigmoid
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check, sequences


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef float* loss = <float*>a.t[0]
    cdef const float* sums = <const float*>a.t[1]
    cdef const float* reference = <const float*>a.t[2]
    cdef const float* kl = <const float*>a.t[3]
    cdef const int* wanted = <const int*>a.t[4]
    cdef const int* count = <const int*>a.t[5]
    cdef float beta = a.f[0], good = a.f[1], bad = a.f[2]
    cdef Py_ssize_t s, S = a.n[0]
    cdef double g, total = 0
    for s in range(min(count[0], S)):
        g = beta * (completion(sums, s) - reference[s] - kl[0])
        total += good * sigmoid(-g) if wanted[s] else bad * sigmoid(g)
    loss[0] = <float>(total / count[0])


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef float* dsums = <float*>a.t[0]
    cdef const float* dloss = <const float*>a.t[1]
    cdef const float* sums = <const float*>a.t[2]
    cdef const float* reference = <const float*>a.t[3]
    cdef const float* kl = <const float*>a.t[4]
    cdef const int* wanted = <const int*>a.t[5]
    cdef const int* count = <const int*>a.t[6]
    cdef float beta = a.f[0], good = a.f[1], bad = a.f[2]
    cdef Py_ssize_t s, S = a.n[0]
    cdef double g, w, scale = dloss[0] * <double>beta / count[0]
    if S:
        memset(dsums, 0, 2 * S * sizeof(float))
    for s in range(min(count[0], S)):
        g = beta * (completion(sums, s) - reference[s] - kl[0])
        w = good if wanted[s] else -bad
        dsums[2 * s + 1] = <float>(scale * w * sigmoid(g) * sigmoid(-g))


def forward(
    float[::1] loss, const float[:, ::1] sums, const float[::1] reference, const float[::1] kl,
    const int[::1] wanted, const int[::1] count, float beta, float good, float bad,
    int n_threads=1,
):
    """Overwrite loss (1,) from sums (S,2), reference and wanted (S,), kl and count (1,)."""
    cdef KernelArgs a
    cdef Py_ssize_t S = sums.shape[0]
    check(
        "kto.forward", f"sums ({S}, 2)", n_threads, loss=(loss, (1,)), sums=(sums, (S, 2)),
        reference=(reference, (S,)), kl=(kl, (1,)), wanted=(wanted, (S,)), count=(count, (1,)),
    )
    sequences("kto.forward", count[0], S)
    a.t[0], a.t[1], a.t[2], a.t[3] = at1(loss), at2(sums), at1(reference), at1(kl)
    a.t[4], a.t[5] = ids1(wanted), ids1(count)
    a.f[0], a.f[1], a.f[2] = beta, good, bad
    a.n[0] = S
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dsums, const float[::1] dloss, const float[:, ::1] sums,
    const float[::1] reference, const float[::1] kl, const int[::1] wanted,
    const int[::1] count, float beta, float good, float bad, int n_threads=1,
):
    """Overwrite dsums (S,2) from dloss (1,) and what forward has read."""
    cdef KernelArgs a
    cdef Py_ssize_t S = sums.shape[0]
    check(
        "kto.backward", f"sums ({S}, 2)", n_threads, dsums=(dsums, (S, 2)), dloss=(dloss, (1,)),
        sums=(sums, (S, 2)), reference=(reference, (S,)), kl=(kl, (1,)), wanted=(wanted, (S,)),
        count=(count, (1,)),
    )
    sequences("kto.backward", count[0], S)
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(dsums), at1(dloss), at2(sums), at1(reference)
    a.t[4], a.t[5], a.t[6] = at1(kl), ids1(wanted), ids1(count)
    a.n[0] = S
    a.f[0], a.f[1], a.f[2] = beta, good, bad
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(
        _forward, "loss sums reference kl wanted count", sizes="S", options="beta good bad"
    ),
    "backward": entry(
        _backward, "dsums dloss sums reference kl wanted count", sizes="S",
        options="beta good bad",
    ),
}
