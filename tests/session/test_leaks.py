"""Steps, and recipes that are made and dropped, leave memory as it was.

By hand, for longer: PYTHONPATH=. python tests/session/test_leaks.py 20000 500
"""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from toynn import AdamW, GPT2Config, RecipeOptions
from toynn.recipes import GPT2

CONFIG = GPT2Config(vocab=64, d_model=32, n_heads=2, d_ff=64, n_layers=2, context=16)
STATM = Path("/proc/self/statm")
PAGE = 4096


def resident():
    """Bytes of this process that are in memory, once all that is dropped is gone."""
    gc.collect()
    return int(STATM.read_text().split()[1]) * PAGE


def recipe():
    made = GPT2()
    made.realize(CONFIG, RecipeOptions(t_seq=16, t_batch=2, seed=1))
    return made


def take(made, steps, first=True):
    adam, rng = AdamW.for_lora(), np.random.default_rng(0)
    for step in range(steps):
        ids, labels = rng.integers(0, 64, (2, 32)).astype(np.int32)
        made.step(ids, None, labels, adam.hp_for_step(step), first and step == 0)


def growth_of_steps(steps):
    """Bytes by which so many steps grow the process, behind some that fill what is kept."""
    made = recipe()
    take(made, steps // 10 + 50)
    before = resident()
    take(made, steps)
    return resident() - before, before


def growth_of_recipes(count):
    """Bytes by which recipes grow it that are made, take two steps, and are dropped."""
    for _ in range(count // 10 + 50):
        take(recipe(), 2)
    before = resident()
    for _ in range(count):
        take(recipe(), 2)
    return resident() - before, before


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc of Linux")
def test_steps_and_recipes_leave_nothing():
    """A recipe that stays is some 300 KB. In a process of its own: a heap with a past jumps."""
    command = [sys.executable, __file__, "1000", "60"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    grown = [float(line.split()[-3]) for line in said.splitlines()]
    assert grown[0] < 1 and grown[1] < 8, said


if __name__ == "__main__":
    for count, growth in zip(sys.argv[1:], (growth_of_steps, growth_of_recipes), strict=True):
        grown, before = growth(int(count))
        what = growth.__name__.removeprefix("growth_of_")
        print(f"{count} {what}: {before / 2**20:.2f} MiB before, {grown / 2**20:+.2f} MiB after")
