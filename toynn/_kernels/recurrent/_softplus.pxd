"""softplus, the step size of decay.pyx and ssd.pyx."""
from libc.math cimport expf, log1pf


cdef inline float softplus_(float x) noexcept nogil:
    """log(1 + e^x), by the C library."""
    return x + log1pf(expf(-x)) if x > 0 else log1pf(expf(x))
