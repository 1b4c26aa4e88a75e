"""DPO: of two completions of a prompt, the one that is chosen shall gain on the other.

    m        = beta ((lp[c] - ref[c]) - (lp[r] - ref[r])),   lp[s] = -sums[s,1], c = 2i, r = 2i + 1
    forward  loss = mean over pairs i of (1 - e) softplus(-m) + e softplus(m)
    backward dsums[c,1] = -dsums[r,1] = dloss beta / pairs ((1 - e) sigmoid(-m) - e sigmoid(m))

sums (S,2) from token_sums; reference (S,): what the model is held against has for lp; count (1,),
int32: how many sequences there are, two a pair; e is label smoothing. The other dsums are 0.
float32, inside double; outputs are overwritten. One thread: a few numbers a pair.
Sources: Rafailov et al. 2023, arXiv:2305.18290, equation 7; Mitchell 2023, cDPO (e).
"""
from libc.string cimport memset

from toynn._kernels._common cimport at1, at2, ids1
from toynn._kernels._entry cimport entry
from toynn._kernels._preference cimport completion, sigmoid, softplus
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check, sequences


cdef inline double _margin(
    const float* sums, const float* reference, Py_ssize_t i, float beta
) noexcept nogil:
    cdef double chosen = completion(sums, 2 * i) - reference[2 * i]
    return beta * (chosen - (completion(sums, 2 * i + 1) - reference[2 * i + 1]))


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef float* loss = <float*>a.t[0]
    cdef const float* sums = <const float*>a.t[1]
    cdef const float* reference = <const float*>a.t[2]
    cdef const int* count = <const int*>a.t[3]
    cdef float beta = a.f[0], smoothing = a.f[1]
    cdef Py_ssize_t i, S = a.n[0], pairs = min(count[0], S) // 2
    cdef double m, total = 0
    for i in range(pairs):
        m = _margin(sums, reference, i, beta)
        total += (1 - smoothing) * softplus(-m) + smoothing * softplus(m)
    loss[0] = <float>(total / pairs)


cdef void _backward(KernelArgs* a) noexcept nogil:
    cdef float* dsums = <float*>a.t[0]
    cdef const float* dloss = <const float*>a.t[1]
    cdef const float* sums = <const float*>a.t[2]
    cdef const float* reference = <const float*>a.t[3]
    cdef const int* count = <const int*>a.t[4]
    cdef float beta = a.f[0], smoothing = a.f[1]
    cdef Py_ssize_t i, S = a.n[0], pairs = min(count[0], S) // 2
    cdef double m, d, scale = dloss[0] * <double>beta / pairs
    if S:
        memset(dsums, 0, 2 * S * sizeof(float))
    for i in range(pairs):
        m = _margin(sums, reference, i, beta)
        d = scale * ((1 - smoothing) * sigmoid(-m) - smoothing * sigmoid(m))
        dsums[4 * i + 1] = <float>d
        dsums[4 * i + 3] = <float>-d


def forward(
    float[::1] loss, const float[:, ::1] sums, const float[::1] reference, const int[::1] count,
    float beta, float smoothing, int n_threads=1,
):
    """Overwrite loss (1,) from sums (S,2), reference (S,) and count (1,)."""
    cdef KernelArgs a
    cdef Py_ssize_t S = sums.shape[0]
    check(
        "dpo.forward", f"sums ({S}, 2)", n_threads, loss=(loss, (1,)), sums=(sums, (S, 2)),
        reference=(reference, (S,)), count=(count, (1,)),
    )
    sequences("dpo.forward", count[0], S, of=2)
    a.t[0], a.t[1], a.t[2], a.t[3] = at1(loss), at2(sums), at1(reference), ids1(count)
    a.f[0], a.f[1] = beta, smoothing
    a.n[0] = S
    with nogil:
        _forward(&a)


def backward(
    float[:, ::1] dsums, const float[::1] dloss, const float[:, ::1] sums,
    const float[::1] reference, const int[::1] count, float beta, float smoothing,
    int n_threads=1,
):
    """Overwrite dsums (S,2) from dloss (1,) and what forward has read."""
    cdef KernelArgs a
    cdef Py_ssize_t S = sums.shape[0]
    check(
        "dpo.backward", f"sums ({S}, 2)", n_threads, dsums=(dsums, (S, 2)), dloss=(dloss, (1,)),
        sums=(sums, (S, 2)), reference=(reference, (S,)), count=(count, (1,)),
    )
    sequences("dpo.backward", count[0], S, of=2)
    a.t[0], a.t[1], a.t[2], a.t[3] = at2(dsums), at1(dloss), at2(sums), at1(reference)
    a.t[4] = ids1(count)
    a.n[0] = S
    a.f[0], a.f[1] = beta, smoothing
    with nogil:
        _backward(&a)


entries = {
    "forward": entry(
        _forward, "loss sums reference count", sizes="S", options="beta smoothing"
    ),
    "backward": entry(
        _backward, "dsums dloss sums reference count", sizes="S", options="beta smoothing"
    ),
}
