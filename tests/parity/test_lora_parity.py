"""LoRA against PEFT in PyTorch, on the dequantized weights: gradients of A and B, ten losses."""

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")
pytest.importorskip("peft", reason="PEFT, the parity group, is not installed")

import torch
from llamas import (
    BIASES,
    CAPS,
    COHERE2,
    DELTA,
    EXPERTS,
    GEMMA4,
    GLM4,
    GROUPS,
    GROWTH,
    HYBRID,
    LATENT,
    LOCAL,
    LONGROPE,
    NEMOTRON,
    NEMOTRON_MOE,
    OLMO3,
    OLMOE,
    SCALES,
    SHARED,
    SPARSE,
    STARCODER2,
    WINDOWS,
    YARN_UNCUT,
)
from lora_bases import T, draw, make, mixed, stir, write_base
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM
from zork import START, Tokens, greedy, ours, train
from zork import T as T_ZORK
from zork import base as base_of_stories

from toynn import AdamW, RecipeOptions
from toynn.engines import SequenceEngine
from toynn.formats import adapters, gguf
from toynn.formats.adapters import Adapter
from toynn.recipes import LoRA

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The following layer was not sharded"),
]

torch.set_num_threads(1)  # the models are tiny

WIDE = {"d_model": 256, "n_heads": 8, "n_kv_heads": 4, "d_ff": 256, "n_layers": 1}
# The architecture, what its matrices are stored as, sizes.
V2 = SPARSE | GROUPS | LATENT | {"q_rank": 10, "softmax": True, "normalized": False}
GLM = EXPERTS | LATENT | {"q_rank": 10, "shared_d_ff": 20, "expert_d_ff": 20, "dense_blocks": 1}
BASES = {
    "llama": ("llama", "F32", {}),
    "llama-q4_0": ("llama", "Q4_0", WIDE),
    "llama-q4_k_m": ("llama", None, WIDE),
    "qwen2": ("qwen2", "F32", {}),
    "qwen3": ("qwen3", "F32", {}),
    "smollm3": ("smollm3", "F32", {"n_layers": 4}),
    "granite": ("granite", "F32", SCALES),
    "qwen3moe": ("qwen3moe", "F32", EXPERTS),
    "olmoe": ("olmoe", "F32", OLMOE | EXPERTS),
    "granitemoe": ("granitemoe", "F32", EXPERTS | SCALES),
    "granitehybrid": ("granitehybrid", "F32", HYBRID),
    "nemotron_h": ("nemotron_h", "F32", NEMOTRON | {"untied": True}),
    "nemotron_h_moe": ("nemotron_h_moe", "F32", NEMOTRON_MOE | {"untied": True}),
    "granitehybrid-experts": ("granitehybrid", "F32", HYBRID | EXPERTS | {"shared_d_ff": 20}),
    "gpt-oss": ("gpt-oss", "F32", {"window": 4} | EXPERTS | YARN_UNCUT),
    "olmo2": ("olmo2", "F32", {}),
    "phi3": ("phi3", "F32", LONGROPE | {"original_context": 8, "window": 7}),
    "lfm2": ("lfm2", "F32", {"n_layers": 3, "attention_blocks": (1,)}),
    "qwen35": ("qwen35", "F32", {"n_layers": 3, "attention_every": 2} | DELTA),
    "gemma2": ("gemma2", "F32", {"n_layers": 3, "head_dim": 6} | CAPS),
    "gemma3": ("gemma3", "F32", {"n_layers": 7, "head_dim": 6} | LOCAL),
    "gemma3n": ("gemma3n", "F32", {"head_dim": 6, "rms_eps": 0.1}),
    "gemma4": ("gemma4", "F32", GEMMA4 | SHARED | {"per_layer": 5}),
    "gemma4-moe": ("gemma4", "F32", GEMMA4 | EXPERTS | {"expert_d_ff": 28, "k_as_v": True}),
    "granite-biases": ("granite", "F32", SCALES | BIASES),
    "ministral3": ("mistral3", "F32", GROWTH),
    "seed_oss": ("seed_oss", "F32", {"head_dim": 6}),
    "ernie4_5": ("ernie4_5", "F32", {"head_dim": 6}),
    "olmo3": ("olmo2", "F32", OLMO3),
    "hunyuan-dense": ("hunyuan-dense", "F32", {"head_dim": 6}),
    "exaone4": ("exaone4", "F32", WINDOWS),
    "starcoder2": ("starcoder2", "F32", STARCODER2),
    "cohere2": ("cohere2", "F32", COHERE2),
    "glm4": ("glm4", "F32", GLM4),
    "lfm2moe": ("lfm2moe", "F32", SPARSE | {"attention_blocks": (1, 3)}),
    "deepseek2": ("deepseek2", "F32", SPARSE | GROUPS | LATENT | {"q_rank": 10}),
    "deepseek2-v2": ("deepseek2", "F32", V2),
    "deepseek2-glm": ("deepseek2", "F32", GLM | {"rms_eps": 1e-5}),
    "glm4moe": ("glm4moe", "F32", SPARSE | GLM4 | {"head_norms": True, "weights_scale": 1.7}),
    "ernie4_5-moe": ("ernie4_5-moe", "F32", SPARSE | {"shared_d_ff": 56}),
    "qwen35moe": ("qwen35moe", "F32", {"n_layers": 3, "attention_every": 2} | DELTA | EXPERTS),
    "qwen3next": ("qwen3next", "F32", {"n_layers": 3, "attention_every": 2} | DELTA | EXPERTS),
    "gpt2": ("gpt2", "F32", {}),
    "gpt2-q8_0": ("gpt2", "Q8_0", WIDE),
}
SETTINGS = {
    "plain": {"alpha": 8.0},
    "rslora": {"alpha": 3.0, "use_rslora": True},
    "attention": {"rank": 2, "targets": "attention"},
    "latents": {"rank": 2, "targets": ("kv_b_proj", "q_a_proj", "kv_a_proj_with_mqa")},
    "last": {"rank": 2, "num_layers": 1, "targets": "attention"},
    "last-lorafa": {"alpha": 3.0, "num_layers": 2, "use_lorafa": True, "use_rslora": True},
    "latents-lorafa": {"rank": 2, "targets": "kv_b_proj", "use_lorafa": True},
    "mixer": {"rank": 2, "targets": ("q", "ssm_in", "ffn_up_shexp")},
}


PAIRS = [("llama", setting) for setting in ("plain", "rslora", "attention")]
PAIRS += [("qwen2", "plain"), ("qwen3", "rslora"), ("gpt2", "plain"), ("gpt2", "attention")]
PAIRS += [("smollm3", "rslora"), ("granite", "plain"), ("qwen3moe", "plain")]
PAIRS += [("olmoe", "rslora"), ("granitemoe", "attention")]
PAIRS += [("gpt-oss", "attention"), ("gpt-oss", "plain")]
PAIRS += [("olmo2", "plain"), ("phi3", "plain")]
PAIRS += [("ministral3", "plain"), ("seed_oss", "rslora"), ("ernie4_5", "attention")]
PAIRS += [("olmo3", "plain"), ("hunyuan-dense", "attention"), ("exaone4", "plain")]
PAIRS += [("starcoder2", "plain"), ("cohere2", "plain"), ("glm4", "plain")]
PAIRS += [("granite-biases", "plain")]
PAIRS += [("qwen35", "plain"), ("lfm2", "plain"), ("gemma2", "plain"), ("gemma3", "rslora")]
PAIRS += [
    ("deepseek2", "latents"),
    ("lfm2moe", "plain"),
    ("glm4moe", "rslora"),
    ("ernie4_5-moe", "plain"),
]
PAIRS += [("qwen35moe", "plain"), ("qwen3next", "plain")]
PAIRS += [("granitehybrid", "plain"), ("granitehybrid-experts", "plain")]
PAIRS += [("gpt2", "last"), ("qwen3next", "last"), ("smollm3", "last-lorafa")]
PAIRS += [("deepseek2", "latents-lorafa"), ("deepseek2-v2", "latents")]
PAIRS += [("deepseek2-glm", "latents")]
PAIRS += [("gemma3n", "attention"), ("gemma4", "attention"), ("gemma4-moe", "plain")]
PAIRS += [("nemotron_h", "attention"), ("nemotron_h_moe", "mixer")]
PAIRS += [(kind, "plain") for kind, (_, type, _) in BASES.items() if type != "F32"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By name: the path of a GGUF file, and of the folder with the same model, dequantized."""
    made = {}

    def get(kind):
        if kind not in made:
            arch, type, sizes = BASES[kind]
            folder = tmp_path_factory.mktemp("base")
            path = mixed(write_base(folder / "base.gguf", arch, **sizes), type)
            SequenceEngine.from_gguf(path, t_seq=T).export_hf(folder / "model")
            if kind == "deepseek2-glm":  # whose folder toynn writes as a DeepSeek-V3's
                written = folder / "model" / "config.json"
                theirs = json.loads(written.read_text()) | {"model_type": "glm4_moe_lite"}
                written.write_text(json.dumps(theirs))
            made[kind] = path, folder / "model"
        return made[kind]

    return get


def theirs_for(model_path, recipe, folder, base, attention="eager"):
    """The model of PEFT with the adapters of a recipe."""
    recipe.export_peft(folder)
    model = AutoModelForCausalLM.from_pretrained(
        model_path, dtype=torch.float32, attn_implementation=attention
    )
    theirs = PeftModel.from_pretrained(model, folder, is_trainable=True).eval()  # without dropout
    for name, w in theirs.named_parameters():
        if recipe.engine.lora.use_lorafa and "lora_A" in name:
            w.requires_grad_(False)
        if w.requires_grad and not w.all():  # two matrices that are one there: B has zeros
            w.register_hook(lambda gradient, mask=w != 0: gradient * mask)
    return theirs


def by_their_names(tensors, recipe, folder, base):
    """Arrays that are by the names of toynn's adapters, by PEFT's, their rows in its order."""
    with gguf.open(base) as file:
        adapters.write_peft(folder, Adapter(file.architecture, 1.0, tensors), file)
    return load_file(folder / "adapter_model.safetensors")


def loss_of(model, ids, labels, batch):
    logits = model(input_ids=torch.tensor(ids, dtype=torch.long).view(batch, -1)).logits
    labels = torch.tensor(labels, dtype=torch.long)
    return torch.nn.functional.cross_entropy(logits.view(labels.numel(), -1), labels)


def assert_same_gradients(recipe, model, folder, base):
    """Those of all A and B that are trained, each within 1e-4 of the largest of its tensor."""
    tensors = recipe.engine.adapter_weights() | recipe.engine.gradients()
    ours = by_their_names(tensors, recipe, folder / "d", base)
    if recipe.engine.lora.use_lorafa:
        ours = {name: gradient for name, gradient in ours.items() if "lora_A" not in name}
    grads = {n: p.grad.numpy() for n, p in model.named_parameters() if p.requires_grad}
    grads = {name.replace(".default", ""): g for name, g in grads.items()}
    assert ours.keys() == grads.keys()
    for name, gradient in grads.items():
        error = np.abs(ours[name] - gradient).max()
        assert error < 1e-4 * np.abs(gradient).max(), name


@pytest.mark.parametrize("kind", ["llama", "qwen3", "smollm3", "granite", "gpt2", "llama-q4_k_m"])
def test_a_packed_batch_gives_what_peft_gives_for_each_example_alone(kind, models, tmp_path):
    """Four examples in two rows; only the second half of each has loss."""
    base, folder = models(kind)
    recipe = make(base, t_batch=2, packed=True)
    model = theirs_for(folder, recipe, tmp_path / "start", base)
    ids, labels = draw(2, seed=3)
    starts = np.repeat([0, 5, 12, 13], [5, 7, 1, 11])
    positions = np.arange(2 * T) - starts
    labels[(positions < 3) & (starts != 12)] = -100
    examples = [np.flatnonzero(starts == start) for start in np.unique(starts)]
    total, count = 0.0, np.count_nonzero(labels != -100)
    for rows in examples:
        logits = model(input_ids=torch.tensor(ids[rows], dtype=torch.long)[None]).logits[0]
        answers = torch.tensor(labels[rows], dtype=torch.long)
        loss = torch.nn.functional.cross_entropy(logits, answers, reduction="sum") / count
        loss.backward()  # adds to the gradients of the examples before
        total += loss.item()
    assert recipe.accumulate(ids, positions, labels, starts) == pytest.approx(total, rel=1e-5)
    assert_same_gradients(recipe, model, tmp_path, base)


@pytest.mark.parametrize(("kind", "setting"), PAIRS)
def test_gradients_and_ten_losses(models, kind, setting, tmp_path):
    base, folder = models(kind)
    recipe = make(base, t_batch=2, **SETTINGS[setting])
    model = theirs_for(folder, recipe, tmp_path / "start", base)
    hp = AdamW.for_lora()
    hp.lr, hp.weight_decay = 3e-3, 0.1
    theirs = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=3e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.1,
    )
    losses, expected = [], []
    for k in range(10):
        ids, labels = draw(2, seed=k)
        losses.append(recipe.step(ids, None, labels, hp.hp_for_step(k), k == 0))
        theirs.zero_grad()
        loss = loss_of(model, ids, labels, 2)
        loss.backward()
        if k == 0:
            assert_same_gradients(recipe, model, tmp_path, base)
        theirs.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-4)


def test_gradients_of_a_long_row(tmp_path):
    """2048 tokens, recomputed by blocks, the loss in chunks of rows; angles as exact as here."""
    long, sizes = 2048, {"d_model": 64, "n_heads": 2, "n_kv_heads": 1, "d_ff": 96, "vocab": 8200}
    base = write_base(tmp_path / "base.gguf", context=long, **sizes)
    SequenceEngine.from_gguf(base, t_seq=T).export_hf(tmp_path / "model")
    recipe = LoRA()
    opts = RecipeOptions(t_seq=long, seed=7, init_scale=0.1, checkpointing=True)
    recipe.realize(base, None, 4, opts, 8.0, "all-linear")
    stir(recipe)
    assert recipe.engine.t_logits is None  # chunked
    model = theirs_for(tmp_path / "model", recipe, tmp_path / "start", base, "sdpa")
    engine = recipe.engine
    frequencies = torch.tensor(engine.model.constants(engine.config)["inverse_frequencies"])

    def angles(x, position_ids):  # rounded to float32 in transformers, whose error grows with T
        angle = position_ids[..., None].double() * frequencies.double()
        angle = torch.cat((angle, angle), -1)
        return angle.cos().float(), angle.sin().float()

    model.base_model.model.model.rotary_emb.forward = angles
    ids, labels = np.random.default_rng(5).integers(0, sizes["vocab"], (2, long)).astype(np.int32)
    loss = loss_of(model, ids, labels, 1)
    loss.backward()
    assert recipe.accumulate(ids, None, labels) == pytest.approx(loss.item(), rel=1e-6)
    assert_same_gradients(recipe, model, tmp_path, base)


@pytest.mark.parametrize(("kind", "setting"), PAIRS[2:7])
def test_what_peft_began_goes_on_here(models, kind, setting, tmp_path):
    """An adapter that PEFT made and saved: the same loss and gradients."""
    base, folder = models(kind)
    ours = SETTINGS[setting]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(0)
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=ours.get("rank", 4),
        lora_alpha=ours.get("alpha", 2),
        use_rslora=ours.get("use_rslora", False),
        target_modules="all-linear",
        init_lora_weights=False,  # B is not zero
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    model = get_peft_model(model, config).eval()
    model.save_pretrained(tmp_path / "theirs")
    recipe = LoRA()
    recipe.realize_from_adapter(base, tmp_path / "theirs", RecipeOptions(t_seq=T))
    ids, labels = draw()
    expected = loss_of(model, ids, labels, 1)
    assert recipe.accumulate(ids, None, labels) == pytest.approx(expected.item(), rel=1e-5)
    recipe.export_peft(tmp_path / "ours")
    mine = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    begun = load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    assert all(np.array_equal(mine[name], values) for name, values in begun.items())


def test_transformers_tells_of_zork_too(tmp_path):
    """A pretrained model: PEFT in transformers has the same logits and writes the same text."""
    path = base_of_stories()
    recipe, _ = train(path)
    tokens = Tokens(path)
    start = tokens.encode(START)
    story = greedy(lambda ids: ours(recipe.engine, ids), start, T_ZORK - len(start))
    SequenceEngine.from_gguf(path, t_seq=T_ZORK).export_hf(tmp_path / "model")
    model = theirs_for(tmp_path / "model", recipe, tmp_path / "adapter", path)

    def logits(ids):
        with torch.no_grad():
            return model(input_ids=torch.tensor(ids)[None]).logits[0].double().numpy()

    assert greedy(lambda ids: logits(ids)[-1], start, T_ZORK - len(start)) == story
    expected = logits(story)
    error = recipe.engine.logits(np.array(story)) - expected
    assert (error**2).sum() < 1e-9 * (expected**2).sum()
    assert tokens.decode(story).strip().startswith("The robot Zork")
