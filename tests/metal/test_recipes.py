"""The names of the seeds, and runs that begin on one backend and go on on the other."""

import shutil

import metal_device
import numpy as np
import pytest
from small_recipes import SIZES, text

import toynn
from toynn.cli import main
from toynn.formats.safetensors import SafeTensors
from toynn.recipes import LoRAMetal, WarmStartMetal

pytestmark = pytest.mark.skipif(metal_device.SKIP is not None, reason=str(metal_device.SKIP))


def test_the_life_cycle_of_warm_start_metal():
    losses = []
    for recipe in (WarmStartMetal(), toynn.recipes.WarmStart()):
        config = toynn.LlamaConfig(**SIZES, n_kv_heads=5, donor_d_in=12)
        options = toynn.RecipeOptions(t_seq=12, t_batch=2, seed=4, untied=True)
        recipe.realize_scratch(config, options)
        recipe.upload_donor(np.random.default_rng(1).standard_normal((SIZES["vocab"], 12)))
        recipe.build()
        losses.append(text(recipe))
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_the_names_take_the_backend_metal():
    assert LoRAMetal().engine.backend == WarmStartMetal().engine.backend == "metal"
    assert isinstance(LoRAMetal(), toynn.recipes.LoRA)


TEXT = "the cat sat on the mat and the rat sat on the cat " * 12
FLAGS = {
    "gpt2": "--d-model 16 --heads 2 --layers 1 --seq 8 --data text.txt",
    "from-scratch": "--d-model 16 --heads 2 --layers 1 --seq 8 --data text.txt --checkpointing",
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize(("first", "second"), [("cpu", "metal"), ("metal", "cpu")])
def test_a_run_goes_on_on_the_other_backend(name, first, second, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    flags = f"--batch 2 --save-every 2 --eval-every 2 --warmup 1 {FLAGS[name]}".split()
    words = ["train", name, *flags, "--steps", "4", "--out", "whole", "--backend", first]
    assert main(words) == 0
    shutil.copytree("whole", "parts")
    resumed = str(tmp_path / "parts" / "checkpoint-2")
    assert main(["train", "--resume", resumed, "--backend", second]) == 0
    assert "resumed from step 2" in capsys.readouterr().out
    told = {}
    for out in ("whole", "parts"):
        read = SafeTensors(tmp_path / out / "model.safetensors")
        told[out] = {key: read[key] for key in read.tensors}
    for key, value in told["whole"].items():
        np.testing.assert_allclose(told["parts"][key], value, rtol=1e-4, atol=1e-5)


def test_a_model_is_read_on_the_device(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    flags = FLAGS["gpt2"].split()
    assert main(["train", "gpt2", *flags, "--steps", "2", "--out", "run"]) == 0
    printed = []
    for backend in ("cpu", "metal"):
        capsys.readouterr()
        words = ["--model", "run", "--prompt", "the", "--temp", "0", "--max-tokens", "5"]
        assert main(["generate", *words, "--backend", backend]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
