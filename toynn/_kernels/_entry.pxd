"""The entries of a kernel: what a program calls, and by which names it hands over the arguments."""
from cpython.pycapsule cimport PyCapsule_New

from toynn._kernels.abi cimport kernel_fn


cdef inline entry(kernel_fn kernel, str tensors, str sizes="", str options=""):
    """A kernel, with the names of its slots: a.t[0], a.t[1] .., a.n[0] .. and a.f[0] .. in order.

    A tensor whose name ends in "?" may be NULL.
    """
    from toynn.signature import Entry, Signature
    capsule = PyCapsule_New(<void*>kernel, "toynn.kernel", NULL)
    return Entry(capsule, Signature.of(tensors, sizes, options))
