"""Do coarser precisions learn as well as highest? LoRA over quantized bases, three seeds.

The base is trained here on bytes of the language reference that ships with CPython. It is stored as
each of TYPES (Q4_K and Q6_K by llama.cpp's quantizer). The adapters then learn sources of CPython's
library: their bytes (sft), or to prefer a passage's own continuation to another one (dpo). They are
measured on modules that no adapter saw. For sft the metrics are nats a byte and multiple-choice
questions, for dpo the loss and accuracy of preferences. All precisions take the same rows in the
same order; only the rounding of factors differs.
"""

import importlib
import inspect
import json
import random
import tempfile
from pathlib import Path

from rows import lora_precisions
from smallest import smallest

import toynn
from toynn import evaluation
from toynn.data import jsonl
from toynn.data.text import VOCAB
from toynn.engines import frozen
from toynn.formats import gguf
from toynn.formats.mixes import quantizer
from toynn.formats.tokenizer import ByteTokenizer
from toynn.recipes import FromScratch
from toynn.train.trainer import Trainer

SHAPE = smallest(
    toynn.LlamaConfig(VOCAB, 512, 8, 4, 1536, 4, 128),
    toynn.LlamaConfig(VOCAB, 64, 2, 1, 128, 1, 64),
)
TYPES = ("q8_0", "q4_k_s", "q6_k")
BATCH, SEEDS = 8, smallest((0, 1, 2), (0,))
BASE_STEPS = smallest(600, 1)
STEPS, LR = smallest({"sft": 100, "dpo": 60}, {"sft": 1, "dpo": 1}), {"sft": 1e-3, "dpo": 1e-3}
LEARNED = ("argparse", "inspect", "tarfile", "typing", "zipfile")
HELD_OUT = smallest(("configparser", "difflib", "shlex", "textwrap"), ("shlex",))
#: Questions, bytes of an answer, answers of a question.
ASKED, SHOWN, CHOICES = smallest(250, 4), 32, 4


def sources(modules: tuple[str, ...]) -> str:
    """Return the sources of modules of CPython's library, in ASCII."""
    text = "\n".join(inspect.getsource(importlib.import_module(name)) for name in modules)
    return text.encode("ascii", "ignore").decode()


def passages(text: str, count: int, wrong: int) -> list[tuple[str, list[str]]]:
    """Return passages: a beginning, and what follows it before ``wrong`` other pieces."""
    draw, before = random.Random(0), SHAPE.context - SHOWN
    found = []
    for _ in range(count):
        start = draw.randrange(len(text) - SHAPE.context) + before
        places = [start, *(draw.randrange(len(text) - SHOWN) for _ in range(wrong))]
        pieces = [text[place : place + SHOWN] for place in places]
        found.append((text[start - before : start], pieces))
    return found


def write_rows(folder: Path) -> None:
    """Write what adapters learn, sft.txt and dpo.jsonl, and what they are measured by."""
    for name, modules in (("learned", LEARNED), ("held-out", HELD_OUT)):
        text = sources(modules)
        text = text if name == "learned" else text[: 256 * SHAPE.context]
        Path(folder, f"{name}-sft.txt").write_text(text)
        pairs = (
            {"prompt": prompt, "chosen": right, "rejected": wrong}
            for prompt, (right, wrong) in passages(text, 800 if name == "learned" else ASKED, 1)
        )
        lines = (json.dumps(pair) + "\n" for pair in pairs)
        Path(folder, f"{name}-dpo.jsonl").write_text("".join(lines))
    asked = passages(sources(HELD_OUT), ASKED, CHOICES - 1)
    lines = (
        json.dumps({"question": question, "choices": choices, "answer": 0}) + "\n"
        for question, choices in asked
    )
    Path(folder, "questions.jsonl").write_text("".join(lines))


def write_bases(folder: Path, only: str) -> None:
    """Train the base, write it in each type, and print its loss on the held-out sources."""
    recipe = FromScratch()
    options = toynn.RecipeOptions(t_batch=BATCH, precision="medium")
    recipe.realize(SHAPE, options)
    data = jsonl.long_text(None, ByteTokenizer(), SHAPE.context, vocab_size=VOCAB)
    batches, valid = data.batches(BATCH, 0), data.valid_batches(BATCH, 16)
    trainer = Trainer(
        recipe, batches, valid=valid, steps=BASE_STEPS, eval_every=BASE_STEPS, lr=1e-3,
        progress=False,
    )  # fmt: skip
    own = trainer.fit().reports[-1].val_loss
    print(f"base: {own:.4f} on its own validation part after {BASE_STEPS} steps", flush=True)
    ids = ByteTokenizer().encode_array(Path(folder, "held-out-sft.txt").read_text())
    for kind in TYPES:
        if only and not any(only in f"{kind} {loss}" for loss in STEPS):
            continue
        if kind != "q8_0" and quantizer() is None:
            print(f"{kind}: left out, since llama-cpp-python is not installed", flush=True)
            continue
        recipe.save(path := Path(folder, f"{kind}.gguf"), kind)
        with gguf.open(path) as file:
            found = evaluation.perplexity(frozen(file), ids, SHAPE.context).every.loss
        print(f"{kind}: {found:.4f} on the held-out sources before adapters", flush=True)


def learned(folder: Path, kind: str, loss: str, precision: str, seed: int) -> dict[str, float]:
    """Train an adapter over a base; return its figures on what is held out."""
    ending = "txt" if loss == "sft" else "jsonl"
    options = {"precision": precision, "seed": seed, "loss": loss, "lr": LR[loss]}
    data = Path(folder, f"learned-{loss}.{ending}")
    with tempfile.TemporaryDirectory() as place:
        run = toynn.finetune(
            Path(folder, f"{kind}.gguf"), data, Path(place, "run"), quiet=True, report="none",
            steps=STEPS[loss], batch=BATCH, seq=SHAPE.context, targets="all-linear",
            eval_every=STEPS[loss], **options,
        )  # fmt: skip
        found = run.evaluate(Path(folder, f"held-out-{loss}.{ending}"), SHAPE.context)
        if loss == "dpo":
            return {"loss": found["loss"], "accuracy": found["rewards/accuracies"]}
        asked = evaluation.read_questions(Path(folder, "questions.jsonl"))
        right = evaluation.accuracy(run.engine, run.tokenizer, asked, "")  # cut within a word
    return {"loss": found["loss_every"], "accuracy": right.summed}


def table(n_threads: int, only: str = "") -> None:
    """Print loss and accuracy of each seed at each precision, by type of the base and loss."""
    toynn.set_num_threads(n_threads)
    known = lora_precisions()
    with tempfile.TemporaryDirectory() as name:
        write_rows(folder := Path(name))
        write_bases(folder, only)
        cases = [(kind, loss) for loss in STEPS for kind in TYPES if only in f"{kind} {loss}"]
        print(f"{'base':8}{'loss':5}{'seed':>4}{''.join(f'{each:>17}' for each in known)}")
        for kind, loss in cases:
            if not Path(folder, f"{kind}.gguf").exists():
                continue
            for seed in SEEDS:
                row = (learned(folder, kind, loss, precision, seed) for precision in known)
                cells = "".join(f"{each['loss']:9.4f}{each['accuracy']:8.2%}" for each in row)
                print(f"{kind:8}{loss:5}{seed:4}{cells}", flush=True)
