"""Folders in Hugging Face's format: what comes back, and what is refused by its name."""

import json

import numpy as np
import pytest
from hf_folders import edit_object, edit_tensors
from llamas import KINDS, SIZES, T, draw, make, shake
from safetensors.numpy import load_file, save_file

from toynn import AdamW, GPT2Config, LlamaConfig, RecipeOptions
from toynn.engines import GPT2SeqEngine, LlamaSeqEngine, SequenceEngine
from toynn.errors import ConfigError, DataError, LifecycleError, ToynnError
from toynn.formats import hf
from toynn.formats.foreign import foreign
from toynn.formats.hf.name_mapping import NAME_MAPPINGS
from toynn.recipes import GPT2, FromScratch

GPT2_CONFIG = GPT2Config(61, 24, 4, 40, 2, 16, norm_eps=1e-3)


def build(kind):
    """An engine with random weights, biases and gains."""
    if kind == "gpt2":
        recipe = GPT2()
        recipe.realize(GPT2_CONFIG, RecipeOptions(t_seq=T, seed=5))
    else:
        recipe = make(kind)
    shake(recipe.engine, np.random.default_rng(2))
    return recipe.engine


#: What such folders have no place for.
NOT_WRITTEN = {"llama-llama3", "llama-lens", "granitemoe-shared", "exaone4-full"}


@pytest.fixture
def folder(tmp_path):
    """A llama, as a folder."""
    build("llama").export_hf(tmp_path / "llama")
    return tmp_path / "llama"


def configure(folder, **changes):
    edit_object(folder / "config.json", **changes)


def replace(folder, changes):
    edit_tensors(folder / "model.safetensors", changes)


@pytest.mark.parametrize("kind", ["gpt2", *sorted(KINDS.keys() - NOT_WRITTEN)])
def test_every_bit_comes_back(kind, tmp_path):
    engine = build(kind)
    engine.export_hf(tmp_path / "model")
    again = type(engine).from_hf(tmp_path / "model", t_seq=T)
    assert (again.config, again.t_seq) == (engine.config, T)
    ours, theirs = engine.weights(), again.weights()
    assert ours.keys() == theirs.keys()
    less = any(row.more or row.logarithm for row in engine.model.table)
    rounded = 1e-7 if less else 0  # gains are less by 1 there, and of ssm_a it is the logarithm
    for name, w in ours.items():
        atol = rounded if name.endswith(("norm.weight", "ssm_a")) else 0
        np.testing.assert_allclose(w, theirs[name], rtol=0, atol=atol, err_msg=name)
    ids, _ = draw(np.random.default_rng(3))
    logits = engine.logits(ids)
    np.testing.assert_allclose(again.logits(ids), logits, rtol=0, atol=100 * rounded)


def test_a_lens_is_folded(tmp_path):
    engine = build("llama-lens")
    engine.export_hf(tmp_path / "model")
    again = LlamaSeqEngine.from_hf(tmp_path / "model", t_seq=T)
    assert again.config.donor_d_in == 0
    ids, _ = draw(np.random.default_rng(3))
    np.testing.assert_allclose(again.logits(ids), engine.logits(ids), 1e-3, 1e-4)


def test_gguf_and_hugging_face_agree(tmp_path):
    engine = build("qwen3")
    engine.export_gguf(tmp_path / "model.gguf")
    LlamaSeqEngine.from_gguf(tmp_path / "model.gguf").export_hf(tmp_path / "model")
    again = LlamaSeqEngine.from_hf(tmp_path / "model")
    again.export_gguf(tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "model.gguf").read_bytes()


def test_factors_of_llama3_are_read_and_not_written(folder, tmp_path):
    rope = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    configure(folder, rope_scaling=rope | {"original_max_position_embeddings": 64})
    engine = LlamaSeqEngine.from_hf(folder)
    assert engine.config.rope_scaling == "llama3"
    assert engine.config.rope_factors == pytest.approx([1, 8], rel=0.5)
    with pytest.raises(ConfigError, match=r"no place for rope_freqs\.weight"):
        engine.export_hf(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_keys_that_change_no_number_are_harmless(folder):
    configure(folder, unsloth_version="2025.1", unsloth_fixed=True, _flash_attn_2_enabled=True)
    configure(folder, _attn_implementation_autoset=True, _model_name_or_path="a/b")
    assert len(LlamaSeqEngine.from_hf(folder, t_seq=T).weights()) > 3


@pytest.mark.parametrize("window", [None, 16])
def test_a_mistral_without_a_window_is_a_llama(window, folder):
    expected = LlamaSeqEngine.from_hf(folder, t_seq=T)
    configure(folder, model_type="mistral", sliding_window=window)
    got = LlamaSeqEngine.from_hf(folder, t_seq=T)
    assert got.config == expected.config
    for name, w in expected.weights().items():
        np.testing.assert_array_equal(got.weights()[name], w)


def test_every_known_model_type_is_listed_once(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "zork"}))
    with pytest.raises(DataError, match="model_type must be ") as error:
        hf.open(folder)
    names = str(error.value).partition("must be ")[2].partition(";")[0].split(", ")
    assert len(names) == len(set(names)) > 30


def test_names_of_old_files_are_known(tmp_path):
    """Without a prefix, and with the buffers of old versions."""
    engine = build("gpt2")
    engine.export_hf(tmp_path / "old")
    path = tmp_path / "old" / "model.safetensors"
    weights = {k.removeprefix("transformer."): w for k, w in load_file(path).items()}
    weights["h.0.attn.bias"] = np.tril(np.ones((1, 1, 16, 16), np.uint8))
    weights["lm_head.weight"] = weights["wte.weight"]
    save_file(weights, path)
    again = GPT2SeqEngine.from_hf(tmp_path / "old", t_seq=T)
    ids, _ = draw(np.random.default_rng(3))
    np.testing.assert_array_equal(engine.logits(ids), again.logits(ids))


def test_an_export_never_overwrites(folder):
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(DataError, match="llama: already exists"):
        build("llama").export_hf(folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["llama"]
    with pytest.raises(DataError, match="cannot write"):
        build("llama").export_hf(folder / "config.json" / "model")


HEAD = np.ones((61, 24), np.float32)
REFUSED = {
    "another model": (
        dict(model_type="mamba"),
        {},
        "must be .*gpt2, .*; got 'mamba'",
    ),
    "encoder": (dict(model_type="electra"), {}, "'electra': it is an encoder; .*limits.md"),
    "T5": (dict(model_type="mt5"), {}, "'mt5': it is an encoder-decoder; toynn trains models that"),
    "speech": (dict(model_type="whisper"), {}, "'whisper': it is a model of speech; toynn"),
    "classes": (
        dict(architectures=["LlamaForSequenceClassification"], id2label={"1": "good"}),
        {},
        "id2label must name classes 0, 1, ...; got",
    ),
    "tagger": (
        dict(model_type="electra", architectures=["ElectraForTokenClassification"]),
        {},
        "'ElectraForTokenClassification': it is a classifier of texts",
    ),
    "no model": (dict(model_type=...), {}, "model_type must be .*; got None"),
    "missing size": (dict(hidden_size=...), {}, r"config\.json: hidden_size is missing"),
    "missing eps": (dict(rms_norm_eps=None), {}, "rms_norm_eps is missing"),
    "text": (dict(vocab_size="61"), {}, "vocab_size must be a whole number >= 1; got '61'"),
    "half": (dict(num_hidden_layers=1.5), {}, "num_hidden_layers must be a whole number"),
    "true": (dict(num_attention_heads=True), {}, "num_attention_heads must be a whole number"),
    "zero": (dict(num_key_value_heads=0), {}, "num_key_value_heads must be a whole number >= 1"),
    "NaN": (dict(rms_norm_eps=float("nan")), {}, "rms_norm_eps must be a number > 0; got nan"),
    "activation": (dict(hidden_act="relu"), {}, "hidden_act must be 'silu'; got 'relu'"),
    "unknown": (dict(logit_scale=2.0), {}, "logit_scale = 2.0 is not known to toynn"),
    "quantized": (dict(quantization_config={"bits": 4}), {}, "quantized .*4.*use the"),
    "gptq": (
        dict(quantization_config={"quant_method": "gptq", "bits": 4}),
        {},
        r"quantization_config: this folder is quantized \(gptq\): use the original",
    ),
    "mistral": (
        dict(model_type="mistral", sliding_window=8),
        {},
        "sliding_window must be null or at least max_position_embeddings, 16; got 8",
    ),
    "old mistral": (
        dict(model_type="mistral", sliding_window=..., max_position_embeddings=32768),
        {},
        "sliding_window must be null .*, 32768; got 4096",
    ),
    "endless": (dict(rms_norm_eps=10**400), {}, "rms_norm_eps must be a number > 0; got 1000"),
    "too many": (dict(vocab_size=10**400), {}, "vocab_size must be a whole number >= 1; got 1000"),
    "no list": (dict(layer_types=[["full_attention"]]), {}, "layer_types must be full_attention"),
    "window": (dict(layer_types=["sliding_attention"]), {}, "layer_types must be full_attention"),
    "dynamic": (dict(rope_scaling={"type": "dynamic"}), {}, "or llama3; got 'dynamic' with"),
    "yarn": (dict(rope_scaling={"type": "yarn", "factor": 0}), {}, "factor must be a number > 0"),
    "cut": (
        dict(rope_scaling={"type": "yarn", "factor": 2.0, "truncate": 3}),
        {},
        "truncate must be true or false; got 3",
    ),
    "linear": (
        dict(rope_scaling={"type": "linear", "factor": 2.0, "beta_fast": 3}),
        {},
        "rope_scaling linear has unknown keys: beta_fast",
    ),
    "part": (dict(rope_parameters={"partial_rotary_factor": 0.5}), {}, "partial_rotary_factor"),
    "no object": (dict(rope_scaling="yarn"), {}, "rope_scaling must be an object; got 'yarn'"),
    "heads": (dict(num_key_value_heads=4), {}, "n_kv_heads must divide n_heads; got 4 and 6"),
    "layers": (dict(num_hidden_layers=3), {}, r"tensor blk\.2\.attn_norm\.weight is missing"),
    "many layers": (dict(num_hidden_layers=2**40), {}, "block_count is 1099511627776"),
    "wide": (dict(intermediate_size=2**60), {}, r"blk\.0\.ffn_gate\.weight"),
    "vocabulary": (dict(vocab_size=62), {}, "vocab_size counts 62 tokens; .* has 61 rows"),
    "untied": (dict(tie_word_embeddings=False), {}, "tensor lm_head.weight is missing"),
    "missing": ({}, {"model.norm.weight": None}, r"tensor output_norm\.weight is missing"),
    "no table": ({}, {"model.embed_tokens.weight": None}, "token_embd.weight is missing"),
    "another head": ({}, {"lm_head.weight": HEAD}, "lm_head.weight is tied, and differs"),
    "unknown tensor": ({}, {"model.visual.weight": HEAD}, "tensors: model.visual.weight"),
    "bias": (
        {},
        {"model.layers.0.self_attn.o_proj.bias": np.ones(24, np.float32)},
        r"attention_bias is False; there is model\.layers\.0\.self_attn\.o_proj\.bias",
    ),
    "shape": (
        {},
        {"model.norm.weight": np.ones(23, np.float32)},
        r"output_norm\.weight has the wrong shape: expected \(24,\); got \(23,\)",
    ),
    "shape of q": (
        {},
        {"model.layers.0.self_attn.q_proj.weight": np.ones((23, 24), np.float32)},
        r"blk\.0\.attn_q\.weight has the wrong shape",
    ),
    "infinite": (
        {},
        {"model.norm.weight": np.full(24, np.inf, np.float32)},
        r"model\.norm\.weight has weights that are NaN or infinite",
    ),
    "integers": ({}, {"model.norm.weight": np.ones(24, np.int8)}, "must be F32, F16 or BF16"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case, folder):
    config, weights, message = REFUSED[case]
    configure(folder, **config)
    replace(folder, weights)
    with pytest.raises(DataError, match=message) as error:
        LlamaSeqEngine.from_hf(folder)
    assert str(folder) in str(error.value)


def test_no_architecture_is_taken_for_another_kind():
    assert "llama" in NAME_MAPPINGS
    for name, mapping in NAME_MAPPINGS.items():
        assert mapping.encodes or not foreign([name, *mapping.model_types])


def test_folders_that_cannot_be_read(folder):
    weights, config = folder / "model.safetensors", folder / "config.json"
    with pytest.raises(DataError, match="its architecture is 'llama'; GPT2SeqEngine reads gpt2"):
        GPT2SeqEngine.from_hf(folder)
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-1])
    with pytest.raises(DataError, match=r"model\.safetensors: cannot read"):
        hf.open(folder)
    weights.unlink()
    with pytest.raises(DataError, match=r"model\.safetensors: cannot read"):
        hf.open(folder)
    for text, message in (("{", "not JSON"), ("[]", "expected an object; got list")):
        config.write_text(text)
        with pytest.raises(DataError, match=message):
            hf.open(folder)
    config.unlink()
    with pytest.raises(DataError, match=r"config\.json: cannot read: No such file"):
        hf.open(folder)


def shard(folder, **changes):
    """Cut the weights of a folder in two files, with an index of them."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, files = sorted(weights), [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for n, file in enumerate(files):
        save_file({name: weights[name] for name in names[n::2]}, folder / file)
    placed = {name: files[n % 2] for n, name in enumerate(names)} | changes
    index = {"metadata": {}, "weight_map": {k: f for k, f in placed.items() if f}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return files


def test_shards_are_one_model(folder):
    whole = LlamaSeqEngine.from_hf(folder).weights()
    shard(folder)
    again = LlamaSeqEngine.from_hf(folder).weights()
    assert again.keys() == whole.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(again[name], values)


OUTSIDE = "expected a file in the index's folder; got"
SHARDS = {
    "outside": ({"model.norm.weight": "../model.safetensors"}, OUTSIDE),
    "absolute": ({"model.norm.weight": "/etc/model.safetensors"}, OUTSIDE),
    "of another system": ({"model.norm.weight": "..\\model.safetensors"}, OUTSIDE),
    "pickled": ({"model.norm.weight": "pytorch_model.bin"}, r"expected a \.safetensors file"),
    "no file": ({"model.norm.weight": 3}, r"expected a \.safetensors file; got 3"),
    "missing": (
        {"model.norm.weight": "model-00003-of-00003.safetensors"},
        "expected 3 files next to it; missing: model-00003-of-00003.safetensors; complete",
    ),
    "not there": (
        {"model.layers.9.mlp.up_proj.weight": "model-00001-of-00002.safetensors"},
        "expected model.layers.9.mlp.up_proj.weight in model-00001.*; it is missing",
    ),
    "elsewhere": (
        {"model.norm.weight": "model-00001-of-00002.safetensors"},
        "expected model.norm.weight in model-00001.*; it is in model-00002",
    ),
}


@pytest.mark.parametrize("case", SHARDS)
def test_an_index_that_is_wrong_is_refused(case, folder):
    changes, message = SHARDS[case]
    (folder.parent / "model.safetensors").write_bytes(b"never read")
    shard(folder, **changes)
    with pytest.raises(DataError, match=message) as error:
        hf.open(folder)
    assert "index.json" in str(error.value)


def test_weights_in_other_forms_say_what_to_do(folder):
    weights = folder / "model.safetensors"
    files = shard(folder)
    (folder / files[1]).write_bytes((folder / files[0]).read_bytes())
    with pytest.raises(DataError, match=r"is also in model-00001-of-00002\.safetensors"):
        hf.open(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(DataError, match="weight_map: expected the file of each tensor"):
        hf.open(folder)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(DataError, match=r"no model\.safetensors; name a file in it: .*model\.gguf"):
        hf.open(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(DataError, match=r"pytorch_model\.bin: pickled weights can run any code"):
        hf.open(folder)
    assert not weights.exists()


def test_a_mapped_folder_that_changes_is_noticed(folder):
    with hf.open(folder, check=True) as model:
        assert model.stored("blk.0.attn_q.weight").base is not None
        model.check_unchanged()
        (folder / "model.safetensors").touch()
        with pytest.raises(ToynnError, match="changed since it was opened"):
            model.check_unchanged()
    replace(folder, {"model.norm.weight": np.full(24, np.nan, np.float32)})
    with pytest.raises(DataError, match=r"model\.norm\.weight has weights that are NaN"):
        hf.open(folder, check=True)


def test_a_damaged_folder_is_refused_or_harmless(folder):
    rng = np.random.default_rng(0)
    for path in (folder / "config.json", folder / "model.safetensors"):
        intact = path.read_bytes()
        end = min(len(intact), 3000)  # of safetensors: the table
        for _ in range(200):
            damaged = bytearray(intact)
            damaged[rng.integers(end)] = rng.choice([0, 48, 255, rng.integers(256)])
            path.write_bytes(damaged)
            try:
                LlamaSeqEngine.from_hf(folder, t_seq=1)
            except ToynnError:
                continue
        path.write_bytes(intact)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("form", ["gguf", "q8_0", "hf"])
def test_recipes_go_on_from_a_model(kind, form, tmp_path):
    engine, path = build(kind), tmp_path / "model"
    engine.export_hf(path) if form == "hf" else engine.export_gguf(
        path, "f32" if form == "gguf" else form
    )
    recipe = GPT2() if kind == "gpt2" else FromScratch()
    recipe.realize_from(path, T, 2)
    ids, labels = draw(np.random.default_rng(1), 2)
    loss = engine.evaluate(ids, None, labels)
    assert recipe.evaluate(ids, None, labels) == pytest.approx(
        loss, rel=1e-6 if form != "q8_0" else 0.1
    )
    adam = AdamW.for_lora()
    losses = [recipe.step(ids, None, labels, adam.hp_for_step(k), k == 0) for k in range(20)]
    assert losses[-1] < losses[0] - 0.1
    assert recipe.step_index == 20
    recipe.save(tmp_path / "tuned.gguf", "f16")
    tuned = SequenceEngine.from_gguf(tmp_path / "tuned.gguf", T, 2)
    again = recipe.evaluate(ids, None, labels)
    assert tuned.evaluate(ids, None, labels) == pytest.approx(again, rel=1e-2)
    with pytest.raises(LifecycleError, match="once only"):
        recipe.realize_from(path, T)


def test_options_of_a_start_from_a_model(tmp_path):
    build("llama").export_gguf(tmp_path / "model.gguf")
    recipe = FromScratch()
    recipe.realize_from(tmp_path / "model.gguf", options=RecipeOptions(weight_dtype="bf16"))
    assert (recipe.engine.t_seq, recipe.engine.options.weight_dtype) == (SIZES["context"], "bf16")
    assert recipe.engine.config == LlamaConfig(**SIZES)
    with pytest.raises(LifecycleError, match=r"export_gguf\(\) before realize\(\)"):
        FromScratch().save(tmp_path / "nothing.gguf")
