"""How a kernel file declares an entry: a kernel that both programs and Python call.

    forward = entry("rows N: y[N C]; r[N] <- x[N C] w[C] | eps=1e-5", checked)
"""
from cpython.pycapsule cimport PyCapsule_New

from toynn._kernels.base.abi cimport kernel_fn, scratch_fn


cdef inline entry(kernel_fn kernel, str signature, scratch_fn scratch=NULL, checked=None):
    """Return a kernel that can be called by its signature (signature.py); see entry.py.

    loops.py fills in ``kernel``, and ``scratch``: the bytes of scratch memory at given sizes.
    ``checked(where, arrays, sizes, options)`` raises ValueError for what shapes do not show.
    """
    from toynn._kernels.base.entry import Entry
    return Entry(
        PyCapsule_New(<void*>kernel, "toynn.kernel", NULL),
        signature,
        PyCapsule_New(<void*>scratch, "toynn.scratch", NULL) if scratch != NULL else None,
        checked,
    )
