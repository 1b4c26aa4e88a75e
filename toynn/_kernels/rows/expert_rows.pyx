"""Where each copy of a row goes when all copies are sorted by expert.

    offsets[e]   = how many (n,j) have experts[n,j] < e                     e = 0..E
    slots[n,j]   = offsets[e] + how many (n',j') before (n,j) go to e       e = experts[n,j]
    even: offsets[e] = M e, for a batch of products: expert e has rows M e .. M (e + 1) - 1

N rows, each sent to K of E experts. All arrays are i32: experts and slots (N,K), offsets (E+1,). So
expert e has rows offsets[e] .. offsets[e+1] - 1, in their original order. slots and offsets are
overwritten; they never alias experts. A counting sort on one thread: it takes as long as reading
the numbers. The Python call refuses an expert outside 0..E-1. In a program routing.pyx chooses the
experts; the program's entry replaces a wrong number by that of the nearest expert.
Source: Knuth, The Art of Computer Programming, vol. 3, 2nd ed. 1998, section 5.2, algorithm D.
"""
from libc.string cimport memset

from toynn._kernels.base.entry cimport entry


cdef inline Py_ssize_t _within(int e, Py_ssize_t E) noexcept nogil:
    return min(max(<Py_ssize_t>e, 0), E - 1)


cdef inline void forward_once(
    int* slots, int* offsets, const int* experts, Py_ssize_t N, Py_ssize_t K, Py_ssize_t E
) noexcept nogil:
    cdef Py_ssize_t i, e
    cdef int count, before = 0
    memset(offsets, 0, (E + 1) * sizeof(int))
    for i in range(N * K):
        offsets[_within(experts[i], E) + 1] += 1
    for e in range(E):  # offsets[e + 1] becomes where e begins; below, where its next row goes
        count = offsets[e + 1]
        offsets[e + 1] = before
        before += count
    for i in range(N * K):
        e = _within(experts[i], E)
        slots[i] = offsets[e + 1]
        offsets[e + 1] += 1


cdef inline void even_once(int* offsets, Py_ssize_t E, Py_ssize_t M) noexcept nogil:
    cdef Py_ssize_t e
    for e in range(E + 1):
        offsets[e] = <int>(M * e)


forward = entry("once: i32 slots[N K] i32 offsets[E+1] <- i32 experts[N K]<E")
even = entry("once: i32 offsets[E+1] <- | M")
