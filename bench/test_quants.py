"""Dequantization against a plain copy of its output; memory should limit both."""

import time
from statistics import median

import gguf
import numpy as np
import pytest

from toynn._kernels import quants
from toynn.formats.quants import BLOCKS, TYPES
from toynn.testing.cases.quants import SCALES, blocks

N = 2**24  # elements: 64 MiB of float32, more than caches hold


def seconds(call, *arguments):
    """Return the CPU time of a call on this thread; other load does not count."""
    start = time.thread_time()
    call(*arguments)
    return time.thread_time() - start


@pytest.mark.parametrize("name", [name for name in TYPES if TYPES[name] in SCALES])
def test_dequantize_like_a_copy(benchmark, name):
    elements, _ = BLOCKS[name]
    part = blocks(np.random.default_rng(7), TYPES[name], N // elements // 16)
    raw = np.tile(part, (16, 1)).reshape(-1)
    y, source = np.zeros(N, np.float32), np.ones(N, np.float32)

    quants.dequantize(y, raw, TYPES[name])
    last = gguf.quants.dequantize(part[-4096:], gguf.GGMLQuantizationType[name]).reshape(-1)
    assert y[-last.size :].tobytes() == last.tobytes()

    benchmark.group = "dequantize, one thread"
    benchmark(quants.dequantize, y, raw, TYPES[name])
    if benchmark.stats:  # not with --benchmark-disable
        turns = [
            (seconds(quants.dequantize, y, raw, TYPES[name]), seconds(np.copyto, y, source))
            for _ in range(15)
        ]
        ours, copy = (median(times) for times in zip(*turns, strict=True))
        benchmark.extra_info["times a copy"] = round(ours / copy, 2)
        benchmark.extra_info["GB/s"] = round((y.nbytes + raw.nbytes) / ours / 1e9, 1)
