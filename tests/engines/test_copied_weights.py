"""Matrices that a folder has in pieces or in another order: copied when weights are filled."""

import numpy as np
import pytest
from llamas import make, shake

from toynn import GPT2Config, RecipeOptions, Session
from toynn.cli import main
from toynn.engines import frozen
from toynn.errors import ConfigError, ShapeError
from toynn.formats import bases
from toynn.formats.hf import HFModel
from toynn.recipes import GPT2, LoRA

OPTIONS = RecipeOptions(t_seq=8, seed=0)
#: By kind: what the names of its copied weights end in. (Gains of Qwen3.5 are less by 1 there.)
COPIED = {
    "llama": (),
    "qwen3moe": ("exps.weight",),
    "gpt2": ("qkv.weight", "attn_output.weight", "up.weight", "down.weight"),
    "qwen35": (
        *("ssm_out.weight", "attn_qkv.weight", "attn_gate.weight", "ssm_conv1d.weight", "ssm_a"),
        *("ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias", "attn_norm.weight"),
        *("attention_norm.weight", "q_norm.weight", "k_norm.weight", "output_norm.weight"),
    ),
}


@pytest.fixture(params=COPIED)
def folder(request, tmp_path):
    """A folder, the same as a GGUF file, and its kind."""
    if request.param == "gpt2":
        recipe = GPT2()
        recipe.realize(GPT2Config(61, 24, 4, 40, 2, 16), RecipeOptions(t_seq=8, seed=5))
    else:
        recipe = make(request.param, length=8)
    shake(recipe.engine, np.random.default_rng(0))
    recipe.engine.export_hf(tmp_path / "model")
    recipe.engine.export_gguf(tmp_path / "model.gguf")
    return tmp_path / "model", tmp_path / "model.gguf", request.param


def test_copies_are_counted_and_made_when_they_are_filled(folder, monkeypatch, capsys):
    path, file, kind = folder
    with bases.open(path) as there, bases.open(file) as usual:
        copied = {name for name in there.tensors if there.is_copied(name)}
        assert copied == {name for name in there.tensors if name.endswith(COPIED[kind])}
        shares = {
            name
            for name in there.tensors
            if any(np.shares_memory(there.stored(name), raw) for raw in _files(there))
        }
        assert shares == there.tensors.keys() - copied
        taken = []
        stored = HFModel.stored
        monkeypatch.setattr(HFModel, "stored", lambda m, n: (taken.append(n), stored(m, n))[1])
        needed = LoRA.memory_for(there, 2, OPTIONS, ("o",))
        assert not set(taken) & copied
        before = LoRA.memory_for(usual, 2, OPTIONS, ("o",))
        nbytes = sum(there.tensors[name].nbytes for name in copied)
        assert needed.mapped == before.mapped - nbytes
        assert nbytes <= needed.weights - before.weights <= nbytes + 64 * len(copied)
        assert needed.activations == before.activations
        ids = np.arange(8)
        logits = frozen(there).logits(ids)
        assert copied <= set(taken)
        np.testing.assert_allclose(logits, frozen(usual).logits(ids), rtol=0, atol=2e-5)
    assert main(["info", str(path)]) == 0
    assert ("copied into memory" in capsys.readouterr().out) == bool(copied)


def _files(model):
    return [file._raw for file in model._stored._files]


def test_norms_of_a_copied_matrix_take_one_copy(tmp_path, monkeypatch):
    recipe = make("qwen35", length=8)
    recipe.engine.export_hf(tmp_path / "model")
    monkeypatch.setattr("toynn.engines.adapters.CHUNK", 64)
    taken, stored = [], HFModel.stored
    monkeypatch.setattr(HFModel, "stored", lambda m, n: (taken.append(n), stored(m, n))[1])
    LoRA().realize(tmp_path / "model", None, 2, OPTIONS, targets=("ssm_out",), use_dora=True)
    assert 1 <= taken.count("blk.0.ssm_out.weight") <= 3


def test_constants_of_blocks():
    session = Session()
    w = session.constant("w", (2, 32), "q8_0")
    session.finalize_weights()
    blocks = np.zeros((2, 34), np.uint8)
    blocks[:, :2] = np.float16(0.5).reshape(1).view(np.uint8)
    blocks[:, 2:] = np.arange(32)
    session.upload(w, blocks)
    np.testing.assert_array_equal(session.download(w), np.tile(np.arange(32) * 0.5, (2, 1)))
    assert session.memory().weights == 128
    with pytest.raises(ShapeError, match=r"upload w: q8_0 of shape \(2, 32\) needs 68 bytes"):
        session.upload(w, np.zeros((2, 32), np.float32))
    session = Session()
    with pytest.raises(ShapeError, match="v: q8_0 needs rows of a multiple of 32"):
        session.constant("v", (2, 33), "q8_0")
    with pytest.raises(ConfigError, match="v: dtype must be one of f32"):
        session.constant("v", (2, 32), "f64")
