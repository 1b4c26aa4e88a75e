"""The time that checkpoints of GPT-2 124M add to training: python bench/checkpoint.py [FOLDER]

Steps and checkpoints take turns. Each checkpoint counts until it is on the disk, in FOLDER
(default: a temporary folder in the current one).
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from smallest import smallest

from toynn import AdamW, GPT2Config, RecipeOptions
from toynn.recipes import GPT2
from toynn.train import checkpoint

CONFIG = smallest(
    GPT2Config(vocab=50257, d_model=768, n_heads=12, d_ff=3072, n_layers=12, context=1024),
    GPT2Config(vocab=256, d_model=64, n_heads=2, d_ff=128, n_layers=1, context=64),
)
B, T = 4, 64
STATE = {"loop": {}, "feed": {}, "identity": {}, "metrics_bytes": 0, "samples_bytes": 0}


def timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Print how long a step and a checkpoint take, and their ratio."""
    recipe, adam, rng = GPT2(), AdamW.for_lora(), np.random.default_rng(0)
    recipe.realize(CONFIG, RecipeOptions(t_seq=T, t_batch=B))
    steps, saves = [], []
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as name:
        folder = Path(name)
        for k in range(16):
            ids, labels = rng.integers(0, CONFIG.vocab, (2, B * T)).astype(np.int32)
            hp = adam.hp_for_step(k)
            steps.append(timed(lambda: recipe.step(ids, None, labels, hp, k == 0)))  # noqa: B023
            if k % 4 == 3:
                saves.append(timed(lambda: checkpoint.save(folder, k, recipe.snapshot(), STATE)))  # noqa: B023
                checkpoint.prune(folder, k, 1)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    step, save = median(steps[2:]), median(saves)
    print(f"a step       {step:.3f} s, B {B}, T {T}")
    print(f"a checkpoint {save:.2f} s ({min(saves):.2f} to {max(saves):.2f}), {size / 1e9:.2f} GB")
    print(f"as long as   {save / step:.1f} steps; one in 250 steps adds {save / step / 250:.1%}")


if __name__ == "__main__":
    main()
