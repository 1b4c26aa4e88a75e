"""DoRA, PiSSA's start, and adapters of the table and the head, against PEFT in float64."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")
pytest.importorskip("peft", reason="PEFT, the parity group, is not installed")

import torch
from lora_bases import T, draw, make, mixed, write_base
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from toynn import AdamW, RecipeOptions
from toynn.engines import SequenceEngine, frozen
from toynn.formats import adapters, gguf
from toynn.recipes import LoRA

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

torch.set_num_threads(1)  # the models are tiny

WIDE = {"d_model": 256, "n_heads": 8, "n_kv_heads": 4, "d_ff": 256, "n_layers": 1}
DORA, TIED = {"use_dora": True, "alpha": 6.0}, {"targets": ["q", "embed", "head"], "alpha": 6.0}
#: The base, what it is made of, and how it is adapted.
KINDS = {
    "dora": ("llama", {}, DORA),
    "dora-biased": ("qwen2", {}, DORA | {"use_rslora": True}),
    "dora-gpt2": ("gpt2", {}, DORA),
    "dora-lorafa": ("qwen2", {}, DORA | {"num_layers": 1, "use_lorafa": True}),
    "dora-head": ("qwen3", {}, DORA | {"targets": ("head", "q")}),
    "dora-q4_k_m": ("llama", WIDE | {"mixed": True}, DORA),
    "table-and-head": ("qwen3", {}, TIED),
    "tied": ("llama", {}, TIED),
    "tied-scaled": ("gemma3", {"n_layers": 1, "head_dim": 6, "window": 4}, TIED),
    "tied-gpt2": ("gpt2", {}, {"targets": ("embed", "head", "qkv")}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By kind: the path of a GGUF file, and of the folder with the same model, dequantized."""
    made = {}

    def get(kind):
        arch, sizes, _ = KINDS[kind]
        key = arch, tuple(sizes.items())
        if key not in made:
            folder = tmp_path_factory.mktemp("base")
            plain = {name: size for name, size in sizes.items() if name != "mixed"}
            path = write_base(folder / "base.gguf", arch, **plain)
            if "mixed" in sizes:
                mixed(path)
            SequenceEngine.from_gguf(path, t_seq=T).export_hf(folder / "model")
            made[key] = path, folder / "model"
        return made[key]

    return get


def theirs_for(model_path, folder):
    model = AutoModelForCausalLM.from_pretrained(
        model_path, dtype=torch.float64, attn_implementation="eager"
    )
    return (
        PeftModel.from_pretrained(model, folder, is_trainable=True, autocast_adapter_dtype=False)
        .double()
        .eval()
    )


def loss_of(model, ids, labels, batch):
    logits = model(input_ids=torch.tensor(ids, dtype=torch.long).view(batch, -1)).logits
    labels = torch.tensor(labels, dtype=torch.long)
    return torch.nn.functional.cross_entropy(logits.view(labels.numel(), -1), labels)


def logits_of(model, ids):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(ids, dtype=torch.long)[None]).logits[0]
    return logits.numpy()


def assert_near(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_logits_gradients_and_ten_losses(models, kind, tmp_path):
    base, folder = models(kind)
    recipe = make(base, t_batch=2, **KINDS[kind][2])
    if recipe.engine.lora.use_dora:  # away from the norms, as B is from zero
        weights = recipe.engine.adapter_weights()
        rng = np.random.default_rng(1)
        weights |= {n: 0.5 + rng.random(m.shape) for n, m in weights.items() if m.ndim == 1}
        recipe.engine.load_weights(weights)
    recipe.export_peft(tmp_path / "start")
    model = theirs_for(folder, tmp_path / "start")
    for name, w in model.named_parameters():
        if recipe.engine.lora.use_lorafa and "lora_A" in name:
            w.requires_grad_(False)
    ids, _ = draw(1)
    assert_near(recipe.engine.logits(ids), logits_of(model, ids))
    hp = AdamW.for_lora()
    hp.lr = 3e-3
    trained = [p for p in model.parameters() if p.requires_grad]
    theirs = torch.optim.AdamW(trained, lr=3e-3, eps=1e-8, weight_decay=0.0)
    losses, expected = [], []
    for k in range(10):
        ids, labels = draw(2, seed=k)
        losses.append(recipe.step(ids, None, labels, hp.hp_for_step(k), k == 0))
        theirs.zero_grad()
        loss = loss_of(model, ids, labels, 2)
        loss.backward()
        if k == 0:
            assert_gradients(recipe, model, base, tmp_path / "d")
        theirs.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-4)
    ids, _ = draw(1)
    reader = recipe.engine.decoder()  # the norms are those of now
    assert_near(reader.read(ids), logits_of(model, ids)[-1], 1e-3)


def assert_gradients(recipe, model, base, folder):
    with gguf.open(base) as file:
        tensors = recipe.engine.adapter_weights() | recipe.engine.gradients()
        gradients = adapters.Adapter(file.architecture, 1.0, tensors)
        adapters.write_peft(folder, gradients, file)
    ours = load_file(folder / "adapter_model.safetensors")
    theirs = {n: p.grad.numpy() for n, p in model.named_parameters() if p.requires_grad}
    theirs = {n.replace(".default", "").removesuffix("vector.weight"): g for n, g in theirs.items()}
    ours = {name.removesuffix("vector"): gradient for name, gradient in ours.items()}
    if recipe.engine.lora.use_lorafa:
        ours = {name: gradient for name, gradient in ours.items() if "lora_A" not in name}
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert_near(ours[name], gradient, 1e-4)


@pytest.mark.parametrize("kind", ["dora-gpt2", "tied"])
def test_pissa_is_trained_and_converted_as_peft_does_it(models, kind, tmp_path):
    """Ten losses from the same start, and the adapter of the base as it was that PEFT makes."""
    base, folder = models(kind)
    recipe = LoRA()
    opts = RecipeOptions(t_seq=T, t_batch=2)
    recipe.realize(base, None, 3, opts, 5.0, "all-linear", init="pissa")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    gpt2 = model.config.model_type == "gpt2"
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=3,
        lora_alpha=5,
        target_modules="all-linear",
        init_lora_weights="pissa",
        fan_in_fan_out=gpt2,
    )
    model = get_peft_model(model, config).eval()
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(tmp_path / "start")
    model.peft_config["default"].init_lora_weights = "pissa"
    hp = AdamW.for_lora()
    hp.lr = 3e-3
    trained = [p for p in model.parameters() if p.requires_grad]
    theirs = torch.optim.AdamW(trained, lr=3e-3, eps=1e-8, weight_decay=0.0)
    losses, expected = [], []
    for k in range(10):
        ids, labels = draw(2, seed=k)
        losses.append(recipe.step(ids, None, labels, hp.hp_for_step(k), k == 0))
        theirs.zero_grad()
        loss = loss_of(model, ids, labels, 2)
        loss.backward()
        theirs.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=2e-4)
    model.save_pretrained(
        tmp_path / "converted", path_initial_model_for_weight_conversion=tmp_path / "start"
    )
    ids, _ = draw(1)
    with gguf.open(base) as file:
        converted = adapters.load(tmp_path / "converted", file)
        assert converted.rank == recipe.engine.adapter().rank == 6
        assert_near(frozen(file, converted).logits(ids), logits_of(model, ids), 1e-4)
    assert_near(recipe.engine.logits(ids), logits_of(model, ids), 1e-3)
