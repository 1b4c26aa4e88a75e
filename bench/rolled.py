"""Rollouts: a token of each of several rows in a run, over quantized files of random weights."""

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import numpy as np
from smallest import smallest

from toynn import engines
from toynn.engines.decoding import BatchDecoder
from toynn.formats import gguf
from toynn.testing.limits import Limits
from toynn.testing.lora_step import Shape

PAST = smallest(64, 4)  # tokens of each row that are in the cache
ROWS = smallest((1, 2, 4, 8, 16, 32, 64), (1, 2))
SMALL = Shape(256, 1, 4, 2, 256, 512, False, 64)
#: Rows of Q4_K have blocks of 256, so SmolLM2's width of 576 will not do.
SHAPES = {
    "smollm2_135m_Q8_0": (smallest(Shape(576, 30, 9, 3, 1536, 49152, False, 256), SMALL), "Q8_0"),
    "d768_L12_Q4_K": (smallest(Shape(768, 12, 12, 4, 2048, 49152, False, 256), SMALL), "Q4_K"),
}


def steps(path: Path, shape: Shape) -> Iterator[tuple[int, Callable[[], object]]]:
    """Yield each number of rows, with a call that reads a token of each; 0: a text by itself."""
    engine = engines.frozen(gguf.open(path))
    ids = np.random.default_rng(0).integers(0, shape.vocab, PAST).tolist()
    for number in (0, *ROWS):
        rows = max(1, number)
        decoder = BatchDecoder(engine, rows, 2 * PAST, alone=not number)
        decoder.read(dict.fromkeys(range(rows), ids))

        def step(decoder: BatchDecoder = decoder, rows: int = rows) -> None:
            for row in range(rows):
                decoder.rewind(row, PAST)
            decoder.read(dict.fromkeys(range(rows), ids[:1]))

        yield number, step


def bound(path: Path, shape: Shape, rows: int, limits: Limits) -> float:
    """Return tokens per second if products took their float32 time, or the file's reading."""
    weights = sum(prod(dims) for dims in shape.config.shapes(untied=shape.untied).values())
    return rows / limits.bound(2 * rows * weights, path.stat().st_size, limits.n_threads).seconds
