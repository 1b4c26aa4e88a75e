"""What all kernels stand on: no op.

A kernel is written with entry.pxd (how a file declares an entry), _common.pxd (exp, sums in a fixed
order), _parallel.pxd, _pointwise.pxd and _columns.pxd (how work is dealt to threads). Around it
stand signature.py (what a signature says), loops.py (the loops that follow from it), abi.pxd (the
struct that programs and kernels share), entry.py and invoke.pyx (calls from Python), pool.pyx (the
threads), cpu.pyx (what the CPU has) and limits.pyx (its peak rates).
"""
