"""The feed: all inputs of a step, checked and copied in one call.

A tiny step takes less time than a few calls of NumPy. Inputs are nearly always right. So a first
pass only checks whether all arrays are; if they are, a second pass copies them. Otherwise nothing
is copied, and the caller checks the inputs with NumPy, to say what is wrong.
"""
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, Py_buffer, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.math cimport isinf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef enum:
    MOST = 16      # inputs
    DIMENSIONS = 2
    IGNORED = -100

cdef struct Slot:
    void* to
    bint whole     # i32; else f32
    int ndim
    Py_ssize_t shape[DIMENSIONS]
    Py_ssize_t count
    bint bounded   # every number must be in 0 .. size - 1
    long long size
    bint ignores   # numbers may also be IGNORED, but not all of them


ctypedef fused Whole:
    int
    long long


cdef bint _is_bounded(const Slot* slot, const Whole* values) noexcept nogil:
    """Whether whole numbers are in range and fit into 32 bits."""
    cdef Py_ssize_t i, ignored = 0
    cdef long long size = slot.size if slot.bounded else 2147483648
    cdef long long first = 0 if slot.bounded else -2147483648
    cdef long long value
    for i in range(slot.count):
        value = values[i]
        if slot.ignores and value == IGNORED:
            ignored += 1
        elif value < first or value >= size:
            return False
    return not slot.ignores or ignored < slot.count


cdef bint _stays_finite(const double* values, Py_ssize_t n) noexcept nogil:
    """Whether all finite numbers stay finite as float32."""
    cdef Py_ssize_t i
    for i in range(n):
        if isinf(<float>values[i]) and not isinf(values[i]):
            return False
    return True


cdef bint _fits(const Slot* slot, const Py_buffer* given) noexcept nogil:
    """Whether an array fits a slot, as it is or converted."""
    cdef char kind = given.format[0]
    cdef int i
    if given.format[1] != 0 or given.ndim != slot.ndim:
        return False
    for i in range(slot.ndim):
        if given.shape[i] != slot.shape[i]:
            return False
    if not slot.whole:
        return kind == c"f" or (
            kind == c"d" and _stays_finite(<const double*>given.buf, slot.count)
        )
    if kind != c"i" and kind != c"l" and kind != c"q":  # "l" has 4 bytes on Windows
        return False
    if given.itemsize == 4:
        return _is_bounded(slot, <const int*>given.buf)
    return given.itemsize == 8 and _is_bounded(slot, <const long long*>given.buf)


cdef void _copy(const Slot* slot, const Py_buffer* given) noexcept nogil:
    cdef Py_ssize_t i
    cdef int* numbers = <int*>slot.to
    cdef float* floats = <float*>slot.to
    if given.itemsize == 4:
        memcpy(slot.to, given.buf, 4 * slot.count)
    elif slot.whole:
        for i in range(slot.count):
            numbers[i] = <int>(<const long long*>given.buf)[i]
    else:
        for i in range(slot.count):
            floats[i] = <float>(<const double*>given.buf)[i]


cdef class Feed:
    """Where inputs go, in host memory that ``kept`` keeps alive."""

    cdef Slot* _slots
    cdef int _size
    cdef object _kept

    def __cinit__(self, list slots, object kept):
        """Take (address, shape, whole, size or None, ignores) for each input."""
        cdef size_t address
        cdef Slot* slot
        if len(slots) > MOST:
            raise ValueError(f"a feed has at most {MOST} inputs; got {len(slots)}")
        self._slots = <Slot*>calloc(max(len(slots), 1), sizeof(Slot))
        if self._slots == NULL:
            raise MemoryError(f"cannot allocate a feed of {len(slots)} inputs")
        self._kept = kept
        for address, shape, whole, size, ignores in slots:
            slot = &self._slots[self._size]
            if len(shape) > DIMENSIONS:
                raise ValueError(f"a feed's inputs have at most {DIMENSIONS} axes; got {shape}")
            slot.to, slot.whole, slot.ndim, slot.count = <void*>address, whole, len(shape), 1
            for i, n in enumerate(shape):
                slot.shape[i] = n
                slot.count *= n
            slot.bounded, slot.ignores = size is not None, ignores
            slot.size = 0 if size is None else size
            self._size += 1

    def __dealloc__(self):
        free(self._slots)

    def __reduce__(self):
        raise TypeError("a feed holds addresses and cannot be pickled")

    def put(self, arrays):
        """Copy an array to each input, in order. If one does not fit, return False; copy none."""
        cdef Py_buffer views[MOST]
        cdef int got = 0, i
        cdef bint fits = len(arrays) == self._size
        try:
            for array in arrays:
                if not fits:
                    break
                PyObject_GetBuffer(array, &views[got], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
                got += 1
                fits = _fits(&self._slots[got - 1], &views[got - 1])
            if fits:
                for i in range(got):
                    _copy(&self._slots[i], &views[i])
        except (TypeError, BufferError, ValueError):  # not an array, or not contiguous
            fits = False
        finally:
            for i in range(got):
                PyBuffer_Release(&views[i])
        return fits
