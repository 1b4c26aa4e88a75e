"""The Llama family: configurations, options, life cycle, initial weights, gradients, batches."""

import numpy as np
import pytest
from llamas import FACTORS, GAINS, KINDS, LINEAR, SIZES, YARN, T, draw, make, shake

import toynn
from toynn import AdamW, LlamaConfig, LlamaSeqEngine, RecipeOptions
from toynn.errors import ConfigError, LabelError, LifecycleError, ShapeError
from toynn.recipes import FromScratch
from toynn.testing import gradcheck

HP = AdamW.for_from_scratch().hp(0)


def kernels(engine):
    return [node.op.kernel for node in engine.session.tape.nodes]


# -- Configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab": 0}, "vocab must be a whole number >= 1; got 0"),
        ({"n_layers": 1.0}, "n_layers must be a whole number >= 1; got 1.0"),
        ({"n_kv_heads": True}, "n_kv_heads must be a whole number >= 1; got True"),
        ({"head_dim": 0}, "head_dim must be a whole number >= 1; got 0"),
        ({"donor_d_in": -1}, "donor_d_in must be a whole number >= 0; got -1"),
        ({"donor_d_in": False}, "donor_d_in must be a whole number >= 0; got False"),
        ({"rope_base": 0}, "rope_base must be a number above 0; got 0"),
        ({"rms_eps": float("nan")}, "rms_eps must be a number above 0; got nan"),
        ({"rope_base": "1e4"}, "rope_base must be a number above 0; got '1e4'"),
        (
            {"arch": "mamba"},
            "arch must be one of llama, qwen2, qwen3, ",
        ),
        ({"d_model": 25}, "n_heads must divide d_model, unless head_dim is given; got 6 and 25"),
        ({"n_kv_heads": 4}, "n_kv_heads must divide n_heads; got 4 and 6"),
        ({"head_dim": 5}, "RoPE rotates pairs: a head of 5 is odd"),
        ({"d_model": 18}, "RoPE rotates pairs: a head of 3 is odd"),
        (
            {"rope_scaling": "dynamic"},
            "rope_scaling 'dynamic' is not known; it must be one of none",
        ),
        ({"rope_factor": 2.0}, "rope_factor needs rope_scaling 'linear' or 'yarn'; got 'none'"),
        (LINEAR | {"rope_factor": -1.0}, "rope_factor must be a number above 0; got -1.0"),
        (LINEAR | {"beta_slow": 2.0}, "beta_fast, beta_slow, yarn_magnitude and yarn_cut need"),
        (YARN | {"rope_factor": 0.5}, "yarn needs rope_factor >= 1, beta"),
        (YARN | {"beta_slow": 1.5}, "yarn needs rope_factor >= 1, beta_fast > beta_slow"),
        (YARN | {"original_context": 1}, "yarn needs rope_factor >= 1, beta_f"),
        (YARN | {"yarn_cut": 1}, "yarn_cut must be True or False; got 1"),
        ({"rope_scaling": "llama3"}, "rope_scaling 'llama3' needs 2 rope_factors; got 0"),
        ({"rope_factors": (1.0, 2.0)}, "rope_scaling 'none' needs 0 rope_factors; got 2"),
        ({"rope_factors": "ab"}, "rope_factors must be numbers; got 'ab'"),
        (FACTORS | {"rope_factors": (1.0, 0.0)}, "every one of rope_factors must be a number"),
    ],
)
def test_bad_configurations(changes, message):
    with pytest.raises(ConfigError) as caught:
        LlamaConfig(**SIZES | changes)
    assert str(caught.value).startswith(f"LlamaConfig: {message}")


def test_named_shapes():
    def count(cfg):
        return sum(np.prod(shape) for shape in cfg.shapes().values())

    assert count(LlamaConfig.tiny()) == 122_368
    assert count(LlamaConfig.mid()) == 9_441_536
    assert count(LlamaConfig.smollm2_135m()) == 134_515_008  # as its model card says


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"t_seq": 17}, "t_seq 17 is longer than the context 16"),
        ({"donor_d_in": 30}, {}, "donor_d_in > 0 needs untied=True"),
    ],
)
def test_what_fails_only_together(changes, options, message):
    with pytest.raises(ConfigError, match=message):
        FromScratch().realize(LlamaConfig(**SIZES | changes), RecipeOptions(**options))


# -- Options -------------------------------------------------------------------------------------


def test_weights_have_the_names_and_shapes_of_gguf():
    got = {name: w.shape for name, w in make("qwen3-untied-bias").engine.weights().items()}
    block = {
        "attn_norm.weight": (24,),
        "attn_q.weight": (24, 24),
        "attn_q.bias": (24,),
        "attn_k.weight": (8, 24),
        "attn_k.bias": (8,),
        "attn_v.weight": (8, 24),
        "attn_v.bias": (8,),
        "attn_q_norm.weight": (4,),
        "attn_k_norm.weight": (4,),
        "attn_output.weight": (24, 24),
        "ffn_norm.weight": (24,),
        "ffn_gate.weight": (40, 24),
        "ffn_up.weight": (40, 24),
        "ffn_down.weight": (24, 40),
    }
    assert got == {
        "token_embd.weight": (61, 24),
        **{f"blk.{n}.{name}": shape for n in range(2) for name, shape in block.items()},
        "output_norm.weight": (24,),
        "output.weight": (61, 24),
    }
    assert "lens.proj.weight" in make("llama-lens").engine.weights()
    assert not [n for n in make("llama").engine.weights() if "bias" in n or n.startswith("output.")]


def test_zero_t_seq_means_the_context():
    recipe = make(length=0)
    assert recipe.engine.t_seq == SIZES["context"]
    ids, labels = draw(np.random.default_rng(0), length=SIZES["context"])
    assert recipe.step(ids, None, labels, HP, True) > 0
    assert recipe.engine.logits(ids[:3]).shape == (3, SIZES["vocab"])


@pytest.mark.parametrize("kind", KINDS)
def test_initial_weights(kind):
    weights = make(kind).engine.weights()
    for name, w in weights.items():
        if name.endswith(GAINS):
            assert (w == 1).all(), name
        elif name.endswith("ssm_a"):  # by which states forget, each head at its own pace
            assert (w.ravel()[0], w.ravel()[-1]) == (-1, -16) and (np.diff(w.ravel()) < 0).all()
        elif name.endswith(("ssm_dt.bias", "ssm_d")):
            assert (w == 1).all(), name
        elif name.endswith(("bias", "sinks.weight")):
            assert not w.any(), name
        else:
            table = name in ("token_embd.weight", "output.weight", "per_layer_token_embd.weight")
            std = 0.02 if table else w.shape[-1] ** -0.5
            assert abs(w.mean()) < 5 * std / w.size**0.5, name
            assert w.std() == pytest.approx(std, rel=5 / (2 * w.size) ** 0.5), name
    constant = ("bias", "norm.weight", "ssm_a", "ssm_d")
    drawn = [w.tobytes() for n, w in weights.items() if w.ndim == 2 and not n.endswith(constant)]
    assert len(drawn) == len(set(drawn)), "two tensors are equal"


def test_seed_and_init_scale():
    def weights(kind="llama-lens", **options):
        recipe = FromScratch()
        changes, needed = KINDS[kind]
        recipe.realize(LlamaConfig(**SIZES | changes), RecipeOptions(**needed | options))
        return recipe.engine.weights()

    first, again, other, half = (
        weights(seed=seed, init_scale=scale) for seed, scale in ((1, 1), (1, 1), (2, 1), (1, 0.5))
    )
    for name, w in first.items():
        assert w.tobytes() == again[name].tobytes()
        if w.ndim == 2:
            assert np.abs(w - other[name]).max() > 0.01
            factor = 0.5 if name.startswith("blk.") else 1.0
            np.testing.assert_allclose(half[name], factor * w, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "number"), [("f16", 1), ("bf16", 30)])
def test_weight_dtype_is_a_cast_for_the_products(dtype, number):
    """Rounded once a step and tape; originals in float32 are kept, and trained."""
    rng = np.random.default_rng(1)
    ids, labels = draw(rng)
    plain, rounded = make("llama-untied"), make("llama-untied", weight_dtype=number)
    weights = shake(plain.engine, rng)
    rounded.engine.load_weights(weights)
    for name, w in rounded.engine.weights().items():
        assert w.tobytes() == weights[name].tobytes()
    matrices = 7 * SIZES["n_layers"] + 1  # not the table, whose rows are only looked up
    assert kernels(rounded.engine).count("rounding.forward") == matrices
    assert "rounding.forward" not in kernels(plain.engine)
    assert rounded.engine.options.weight_dtype == dtype

    def as_rounded(name, w):
        if w.ndim == 1 or name == "token_embd.weight":
            return w
        if dtype == "f16":
            return w.astype(np.float16).astype(np.float32)
        return ((w.view(np.uint32) + 0x7FFF + (w.view(np.uint32) >> 16 & 1)) & 0xFFFF0000).view("f")

    plain.engine.load_weights({name: as_rounded(name, w) for name, w in weights.items()})
    assert rounded.engine.logits(ids).tobytes() == plain.engine.logits(ids).tobytes()
    assert rounded.step(ids, None, labels, HP, True) == plain.step(ids, None, labels, HP, True)
    for name, gradient in rounded.engine.gradients().items():
        assert gradient.tobytes() == plain.engine.gradients()[name].tobytes(), name
    small = np.array([1e-6, *HP[1:]], np.float32)  # too small a step for float16 or bfloat16
    before = rounded.engine.weights()["output.weight"]
    rounded.step(ids, None, labels, small, True)
    assert (rounded.engine.weights()["output.weight"] != before).any(axis=1).all()


def test_options_are_copied():
    opts = RecipeOptions(t_seq=T)
    recipe = FromScratch()
    recipe.realize(LlamaConfig(**SIZES), opts)
    opts.untied, opts.weight_dtype = True, "bf16"
    assert recipe.engine.logits(np.zeros(5, np.int32)).shape == (5, SIZES["vocab"])


# -- Life cycle ----------------------------------------------------------------------------------


def test_between_the_weights_and_the_step_weights_can_be_uploaded():
    cfg = LlamaConfig(**SIZES | {"donor_d_in": 30})
    engine = LlamaSeqEngine()
    engine.realize_for_random_init(cfg, RecipeOptions(untied=True))
    donor, lens = np.full((61, 30), 0.25, np.float32), np.full((24, 30), 0.5, np.float32)
    engine.session.upload(engine.t_seq_token_embed, donor)
    engine.session.upload(engine.t_seq_w_proj, lens)
    ids, labels = draw(np.random.default_rng(0), length=16)
    for too_early in (
        lambda: engine.step(ids, None, labels, HP, True),
        lambda: engine.evaluate(ids, None, labels),
        lambda: engine.gradients(),
    ):
        with pytest.raises(LifecycleError, match=r"before build_training_step\(\)"):
            too_early()
    before = engine.logits(ids)
    engine.build_training_step()
    assert np.array_equal(engine.logits(ids), before)
    engine.step(ids, None, labels, HP, True)
    trained = engine.weights()
    assert (trained["token_embd.weight"] == 0.25).all(), "the donor's table is frozen"
    assert (trained["lens.proj.weight"] != 0.5).all()
    assert "token_embd.weight" not in engine.gradients()
    assert "token_embd.weight" not in engine.moments
    gathers = 2  # of the rows that count, in the last block
    assert kernels(engine).count("embedding.backward") == gathers, "no work for a frozen table"


def test_wrong_orders_are_refused():
    engine = LlamaSeqEngine()
    for too_early in (
        lambda: engine.weights(),
        lambda: engine.build_training_step(),
        lambda: engine.t_seq_token_embed,
        lambda: engine.load_weights({}),
    ):
        with pytest.raises(LifecycleError):
            too_early()
    engine.realize_for_random_init(LlamaConfig(**SIZES), RecipeOptions())
    with pytest.raises(LifecycleError, match="once only"):
        engine.realize_for_random_init(LlamaConfig(**SIZES), RecipeOptions())
    with pytest.raises(ConfigError, match=r"no lens\.proj\.weight: donor_d_in is 0"):
        _ = engine.t_seq_w_proj
    engine.build_training_step()
    with pytest.raises(LifecycleError, match="once only"):
        engine.build_training_step()


def test_the_recipe_has_the_handles_of_its_step():
    recipe = FromScratch()
    assert recipe.t_loss is recipe.t_labels is recipe.t_hp is None
    assert recipe.step_index == 0
    recipe.realize(LlamaConfig(**SIZES), RecipeOptions())
    engine = recipe.engine
    assert (recipe.t_loss, recipe.t_labels, recipe.t_hp) == (
        engine.t_loss,
        engine.t_labels,
        engine.t_hp,
    )
    assert engine.t_seq_token_ids is engine.session.tape.inputs["tokens"]
    assert engine.t_seq_positions is engine.session.tape.inputs["positions"]
    ids, labels = draw(np.random.default_rng(0), length=16)
    loss = recipe.step(ids, None, labels, HP, True)
    assert engine.session.download(recipe.t_loss) == np.float32(loss)
    assert recipe.step_index == 1


def test_bad_batches_are_refused():
    recipe = make(batch=2)
    ids, labels = draw(np.random.default_rng(0), 2)
    with pytest.raises(ShapeError, match="whole sequences of 13"):
        recipe.step(ids[:-1], None, labels[:-1], HP, True)
    with pytest.raises(LabelError, match="row 3 is 61"):
        recipe.step(np.where(np.arange(ids.size) == 3, 61, ids), None, labels, HP, True)
    with pytest.raises(LabelError, match="all 26 rows are ignored"):
        recipe.step(ids, None, np.full_like(labels, -100), HP, True)
    assert recipe.step_index == 0


# -- Gradients and batches -----------------------------------------------------------------------


#: All but those of many weights, whose gradients test_transformers compares.
FEW = [kind for kind in KINDS if not kind.startswith("gemma3n")]


@pytest.mark.parametrize("kind", FEW)
def test_gradients_by_finite_differences(kind):
    rng = np.random.default_rng(4)
    recipe = make(kind, batch=2)
    shake(recipe.engine, rng)
    ids, labels = draw(rng, 2)
    recipe.evaluate(ids, None, labels)  # uploads them
    assert gradcheck(recipe.engine.session, samples=2)


def test_rounded_weights_have_no_differences():
    recipe = make(weight_dtype="bf16")
    ids, labels = draw(np.random.default_rng(0))
    recipe.evaluate(ids, None, labels)
    with pytest.raises(ValueError, match="check with weight_dtype f32"):
        gradcheck(recipe.engine.session)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_its_sequences(kind):
    rng = np.random.default_rng(5)
    batch, single = make(kind, batch=3), make(kind)
    single.engine.load_weights(shake(batch.engine, rng))
    ids, labels = draw(rng, 3)
    parts = [slice(i * T, (i + 1) * T) for i in range(3)]
    logits = np.concatenate([single.engine.logits(ids[part]) for part in parts])
    np.testing.assert_allclose(batch.engine.logits(ids), logits, rtol=1e-5, atol=1e-5)
    for part in parts[:-1]:
        single.accumulate(ids[part], None, labels[part])
    single.step(ids[parts[-1]], None, labels[parts[-1]], HP, True)
    batch.step(ids, None, labels, HP, True)
    expected = batch.engine.gradients()
    for name, gradient in single.engine.gradients().items():
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=1e-5 * scale)


def test_a_token_does_not_see_later_ones_or_other_sequences():
    rng = np.random.default_rng(6)
    recipe = make(batch=2)
    shake(recipe.engine, rng)
    ids, _ = draw(rng, 2)
    other = ids.copy()
    other[5] = (other[5] + 1) % SIZES["vocab"]
    same = recipe.engine.logits(ids) == recipe.engine.logits(other)
    assert same[:5].all() and same[T:].all()
    assert not same[5:T].all(axis=1).any()


def test_threads_do_not_change_a_bit():
    def losses(n_threads):
        toynn.set_num_threads(n_threads)
        recipe = make("qwen3", batch=2, weight_dtype="bf16")
        rng = np.random.default_rng(7)
        batches = [draw(rng, 2) for _ in range(3)]
        return [recipe.step(i, None, t, HP, k == 0) for k, (i, t) in enumerate(batches)]

    before = toynn.get_num_threads()
    try:
        assert losses(1) == losses(2)
    finally:
        toynn.set_num_threads(before)
