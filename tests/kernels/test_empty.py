"""Kernels with a size of 0, one after the other: refused, or nothing is done; no address is NULL.

An array of nothing has an address, too: the C library's memset and memcpy are declared to take no
NULL, with 0 bytes neither. tests/asan.py runs this where the sanitizer of undefined behaviour sees
it, and a division by a size that is 0.
"""

from contextlib import suppress

import numpy as np
import pytest

from toynn._kernels import entry
from toynn.testing.calls import invoke
from toynn.testing.cases import CASES

pytestmark = pytest.mark.kernels


def ordinary():
    """Each entry of each op, once, with a call of it, and a size that can be 0."""
    for op, case in CASES.items():
        rng, seen = np.random.default_rng(7), set()
        for sizes in case.shapes:
            for call in case.calls(rng, **sizes):
                empty = any(array.size == 0 for array in call.arrays.values())
                if call.entry in seen or empty or call.kernel is None:
                    continue
                seen.add(call.entry)
                letters = dict.fromkeys(e for s in call.kernel.signature.specs for e in s.extents)
                for letter in filter(str.isidentifier, letters):
                    yield pytest.param(op, call, letter, id=f"{op}.{call.entry}-{letter}")


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(("op", "call", "letter"), list(ordinary()))
def test_a_size_of_nothing(op, call, letter, n_threads, monkeypatch):
    sizes, signature, arrays = call.named()[0], call.kernel.signature, {}
    for name, array in call.arrays.items():
        before, after = (signature[name].shape(s) for s in (sizes, sizes | {letter: 0}))
        if min(after, default=0) < 0:
            pytest.skip("a shape of one less")
        arrays[name] = array.copy() if before == after else np.zeros(after, array.dtype)
    called = entry.invoke

    def watched(capsule, tensors, *rest):
        passed = map(arrays.get, signature.tensors)
        for array, expected in zip(tensors, passed, strict=True):
            assert (array is None) == (expected is None)
            assert array is None or array.ctypes.data
        called(capsule, tensors, *rest)

    monkeypatch.setattr(entry, "invoke", watched)
    with suppress(ValueError):  # a size that must be 1 at least, or divides another one
        invoke(op, call, n_threads, **arrays)
