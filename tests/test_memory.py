"""What memory() promises against what the process takes, at a model of some hundred megabytes."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np
import toynn

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

recipe = toynn.recipes.GPT2()
before = resident()
recipe.realize(toynn.GPT2Config(8192, 512, 8, 2048, 3, 128), toynn.RecipeOptions(t_batch=4))
ids = np.arange(4 * 128) % 8192
adamw = toynn.AdamW.for_lora()
for step in range(2):
    recipe.step(ids, None, ids, adamw.hp_for_step(step), step == 0)
print(resident() - before, recipe.engine.session.memory().peak)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_is_within_a_tenth_of_what_the_process_takes():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    taken, promised = map(int, done.stdout.split())
    assert promised > 200e6
    assert abs(taken - promised) < 0.1 * promised
