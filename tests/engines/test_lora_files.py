"""Adapters out to files and back, trained further, refused elsewhere, merged; a pretrained base."""

import hashlib

import numpy as np
import pytest
from lora_bases import ARCHS, T, draw, make, stir, write_base
from shared import DATA

import toynn
from toynn.engines import SequenceEngine
from toynn.errors import AdapterError, GGUFError
from toynn.formats import adapters, gguf
from toynn.recipes import LoRA

HP = toynn.AdamW.for_lora()
OPTS = toynn.RecipeOptions(t_seq=T)
WRITERS = {"gguf": "export_adapter", "peft": "export_peft"}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    return {arch: write_base(folder / f"{arch}.gguf", arch) for arch in ARCHS}


@pytest.fixture
def llama(bases):
    return bases["llama"]


def written(recipe, path, kind="gguf", **more):
    getattr(recipe, WRITERS[kind])(path, **more)
    return path


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("arch", ARCHS)
def test_an_adapter_comes_back_as_it_was(bases, arch, kind, rslora, tmp_path):
    recipe = make(bases[arch], alpha=7.0, use_rslora=rslora)
    path = written(recipe, tmp_path / "adapter", kind)
    again = LoRA()
    again.realize_from_adapter(bases[arch], path, OPTS)
    ids, labels = draw()
    got, expected = again.engine.logits(ids), recipe.engine.logits(ids)
    if rslora and kind == "gguf":  # alpha sqrt(r), rounded to float32
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    else:
        assert np.array_equal(got, expected)
    for name, values in recipe.engine.adapter_weights().items():
        assert np.array_equal(again.engine.adapter_weights()[name], values)
    assert recipe.evaluate(ids, None, labels) == pytest.approx(again.evaluate(ids, None, labels))
    loaded = make(bases[arch], alpha=7.0, use_rslora=rslora)
    stir(loaded, seed=9)
    loaded.load_adapter(path)
    assert np.array_equal(loaded.engine.logits(ids), expected)


def test_training_goes_on_with_new_moments(llama, tmp_path):
    ids, labels = draw()
    recipe = make(llama)
    for k in range(3):
        recipe.step(ids, None, labels, HP.hp_for_step(k), k == 0)
    path = written(recipe, tmp_path / "a.gguf")
    again = LoRA()
    again.realize_from_adapter(llama, path, OPTS)
    recipe.load_adapter(path)
    losses = [
        [r.step(ids, None, labels, HP.hp_for_step(k), False) for k in range(3)]
        for r in (recipe, again)
    ]
    assert losses[0] == losses[1]
    assert losses[0][2] < losses[0][0]


def test_another_adapter_forgets_the_micro_batches_of_the_one_before(llama, tmp_path):
    """Their gradients are those of other adapters."""
    ids, labels = draw()
    recipe, again = make(llama), make(llama)
    path = written(again, tmp_path / "a.gguf")
    stir(recipe, seed=9)
    recipe.accumulate(ids, None, labels)
    recipe.load_adapter(path)
    assert not recipe.engine.session.pending
    for r in (recipe, again):
        r.step(ids, None, labels, HP.hp(1), False)
    for name, values in again.engine.adapter_weights().items():
        assert np.array_equal(recipe.engine.adapter_weights()[name], values)


def test_an_adapter_of_some_blocks_and_several_ranks_is_trained_as_it_is(llama, tmp_path):
    tensors = {}
    rng = np.random.default_rng(0)
    for weight, rank in (("blk.1.attn_q.weight", 2), ("blk.0.ffn_down.weight", 3)):
        with gguf.open(llama) as file:
            rows, columns = file.tensors[weight].shape
        tensors[f"{weight}.lora_a"] = rng.standard_normal((rank, columns)).astype(np.float32)
        tensors[f"{weight}.lora_b"] = rng.standard_normal((rows, rank)).astype(np.float32)
    adapter = adapters.Adapter("llama", 6.0, tensors)
    recipe = LoRA()
    recipe.realize_from_adapter(llama, adapter, OPTS)
    scales = {name: layer.scale for name, layer in recipe.engine.adapters.items()}
    assert scales == {"blk.0.ffn_down.weight": 2.0, "blk.1.attn_q.weight": 3.0}
    recipe.save(tmp_path / "merged.gguf")
    ids, labels = draw()
    merged = SequenceEngine.from_gguf(tmp_path / "merged.gguf", t_seq=T)
    np.testing.assert_allclose(merged.logits(ids), recipe.engine.logits(ids), rtol=0, atol=1e-4)
    before = recipe.step(ids, None, labels, HP.hp(1), True)
    assert recipe.evaluate(ids, None, labels) < before


def test_an_adapter_of_what_the_model_has_not_is_refused(llama):
    rng = np.random.default_rng(0)
    for weight, sizes in (("output.weight", (60, 24)), ("blk.2.attn_q.weight", (24, 24))):
        ends = zip(("lora_b", "lora_a"), ((sizes[0], 2), (2, sizes[1])), strict=True)
        tensors = {f"{weight}.{e}": rng.standard_normal(s).astype(np.float32) for e, s in ends}
        adapter = adapters.Adapter("llama", 2.0, tensors)
        with pytest.raises(AdapterError, match=weight):
            LoRA().realize_from_adapter(llama, adapter, OPTS)


def test_what_does_not_fit_is_refused(bases, llama, tmp_path):
    path = written(make(llama, alpha=7.0), tmp_path / "a.gguf")

    def refused(message, base=llama, **changes):
        recipe = make(base, **{"alpha": 7.0} | changes)
        before = recipe.engine.adapter_weights()
        with pytest.raises(AdapterError, match=message):
            recipe.load_adapter(path)
        after = recipe.engine.adapter_weights()
        assert all(np.array_equal(after[name], values) for name, values in before.items())

    refused("architecture: expected 'qwen2'.*got 'llama'", bases["qwen2"])
    refused(r"blk.\d.\w+.weight is adapted there only; .*realize_from_adapter", targets="q")
    refused("expected rank 3, as here; got 4", rank=3)
    refused(r"expected a scale of 2, as here; got 1.75 \(alpha 7\)", alpha=8.0)
    wider = write_base(tmp_path / "wider.gguf", d_ff=48)
    refused(r"tensor blk.\d.ffn_\w+.weight.lora_[ab]: expected \(.*48.*\) for the base", wider)
    with pytest.raises(AdapterError, match="wrong base model"):
        LoRA().realize_from_adapter(wider, path, OPTS)
    with pytest.raises(AdapterError, match=r"architecture: expected 'qwen2'.*got 'llama'"):
        LoRA().realize_from_adapter(bases["qwen2"], make(llama).engine.adapter(), OPTS)
    path = written(make(llama, targets="q"), tmp_path / "q.gguf")
    refused("is adapted here only", alpha=4.0)


def test_files_are_not_overwritten_unasked(llama, tmp_path):
    recipe = make(llama)
    for kind in WRITERS:
        path = written(recipe, tmp_path / kind, kind)
        with pytest.raises((GGUFError, AdapterError), match="already exists"):
            written(recipe, path, kind)
        written(recipe, path, kind, overwrite=True)
    with pytest.raises(GGUFError, match="this file is being read"):
        recipe.save(llama, overwrite=True)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_merged_model_is_a_file_of_its_own(bases, arch, tmp_path):
    recipe, ids = make(bases[arch]), draw()[0]
    recipe.save(tmp_path / "merged.gguf")
    merged = SequenceEngine.from_gguf(tmp_path / "merged.gguf", t_seq=T)
    got, expected = merged.logits(ids), recipe.engine.logits(ids)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    recipe.save(tmp_path / "merged.gguf", "f16", overwrite=True)
    with gguf.open(tmp_path / "merged.gguf") as file:
        assert file.tensors["blk.0.attn_output.weight"].type == "F16"


def test_a_base_that_was_replaced_is_not_merged_into(tmp_path):
    path = write_base(tmp_path / "base.gguf")
    recipe = make(path)
    write_base(tmp_path / "other.gguf", d_ff=48).replace(path)
    with pytest.raises(GGUFError, match="changed since it was opened"):
        recipe.save(tmp_path / "merged.gguf")


@pytest.mark.parametrize("name", ["stories260K.gguf", "stories260K-q8_0.gguf"])
def test_a_pretrained_model_learns_a_sentence(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not at ../shared/data")
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    recipe = LoRA()
    opts = toynn.RecipeOptions(t_seq=24, init_scale=0.02)
    recipe.realize(path, None, 8, opts, targets="all-linear")
    text = np.random.default_rng(0).integers(259, 512, 25)  # no story
    adamw = toynn.AdamW.for_lora()
    adamw.lr = 0.01
    losses = [
        recipe.step(text[:-1], None, text[1:], adamw.hp_for_step(k), k == 0) for k in range(60)
    ]
    assert losses[0] > 7
    assert losses[-1] < 0.5
    hits = recipe.engine.logits(text[:-1]).argmax(axis=1) == text[1:]
    assert hits.sum() >= 22
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
