"""Generation over a quantized file, toynn against llama.cpp on the same file and threads.

The file holds random quantized blocks, since the values of weights do not change the time. A prompt
of PROMPT tokens is read at once, then NEW tokens one by one. toynn also generates TOGETHER
sequences at once, one token of each in a run.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from smallest import smallest

from toynn.testing.lora_step import Shape, write_file
from toynn.testing.race import Contestants

TYPES = ("Q8_0", "Q4_0", "Q4_K", "Q6_K")
SHAPE = smallest(
    Shape(768, 12, 12, 4, 2048, 49152, False, 512), Shape(256, 1, 4, 2, 256, 512, False, 64)
)
PROMPT, NEW, TOGETHER = smallest((256, 16, 8), (32, 2, 2))
COUNTS = {"prompt": PROMPT, "tokens": NEW, "together": NEW * TOGETHER}


def write(path: Path, type: str) -> None:
    """Write a model whose matrices have a type."""
    write_file(path, SHAPE, type, tokenizer(SHAPE.vocab))


def tokenizer(vocab: int) -> dict[str, Any]:
    """Return metadata of a byte tokenizer that llama.cpp loads; no text is encoded with it."""
    from toynn.formats.tokenizer import byte_letters

    tokens = [*byte_letters(), "ab"]
    tokens += [f"<unused {n}>" for n in range(vocab - len(tokens))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 257 + [3] * (vocab - 257),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": vocab - 1,
        "tokenizer.ggml.eos_token_id": vocab - 1,
    }


def contestants(path: Path, n_threads: int) -> dict[str, Contestants]:
    """Return the calls of each of COUNTS, by contestant."""
    ids = np.random.default_rng(0).integers(0, SHAPE.vocab - 1, PROMPT + NEW).tolist()
    by = {
        "toynn": of_toynn(path, ids, n_threads, "highest"),
        "toynn medium": of_toynn(path, ids, n_threads, "medium"),
    }
    if find_spec("llama_cpp"):
        by["llama.cpp"] = of_llama_cpp(path, ids, n_threads)
    return {
        what: {who: calls[what] for who, calls in by.items() if what in calls} for what in COUNTS
    }


def of_toynn(
    path: Path, ids: list[int], n_threads: int, precision: str
) -> dict[str, Callable[[], object]]:
    """Return toynn's calls at a precision."""
    import toynn
    from toynn import engines
    from toynn.formats import gguf

    toynn.set_num_threads(n_threads)
    toynn.set_float32_matmul_precision(precision)
    engine = engines.frozen(gguf.open(path))
    decoder = engine.decoder()

    def prompt() -> None:
        decoder.rewind()
        decoder.read(ids[:PROMPT])

    def tokens() -> None:
        decoder.rewind(PROMPT)
        for token in ids[PROMPT:]:
            decoder.read([token])

    batch = engine.batch_decoder(TOGETHER, PROMPT + NEW)
    batch.read({number: ids[:PROMPT] for number in range(TOGETHER)})

    def together() -> None:
        for number in range(TOGETHER):
            batch.rewind(number, PROMPT)
        for token in ids[PROMPT:]:
            batch.read({number: [token] for number in range(TOGETHER)})

    prompt()
    return {"prompt": prompt, "tokens": tokens, "together": together}


def of_llama_cpp(path: Path, ids: list[int], n_threads: int) -> dict[str, Callable[[], object]]:
    """Return llama.cpp's calls."""
    from llama_cpp import Llama

    model = Llama(
        str(path),
        n_ctx=PROMPT + NEW,
        n_batch=PROMPT,
        n_threads=n_threads,
        n_threads_batch=n_threads,
        verbose=False,
    )

    def prompt() -> None:
        model.reset()
        model.eval(ids[:PROMPT])

    def tokens() -> None:
        model.n_tokens = PROMPT  # eval then drops later rows of the cache
        for token in ids[PROMPT:]:
            model.eval([token])

    prompt()
    return {"prompt": prompt, "tokens": tokens}
