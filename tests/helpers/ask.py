"""Call a kernel by name, or its float64 reference, as the questions about kernels do."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from toynn.testing.calls import invoke
from toynn.testing.cases import _case


def draw(*shape, seed=0):
    """Return normal numbers, as float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _split(kernel, arguments):
    """Return arrays, and sizes and options, those that the arrays show among them."""
    arrays = {n: np.asarray(v) for n, v in arguments.items() if isinstance(v, list | np.ndarray)}
    scalars = {name: value for name, value in arguments.items() if name not in arrays}
    sizes = {name: value for name, value in scalars.items() if isinstance(value, int)}
    shapes = {name: array.shape for name, array in arrays.items()}
    return arrays, _case.KERNELS[kernel].signature.solve(shapes, sizes) | scalars


def run(kernel, *, into=None, n_threads=1, **arguments):
    """Return what a kernel writes; ``into``: arrays to which it adds."""
    op = kernel.partition(".")[0]
    call = replace(_case.derived(kernel, *_split(kernel, arguments)), op=op)
    outputs = invoke(op, call, n_threads, accumulate=into is not None, **(into or {}))
    return SimpleNamespace(**outputs)


def exact(kernel, **arguments):
    """Return what the float64 reference of a kernel writes."""
    arrays, scalars = _split(kernel, arguments)
    return SimpleNamespace(**_case.reference(kernel, _case.widened(arrays), scalars))
