"""The address of an array argument of a Python function."""


cdef inline void* at1(const float[::1] x) noexcept:
    """The address of the first element; NULL for an empty array."""
    return <void*>&x[0] if x.shape[0] else NULL
