"""PEFT as the judge of adapters: what toynn writes and it loads, and the other way round."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")
pytest.importorskip("peft", reason="PEFT, the parity group, is not installed")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file, save_file
from some_adapters import RANKS, draw, matrices
from test_hf_parity import IDS, their_model

from toynn import RecipeOptions
from toynn.engines import SequenceEngine
from toynn.errors import AdapterError, ConfigError
from toynn.formats import adapters, gguf, hf
from toynn.formats.fuse import fuse
from toynn.recipes import LoRA

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # which is not so of target_parameters: PEFT obeys their patterns, and looks for modules only
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match"),
]

ADAPTERS = {
    "all": {},
    "rslora": {"use_rslora": True},
    "ranks": {"ranks": RANKS},
    "rslora-ranks": {"ranks": RANKS, "use_rslora": True},
    "no-alpha": {"ranks": RANKS, "alpha": 0.0},
    "one-block": {"weights": 1},
}
KINDS = ("llama", "llama-wide", "qwen2", "qwen3", "smollm3", "granite", "gpt2")
KINDS += ("olmo2", "phi3-longrope", "lfm2", "qwen35", "gemma2", "gemma3")


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor(IDS)[None]).logits[0].numpy()


def assert_equal(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.fixture
def saved(request, tmp_path):
    """A model of transformers, and the same as a GGUF file that is open."""
    model = their_model(request.param)
    model.save_pretrained(tmp_path / "model")
    with hf.open(tmp_path / "model"):
        engine = SequenceEngine.from_hf(tmp_path / "model")
    engine.export_gguf(tmp_path / "base.gguf")
    with gguf.open(tmp_path / "base.gguf") as base:
        yield request.param, model, base


@pytest.fixture(autouse=True)
def one_thread():
    """On products this small PyTorch's threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def fused_logits(base, adapter, tmp_path):
    fuse(base, adapter, tmp_path / "fused.gguf", overwrite=True)
    engine = SequenceEngine.from_gguf(tmp_path / "fused.gguf", t_seq=len(IDS))
    return engine.logits(IDS)


WRITTEN = [(kind, name) for kind in KINDS for name in ("all", "rslora-ranks")]
WRITTEN += [("gpt-oss", "all"), ("qwen3moe", "rslora-ranks"), ("granitemoe", "ranks")]
WRITTEN += [("olmoe", "all")]
MIXED = (
    "deepseek2",
    "deepseek2-glm",
    "deepseek2-v2",
    "lfm2moe",
    "glm4moe",
    "ernie4_5-moe",
    "qwen35moe",
    "qwen3next",
)
FAMILIES = ("ministral3", "seed_oss", "ernie4_5", "olmo3", "hunyuan", "exaone4", "starcoder2")
FAMILIES += ("cohere2", "glm4", "granite-biases", *MIXED, "gemma3n", "gemma4", "gemma4-moe")
FAMILIES += ("granitehybrid", "granitehybrid-experts", "nemotron_h", "nemotron_h_moe")
WRITTEN += [(kind, "rslora-ranks") for kind in FAMILIES]
WRITTEN += [("llama", name) for name in ("rslora", "ranks", "no-alpha", "one-block")]


@pytest.mark.parametrize(("saved", "name"), WRITTEN, indirect=["saved"])
def test_peft_loads_what_toynn_writes(saved, name, tmp_path):
    _, model, base = saved
    settings = dict(ADAPTERS[name])
    if settings.get("weights"):
        settings["weights"] = [name for name in matrices(base) if name.startswith("blk.1.")]
    adapter = draw(base, **settings)
    adapters.write_peft(tmp_path / "adapter", adapter, base)
    plain = logits_of(model)
    theirs = logits_of(PeftModel.from_pretrained(model, tmp_path / "adapter").eval())
    assert np.abs(theirs - plain).max() > 0.1 * np.abs(plain).max()
    assert_equal(fused_logits(base, adapter, tmp_path), theirs)
    again = adapters.load(tmp_path / "adapter", base)
    assert again.pairs.keys() == adapter.pairs.keys()
    for weight, (a, b) in adapter.pairs.items():
        read = again.pairs[weight]
        assert_equal(again.scale(weight) * read[1] @ read[0], adapter.scale(weight) * b @ a)


@pytest.mark.parametrize("saved", MIXED, indirect=True)
def test_dora_is_refused_where_peft_has_no_place_for_it(saved, tmp_path):
    """In modules called as those of experts are, which PEFT adapts by their parameters."""
    _, model, base = saved
    plain = [name for name in matrices(base) if not adapters.is_stack(name)]

    def with_magnitudes(weights):
        drawn = draw(base, weights)
        rows = {name: base.tensors[name].shape[0] for name in weights}
        more = {f"{n}.lora_magnitude": np.full(r, 0.7, np.float32) for n, r in rows.items()}
        return replace(drawn, tensors={**drawn.tensors, **more})

    refused = [
        n for n in plain if adapters.no_peft(with_magnitudes([n]).tensors, base.architecture)
    ]
    assert refused == [name for name in plain if ".ffn_" in name]
    with pytest.raises(AdapterError, match=r"ffn_\w+\.weight: expected only A and B; got DoRA"):
        adapters.write_peft(tmp_path / "refused", with_magnitudes(plain), base)
    assert not (tmp_path / "refused").exists()
    options = RecipeOptions(t_seq=len(IDS), t_batch=1)
    with pytest.raises(ConfigError, match=r"no file could hold.*has the name of an expert matrix"):
        LoRA().realize(base.path, None, 2, options, 4.0, refused[:1], use_dora=True)
    adapter = with_magnitudes([name for name in plain if name not in refused])
    adapters.write_peft(tmp_path / "adapter", adapter, base)
    theirs = logits_of(PeftModel.from_pretrained(model, tmp_path / "adapter").eval())
    assert_equal(fused_logits(base, adapter, tmp_path), theirs)


@pytest.mark.parametrize("use_dora", [False, True])
@pytest.mark.parametrize("saved", ["qwen3next"], indirect=True)
def test_one_of_two_matrices_that_are_one_module_there(saved, use_dora, tmp_path):
    _, model, base = saved
    name = "blk.0.attn_gate.weight"
    adapter = draw(base, [name])
    if use_dora:
        rows = np.full(base.tensors[name].shape[0], 0.7, np.float32)
        adapter = replace(adapter, tensors={**adapter.tensors, f"{name}.lora_magnitude": rows})
    adapters.write_peft(tmp_path / "adapter", adapter, base)
    theirs = logits_of(PeftModel.from_pretrained(model, tmp_path / "adapter").eval())
    assert_equal(fused_logits(base, adapter, tmp_path), theirs)
    with pytest.raises(AdapterError, match=r"attn_gate\.weight: PEFT orders its rows by heads"):
        adapters.write_peft(tmp_path / "other", adapter)
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    key = next(key for key in tensors if "in_proj_qkvz.lora_B" in key)
    save_file(tensors | {key: tensors[key][1:]}, path)
    with pytest.raises(AdapterError, match=r"qkvz\.lora_B\.weight: expected 80 rows; got 79"):
        adapters.load(tmp_path / "adapter", base)


LLAMA = {
    "default": {},
    "suffixes": {"target_modules": ["q_proj", "k_proj", "down_proj"], "r": 3, "lora_alpha": 5},
    "pattern": {"target_modules": r".*\.1\..*(q_proj|o_proj)"},
    "all-linear": {"target_modules": "all-linear", "use_rslora": True},
    "patterns": {
        "target_modules": ["q_proj", "v_proj", "up_proj"],
        "rank_pattern": {"q_proj": 2, r"^model\.layers\.0\.self_attn\.v_proj": 5},
        "alpha_pattern": {"layers.1.*up_proj": 1, "v_proj": 20},
        "use_rslora": True,
    },
    "head": {"target_modules": ["lm_head", "v_proj"]},
    "experts": {
        "target_modules": ["q_proj"],
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
        "rank_pattern": {"experts.down_proj": 2},
        "alpha_pattern": {"gate_up_proj": 3},
    },
    "down": {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]},
    "table": {"target_modules": ["embed_tokens", "q_proj"]},
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "fused": {"target_modules": ["in_proj_qkvz", "in_proj_ba", "q_proj"], "r": 3},
    "fused-dora": {"target_modules": ["in_proj_qkvz", "q_proj"], "use_dora": True},
}
GPT2 = {
    "default": {},
    "suffixes": {"target_modules": ["c_proj"], "r": 3, "lora_alpha": 5},
    "patterns": {
        "target_modules": ["c_attn", "c_proj", "c_fc"],
        "rank_pattern": {"mlp.c_proj": 2},
        "alpha_pattern": {r"h.\d.attn.c_attn": 30},
    },
}
READ = [
    (kind, name)
    for kind in ("llama", "gpt2")
    for name in (GPT2 if kind == "gpt2" else LLAMA)
    if name not in ("experts", "down", "fused", "fused-dora")
]
READ += [("smollm3", "patterns"), ("granite", "head"), ("olmo2", "patterns")]
READ += [("gemma3", "patterns"), ("gpt-oss", "experts"), ("qwen3moe", "down")]
READ += [("gemma3n", "patterns"), ("gemma4", "patterns"), ("gemma4-moe", "experts")]
READ += [("phi3", "all-linear"), ("gemma2", "patterns")]
READ += [("glm4", "all-linear"), ("ernie4_5", "patterns"), ("cohere2", "suffixes")]
READ += [("qwen3next", "fused"), ("qwen3next", "fused-dora")]
READ += [("llama-wide", "patterns"), ("qwen2", "patterns"), ("qwen3", "all-linear")]


@pytest.mark.parametrize(("saved", "name"), READ, indirect=["saved"])
def test_toynn_loads_what_peft_writes(saved, name, tmp_path):
    kind, model, base = saved
    kinds = GPT2 if base.architecture == "gpt2" else LLAMA
    settings = {"task_type": "CAUSAL_LM", "fan_in_fan_out": base.architecture == "gpt2"}
    settings |= json.loads(json.dumps(kinds[name]))
    torch.manual_seed(0)
    theirs = get_peft_model(model, LoraConfig(**settings)).eval()
    with torch.no_grad():
        for label, w in theirs.named_parameters():
            if "lora_B" in label or "lora_embedding_A" in label:
                w.normal_(0, 0.1)
            if "magnitude" in label:
                w.mul_(1.5)
    theirs.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    adapter = adapters.load(tmp_path / "adapter", base)
    expected = logits_of(theirs)
    assert_equal(fused_logits(base, adapter, tmp_path), expected)

    again = adapter
    if not adapter.use_dora:
        adapters.write_gguf(tmp_path / "adapter.gguf", adapter)
        again = adapters.load(tmp_path / "adapter.gguf", base)
        assert_equal(fused_logits(base, again, tmp_path), expected)
    adapters.write_peft(tmp_path / "again", again, base)
    fresh = PeftModel.from_pretrained(their_model(kind), tmp_path / "again")
    assert_equal(logits_of(fresh.eval()), expected)


REFUSED = {
    "saved": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "bias": ({"bias": "all"}, "bias"),
    "tokens": ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
    "pissa": ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    "olora": ({"init_lora_weights": "olora"}, "init_lora_weights"),
}


@pytest.mark.parametrize("saved", ["llama"], indirect=True)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(saved, name, tmp_path):
    _, model, base = saved
    settings, match = REFUSED[name]
    config = LoraConfig(task_type="CAUSAL_LM", **settings)
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    with pytest.raises(AdapterError, match=match):
        adapters.load(tmp_path / "adapter", base)


@pytest.mark.parametrize("saved", ["llama"], indirect=True)
def test_another_method_is_refused(saved, tmp_path):
    from peft import IA3Config

    _, model, base = saved
    get_peft_model(model, IA3Config(task_type="CAUSAL_LM")).save_pretrained(tmp_path / "adapter")
    with pytest.raises(AdapterError, match="peft_type: expected 'LORA'; got 'IA3'"):
        adapters.load(tmp_path / "adapter", base)
