"""Loading a gigabyte of float32 from a GGUF file: the cost of mapping and of the first logits.

The weights are random. They are written to a temporary folder, which is removed afterwards.
"""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from smallest import smallest

from toynn import LlamaConfig, LlamaSeqEngine, RecipeOptions, engines
from toynn.formats import gguf

SHAPE = smallest(
    LlamaConfig(12288, 2048, 32, 8, 5632, 5, 512), LlamaConfig(256, 64, 2, 1, 96, 1, 64)
)  # 1.0 GB


def write(path: Path) -> int:
    """Write a model of SHAPE; return the bytes of the file."""
    shapes = LlamaSeqEngine()
    shapes.declare(SHAPE, RecipeOptions())
    floats, random = np.dtype(np.float32), np.random.default_rng(0)
    tensors = {
        name: (gguf.Deferred(w.shape, floats, partial(draw, random, w.shape)), "f32")
        for name, w in shapes.tensors.items()
    }
    sizes = {
        "context_length": SHAPE.context,
        "embedding_length": SHAPE.d_model,
        "block_count": SHAPE.n_layers,
        "feed_forward_length": SHAPE.d_ff,
        "attention.head_count": SHAPE.n_heads,
        "attention.head_count_kv": SHAPE.n_kv_heads,
        "attention.layer_norm_rms_epsilon": SHAPE.rms_eps,
        "vocab_size": SHAPE.vocab,
    }
    metadata = {"general.architecture": "llama"} | {f"llama.{k}": v for k, v in sizes.items()}
    gguf.write(path, metadata, tensors)
    return path.stat().st_size


def draw(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return a matrix from N(0, 0.02), or a norm's gains."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    return 0.02 * random.standard_normal(shape, np.float32)


def resident() -> float:
    """Return the megabytes of this process in memory, mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE / 1e6


@contextmanager
def row(name: str) -> Iterator[None]:
    """Print the time of the body, and by how much the process grows."""
    before, begin = resident(), time.perf_counter()
    yield
    seconds = time.perf_counter() - begin
    print(f"{name:42}{seconds * 1e3:10.1f} ms{resident() - before:10.1f} MB", flush=True)


def rows(path: Path) -> None:
    """Load the file once; print a row for each part."""
    with row("mapping alone"), path.open("rb") as opened:
        bare = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    bare.close()
    with row("gguf.open"):
        file = gguf.open(path)
    with row("engines.frozen"):
        engine = engines.frozen(file)
    for name in ("first logits, of 1 token", "the next ones"):
        with row(name):
            engine.logits([1])


def forget(path: Path) -> None:
    """Ask the system to drop a file from its cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def loads(folder: Path) -> dict[str, Callable[[], None]]:
    """Return functions that load the file: from the system's cache, and from the disk."""
    path = folder / "gigabyte.gguf"
    print(f"a file of {write(path) / 1e9:.2f} GB, float32")

    def cold() -> None:
        forget(path)
        rows(path)

    return {"in the cache": partial(rows, path), "on the disk": cold}
