"""Folders with blocks of MXFP4, and with files that are wrong in their types: refused by name."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hang import HANG
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
    changes, options = KINDS["gpt-oss"]
    recipe, rng = FromScratch(), np.random.default_rng(0)
    recipe.realize(config(**changes | WIDTH), RecipeOptions(t_seq=8, seed=5, **options))
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
    "qwen35": ("layer_types", (5, True, {"a": 1}), "layer_types must have 2 entries"),
    "gpt-oss": ("quantization_config", ("mxfp4", ["mxfp4"], 5), "quantization_config must be an"),
    "lfm2": ("layer_types", ([[]], [{}], 5), "layer_types must be full_attention or conv"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_values_of_another_type_are_named(kind, tmp_path):
    key, values, message = CONFIGS[kind]
    changes, options = KINDS[kind]
    recipe = FromScratch()
    changes = {**changes, "n_layers": 2}
    recipe.realize(config(**changes), RecipeOptions(t_seq=8, seed=5, **options))
    recipe.engine.export_hf(tmp_path / "model")
    for value in values:
        edit_object(tmp_path / "model" / "config.json", **{key: value})
        with pytest.raises(DataError, match=rf"config\.json: {message}"):
            LlamaSeqEngine.from_hf(tmp_path / "model")


@pytest.mark.parametrize("heads", [2**40, 5, 2**62])
def test_heads_that_do_not_divide_the_rows_are_refused(heads, tmp_path):
    """Also where a weight is read by itself, before any engine has looked at the numbers."""
    recipe = FromScratch()
    recipe.realize(config("llama"), OPTIONS)
    recipe.engine.export_hf(tmp_path / "model")
    told = {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": 8}
    edit_object(tmp_path / "model" / "config.json", **told)
    with hf.open(tmp_path / "model") as model:
        for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
            for read in (model.__getitem__, model.raw):
                with pytest.raises(DataError, match=rf"config\.json: .* {name}.*got {heads} for"):
                    read(name)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 5000, "a\0b", "\ud800"])
def test_names_of_shards_that_no_file_can_have_are_missing(name, tmp_path):
    recipe = FromScratch()
    recipe.realize(config("llama"), OPTIONS)
    recipe.engine.export_hf(tmp_path / "model")
    folder = tmp_path / "model"
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    placed = {each: f"{name}.safetensors" for each in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    with pytest.raises(
        DataError, match=r"index\.json: expected 1 files next to it; missing: "
    ) as e:
        hf.open(folder)
    assert len(str(e.value)) < len(str(folder)) + 250


BY_BYTES = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
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
    "half a pair": (
        {"added_tokens": [{"id": 3, "content": "<\ud800>"}]},
        "added_tokens: expected Unicode text; got half of a surrogate pair in '<.ud800>'",
    ),
    "a prefix": (
        {"model": VOCAB | {"continuing_subword_prefix": "x", "merges": [["a", "\xe9"]]}},
        "model.merges: expected second texts that begin with continuing_subword_prefix, 'x'",
    ),
    "a prefix that is none": (
        {"model": VOCAB | {"continuing_subword_prefix": 5}},
        "model.merges: expected second texts that begin with continuing_subword_prefix, 5",
    ),
    "far": ({"model": VOCAB | {"vocab": {"a": 1 << 24}}}, "expected ids below 16,777,216"),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_tokenizer_of_other_types_is_refused(case, tmp_path):
    changes, message = TOKENIZERS[case]
    (tmp_path / "tokenizer.json").write_text(json.dumps(BY_BYTES | changes))
    with pytest.raises(DataError, match=message) as error:
        Tokenizer.of(tmp_path)
    assert str(tmp_path) in str(error.value)


#: What makes the tokenizers library panic: when it reads the file, or when it encodes.
PANICS = {
    "cuts of nothing": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "one id twice": {"model": VOCAB | {"vocab": {"a": 0, "b": 0}}},
    "no map": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a map": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAAAAAAA"}},
}
SPACED = {"model": VOCAB | {"byte_fallback": True}}


@pytest.mark.parametrize("case", PANICS)
@pytest.mark.parametrize("kind", ["bytes", "spaces"])
def test_a_panic_of_the_library_is_an_error(case, kind, tmp_path):
    """A panic is no Exception: it passed everything, up to the traceback."""
    whole = BY_BYTES | (SPACED if kind == "spaces" else {})
    changes = dict(PANICS[case])
    if kind == "spaces":
        changes["model"] = changes.get("model", VOCAB) | {"byte_fallback": True}
        changes.setdefault("pre_tokenizer", None)
        changes["decoder"] = None
    elif "pre_tokenizer" in changes:
        steps = [changes["pre_tokenizer"], BY_BYTES["pre_tokenizer"]]
        changes["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | changes))
    with pytest.raises(DataError, match=r"tokenizer\.json: (does not make|cannot encode)") as error:
        Tokenizer.of(tmp_path).encode_many([("ab", False), ("a\xe9b", False)])
    assert type(error.value.__cause__).__name__ == "PanicException"


def test_threads_that_cannot_be_had_are_named(tmp_path):
    """The library's threads are made when many texts are encoded; here none can be."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(BY_BYTES))
    code = (
        "import resource, sys\n"
        "from toynn.errors import ToynnError\n"
        "from toynn.formats.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.of(sys.argv[1])\n"
        "with open('/proc/self/statm') as file:\n"
        "    room = int(file.read().split()[0]) * resource.getpagesize() + 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (room, room))\n"
        "try:\n"
        "    tokenizer.encode_many([('ab', False)] * 2)\n"
        "except ToynnError as error:\n"
        "    print(error)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENIZERS", "RAYON"))}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=HANG,
        env=environment,
    )
    assert "tokenizer.json: cannot encode: The global thread pool" in done.stdout, done.stderr
    assert done.stdout.endswith("or set TOKENIZERS_PARALLELISM=false\n")


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
