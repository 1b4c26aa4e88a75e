"""Where the copies of each row go when they are sorted by expert.

    offsets[e]   = how many (n,j) have experts[n,j] < e                     e = 0..E
    slots[n,j]   = offsets[e] + how many (n',j') before (n,j) go to e       e = experts[n,j]

N rows, each sent to K of E experts. All is i32: experts and slots (N,K), offsets (E+1,). So expert
e has rows offsets[e] .. offsets[e+1] - 1, in the order in which they came. slots and offsets are
overwritten; they never alias experts. A counting sort, on one thread: it takes as long as reading
the numbers. The Python door refuses an expert outside 0..E-1; the program's entry, for which
routing.pyx makes them, takes it for the nearest one.
Source: Knuth, The Art of Computer Programming, vol. 3, 2nd ed. 1998, section 5.2, algorithm D.
"""
from libc.string cimport memset

from toynn._kernels._common cimport ids1
from toynn._kernels._entry cimport entry
from toynn._kernels.abi cimport KernelArgs

from toynn._kernels._check import check


cdef inline Py_ssize_t _within(int e, Py_ssize_t E) noexcept nogil:
    return min(max(<Py_ssize_t>e, 0), E - 1)


cdef void _forward(KernelArgs* a) noexcept nogil:
    cdef int* slots = <int*>a.t[0]
    cdef int* offsets = <int*>a.t[1]
    cdef const int* experts = <const int*>a.t[2]
    cdef Py_ssize_t N = a.n[0], K = a.n[1], E = a.n[2]
    cdef Py_ssize_t i, e
    cdef int count, before = 0
    memset(offsets, 0, (E + 1) * sizeof(int))
    for i in range(N * K):
        offsets[_within(experts[i], E) + 1] += 1
    for e in range(E):  # offsets[e + 1] is now where e begins, and then where its next row goes
        count = offsets[e + 1]
        offsets[e + 1] = before
        before += count
    for i in range(N * K):
        e = _within(experts[i], E)
        slots[i] = offsets[e + 1]
        offsets[e + 1] += 1


def forward(int[:, ::1] slots, int[::1] offsets, const int[:, ::1] experts, int n_threads=1):
    """Overwrite slots (N,K) and offsets (E+1,) from experts (N,K)."""
    cdef KernelArgs a
    cdef Py_ssize_t N = experts.shape[0], K = experts.shape[1], E = offsets.shape[0] - 1
    cdef Py_ssize_t n, j
    check("expert_rows.forward", f"experts ({N}, {K})", n_threads, slots=(slots, (N, K)))
    if E < 1:
        raise ValueError(f"expert_rows.forward: needs offsets (E + 1,), E >= 1; got ({E + 1},)")
    for n in range(N):
        for j in range(K):
            if not 0 <= experts[n, j] < E:
                raise ValueError(
                    f"expert_rows.forward: row {n}: expert {experts[n, j]} is outside 0..{E - 1}"
                )
    a.t[0] = <void*>&slots[0, 0] if N * K else NULL
    a.t[1] = ids1(offsets)
    a.t[2] = <void*>&experts[0, 0] if N * K else NULL
    a.n[0], a.n[1], a.n[2] = N, K, E
    with nogil:
        _forward(&a)


entries = {"forward": entry(_forward, "slots offsets experts", sizes="N K E")}
