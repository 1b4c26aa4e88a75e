"""An architecture that is one file (tests/helpers/tandem.py) and is registered works everywhere.

The references are the formulas of that file in float64 NumPy, and finite differences of them.
"""

import json
import shutil
from math import sqrt

import numpy as np
import pytest
from tandem import EPS, Tandem, TandemConfig

import toynn
from toynn import engines
from toynn.cli import main
from toynn.engines import SequenceEngine
from toynn.errors import ConfigError, DataError, GGUFError
from toynn.formats import adapters, gguf, hf
from toynn.formats.hf.name_mapping import NAME_MAPPINGS
from toynn.models import ARCHITECTURES, architecture, register

CONFIG = TandemConfig(vocab=256, d_model=16, n_heads=2, d_ff=24, n_layers=3, context=16)
T = 8
HP = toynn.AdamW.for_lora()


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The architecture, for this file alone."""
    register(Tandem())
    yield
    del ARCHITECTURES["tandem"], NAME_MAPPINGS["tandem"]


@pytest.fixture
def engine():
    """One with random weights, ready to train on two sequences."""
    made = SequenceEngine(n_threads=1)
    made.realize_for_random_init(CONFIG, toynn.RecipeOptions(t_seq=T, t_batch=2, seed=3))
    rng = np.random.default_rng(0)
    made.load_weights(
        {k: w + 0.1 * rng.standard_normal(w.shape) for k, w in made.weights().items()}
    )
    made.build_training_step()
    return made


@pytest.fixture
def file(engine, tmp_path):
    engine.export_gguf(tmp_path / "tandem.gguf")
    return tmp_path / "tandem.gguf"


@pytest.fixture
def data(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"the {n}th line of a text\n" for n in range(80)))
    return tmp_path / "text.txt"


def draw(count=2 * T):
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (2, count)).astype(np.int32)


# -- The formulas, in float64 ------------------------------------------------------------------


def layernorm(x, w, name):
    centred = x - x.mean(axis=-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPS)
    return normed * w[f"{name}.weight"] + w[f"{name}.bias"]


def rotate(x):
    """RoPE on (T, H, D): channels 2i and 2i + 1 are a complex number, rotated by its angle."""
    length, _, D = x.shape
    angles = np.arange(length)[:, None] * CONFIG.rope_base ** -(np.arange(0, D, 2) / D)
    rotated = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None]
    return np.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)


def forward(w, ids):
    """The logits (T, V) of one sequence."""
    x, H = w["token_embd.weight"][ids] * sqrt(CONFIG.d_model), CONFIG.n_heads
    hidden = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for n in range(CONFIG.n_layers):
        b = {k.removeprefix(f"blk.{n}."): v for k, v in w.items() if k.startswith(f"blk.{n}.")}
        normed = layernorm(x, b, "attn_norm")
        q, k, v = (
            (normed @ b[f"attn_{part}.weight"].T + b.get(f"attn_{part}.bias", 0)).reshape(
                len(ids), H, -1
            )
            for part in "qkv"
        )
        if n % 2 == 0:
            q, k = rotate(q), rotate(k)
        scores = np.einsum("thd,shd->hts", q, k) / sqrt(q.shape[-1]) + hidden
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        heads = np.einsum("hts,shd->thd", p, v).reshape(x.shape)
        up = normed @ b["ffn_up.weight"].T + b["ffn_up.bias"]
        act = 0.5 * up * (1 + np.tanh(sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = x + heads @ b["attn_output.weight"].T + act @ b["ffn_down.weight"].T
    return layernorm(x, w, "output_norm") @ w["output.weight"].T


def loss(w, ids, labels):
    total = 0.0
    for part in (slice(0, T), slice(T, 2 * T)):
        logits = forward(w, ids[part])
        most = logits.max(axis=1)
        sums = np.log(np.exp(logits - most[:, None]).sum(axis=1)) + most
        total += (sums - logits[np.arange(T), labels[part]]).sum()
    return total / (2 * T)


def exact(engine):
    return {name: values.astype(np.float64) for name, values in engine.weights().items()}


# -- It works ----------------------------------------------------------------------------------


def test_logits_loss_and_gradients(engine):
    (ids, labels), w = draw(), exact(engine)
    expected = np.concatenate([forward(w, ids[:T]), forward(w, ids[T:])])
    np.testing.assert_allclose(engine.logits(ids), expected, rtol=0, atol=3e-5)
    rows = HP.hp_for_step(0)
    rows[0] = 0  # a learning rate that moves nothing
    assert engine.step(ids, None, labels, rows, True) == pytest.approx(loss(w, ids, labels), 1e-6)
    rng, step = np.random.default_rng(5), 1e-5
    for name, gradient in engine.gradients().items():
        direction = rng.standard_normal(gradient.shape)
        ends = (loss(w | {name: w[name] + s * direction}, ids, labels) for s in (step, -step))
        slope = np.subtract(*ends) / (2 * step)
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=2e-4, abs=1e-6), name


def test_shapes_differ_from_block_to_block(engine):
    shapes = [engine.weights()[f"blk.{n}.ffn_up.weight"].shape for n in range(3)]
    assert shapes == [(24, 16), (48, 16), (24, 16)]


def test_generation_with_a_cache_is_generation_without(engine, file):
    ids = draw()[0][: CONFIG.context]
    full = engine.logits(ids, batch=1)
    decoder = engine.decoder()
    for first, last in ((0, 5), (5, 6), (6, 7), (7, 16)):
        got = decoder.read(ids[first:last])
        np.testing.assert_allclose(got, full[last - 1], rtol=0, atol=2e-5)
    with gguf.open(file) as opened:
        frozen = engines.frozen(opened)
    assert np.array_equal(frozen.logits(ids, batch=1), full)


def test_it_trains(engine):
    ids, labels = draw()
    losses = [engine.step(ids, None, labels, HP.hp_for_step(k), k == 0) for k in range(20)]
    assert losses[-1] < losses[0] - 0.02


def test_files_both_ways(engine, file, tmp_path):
    weights, ids = engine.weights(), draw()[0]
    again = SequenceEngine.from_gguf(file, T, 2)
    engine.export_hf(tmp_path / "folder")
    other = SequenceEngine.from_hf(tmp_path / "folder", T, 2)
    assert again.config == other.config == CONFIG
    for loaded in (again, other):
        assert all(np.array_equal(values, weights[k]) for k, values in loaded.weights().items())
        assert np.array_equal(loaded.logits(ids), engine.logits(ids))
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert (config["model_type"], config["n_stages"], config["rope_base"]) == ("tandem", 3, 100.0)
    with hf.open(tmp_path / "folder") as model:
        assert model.tensors.keys() == weights.keys()
    from safetensors.numpy import load_file

    stored = load_file(tmp_path / "folder" / "model.safetensors")
    q, D = weights["blk.1.attn_q.weight"], CONFIG.d_model // CONFIG.n_heads
    apart = [head * D + 2 * pair + half for head in (0, 1) for half in (0, 1) for pair in range(4)]
    assert np.array_equal(stored["net.stages.1.mix.q.weight"], q[apart])
    down = weights["blk.1.ffn_down.weight"]
    assert np.array_equal(stored["net.stages.1.down.weight"], down.T)


def test_adapters_both_ways(file, tmp_path):
    recipe = toynn.recipes.LoRA()
    options = toynn.RecipeOptions(t_seq=T, t_batch=2, seed=1, init_scale=0.1)
    recipe.realize(file, None, 2, options, alpha=4, targets="all-linear")
    assert len(recipe.engine.adapters) == 3 * 6
    ids, labels = draw()
    for k in range(4):
        recipe.step(ids, None, labels, HP.hp_for_step(k) * [10, 1, 1, 1, 1, 1, 1], k == 0)
    recipe.export_peft(tmp_path / "peft")
    recipe.export_adapter(tmp_path / "adapter.gguf")
    with gguf.open(file) as base:
        pairs = [adapters.load(tmp_path / name, base).tensors for name in ("peft", "adapter.gguf")]
        for name, values in recipe.engine.adapter_weights().items():
            assert all(np.array_equal(tensors[name], values) for tensors in pairs), name
        frozen = engines.frozen(base, adapters.load(tmp_path / "peft", base))
    assert np.array_equal(frozen.logits(ids, 2), recipe.engine.logits(ids, 2))
    recipe.save(tmp_path / "merged.gguf")
    merged = SequenceEngine.from_gguf(tmp_path / "merged.gguf", T, 2)
    np.testing.assert_allclose(merged.logits(ids), recipe.engine.logits(ids), rtol=0, atol=2e-5)
    w = exact(merged)
    expected = np.concatenate([forward(w, ids[:T]), forward(w, ids[T:])])
    np.testing.assert_allclose(recipe.engine.logits(ids), expected, rtol=0, atol=5e-5)


def test_every_command(file, data, tmp_path, capsys):
    def run(*words):
        code = main([*map(str, words)])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    few = ("--steps", 3, "--batch", 2, "--seq", T, "--eval-every", 3, "--threads", 1)
    said = run("info", file)
    assert "architecture             tandem" in said
    assert "training adapters        rank 8, all-linear" in said
    scratch, adapted = tmp_path / "scratch", tmp_path / "adapted"
    run("train", "from-scratch", "--init-from", file, "--data", data, "--out", scratch, *few)
    with gguf.open(scratch / "model.gguf") as trained:
        assert trained.architecture == "tandem"
    run("train", "lora", "--model", file, "--data", data, "--out", adapted, *few)
    more = ("--prompt", "the ", "--max-tokens", 4, "--temp", 0)
    assert run("generate", "--model", file, "--adapter", adapted, *more)
    fused, folder, peft = (tmp_path / name for name in ("fused.gguf", "folder", "peft"))
    assert "merged 12 of" in run("fuse", "--model", file, "--adapter", adapted, "--out", fused)
    run("export", "--to", "hf", "--model", fused, "--out", folder)
    assert "architecture             tandem" in run("info", folder)
    run("train", "from-scratch", "--init-from", folder, "--data", data,
        "--out", tmp_path / "again", *few)  # fmt: skip
    run("export", "--to", "peft", "--model", file, "--adapter", adapted / "adapter.gguf",
        "--out", peft)  # fmt: skip
    assert "net.stages.*.mix.q" in run("info", peft)
    back = tmp_path / "back.gguf"
    run("export", "--to", "gguf", "--model", file, "--adapter", peft, "--out", back)
    assert np.array_equal(
        *(adapters.load(path).tensors["blk.2.attn_k.weight.lora_b"]
          for path in (back, adapted / "adapter.gguf"))
    )  # fmt: skip


# -- What is refused ---------------------------------------------------------------------------


def test_what_is_not_registered_is_refused_with_a_list(file, tmp_path):
    known = ".*deepseek2, .*gemma3n, gemma4, glm4, glm4moe, gpt2, gpt-oss, granite, granitemoe, "
    known += "granitehybrid, hunyuan-dense, lfm2, lfm2moe, mistral3, nemotron_h, nemotron_h_moe, "
    known += "olmoe, phi3, qwen3moe, qwen35, qwen35moe, qwen3next, seed_oss, smollm3, "
    known += "starcoder2, tandem"
    with pytest.raises(ConfigError, match=f"'mamba': toynn has {known}"):
        architecture("mamba")
    with pytest.raises(ConfigError, match="architecture 'tandem' is registered already"):
        register(Tandem())
    with gguf.open(file) as base:
        kinds = {key: (value, base.types[key]) for key, value in base.metadata.items()}
        tensors = {name: (np.array(base[name]), "f32") for name in base}
    renamed = kinds | {"general.architecture": ("mamba", "STRING")}
    gguf.write(tmp_path / "mamba.gguf", renamed, tensors)
    with gguf.open(tmp_path / "mamba.gguf") as other, pytest.raises(GGUFError, match=known):
        engines.check_model(other)
    with pytest.raises(GGUFError, match="'tandem'; GPT2SeqEngine reads gpt2"):
        toynn.GPT2SeqEngine.from_gguf(file)
    with pytest.raises(ConfigError, match="LlamaSeqEngine: expected the configuration of llama"):
        toynn.LlamaSeqEngine().realize_for_random_init(CONFIG, toynn.RecipeOptions())


def test_what_a_folder_says_and_the_model_does_not_compute(engine, tmp_path):
    engine.export_hf(tmp_path / "folder")
    path = tmp_path / "folder" / "config.json"
    config = json.loads(path.read_text())
    for changes, message in (
        ({"activation": "relu"}, "activation must be 'gelu'; got 'relu'"),
        ({"sandwich": 3}, "sandwich = 3 is not known"),
        ({"width": None}, "width is missing"),
        ({"rope_base": -1}, "rope_base must be a number > 0"),
    ):
        path.write_text(json.dumps(config | changes))
        with pytest.raises(DataError, match=message):
            hf.open(tmp_path / "folder")
    shutil.rmtree(tmp_path / "folder")
