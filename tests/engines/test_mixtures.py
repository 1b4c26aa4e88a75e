"""Mixtures of experts over a mapped file: adapters of the experts, types, what is refused."""

import numpy as np
import pytest
from hf_folders import edit_tensors
from llamas import EXPERTS, OLMOE, SIZES, shake
from llamas import make as new
from lora_bases import (
    T,
    assert_close,
    assert_gradients,
    dequantized_file,
    draw,
    make,
    mixed,
    whole,
    write_base,
)
from some_adapters import draw as some_adapter

import toynn
from toynn.engines import LlamaSeqEngine, frozen
from toynn.errors import AdapterError, ConfigError, GGUFError
from toynn.formats import adapters, gguf, hf
from toynn.formats.fuse import fuse
from toynn.recipes import LoRA

WIDE = {"d_model": 256, "n_heads": 8, "n_kv_heads": 4, "d_ff": 256, "n_layers": 1}
BASES = {
    "qwen3moe": ("F32", EXPERTS),
    "olmoe": ("F32", OLMOE | EXPERTS),
    "granitemoe": ("F32", EXPERTS | {"shared_d_ff": 16}),
    "gpt-oss": ("F32", EXPERTS | {"window": 4}),
}
SETTINGS = {
    "experts": {"targets": "experts", "alpha": 9.0},
    "all": {"targets": ["all-linear", "experts"], "rank": 1, "use_rslora": True},
    "down": {"targets": ["ffn_down_exps"], "t_batch": 3},
    "packed": {"targets": "experts", "t_batch": 2, "packed": True},
    "checkpointing": {"targets": "experts", "checkpointing": True},
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    return {
        arch: write_base(folder / f"{arch}.gguf", arch, type, **sizes)
        for arch, (type, sizes) in BASES.items()
    }


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("arch", BASES)
def test_loss_and_gradients_are_those_of_the_merged_model(bases, arch, setting):
    """The merged model's own are compared with those of transformers in tests/parity."""
    recipe = make(bases[arch], **SETTINGS[setting])
    batch = SETTINGS[setting].get("t_batch", 1)
    engine = whole(bases[arch], recipe, t_batch=batch)
    ids, labels = draw(batch)
    expected = engine.accumulate(ids, None, labels)
    assert recipe.accumulate(ids, None, labels) == pytest.approx(expected, rel=1e-5)
    assert_gradients(recipe, engine)
    assert_close(recipe.engine.logits(ids), engine.logits(ids))


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K", "MXFP4", "IQ4_XS", None])
def test_blocks_give_what_their_floats_give(type, tmp_path):
    """Bit for bit: nothing is rounded again, and no float32 copy is made."""
    base = mixed(write_base(tmp_path / "base.gguf", "qwen3moe", **WIDE | EXPERTS), type)
    recipe = make(base, targets=["attention", "experts"])
    again = make(dequantized_file(base, tmp_path / "f32.gguf"), targets=["attention", "experts"])
    ids, labels = draw()
    assert recipe.accumulate(ids, None, labels) == again.accumulate(ids, None, labels)
    ours, theirs = recipe.engine.gradients(), again.engine.gradients()
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)
    assert recipe.engine.session.memory().mapped < again.engine.session.memory().mapped / 1.8


def test_the_router_is_frozen_and_experts_are_asked_for_by_name(bases):
    def adapted(*targets):
        names = make(bases["granitemoe"], targets=targets).engine.adapters
        return {name.split(".")[2] for name in names}

    attention = {"attn_q", "attn_k", "attn_v", "attn_output"}
    shared = {"ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"}
    assert adapted("attention") == attention
    assert adapted("all-linear") == attention | shared
    assert adapted("experts") == {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}
    assert adapted("blk.1.ffn_up_exps.weight") == {"ffn_up_exps"}
    with pytest.raises(ConfigError, match=r"has no 'ffn_gate_inp'; it has .*all-linear, experts$"):
        adapted("ffn_gate_inp")


def test_a_model_without_experts_has_none(tmp_path):
    with pytest.raises(ConfigError, match=r"has no 'experts'; it has .*attention, all-linear$"):
        make(write_base(tmp_path / "llama.gguf"), targets="experts")


def test_adapters_of_experts_come_back_from_a_file(bases, tmp_path):
    recipe = make(bases["olmoe"], targets="experts")
    recipe.export_adapter(tmp_path / "adapter.gguf")
    again = LoRA()
    opts = toynn.RecipeOptions(t_seq=T)
    again.realize_from_adapter(bases["olmoe"], tmp_path / "adapter.gguf", opts)
    ours, theirs = recipe.engine.adapter_weights(), again.engine.adapter_weights()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert ours["blk.0.ffn_down_exps.weight.lora_b"].shape == (5, 24, 4)


@pytest.mark.parametrize("method", ["cat", "linear"])
def test_adapters_of_experts_are_combined(bases, method):
    with gguf.open(bases["qwen3moe"]) as base:
        one, other = (some_adapter(base, seed=seed) for seed in (1, 2))
        both = adapters.combine([one, other], [1.0, 0.5 if method == "cat" else 0.0], method)
        got, expected = base["blk.0.ffn_up_exps.weight"].copy(), base["blk.0.ffn_up_exps.weight"]
    adapters.merge(got, both, "blk.0.ffn_up_exps.weight")
    expected = expected.copy()
    adapters.merge(expected, one, "blk.0.ffn_up_exps.weight")
    if method == "cat":
        half = np.zeros_like(expected)
        adapters.merge(half, other, "blk.0.ffn_up_exps.weight")
        expected += half / 2
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_a_fused_file_is_the_model_with_its_adapter(tmp_path):
    """Q8_0 rounds once more: what that took is said, and is little."""
    base = write_base(tmp_path / "base.gguf", "qwen3moe", "Q8_0", **WIDE | EXPERTS)
    with gguf.open(base) as file:
        adapter = some_adapter(file, size=0.2)
        engine, exact = frozen(file, adapter), tmp_path / "exact.gguf"
        fused = fuse(file, adapter, tmp_path / "fused.gguf")
        fuse(file, adapter, exact, outtype="f32")
        ids = np.arange(T)
        expected = engine.logits(ids)
    assert fused.types["blk.0.ffn_gate_exps.weight"] == ("Q8_0", "Q8_0")
    assert 0 < fused.rounding("blk.0.ffn_gate_exps.weight") < 0.05
    with gguf.open(exact) as file:
        assert_close(frozen(file).logits(ids), expected)


def test_peft_tensors_of_experts_that_do_not_fit_are_named(bases, tmp_path):
    make(bases["gpt-oss"], targets="experts").export_peft(tmp_path / "peft")
    path = tmp_path / "peft" / "adapter_model.safetensors"
    module = "base_model.model.model.layers.1.mlp.experts"
    for name, values, message in (
        ("lora_B.weight", np.ones((24, 19), np.float32), r"down_proj: expected lora_A \(R 5, 40\)"),
        ("base_layer.lora_A.weight", None, r"base_layer.lora_A.weight is missing, of .*gate_up_pr"),
    ):
        edit_tensors(path, {f"{module}.{name}": values})
        with gguf.open(bases["gpt-oss"]) as file, pytest.raises(AdapterError, match=message):
            adapters.load(tmp_path / "peft", file)


def in_parts(tensors, blocks):
    """The tensors of a Gemma 4, in which experts of some blocks have gate and up apart."""
    parts = {}
    for name, array in tensors.items():
        block, _, part = name.partition("ffn_gate_up_exps")
        if part and int(block.split(".")[1]) in blocks:
            gate, up = np.split(array, 2, axis=1)
            parts |= {f"{block}ffn_gate_exps.weight": gate, f"{block}ffn_up_exps.weight": up}
        else:
            parts[name] = array
    return parts


def test_experts_of_a_gemma4_with_gate_and_up_apart(tmp_path):
    """As tensors of a file they may be two; logits, gradients and a folder are the same."""
    whole = new("gemma4-moe").engine
    shake(whole, np.random.default_rng(1))
    ids = np.arange(13) % SIZES["vocab"]
    labels = np.roll(ids, -1)
    whole.accumulate(ids, None, labels)
    whole.export_gguf(tmp_path / "whole.gguf")
    with gguf.open(tmp_path / "whole.gguf") as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        tensors = {name: np.array(file[name]) for name in file}
    for name, blocks in {"apart": range(3), "mixed": (1,)}.items():
        parts = {part: (array, "f32") for part, array in in_parts(tensors, blocks).items()}
        gguf.write(tmp_path / f"{name}.gguf", metadata, parts)
    with pytest.raises(GGUFError, match=r"blk\.0\.ffn_gate_exps\.weight is missing"):
        LlamaSeqEngine.from_gguf(tmp_path / "mixed.gguf", 13)
    apart = LlamaSeqEngine.from_gguf(tmp_path / "apart.gguf", 13)
    apart.accumulate(ids, None, labels)
    expected = in_parts(whole.gradients(), range(3))
    got = apart.gradients()
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)
    apart.export_gguf(tmp_path / "again.gguf")
    with gguf.open(tmp_path / "again.gguf") as file:
        assert set(file) == set(in_parts(tensors, range(3)))
    apart.export_hf(tmp_path / "folder")
    with hf.open(tmp_path / "folder") as folder:
        assert "blk.0.ffn_gate_up_exps.weight" in folder.tensors
        of_folder = frozen(folder).logits(ids)
    assert (of_folder == whole.logits(ids)).all()
    np.testing.assert_allclose(apart.logits(ids), of_folder, rtol=1e-5, atol=1e-6)
