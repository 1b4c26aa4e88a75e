"""Where slots lie in an arena: the loop of the planner, over all pairs of a thousand slots."""
from libc.stdlib cimport free, malloc

cdef struct Placed:
    long long begin   # bytes
    long long end
    int first         # nodes between which it is live
    int last


def lowest_offsets(list slots not None):
    """Return for each slot, one after the other, the lowest offset that is free while it is live.

    ``slots`` has the bytes, the first and the last node of each.
    """
    cdef Placed* placed = <Placed*>malloc((len(slots) + 1) * sizeof(Placed))  # by their begins
    cdef Placed slot
    cdef long long nbytes
    cdef Py_ssize_t i, n = 0
    if placed == NULL:
        raise MemoryError
    offsets = []
    try:
        for nbytes, slot.first, slot.last in slots:
            slot.begin = 0
            for i in range(n):
                if placed[i].first <= slot.last and placed[i].last >= slot.first:
                    if placed[i].begin - slot.begin >= nbytes:
                        break
                    slot.begin = max(slot.begin, placed[i].end)
            slot.end = slot.begin + nbytes
            i = n
            while i > 0 and placed[i - 1].begin > slot.begin:
                placed[i] = placed[i - 1]
                i -= 1
            placed[i] = slot
            n += 1
            offsets.append(slot.begin)
    finally:
        free(placed)
    return offsets
