"""Rollouts: a token of each of several rows in a run, over quantized files of random weights.

llama.cpp, if llama-cpp-python is installed, reads as many sequences of the same file in a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path

import numpy as np
from smallest import smallest

from toynn import engines
from toynn.engines.decoding import BatchDecoder
from toynn.formats import gguf
from toynn.testing.limits import Limits
from toynn.testing.lora_step import SHAPES as STEPS
from toynn.testing.lora_step import Shape

PAST = smallest(64, 4)  # tokens of each row that are in the cache
ROWS = smallest((1, 2, 4, 8, 16, 32, 64), (1, 2))
SMALL, LARGE = Shape(256, 1, 4, 2, 256, 512, False, 64), STEPS["tinyllama_1.1b_T256"]
#: Rows of Q4_K have blocks of 256, so SmolLM2's width of 576 will not do.
SHAPES = {
    "smollm2_135m_Q8_0": (smallest(Shape(576, 30, 9, 3, 1536, 49152, False, 256), SMALL), "Q8_0"),
    "d768_L12_Q4_K": (smallest(Shape(768, 12, 12, 4, 2048, 49152, False, 256), SMALL), "Q4_K"),
    "tinyllama_1.1b_Q8_0": (smallest(LARGE, SMALL), "Q8_0"),
    "tinyllama_1.1b_Q4_K": (smallest(LARGE, SMALL), "Q4_K"),
}


def steps(
    path: Path, shape: Shape, n_threads: int
) -> Iterator[tuple[int, dict[str, Callable[[], object]]]]:
    """Yield each number of rows, with calls that read a token of each; 0: a text by itself."""
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

        calls = {"toynn": step}
        if number and find_spec("llama_cpp"):
            calls["llama.cpp"] = of_llama_cpp(path, ids, rows, n_threads)
        yield number, calls


def of_llama_cpp(path: Path, ids: Sequence[int], rows: int, n_threads: int) -> Callable[[], object]:
    """Return a call in which llama.cpp reads a token of each of several sequences."""
    import llama_cpp

    llama_cpp.llama_log_set(_silent := llama_cpp.llama_log_callback(lambda *_: None), None)
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    options = llama_cpp.llama_context_default_params()
    options.n_seq_max, options.n_ctx = rows, rows * 256  # it rounds up to 256 a sequence
    options.n_batch = options.n_ubatch = rows * PAST
    options.n_threads = options.n_threads_batch = n_threads
    context = llama_cpp.llama_init_from_model(model, options)
    memory = llama_cpp.llama_get_memory(context)
    batch = llama_cpp.llama_batch_init(rows * PAST, 0, 1)

    def read(ids: Sequence[int], position: int) -> None:
        batch.n_tokens = rows * len(ids)
        for k in range(batch.n_tokens):
            row, place = divmod(k, len(ids))
            batch.token[k], batch.pos[k] = ids[place], position + place
            batch.n_seq_id[k], batch.seq_id[k][0] = 1, row
            batch.logits[k] = place == len(ids) - 1
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama.cpp did not read a batch")

    def step() -> None:
        assert _silent  # llama.cpp calls it for as long as the model lives
        for row in range(rows):
            llama_cpp.llama_memory_seq_rm(memory, row, PAST, -1)
        read(ids[:1], PAST)

    read(ids, 0)
    return step


def bound(path: Path, shape: Shape, rows: int, limits: Limits) -> float:
    """Return tokens per second if products took their float32 time, or the file's reading."""
    weights = sum(prod(dims) for dims in shape.config.shapes(untied=shape.untied).values())
    return rows / limits.bound(2 * rows * weights, path.stat().st_size, limits.n_threads).seconds
