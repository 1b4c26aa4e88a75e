"""A small run of every recipe, with all that has a state: accumulation, dropout, augmentation.

As a program it trains in a process of its own: ``python runs.py NAME WORK FOLDER [resume]``.
"""

import sys
from pathlib import Path

import numpy as np
from lora_bases import config as config_of
from lora_bases import write_base
from small_encoders import written
from vits import config as vit_config

import toynn
from toynn.data._parts import Pixels
from toynn.data.augment import Augment
from toynn.data.examples import Examples, ShuffledExamples
from toynn.data.image_batches import Fitted, HeldOut, RandomImages
from toynn.data.images import Labelled
from toynn.data.labelled import Encoded
from toynn.data.packing import examples_in_order
from toynn.data.text import RandomWindows, spaced_windows
from toynn.engines import AdapterOptions
from toynn.engines.encoder import Task
from toynn.errors import DataError
from toynn.recipes import GPT2, Classifier, FromScratch, LoRA, VitTiny, WarmStart
from toynn.train import Trainer

VOCAB, T, B = 11, 12, 2
TEXT = np.random.default_rng(0).integers(0, VOCAB, 400).astype(np.uint8)
OPTIONS = {"steps": 12, "log_every": 2, "eval_every": 3, "save_every": 2, "grad_accum": 3}
OPTIONS |= {"max_grad_norm": 0.5, "lr": 0.01, "progress": False}


def windows():
    return RandomWindows(TEXT, B, T, seed=1), spaced_windows(TEXT, B, T, 3)


def examples():
    """Examples of their own lengths, a few without anything to learn in a batch of them."""
    kept, rng = Examples(T), np.random.default_rng(2)
    for length in rng.integers(2, T, 9):
        kept.append([(rng.integers(0, VOCAB, length).tolist(), True)])
    return ShuffledExamples(kept, B, seed=1), examples_in_order(kept, B, 3)


def gpt2(base):
    recipe = GPT2()
    recipe.realize(config_of("gpt2", vocab=VOCAB, context=T), options())
    return recipe, *windows()


def from_scratch(base):
    recipe = FromScratch()
    recipe.realize(config_of("llama", vocab=VOCAB, context=T), options(checkpointing=True))
    return recipe, *examples()


def warm_start(base):
    recipe = WarmStart()
    width = WarmStart.donor_embed_width(base)
    cfg = config_of("llama", vocab=VOCAB, context=T, donor_d_in=width)
    recipe.realize_scratch(cfg, options(untied=True))
    recipe.realize_warm(base, cfg)
    recipe.build()
    return recipe, *windows()


def lora(base):
    recipe = LoRA()
    recipe.realize(base, None, 3, options(), targets="all-linear", dropout=0.3)
    return recipe, *examples()


def classifier(base):
    """Adapters with dropout, and a head, over an encoder's folder; the run's files are several."""
    folder, recipe = base.with_name("encoder"), Classifier()
    try:
        written(folder, vocab=VOCAB, context=T, n_layers=1)
    except DataError:  # it is there, or another rank was faster
        assert (folder / "config.json").exists()
    recipe.texts = 4
    adapters = AdapterOptions(3, targets=("all-linear",), dropout=0.3)
    recipe.realize(folder, options(), Task("sequence", 3), adapters)
    rng = np.random.default_rng(4)
    ids = [rng.integers(0, VOCAB, n).tolist() for n in rng.integers(1, T, 13)]
    texts = Encoded(ids, [[0] * len(each) for each in ids], [n % 3 for n in range(13)], seq=T)
    return recipe, ShuffledExamples(texts, 4, seed=1), texts.batches(4)


def vit(base):
    recipe, cfg = VitTiny(), vit_config()
    recipe.realize(cfg, toynn.RecipeOptions(t_batch=4))
    rng = np.random.default_rng(3)
    shape = (13, cfg.image, cfg.image, 1)
    pixels = rng.integers(0, 256, shape, np.uint8).repeat(cfg.channels, -1)
    part = Labelled(Pixels(pixels), rng.integers(0, cfg.classes, 13).astype(np.int32))
    fitted = Fitted(part, cfg.image, cfg.channels)
    augment = Augment(crop=2, flip=True, mixup=0.2, smoothing=0.1)
    return recipe, RandomImages(fitted, cfg.classes, 4, 1, augment), HeldOut(fitted, 8, 13)


RECIPES = {each.__name__: each for each in (gpt2, from_scratch, warm_start, lora, classifier, vit)}


def options(**more):
    return toynn.RecipeOptions(t_seq=T, t_batch=B, **more)


def trainer(name, work, **more):
    """A Trainer of a recipe; ``work`` is where its base is."""
    base = Path(work) / "base.gguf"
    if not base.exists():
        write_base(base, "llama", vocab=VOCAB, context=T)
    recipe, data, valid = RECIPES[name](base)
    return Trainer(recipe, data, valid=valid, **OPTIONS | more)


def learned(folder):
    """The bytes of all that a run has learned, of its best model and its newest checkpoint."""
    folder = Path(folder)
    newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    paths = [path for path in newest.rglob("*") if path.is_file() and path.suffix != ".json"]
    paths += [path for path in folder.iterdir() if path.suffix in (".gguf", ".safetensors")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


if __name__ == "__main__":
    name, work, folder, *resumed = sys.argv[1:]
    place = {"resume": folder} if resumed else {"folder": folder}
    trainer(name, work, **place).fit()
