"""Do coarser precisions learn as well as highest? LoRA over one quantized base, three seeds.

The base is trained here on bytes of the language reference that ships with CPython, and stored as
Q8_0. The adapters then learn another text, sources of CPython's library. All precisions take the
same windows in the same order; only the rounding of factors differs.
"""

import inspect
import tempfile
from pathlib import Path

import toynn
from toynn._kernels import matmul
from toynn.data import jsonl
from toynn.data.jsonl import Dataset
from toynn.data.text import VOCAB
from toynn.formats.tokenizer import ByteTokenizer
from toynn.recipes import FromScratch, LoRA
from toynn.train.trainer import Trainer

SHAPE = toynn.LlamaConfig(VOCAB, 256, 4, 2, 704, 4, 128)
BATCH, SEEDS = 8, (0, 1, 2)
BASE_STEPS, STEPS, VALID = 300, 120, 16  # updates; batches of the validation part
MODULES = ("argparse", "inspect", "tarfile", "typing", "zipfile")


def windows(path: Path | None = None) -> Dataset:
    """Return windows of a text, byte by byte; without a path, of the one that Python has."""
    return jsonl.long_text(path, ByteTokenizer(), SHAPE.context, vocab_size=VOCAB)


def write_sources(path: Path) -> None:
    """Join the sources of some modules of CPython's library."""
    texts = (inspect.getsource(__import__(name)) for name in MODULES)
    path.write_text("\n".join(texts))


def write_base(path: Path) -> None:
    """Train the base, and store it as Q8_0."""
    recipe = FromScratch()
    recipe.realize(SHAPE, toynn.RecipeOptions(t_batch=BATCH))
    fit(recipe, windows(), BASE_STEPS, 0, lr=2e-3)
    recipe.save(path, "q8_0")


def fit(recipe: LoRA | FromScratch, data: Dataset, steps: int, seed: int, lr: float) -> list[float]:
    """Train; return the validation losses before the first and after the last step."""
    batches, valid = data.batches(BATCH, seed), data.valid_batches(BATCH, VALID)
    trainer = Trainer(
        recipe, batches, valid=valid, steps=steps, eval_every=steps, lr=lr, progress=False
    )
    reports = trainer.fit().reports
    return [report.val_loss for report in reports if report.val_loss is not None]


def losses(base: Path, text: Path, precision: str, seed: int) -> list[float]:
    """Return an adapter's validation losses before and after training at a precision."""
    recipe = LoRA()
    options = toynn.RecipeOptions(t_batch=BATCH, seed=seed, precision=precision)
    recipe.realize(base, None, 8, options, 16.0, "all-linear", init="peft")
    return fit(recipe, windows(text), STEPS, seed, lr=2e-3)


def table(n_threads: int) -> None:
    """Print the losses of each seed at each precision, and their differences from highest."""
    toynn.set_num_threads(n_threads)
    known = ["highest", "medium", *["int8"] * matmul.multiplies_quads()]
    found: dict[str, list[float]] = {precision: [] for precision in known}
    heads = "".join(f"{name:>10}" for name in ("before", *known))
    print(f"{'seed':>4}{heads}   less highest", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write_base(base := Path(folder, "base.gguf"))
        write_sources(text := Path(folder, "sources.txt"))
        for seed in SEEDS:
            for precision, after in found.items():
                before, last = losses(base, text, precision, seed)
                after.append(last)
            exact, *rough = (after[-1] for after in found.values())
            row = "".join(f"{each:10.4f}" for each in (before, exact, *rough))
            print(
                f"{seed:4}{row}   {'  '.join(f'{each - exact:.4f}' for each in rough)}", flush=True
            )
    spread = max(found["highest"]) - min(found["highest"])
    print(f"between seeds, highest: {spread:.4f}")
