"""The upstream names, and runs that begin on one backend and go on on the other."""

import json
import shutil

import metal_device
import numpy as np
import pytest
from lora_bases import write_base
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
SHAPE = "--d-model 16 --heads 2 --layers 1"
ADAPTERS = "--dropout 0.3 --targets q,v --rank 2 --data text.txt --seq 8 --lr 1e-4"
FLAGS = {
    "gpt2": f"{SHAPE} --seq 8 --data text.txt",
    "from-scratch": f"{SHAPE} --seq 8 --data text.txt --checkpointing",
    "warm-start": f"{SHAPE} --seq 8 --data text.txt --donor base.gguf",
    "lora": f"--model base.gguf {ADAPTERS}",
    "lora quantized": f"--model quantized.gguf {ADAPTERS}",
    "vit": f"{SHAPE} --data pictures.npz --flip",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What the recipes are trained on."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text(TEXT)
    write_base(folder / "base.gguf", vocab=256, context=64)
    wide = {"d_model": 256, "n_heads": 4, "d_ff": 256, "n_layers": 1}
    write_base(folder / "quantized.gguf", "llama", "Q4_K", vocab=256, context=16, **wide)
    images = np.random.default_rng(1).integers(0, 256, (24, 8, 8), np.uint8)
    np.savez(folder / "pictures.npz", images=images, labels=np.arange(24) % 2)
    return folder


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Runs of texts end with samples: short ones."""
    monkeypatch.setattr("toynn.jobs.text.SAMPLE_TOKENS", 2)


def left_by(run):
    """The weights that a run has left, and its losses by step."""
    name = "model" if (run / "model.safetensors").exists() else "adapter_model"
    read = SafeTensors(run / f"{name}.safetensors")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {line["iteration"]: line["val_loss"] for line in lines if "val_loss" in line}
    return np.concatenate([read[key].ravel() for key in sorted(read.tensors)]), losses


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize(("first", "second"), [("cpu", "metal"), ("metal", "cpu")])
def test_a_run_goes_on_on_the_other_backend(
    name, first, second, files, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(files)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = f"--batch 2 --save-every 2 --eval-every 2 --warmup 1 {FLAGS[name]} --precision highest"
    words = [*flags.split(), "--steps", "4", "--out", str(whole), "--backend", first]
    assert main(["train", name.partition(" ")[0], *words]) == 0
    shutil.copytree(whole, parts)
    resumed = str(parts / "checkpoint-2")
    words = ["train", "--resume", resumed, "--backend", second]
    assert main(words) == 2  # other bits
    assert "backend" in capsys.readouterr().err
    assert main([*words, "--force-resume"]) == 0
    assert "resumed from step 2" in capsys.readouterr().out
    (weights, losses), (others, its) = left_by(whole), left_by(parts)
    assert list(losses) == list(its) == [0, 2, 4]
    np.testing.assert_allclose(list(its.values()), list(losses.values()), rtol=1e-5)
    np.testing.assert_allclose(others, weights, rtol=1e-4, atol=1e-5)


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
