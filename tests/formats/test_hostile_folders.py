"""Folders with blocks of MXFP4, and with files that are wrong in their types: refused by name."""

import json

import numpy as np
import pytest
from hf_folders import edit_object, edit_tensors
from llamas import KINDS, config
from safetensors.numpy import load_file, save_file

from toynn import RecipeOptions
from toynn.cli import main
from toynn.engines import LlamaSeqEngine
from toynn.errors import DataError
from toynn.formats import bases, gguf, hf
from toynn.formats.tokenizer import Tokenizer
from toynn.recipes import FromScratch, LoRA

WIDTH = {"d_model": 32, "d_ff": 32, "n_heads": 2, "n_kv_heads": 1, "n_layers": 1}
SCALES = "model.layers.0.mlp.experts.gate_up_proj_scales"
OPTIONS = RecipeOptions(t_seq=8, seed=0)


@pytest.fixture
def packed(tmp_path):
    """A small gpt-oss whose experts are blocks of MXFP4."""
    changes, own = KINDS["gpt-oss"]
    recipe, rng = FromScratch(), np.random.default_rng(0)
    recipe.realize(config(**changes | WIDTH), RecipeOptions(t_seq=8, seed=5, **own))
    recipe.engine.export_hf(tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
        scales = rng.integers(115, 122, (experts, rows, columns // 32), np.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    edit_object(tmp_path / "model" / "config.json", quantization_config={"quant_method": "mxfp4"})
    return tmp_path / "model"


@pytest.mark.parametrize("scale", [252, 253, 255])
def test_scales_that_are_no_numbers_are_found(scale, packed):
    values = load_file(packed / "model.safetensors")[SCALES]
    values[1, 2, 0] = scale
    edit_tensors(packed / "model.safetensors", {SCALES: values})
    if scale == 252:
        hf.open(packed, check=True).close()
        return
    with pytest.raises(DataError, match=f"{SCALES} has weights that are NaN or infinite"):
        LoRA().realize(packed, None, 2, OPTIONS)


def test_scales_must_be_bytes(packed):
    values = load_file(packed / "model.safetensors")[SCALES]
    edit_tensors(packed / "model.safetensors", {SCALES: values.astype(np.float32)})
    with pytest.raises(DataError, match=rf"model\.safetensors: {SCALES} must be U8; got F32"):
        hf.open(packed)


def test_a_folder_of_blocks_is_fused_into_a_type_that_can_be_written(packed, tmp_path, capsys):
    recipe = LoRA()
    recipe.realize(packed, None, 2, OPTIONS)
    recipe.export_adapter(tmp_path / "adapter.gguf")
    recipe.save(tmp_path / "saved.gguf")
    with bases.open(packed) as folder, gguf.open(tmp_path / "saved.gguf") as saved:
        for name, info in folder.tensors.items():
            assert saved.tensors[name].type == "F32"
            assert (info.type == "MXFP4") == name.endswith("_exps.weight")
            np.testing.assert_array_equal(saved[name], folder[name])
    files = ["--model", packed, "--adapter", tmp_path / "adapter.gguf", "--out", tmp_path / "2"]
    assert main(["fuse", *map(str, files)]) == 0
    assert "all matrices are F32 now; --outtype chooses" in capsys.readouterr().out


def test_a_folder_without_a_table_is_named(packed, capsys):
    edit_tensors(packed / "model.safetensors", {"model.embed_tokens.weight": None})
    (packed / "tokenizer.json").write_text("{}")
    with (
        bases.open(packed) as folder,
        pytest.raises(DataError, match=r"token_embd\.weight is miss"),
    ):
        Tokenizer.of(folder)
    assert main(["info", str(packed)]) == 0
    assert "not readable: " in capsys.readouterr().out


CONFIGS = {
    "qwen35": ("layer_types", (5, True, {"a": 1}), "layer_types must be 2 of linear_attention"),
    "gpt-oss": ("quantization_config", ("mxfp4", ["mxfp4"], 5), "quantization_config must be of"),
    "lfm2": ("layer_types", ([[]], [{}], 5), "layer_types must be full_attention or conv"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_values_of_another_type_are_named(kind, tmp_path):
    key, values, message = CONFIGS[kind]
    changes, own = KINDS[kind]
    recipe = FromScratch()
    changes = {**changes, "n_layers": 2}
    recipe.realize(config(**changes), RecipeOptions(t_seq=8, seed=5, **own))
    recipe.engine.export_hf(tmp_path / "model")
    for value in values:
        edit_object(tmp_path / "model" / "config.json", **{key: value})
        with pytest.raises(DataError, match=rf"config\.json: {message}"):
            LlamaSeqEngine.from_hf(tmp_path / "model")


BY_BYTES = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "decoder": {"type": "ByteLevel"},
}
VOCAB = BY_BYTES["model"]


def around(single, **table):
    told = {"type": "TemplateProcessing", "single": single, **table}
    return {"post_processor": told}


BOS = [{"SpecialToken": {"id": "x"}}]
TOKENIZERS = {
    "merges": ({"model": VOCAB | {"merges": 5}}, "model.merges: expected pairs"),
    "a merge": ({"model": VOCAB | {"merges": [["a", 1]]}}, "model.merges: expected pairs"),
    "a list": (around(BOS, special_tokens=[1]), r"special_tokens: expected ids of .*'x'"),
    "no ids": (around(BOS, special_tokens={"x": {}}), "special_tokens: expected ids of"),
    "no id": (around(BOS, special_tokens={"y": {"ids": [1]}}), "special_tokens: expected ids"),
    "a name": (around([{"SpecialToken": "x"}]), "special_tokens: expected ids of 'x'"),
    "ids of text": (around(BOS, special_tokens={"x": {"ids": ["1"]}}), "special_tokens: expected"),
    "single": (around(5), "post_processor.single: expected objects; got 5"),
    "no object": (around([5]), r"post_processor.single: expected objects; got \[5\]"),
    "far": ({"model": VOCAB | {"vocab": {"a": 1 << 24}}}, "expected ids below 16,777,216"),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_tokenizer_of_other_types_is_refused(case, tmp_path):
    changes, message = TOKENIZERS[case]
    (tmp_path / "tokenizer.json").write_text(json.dumps(BY_BYTES | changes))
    with pytest.raises(DataError, match=message) as error:
        Tokenizer.of(tmp_path)
    assert str(tmp_path) in str(error.value)


SETTINGS = {
    "template": {"chat_template": [{"name": ["x"], "template": "a"}]},
    "no template": {"chat_template": [5]},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_of_other_types_are_refused(case, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(BY_BYTES))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS[case]))
    with pytest.raises(DataError, match=r"tokenizer_config\.json: chat_template: expected templ"):
        Tokenizer.of(tmp_path)
