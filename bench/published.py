"""LoRA steps of models whose figures others publish: ``python bench/published.py FOLDER``.

The shape of Qwen3-1.7B in random Q8_0 or Q4_0 blocks (1.8 and 1.0 GB, written to FOLDER once), one
sequence of 128 tokens, rank 8 on all linear layers. With ``--types gpt2``, the shape of GPT-2 124M
as a classifier of two classes: 8 texts of 120 tokens, rank 16 on all linear layers. Prints tokens a
second of whole steps: median of the rounds, in which the precisions take turns.
"""

import argparse
import os
import statistics
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
from beyond import write_file
from smallest import smallest

import toynn
from toynn.data.texts import Texts
from toynn.engines.encoder import Task
from toynn.engines.targets import AdapterOptions
from toynn.formats import gguf
from toynn.models import GPT2Config, LlamaConfig, architecture
from toynn.options import RecipeOptions
from toynn.testing.race import race

T = smallest(128, 8)
QWEN3 = LlamaConfig(
    **smallest(
        {"vocab": 151936, "d_model": 2048, "n_heads": 16, "n_kv_heads": 8, "d_ff": 6144},
        {"vocab": 256, "d_model": 256, "n_heads": 2, "n_kv_heads": 1, "d_ff": 256},
    ),
    n_layers=smallest(28, 1),
    context=T,
    head_dim=128,
    arch="qwen3",
)
BATCH, SEQ = smallest((8, 120), (2, 8))
SIZES = {"vocab": 50257, "d_model": 768, "n_heads": 12, "d_ff": 3072, "n_layers": 12}
SMALL = {"vocab": 256, "d_model": 64, "n_heads": 2, "d_ff": 128, "n_layers": 1}
GPT2 = GPT2Config(**smallest(SIZES, SMALL), context=1024)
OPTIONS = {
    "highest": RecipeOptions(t_seq=T, precision="highest"),
    "medium": RecipeOptions(t_seq=T, precision="medium"),
    "int8": RecipeOptions(t_seq=T, precision="int8"),
    "int8 prepacked": RecipeOptions(t_seq=T, precision="int8", prepack="always"),
}


def rates(path: Path, n_threads: int, rounds: int, only: list[str]) -> dict[str, float]:
    """Return tokens a second by precision."""
    toynn.set_num_threads(n_threads)
    ids, labels = np.random.default_rng(0).integers(0, QWEN3.vocab, (2, T), np.int32)
    adamw, calls = toynn.AdamW.for_lora(), {}
    for name in only:
        recipe = toynn.recipes.LoRA()
        recipe.realize(path, None, 8, OPTIONS[name], 16.0, "all-linear")

        def step(recipe: toynn.recipes.LoRA = recipe) -> float:
            k = recipe.step_index
            return recipe.step(ids, None, labels, adamw.hp_for_step(k), k == 0)

        calls[name] = step
    return {name: T / statistics.median(took) for name, took in race(calls, rounds).items()}


def write_gpt2(path: Path) -> None:
    """Write GPT-2 with first weights."""
    drawn = architecture("gpt2").start(GPT2, RecipeOptions())
    metadata = {f"gpt2.{key}": value for key, value in architecture("gpt2").write(GPT2).items()}
    own = {"general.architecture": "gpt2", "tokenizer.ggml.model": "no_vocab"}
    gguf.write(path, own | metadata, {name: (values, "F32") for name, values in drawn})


def classifier_rates(path: Path, n_threads: int, rounds: int, only: list[str]) -> dict[str, float]:
    """Return tokens a second by precision, of a classifier."""
    toynn.set_num_threads(n_threads)
    rng, calls = np.random.default_rng(0), {}
    texts = Texts.pack(rng.integers(0, GPT2.vocab, (BATCH, SEQ)).tolist(), np.arange(BATCH) % 2)
    adamw, lora = toynn.AdamW.for_lora(), AdapterOptions(16, 16.0, "all-linear")
    for name in [each for each in only if "int8" not in each]:  # int8 is for quantized weights
        recipe = toynn.recipes.Classifier()
        options = replace(OPTIONS[name], t_seq=SEQ, t_batch=BATCH)
        recipe.realize(path, options, Task("sequence", 2), lora)

        def step(recipe: toynn.recipes.Classifier = recipe) -> float:
            k = recipe.step_index
            return recipe.train(texts, adamw.hp_for_step(k), k == 0)

        calls[name] = step
    took = race(calls, rounds)
    return {name: BATCH * SEQ / statistics.median(each) for name, each in took.items()}


def main() -> None:
    """Write the files, if they are not there, and time steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--types", nargs="+", default=["Q8_0", "Q4_0"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--rounds", type=int, default=smallest(5, 1))
    options = parser.parse_args()
    print(f"{'tokens/s':8}{'threads':>9}" + "".join(f"{name:>17}" for name in options.only))
    for kind in options.types:
        path = options.folder / (f"{kind}.gguf" if kind == "gpt2" else f"qwen3-1.7b-{kind}.gguf")
        if not path.exists():
            if kind == "gpt2":
                write_gpt2(path)
            else:
                write_file(path, QWEN3, lambda name, kind=kind: kind)
            os.sync()
        measure = classifier_rates if kind == "gpt2" else rates
        for n in options.threads:
            found = measure(path, n, options.rounds, options.only)
            print(
                f"{kind:8}{n:9}" + "".join(f"{found.get(name, nan):17.1f}" for name in options.only)
            )


if __name__ == "__main__":
    main()
