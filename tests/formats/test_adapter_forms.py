"""Which file can hold which adapter: DoRA, and table and head where these are one matrix."""

import numpy as np
import pytest
from llamas import EXPERTS, NEMOTRON_MOE
from lora_bases import T, assert_close, make, write_base
from some_adapters import draw as drawn

from toynn.engines import SequenceEngine, frozen
from toynn.errors import AdapterError, ConfigError
from toynn.formats import adapters, gguf
from toynn.formats.adapters import LORA_M, Adapter
from toynn.formats.fuse import fuse

IDS = np.arange(1, T + 1) * 5 % 61


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    return {
        "tied": write_base(folder / "tied.gguf"),
        "untied": write_base(folder / "untied.gguf", untied=True),
        "gpt2": write_base(folder / "gpt2.gguf", "gpt2"),
        "q8_0": write_base(folder / "q8_0.gguf", type="Q8_0", d_model=96, d_ff=64),
    }


ADAPTED = {
    "dora": ("untied", {"use_dora": True, "targets": ("all-linear", "head")}),
    "dora-rslora": ("q8_0", {"use_dora": True, "use_rslora": True, "alpha": 3.0}),
    "dora-gpt2": ("gpt2", {"use_dora": True}),
    "table": ("tied", {"targets": ("embed", "v")}),
    "head": ("tied", {"targets": "head"}),
    "both": ("tied", {"targets": ("embed", "head", "q")}),
    "head-gpt2": ("gpt2", {"targets": ("embed", "head")}),
}


@pytest.mark.parametrize("kind", ADAPTED)
def test_a_run_has_the_form_that_holds_it_and_fuses(bases, kind, tmp_path):
    base, settings = ADAPTED[kind]
    recipe = make(bases[base], **settings)
    if recipe.engine.lora.use_dora:
        weights = recipe.engine.adapter_weights()
        weights |= {name: 1 + abs(m) for name, m in weights.items() if m.ndim == 1}
        recipe.engine.load_weights(weights)
    expected = recipe.engine.logits(IDS)
    recipe.write_run(tmp_path)
    assert not (tmp_path / "adapter.gguf").exists()
    with pytest.raises(AdapterError, match=r"llama\.cpp.*write a PEFT folder, or merge it"):
        recipe.export_adapter(tmp_path / "adapter.gguf")
    with gguf.open(bases[base]) as file:
        adapter = adapters.load(tmp_path, file)
        engine = frozen(file, adapter)
        assert_close(engine.logits(IDS), expected)
        assert_close(engine.decoder().read(IDS), expected[-1])
        if base == "gpt2" and "head" in settings.get("targets", ""):
            with pytest.raises(AdapterError, match="a gpt2 uses its embedding table as its head"):
                fuse(file, adapter, tmp_path / "whole.gguf")
            return
        fused = fuse(file, adapter, tmp_path / "whole.gguf", outtype="f32")
        assert fused.types.keys() == adapter.pairs.keys()
        engine = SequenceEngine.from_gguf(tmp_path / "whole.gguf", t_seq=T)
        assert_close(engine.logits(IDS), expected, 5e-5)
    recipe.engine.load_weights({n: 0 * w for n, w in recipe.engine.adapter_weights().items()})
    recipe.read_run(tmp_path)
    assert_close(recipe.engine.logits(IDS), expected)


def test_what_dora_merges_is_rows_of_the_norms_that_it_has(bases):
    recipe = make(bases["untied"], use_dora=True, targets=("q", "head"))
    with gguf.open(bases["untied"]) as file:
        adapter = recipe.engine.adapter()
        for weight, m in adapter.magnitudes.items():
            w, (a, b) = np.array(file[weight]), adapter.pairs[weight]
            exact = w + adapter.scale(weight) * b.astype(np.float64) @ a
            exact *= (m / np.linalg.norm(exact, axis=1))[:, None]
            before = w.copy()
            squares = adapters.merge(w, adapter, weight)
            assert_close(w, exact)
            assert squares == pytest.approx(((exact - before) ** 2).sum(), rel=1e-3)


def test_a_row_of_zeros_stays_one(bases, tmp_path):
    with gguf.open(bases["tied"]) as file:
        tensors = {name: (np.array(file[name], np.float32), "f32") for name in file}
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
    tensors["blk.0.ffn_up.weight"][0][3] = 0
    gguf.write(tmp_path / "base.gguf", metadata, tensors)
    recipe = make(tmp_path / "base.gguf", targets="up", use_dora=True)
    weights = recipe.engine.adapter_weights()
    weights["blk.0.ffn_up.weight.lora_b"][3] = 0
    recipe.engine.load_weights(weights)
    assert np.isfinite(recipe.engine.logits(IDS)).all()


def test_dora_is_not_combined(bases):
    one = make(bases["tied"], targets="q", use_dora=True).engine.adapter()
    for method in ("cat", "linear"):
        with pytest.raises(AdapterError, match="DoRA's magnitudes fit only this adapter"):
            adapters.combine([one, one], [0.5, 0.5], method)


def test_tables_are_combined_exactly(bases):
    parts = ["token_embd.weight", "output.weight"]
    with gguf.open(bases["untied"]) as file:
        one, two = (drawn(file, parts, seed=seed) for seed in (1, 2))
        both = frozen(file, adapters.combine([one, two], [0.5, 2.0])).logits(IDS)
        weights = {part: np.array(file[part]) for part in parts}
        for part, w in weights.items():
            for adapter, weight in ((one, 0.5), (two, 2.0)):
                added = np.zeros_like(w)
                adapters.merge(added, adapter, part)
                w += weight * added
        engine = SequenceEngine.from_gguf(bases["untied"], t_seq=T)
        engine.load_weights(engine.weights() | weights)
        assert_close(both, engine.logits(IDS))


WRONG = {
    "some": ({"blk.0.attn_q.weight" + LORA_M: None}, "expected A, B and a magnitude"),
    "long": ({"blk.0.attn_q.weight" + LORA_M: np.ones(3, np.float32)}, "finite float32"),
    "nan": ({"blk.0.attn_q.weight" + LORA_M: np.full(24, np.nan, np.float32)}, "finite float32"),
    "alone": ({"blk.0.attn_v.weight" + LORA_M: np.ones(12, np.float32)}, "expected A, B and"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_magnitudes_that_fit_nothing_are_refused(bases, wrong):
    changes, message = WRONG[wrong]
    adapter = make(bases["tied"], targets="q", use_dora=True).engine.adapter()
    tensors = {k: v for k, v in (dict(adapter.tensors) | changes).items() if v is not None}
    with pytest.raises(AdapterError, match=message):
        Adapter("llama", 1.0, tensors)


def test_what_neither_form_could_hold_is_refused_before_it_is_trained(tmp_path):
    base = write_base(tmp_path / "base.gguf", "granitemoe", **EXPERTS)
    with pytest.raises(ConfigError, match="DoRA does not support expert matrices"):
        make(base, targets="experts", use_dora=True)


def test_what_a_program_does_not_adapt_is_not_written_for_it(tmp_path):
    with gguf.open(write_base(tmp_path / "base.gguf", "nemotron_h_moe", **NEMOTRON_MOE)) as base:
        assert adapters.no_gguf(["blk.1.ffn_latent_up.weight.lora_a"], base).startswith(
            "blk.1.ffn_latent_up.weight: llama.cpp multiplies by it without adapters: write a PEFT"
        )
        with pytest.raises(
            AdapterError, match=r"blk\.0\.ssm_out\.weight: PEFT adapts no module of"
        ):
            adapters.write_peft(tmp_path / "adapter", drawn(base, ["blk.0.ssm_out.weight"]), base)


@pytest.mark.parametrize("settings", [{"use_dora": True}, {"init": "pissa", "use_rslora": True}])
def test_over_a_folder_it_is_the_same_adapter(bases, settings, tmp_path):
    """There the rows of q and k lie in another order."""
    SequenceEngine.from_gguf(bases["untied"], t_seq=T).export_hf(tmp_path / "model")
    recipe = make(tmp_path / "model", targets=("q", "k", "head"), **settings)
    (tmp_path / "run").mkdir()
    recipe.write_run(tmp_path / "run")
    with gguf.open(bases["untied"]) as file:
        engine = frozen(file, adapters.load(tmp_path / "run", file))
    assert_close(recipe.engine.logits(IDS), engine.logits(IDS))
    before = recipe.engine.logits(IDS)
    recipe.engine.load_weights({n: 0 * w for n, w in recipe.engine.adapter_weights().items()})
    recipe.read_run(tmp_path / "run")
    assert_close(recipe.engine.logits(IDS), before)
