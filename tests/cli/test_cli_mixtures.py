"""A mixture of experts through the command line: train, resume, generate, fuse, from scratch."""

import numpy as np
import pytest
from lora_bases import write_base

from toynn.cli import main
from toynn.engines import frozen
from toynn.formats import adapters, gguf

SIZES = {"vocab": 256, "context": 16, "n_experts": 5, "n_experts_used": 2}


@pytest.fixture
def base(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the rat sat on the cat " * 20)
    return write_base(tmp_path / "base.gguf", "qwen3moe", **SIZES)


def test_adapters_of_experts_all_the_way(base, tmp_path, capsys):
    folder = tmp_path / "run"
    run = ["train", "lora", "--model", str(base), "--data", str(tmp_path / "text.txt")]
    run += ["--seq", "8", "--targets", "attention,experts", "--save-every", "2"]
    assert main([*run, "--steps", "2", "--out", str(folder)]) == 0
    assert "there will be no PEFT folder" not in capsys.readouterr().out
    with gguf.open(base) as file:
        one, other = (adapters.load(path, file) for path in (folder, folder / "adapter.gguf"))
        for name, (a, b) in other.pairs.items():  # in PEFT's form gate and up share a rank
            again = one.pairs[name][1] @ one.pairs[name][0] * one.scale(name)
            np.testing.assert_allclose(again, b @ a * other.scale(name), 1e-4, 1e-7)
    assert main([*run, "--steps", "4", "--resume", str(folder), "--force-resume"]) == 0
    assert main(["generate", "--model", str(base), "--adapter", str(folder), "--prompt", "the ",
                 "--max-tokens", "3"]) == 0  # fmt: skip
    fused = tmp_path / "fused.gguf"
    assert main(["fuse", "--model", str(base), "--adapter", str(folder / "adapter.gguf"), "--out",
                 str(fused)]) == 0  # fmt: skip
    with gguf.open(base) as file, gguf.open(fused) as whole:
        adapter = adapters.load(folder / "adapter.gguf", file)
        assert adapter.pairs["blk.1.ffn_up_exps.weight"][0].shape == (5, 8, 24)
        expected = frozen(file, adapter).logits(np.arange(12))
        np.testing.assert_allclose(frozen(whole).logits(np.arange(12)), expected, 1e-3, 1e-4)


def test_all_weights_train_on(base, tmp_path):
    words = ["train", "from-scratch", "--init-from", str(base), "--seq", "8", "--steps", "3"]
    words += ["--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run")]
    assert main(words) == 0
    with gguf.open(base) as file:
        before = np.array(file["blk.0.ffn_gate_inp.weight"])
    with gguf.open(tmp_path / "run" / "model.gguf") as file:
        assert file.architecture == "qwen3moe"
        assert not np.array_equal(file["blk.0.ffn_gate_inp.weight"], before)
