"""Vision transformers in safetensors files: toynn's own, timm's, and those that are neither."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from vits import VARIANTS, config, make, pictures, shake

from toynn import ConfigError, DataError, LifecycleError, RecipeOptions
from toynn.engines import ViTEngine
from toynn.recipes import VitTiny

RNG = np.random.default_rng


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


#: What a file of the model of ``as_timm`` would say, had toynn written it.
CONFIG = asdict(config(d_model=128, d_ff=32, n_heads=2, n_layers=1))


def saved(path, variant="timm", names=()):
    """A file of a model with random weights; its engine."""
    recipe = make(variant)
    shake(recipe.engine, RNG(0))
    recipe.engine.class_names = names
    recipe.save(path)
    return recipe.engine


def as_timm(path, **sizes):
    """A file with weights of random values and no metadata, such as timm's; the weights."""
    cfg = config(d_model=128, d_ff=32, n_heads=2, n_layers=1, **sizes)
    rng = RNG(1)
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) * 0.1
        for name, shape in cfg.shapes().items()
    }
    save_file(weights, path)
    return weights


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_file_needs_nothing_beside_it(path, variant):
    engine = saved(path, variant, ("a", "b", "c", "d", "e\u00e9"))
    again = ViTEngine.load(path)
    assert again.config == engine.config and again.class_names == engine.class_names
    weights = again.weights()
    assert all(np.array_equal(w, weights[name]) for name, w in engine.weights().items())
    pixels, labels = pictures(RNG(2), 3)
    assert np.array_equal(again.logits(pixels), engine.logits(pixels))
    again.step(pixels, [0], labels, [1e-3, 0.9, 0.999, 1e-8, 0, 1, 1], True)


def test_others_read_it(path):
    engine = saved(path)
    assert {name: w.shape for name, w in load_file(path).items()} == config().shapes()
    np.testing.assert_array_equal(load_file(path)["cls_token"], engine.weights()["cls_token"])
    with safe_open(path, "numpy") as file:
        assert file.metadata()["format"] == "pt"


def test_nothing_is_overwritten_unasked(path):
    engine = saved(path)
    with pytest.raises(DataError, match="already exists; pass overwrite=True"):
        engine.save(path)
    engine.save(path, overwrite=True)
    engine.class_names = ("only", "two")
    with pytest.raises(ConfigError, match="class_names needs 5 names"):
        engine.save(path, overwrite=True)


def test_what_a_timm_file_does_not_say_can_be_told(path):
    weights = as_timm(path)
    engine = ViTEngine.load(path)
    assert engine.config == config(d_model=128, d_ff=32, n_heads=2, n_layers=1)
    assert all(np.array_equal(w, weights[name]) for name, w in engine.weights().items())
    told = ViTEngine.load(path, n_heads=8, act="silu", norm_eps=1e-5)
    assert (told.config.n_heads, told.config.act, told.config.norm_eps) == (8, "silu", 1e-5)
    saved = path.with_name("own.safetensors")
    told.save(saved)
    assert ViTEngine.load(saved, n_heads=8).config == told.config
    with pytest.raises(DataError, match="its n_heads is 8; got 2: leave it out"):
        ViTEngine.load(saved, n_heads=2)


def test_sixteen_bits_are_expanded(path):
    weights = as_timm(path)
    save_file({name: w.astype(np.float16) for name, w in weights.items()}, path)
    loaded = ViTEngine.load(path).weights()
    for name, w in weights.items():
        assert np.array_equal(loaded[name], w.astype(np.float16).astype(np.float32)), name


def test_other_classes_bring_a_new_head(path):
    engine = saved(path, names=tuple("abcde"))
    recipe = VitTiny()
    recipe.realize_from(path, RecipeOptions(seed=3, t_batch=2), classes=7)
    new, old = recipe.engine.weights(), engine.weights()
    assert new["head.weight"].shape == (7, 24) and recipe.engine.class_names == ()
    assert 0.01 < new["head.weight"].std() < 0.03 and not new["head.bias"].any()
    assert all(np.array_equal(new[name], old[name]) for name in old if "head" not in name)
    assert recipe.t_labels.shape == (2,)
    same = ViTEngine.load(path, classes=5)
    assert np.array_equal(same.weights()["head.weight"], old["head.weight"])
    assert same.class_names == tuple("abcde")


@pytest.mark.parametrize("names", ["abcde", "edcba", "axcye", "vwxyz", "ba", "abcdefg"])
def test_a_head_stays_with_the_names_of_its_classes(path, names):
    old = saved(path, names=tuple("abcde")).weights()
    engine = ViTEngine.load(path, RecipeOptions(seed=3), class_names=tuple(names))
    fresh = ViTEngine.load(path, RecipeOptions(seed=3), classes=len(names)).weights()
    new = engine.weights()
    assert engine.class_names == tuple(names)
    assert engine.kept_classes == tuple(name for name in names if name in "abcde")
    for part in ("head.weight", "head.bias"):
        for k, name in enumerate(names):
            if name in "abcde":
                np.testing.assert_array_equal(new[part][k], old[part]["abcde".index(name)])
            elif len(names) != 5:  # otherwise it is drawn, too, but here the file's stays
                np.testing.assert_array_equal(new[part][k], fresh[part][k])
            else:
                assert not np.array_equal(new[part][k], old[part][k])


def test_a_file_that_does_not_name_its_classes_gives_no_head(path):
    old = saved(path).weights()
    engine = ViTEngine.load(path, class_names=tuple("abcde"))
    assert engine.kept_classes == () and engine.class_names == tuple("abcde")
    assert not np.array_equal(engine.weights()["head.weight"], old["head.weight"])


def test_a_file_without_a_head(path):
    weights = as_timm(path)
    save_file({name: w for name, w in weights.items() if "head" not in name}, path)
    with pytest.raises(DataError, match=r"no head\.weight: give the number of classes"):
        ViTEngine.load(path)
    assert ViTEngine.load(path, classes=3).config.classes == 3


def test_another_picture_size_resizes_the_positions(path):
    engine = saved(path)
    larger = ViTEngine.load(path, image=24)
    new, old = larger.weights(), engine.weights()
    assert larger.config == config(image=24)
    assert all(np.array_equal(new[name], old[name]) for name in old if name != "pos_embed")
    assert np.array_equal(new["pos_embed"][:, 0], old["pos_embed"][:, 0])
    grid = new["pos_embed"][0, 1:].reshape(6, 6, 24)
    # Twice as many points: their mean, and that of each row away from the edge, is kept.
    np.testing.assert_allclose(grid[2:4, 2:4].mean((0, 1)), old["pos_embed"][0, 5], atol=0.3)
    assert larger.logits(pictures(RNG(3), 2, larger.config)[0]).shape == (2, 5)
    with pytest.raises(ConfigError, match="patch must divide image; got patch 4, image 10"):
        ViTEngine.load(path, image=10)


def _without(name):
    return lambda weights: weights.pop(name)


def _with(name, *shape):
    return lambda weights: weights.update({name: np.zeros(shape, np.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("patch_embed.proj.weight"), "patch_embed.proj.weight is missing: not a vision"),
        (_without("pos_embed"), "tensor pos_embed is missing"),
        (_without("blocks.0.norm2.bias"), r"tensor blocks\.0\.norm2\.bias is missing"),
        (_without("head.bias"), r"tensor head\.bias is missing"),
        (_with("pos_embed", 1, 9, 128), "needs square pictures and patches.* of 9 rows"),
        (_with("pos_embed", 1, 1, 128), "needs square pictures"),
        (_with("pos_embed", 10, 128), r"pos_embed needs 3 dimensions; got \(10, 128\)"),
        (_with("patch_embed.proj.weight", 128, 2, 4, 2), "patches of 4 x 2"),
        (_with("blocks.0.attn.proj.weight", 64, 128), r"expected \(128, 128\); got \(64, 128\)"),
        (_with("blocks.0.ls1.gamma", 128), r"unknown tensors: blocks\.0\.ls1\.gamma"),
        (_with("dist_token", 1, 1, 128), "unknown tensors: dist_token"),
        (lambda weights: weights["norm.bias"].fill(np.nan), "norm.bias has weights that are NaN"),
    ],
)
def test_a_file_of_another_model_is_refused(path, change, message):
    weights = as_timm(path)
    change(weights)
    save_file(weights, path)
    with pytest.raises(DataError, match=message):
        ViTEngine.load(path)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ("{", "toynn.vit: not JSON"),
        ([], r"toynn\.vit must have image, patch, .*; got \[\]"),
        ({"n_layers": 1}, r"toynn\.vit must have image, patch, "),
        (CONFIG | {"depth": 2}, r"toynn\.vit must have image, patch, "),
        (CONFIG | {"n_layers": 10**8}, r"100000000 layers, the file 1"),
        (CONFIG | {"patch": 7}, "patch must divide image"),
        (CONFIG | {"classes": "ten"}, "classes must be a whole number"),
        (CONFIG | {"norm_eps": None}, "norm_eps must be a finite float"),
        (CONFIG | {"d_model": 64}, r"expected \(1, 1, 64\); got \(1, 1, 128\)"),
    ],
)
def test_metadata_that_is_not_true_is_refused(path, stored, message):
    text = stored if isinstance(stored, str) else json.dumps(stored)
    save_file(as_timm(path), path, {"toynn.vit": text})
    with pytest.raises(DataError, match=message):
        ViTEngine.load(path)


@pytest.mark.parametrize("names", ['"abc"', "[1, 2]", '["a"]'])
def test_class_names_that_are_none_are_refused(path, names):
    engine = saved(path)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    save_file(engine.weights(), path, metadata | {"toynn.class_names": names})
    with pytest.raises(DataError, match=r"toynn\.class_names must be"):
        ViTEngine.load(path)
    assert json.loads(metadata["toynn.vit"])["classes"] == 5


def test_what_is_no_safetensors_file(path):
    with pytest.raises(DataError, match="cannot read"):
        ViTEngine.load(path)
    saved(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match=f"{path.name}: cannot read"):
        ViTEngine.load(path)


def test_a_recipe_starts_once(path):
    saved(path)
    recipe = VitTiny()
    recipe.realize_from(path)
    with pytest.raises(LifecycleError, match="realize_from: once only; make a new engine"):
        recipe.realize_from(path)
