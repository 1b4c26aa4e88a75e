"""Whether --precision medium learns what highest does: LoRA over one quantized base, three seeds.

The base is trained here, on the language reference that ships with CPython, byte by byte, and
stored as Q8_0. The adapters then learn another text, the sources of CPython's own library. Both
precisions take the same windows in the same order; only the rounding of factors differs.
"""

import inspect
import tempfile
from pathlib import Path

import toynn
from toynn.data import jsonl
from toynn.data.jsonl import Dataset
from toynn.data.text import VOCAB, Corpus
from toynn.formats.tokenizer import ByteTokenizer
from toynn.recipes import FromScratch, LoRA
from toynn.train.trainer import Trainer

SHAPE = toynn.LlamaConfig(VOCAB, 256, 4, 2, 704, 4, 128)
BATCH, SEEDS = 8, (0, 1, 2)
BASE_STEPS, STEPS, VALID = 300, 120, 16  # updates; batches of the validation part
MODULES = ("argparse", "inspect", "tarfile", "typing", "zipfile")


def windows(corpus: Corpus) -> Dataset:
    """Return windows of a text, byte by byte."""
    return jsonl.windows(corpus, ByteTokenizer(), SHAPE.context, vocab_size=VOCAB)


def sources() -> Corpus:
    """Join the sources of some modules of CPython's library."""
    texts = (inspect.getsource(__import__(name)) for name in MODULES)
    return Corpus("sources of modules", "\n".join(texts).encode())


def write_base(path: Path) -> None:
    """Train the base, and store it as Q8_0."""
    recipe = FromScratch()
    recipe.realize(SHAPE, toynn.RecipeOptions(t_batch=BATCH))
    fit(recipe, windows(Corpus.embedded()), BASE_STEPS, 0, lr=2e-3)
    recipe.save(path, "q8_0")


def fit(recipe: LoRA | FromScratch, data: Dataset, steps: int, seed: int, lr: float) -> list[float]:
    """Train; return the validation losses before the first and after the last step."""
    batches, valid = data.batches(BATCH, seed), data.valid_batches(BATCH, VALID)
    trainer = Trainer(
        recipe, batches, valid=valid, steps=steps, eval_every=steps, lr=lr, progress=False
    )
    reports = trainer.fit().reports
    return [report.val_loss for report in reports if report.val_loss is not None]


def losses(base: Path, precision: str, seed: int) -> list[float]:
    """Return an adapter's validation losses before and after training in a precision."""
    toynn.set_float32_matmul_precision(precision)
    recipe, options = LoRA(), toynn.RecipeOptions(t_batch=BATCH, seed=seed)
    recipe.realize(base, None, 8, options, 16.0, "all-linear", init="peft")
    return fit(recipe, windows(sources()), STEPS, seed, lr=2e-3)


def table(n_threads: int) -> None:
    """Print the losses of each seed in both precisions, and how they differ."""
    toynn.set_num_threads(n_threads)
    found: dict[str, list[float]] = {"highest": [], "medium": []}
    print(f"{'seed':>4}{'before':>10}{'highest':>10}{'medium':>10}{'difference':>12}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write_base(base := Path(folder, "base.gguf"))
        for seed in SEEDS:
            for precision, after in found.items():
                before, last = losses(base, precision, seed)
                after.append(last)
            exact, rough = (after[-1] for after in found.values())
            row = f"{before:10.4f}{exact:10.4f}{rough:10.4f}{rough - exact:12.4f}"
            print(f"{seed:4}{row}", flush=True)
    spread = max(found["highest"]) - min(found["highest"])
    print(f"between seeds, highest: {spread:.4f}")
