"""Text on the command line: data through a tokenizer, and what a trained model makes of it."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np

from toynn.cli._text import harmless
from toynn.data import jsonl
from toynn.data.batch import IGNORED
from toynn.data.examples import Examples
from toynn.data.jsonl import Dataset
from toynn.data.text import Corpus
from toynn.engines import DecodingEngine
from toynn.formats.tokenizer import Tokenizer
from toynn.generate import sample
from toynn.train.folder import RunFolder, Value

__all__ = [
    "DATA",
    "EVAL_BATCHES",
    "add_mask_argument",
    "described",
    "print_test_loss",
    "read_data",
    "write_sample",
]

EVAL_BATCHES = 16
SAMPLE_PROMPT = 32  # tokens of a text, which the sample continues; of an example that is all
EXAMPLE_PROMPT = 8  # learned, its first ones
SAMPLE_TOKENS = 256
DATA = (
    "a text in UTF-8; or lines of JSON (.jsonl), each with text, with prompt and completion, or "
    "with messages; or a folder with train.jsonl and, if you like, valid.jsonl and test.jsonl"
)
#: Endings that are not those of texts: such a file is read as lines of JSON, or refused.
NO_TEXTS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".zip")


def add_mask_argument(parser: ArgumentParser) -> None:
    """Add what says which tokens are to be learned."""
    every = "learn prompts and what users say, too; by default only completions and answers are"
    parser.add_argument("--no-mask-prompt", action="store_true", help=every)


def read_data(
    arguments: Namespace, tokenizer: Tokenizer, seq: int, vocab_size: int
) -> tuple[Dataset, Corpus | None]:
    """Read what --data names, without it the embedded text; return it, and the text if it is one.

    The windows have at most seq tokens.
    """
    path, corpus = arguments.data, None
    if path is not None and (Path(path).is_dir() or Path(path).suffix in NO_TEXTS):
        data = jsonl.read(
            path,
            tokenizer,
            seq,
            vocab_size=vocab_size,
            seed=arguments.seed,
            mask_prompt=not arguments.no_mask_prompt,
        )
    else:
        corpus = Corpus.embedded() if path is None else Corpus.read(path)
        data = jsonl.windows(corpus, tokenizer, seq, vocab_size=vocab_size)
        print(f"corpus      {corpus.name}: {len(corpus.text):,} bytes, sha256 {corpus.sha256[:12]}")
    for note in data.notes:
        print(f"data        {note}")
    return data, corpus


def described(path: str | None, data: Dataset, corpus: Corpus | None) -> dict[str, Value]:
    """Return what config.toml says of data: the name, and tokens of a text or examples."""
    counts: dict[str, Value] = {"train": len(data.train), "valid": len(data.valid)}
    if corpus is not None:
        return {"name": corpus.name, "bytes": len(corpus.text), "sha256": corpus.sha256, **counts}
    return {"name": path, **counts, "test": None if data.test is None else len(data.test)}


def print_test_loss(recipe: Any, data: Dataset, batch: int) -> None:
    """Print the loss of the test examples, all of them, if there are any."""
    total, rows = 0.0, 0
    for part in data.test_batches(batch):
        total += recipe.evaluate(*part) * part.rows
        rows += part.rows
    if rows:
        print(f"test        loss {total / rows:.4f}, over {rows:,} tokens")


def write_sample(
    engine: DecodingEngine[Any], tokenizer: Tokenizer, data: Dataset, folder: RunFolder, seed: int
) -> None:
    """Let the model continue the validation data; print and keep what it writes."""
    prompt = _prompt(data)
    new = sample(engine, prompt, SAMPLE_TOKENS, seed=seed, stop=tokenizer.eog)
    text = tokenizer.decode([*prompt, *new], special=True)
    folder.write_sample(text)
    what = f"{len(prompt)} tokens of the validation data, then the model's own"
    print(f"--- sample: {what} ---")
    print(harmless(text))
    print("---")


def _prompt(data: Dataset) -> list[int]:
    """Return the beginning of the validation data: a prompt, where there are prompts."""
    if not isinstance(data.valid, Examples):
        return [int(id) for id in data.valid[:SAMPLE_PROMPT]]
    ids, labels = data.valid[0]
    before = int(np.argmax(labels != IGNORED))  # rows whose answer is a token of the prompt
    return [int(id) for id in ids[: before + 1 if before else EXAMPLE_PROMPT]]
