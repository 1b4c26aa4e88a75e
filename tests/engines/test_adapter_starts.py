"""PiSSA's start: what A and B are, that nothing changes by it, and what is written of it."""

import numpy as np
import pytest
from lora_bases import T, assert_close, draw, make, write_base

import toynn
from toynn.engines import frozen
from toynn.engines.adapters import principal
from toynn.errors import AdapterError, CheckpointError, ConfigError
from toynn.formats import adapters, gguf
from toynn.recipes import LoRA

HP = toynn.AdamW.for_lora()
HP.lr = 1e-2
OPTS = toynn.RecipeOptions(t_seq=T, seed=7)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "base.gguf", untied=True)


def begun(path, rank=3, **more):
    recipe = LoRA()
    settings = {"alpha": 5.0, "targets": ("q", "down", "head"), "init": "pissa"} | more
    recipe.realize(path, None, rank, OPTS, **settings)
    recipe.engine.session.n_threads = 1
    return recipe


@pytest.mark.parametrize(("shape", "rank"), [((40, 24), 5), ((24, 40), 5), ((4, 30), 6)])
def test_the_principal_part_is_the_best_of_its_rank(shape, rank):
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    a, b = principal(w, rank, 2.5, 0, 1, 2)
    u, s, v = np.linalg.svd(w.astype(np.float64), full_matrices=False)
    k = min(rank, *shape)
    assert a.shape == (rank, shape[1]) and b.shape == (shape[0], rank)
    assert_close(2.5 * b @ a, u[:, :k] * s[:k] @ v[:k])
    assert_close(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=0))  # half of S each


def test_passes_come_near_it_and_are_drawn_by_the_seed():
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((60, 60)))[0] for _ in range(2))
    w = (u * 0.5 ** np.arange(60) @ v).astype(np.float32)
    exact, near, other = (
        b @ a for a, b in (principal(w, 6, 1.0, n, seed, 0) for n, seed in ((0, 1), (4, 1), (4, 2)))
    )
    assert_close(near, exact, 0.01)
    assert np.array_equal(near, np.matmul(*principal(w, 6, 1.0, 4, 1, 0)[::-1]))
    assert not np.array_equal(near, other)


def test_before_a_step_the_model_is_the_base(base):
    ids, _ = draw()
    with gguf.open(base) as file:
        expected = frozen(file).logits(ids)
        recipe = begun(base)
        assert_close(recipe.engine.logits(ids), expected)
        weights = recipe.engine.adapter_weights()
        w = file["blk.1.ffn_down.weight"].astype(np.float64)
    a, b = (weights[f"blk.1.ffn_down.weight.lora_{side}"] for side in "ab")
    u, s, v = np.linalg.svd(w)
    assert_close(5 / 3 * b @ a, u[:, :3] * s[:3] @ v[:3])


@pytest.mark.parametrize("use_rslora", [False, True])
def test_what_is_written_has_twice_the_rank_and_is_of_the_base_as_it_is(base, use_rslora, tmp_path):
    recipe = begun(base, use_rslora=use_rslora, targets=("q", "embed", "head"))
    for k in range(3):
        ids, labels = draw(seed=k)
        recipe.step(ids, None, labels, HP.hp(k + 1), k == 0)
    recipe.write_run(tmp_path)
    with gguf.open(base) as file:
        for path in (tmp_path / "adapter.gguf", tmp_path):
            adapter = adapters.load(path, file)
            ranks = {adapter.rank_of(weight) for weight in adapter.pairs}
            assert ranks == {3, 6}, "that of the table has no start"
            assert_close(frozen(file, adapter).logits(ids), recipe.engine.logits(ids))
    before = recipe.engine.adapter_weights()
    recipe.step(ids, None, labels, HP.hp(4), False)
    recipe.read_run(tmp_path)
    for name, values in recipe.engine.adapter_weights().items():
        np.testing.assert_allclose(values, before[name], rtol=1e-6)
    with pytest.raises(AdapterError, match="expected the start of these adapters"):
        other = begun(base, use_rslora=use_rslora, targets=("q", "embed", "head"))
        with gguf.open(base) as file:
            adapter = adapters.load(tmp_path / "adapter.gguf", file)
        adapter.tensors["blk.0.attn_q.weight.lora_a"][3:] *= 2
        other.load_adapter(adapter)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_lorafa": True},
        {"init": "peft", "use_dora": True, "targets": "all-linear"},
        {"init": "peft", "use_dora": True, "use_lorafa": True, "num_layers": 1, "targets": "q"},
    ],
)
def test_a_snapshot_goes_on_with_the_same_bits(base, settings):
    one, other = begun(base, **settings), begun(base, **settings)
    steps = [(*draw(seed=k), HP.hp(k + 1), k == 0) for k in range(4)]
    for ids, labels, hp, is_first in steps[:2]:
        one.step(ids, None, labels, hp, is_first)
    for name, tensor in other.engine.tensors.items():  # as if another machine had drawn them
        if name.endswith(("lora_a", "lora_b")):
            other.engine.session.upload(tensor, np.zeros(tensor.shape))
    for layer in other.engine.adapters.values():
        for tensor in layer.start or ():
            other.engine.session.upload(tensor, np.zeros(tensor.shape))
    other.restore(one.snapshot())
    for ids, labels, hp, is_first in steps[2:]:
        losses = [recipe.step(ids, None, labels, hp, is_first) for recipe in (one, other)]
        assert losses[0] == losses[1]
    for name, values in one.engine.weights().items():
        assert np.array_equal(values, other.engine.weights()[name]), name
    with pytest.raises(CheckpointError):
        make(base, rank=3, targets="q").restore(one.snapshot())


def test_what_is_read_on_sees_the_norms_of_now(base):
    recipe = make(base, use_dora=True)
    ids, labels = draw()
    for k in range(2):
        reader = recipe.engine.decoder()
        assert_close(reader.read(ids[:5]), recipe.engine.logits(ids[:5])[-1])
        recipe.step(ids, None, labels, HP.hp(k + 1), k == 0)


def test_a_start_is_asked_for_with_the_options(base):
    recipe = make(base, targets="q")
    with pytest.raises(ConfigError, match="expected init 'normal', as the options have it"):
        recipe.engine.init_adapters("pissa", 0, 1.0)
