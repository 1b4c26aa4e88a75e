"""What memory() promises against what the process takes, at a model of some hundred megabytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_bytes import ARCHITECTURE, File, key, scalar, tensor
from hang import HANG

import toynn
from toynn.formats.opened import CHECK_BELOW

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


FROZEN = """
import sys
from toynn import engines
from toynn.formats import gguf

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = resident()
with gguf.open(sys.argv[1]) as file:
    engine = engines.frozen(file)
opened = resident()
engine.logits([0])
print(opened - before, resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_frozen_engine_reads_no_weight_before_it_needs_it(tmp_path):
    sizes = toynn.LlamaConfig(2048, 2048, 16, 4, 12288, 1, 64)
    shapes = toynn.LlamaSeqEngine()
    shapes.declare(sizes, toynn.RecipeOptions())
    hyper = {
        "context_length": sizes.context,
        "embedding_length": sizes.d_model,
        "block_count": sizes.n_layers,
        "feed_forward_length": sizes.d_ff,
        "attention.head_count": sizes.n_heads,
        "attention.head_count_kv": sizes.n_kv_heads,
    }
    keys = [key(f"llama.{name}", scalar(number, "UINT32")) for name, number in hyper.items()]
    keys.append(key("llama.attention.layer_norm_rms_epsilon", scalar(1e-5, "FLOAT32")))
    rows, end = [], 0
    for name, w in shapes.tensors.items():
        rows.append(tensor(name, w.shape[::-1], 0, end))
        end += w.nbytes
    path = File([ARCHITECTURE, *keys], rows).write(tmp_path)
    os.truncate(path, path.stat().st_size + end)  # zeros that take no room on the disk
    done = subprocess.run(
        [sys.executable, "-c", FROZEN, str(path)], capture_output=True, check=True, timeout=HANG
    )
    opened, used = map(int, done.stdout.split())
    assert end > CHECK_BELOW  # smaller files are looked through for NaN
    assert opened < 16e6 and used > 0.9 * end
