"""LoRA over a mapped file: against the merged model, trained in full; what it holds and refuses."""

import hashlib
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from llamas import EXPERTS
from lora_bases import (
    ARCHS,
    T,
    assert_close,
    assert_gradients,
    config,
    dequantized_file,
    draw,
    make,
    retype,
    whole,
    write_base,
)

import toynn
from toynn.engines import LlamaSeqEngine
from toynn.errors import ConfigError, GGUFError, LifecycleError, ShapeError
from toynn.formats import gguf
from toynn.recipes import LoRA

HP = toynn.AdamW.for_lora()
OPTS = toynn.RecipeOptions(t_seq=T)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    return {arch: write_base(folder / f"{arch}.gguf", arch) for arch in ARCHS}


@pytest.fixture
def llama(bases):
    return bases["llama"]


SETTINGS = {
    "plain": {},
    "alpha": {"alpha": 9.0},
    "rslora": {"alpha": 6.0, "use_rslora": True},
    "rank-1": {"rank": 1, "alpha": 0.5},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("arch", ARCHS)
def test_loss_and_gradients_are_those_of_the_merged_model(bases, arch, setting):
    recipe = make(bases[arch], t_batch=2, **SETTINGS[setting])
    engine = whole(bases[arch], recipe, t_batch=2)
    ids, labels = draw(2)
    expected = engine.accumulate(ids, None, labels)
    assert recipe.accumulate(ids, None, labels) == pytest.approx(expected, rel=1e-5)
    assert_gradients(recipe, engine)
    assert_close(recipe.engine.logits(ids), engine.logits(ids))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_step_is_adamw_of_the_adapters_and_of_nothing_else(bases, arch):
    recipe = make(bases[arch])
    before, fingerprint = recipe.engine.weights(), hashlib.sha256(bases[arch].read_bytes())
    hp = HP.hp(1)
    recipe.step(*_flat(draw()), hp, True)
    gradients, after = recipe.engine.gradients(), recipe.engine.weights()
    for name, w in before.items():
        if name not in gradients:
            assert np.array_equal(w, after[name]), name
            continue
        g = gradients[name].astype(np.float64)
        assert_close(after[name], w - hp[0] * g / (np.abs(g) + hp[3]), 1e-6)
    assert hashlib.sha256(bases[arch].read_bytes()).digest() == fingerprint.digest()


def _flat(pair):
    return pair[0], None, pair[1]


def test_losses_fall_and_batches_and_dense_labels_are_honoured(llama):
    recipe, dense = make(llama, t_batch=2), make(llama, t_batch=2)
    ids, labels = draw(2)
    matrix = np.zeros((2 * T, 61), np.float32)
    rows = np.flatnonzero(labels != -100)
    matrix[rows, labels[rows]] = 1
    losses = [recipe.step(ids, None, labels, HP.hp_for_step(k), k == 0) for k in range(20)]
    others = [dense.step(ids, None, matrix, HP.hp_for_step(k), k == 0) for k in range(20)]
    assert losses[-1] < 0.8 * losses[0]
    assert losses == pytest.approx(others, rel=1e-4)
    assert recipe.step_index == 20
    assert recipe.evaluate(ids, None, labels) < losses[-1]


def test_micro_batches_add_up(llama):
    recipe, both = make(llama), make(llama, t_batch=2)
    ids, labels = draw(2)
    recipe.accumulate(ids[:T], None, labels[:T])
    recipe.step(ids[T:], None, labels[T:], HP.hp(1), True)
    both.step(ids, None, labels, HP.hp(1), True)
    for name, gradient in both.engine.gradients().items():
        assert_close(recipe.engine.gradients()[name], gradient)


# -- Memory and the file -----------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_the_file_is_mapped_and_memory_is_known_beforehand(bases, arch):
    recipe = make(bases[arch])
    memory, adapters = recipe.engine.session.memory(), recipe.engine.adapter_weights()
    with gguf.open(bases[arch]) as file:
        assert memory.mapped >= sum(info.nbytes for info in file.tensors.values())
    nbytes = sum(values.nbytes for values in adapters.values())
    assert nbytes <= memory.weights < nbytes + 64 * len(adapters)
    assert (memory.moments, memory.gradients) == (2 * memory.weights, memory.weights)
    opts = toynn.RecipeOptions(t_seq=T)
    assert LoRA.memory_for(bases[arch], 4, opts, "all-linear") == memory


def test_no_gradient_of_a_frozen_weight_is_computed(llama):
    nodes = make(llama).engine.session.tape.nodes
    backward = [node.op.kernel for node in nodes if node.phase == "B"]
    assert backward.count("matmul.backward_weight") == 2 * 14  # A and B of each projection
    # of the rows that count: of what attention gives in the last block, and of what it adds to
    assert backward.count("embedding.backward") == 2
    only_last = make(llama, targets="blk.1.ffn_down").engine.session.tape.nodes
    kernels = [node.op.kernel for node in only_last if node.phase == "B"]
    assert kernels.count("matmul.backward_input") == 2  # the head, and B


@pytest.mark.parametrize("checkpointing", [False, True])
def test_below_the_lowest_adapter_nothing_is_kept_or_differentiated(tmp_path, checkpointing):
    base = write_base(tmp_path / "base.gguf", n_layers=4)
    peaks = []
    for number in (4, 2, 1):
        recipe = make(base, num_layers=number, targets="q", checkpointing=checkpointing)
        peaks.append(recipe.engine.session.memory().activations)
        tape, below = recipe.engine.session.tape, {f"blk.{n}" for n in range(4 - number)}
        backward = next(i for i, node in enumerate(tape.nodes) if node.phase == "B")
        lives = tape.lives()
        lowest = [node for node in tape.nodes if node.block in below]
        assert {node.block for node in lowest} == below
        for node in lowest:
            kept = {name: t for name, t in node.named.items() if t is not None and t.root in lives}
            assert node.phase == "F"
            for name, tensor in kept.items():  # but for what the blocks above read
                above = {n.block for n in tape.nodes if tensor.root in n.roots} - below
                assert above or lives[tensor.root][1] < backward, (node.op.kernel, name)
    assert peaks == sorted(peaks, reverse=True) and peaks[2] < peaks[0]


@pytest.mark.parametrize("kind", ["llama", "qwen3moe", "gpt2"])
def test_lorafa_trains_b_as_lora_does_and_leaves_a_alone(tmp_path, kind):
    sizes, targets = ({}, "all-linear,head") if kind != "qwen3moe" else (EXPERTS, "q,experts")
    base = write_base(tmp_path / "base.gguf", kind, **sizes)
    plain, fixed = (make(base, use_lorafa=use, targets=targets) for use in (False, True))
    before = fixed.engine.adapter_weights()
    batch = _flat(draw())
    assert fixed.step(*batch, HP.hp(1), True) == plain.step(*batch, HP.hp(1), True)
    expected, of_b = plain.engine.gradients(), fixed.engine.gradients()
    assert of_b.keys() == {name for name in expected if name.endswith("lora_b")}
    assert all(np.array_equal(gradient, expected[name]) for name, gradient in of_b.items())
    after, theirs = fixed.engine.adapter_weights(), plain.engine.adapter_weights()
    for name, values in after.items():
        assert np.array_equal(values, (theirs if name in of_b else before)[name]), name
        assert np.array_equal(values, before[name]) == (name not in of_b), name


def test_lorafa_keeps_no_input_of_an_adapted_matrix(llama):
    """The norms' and the activation's results, which only the gradient of A would read."""
    recipes = [make(llama, use_lorafa=fixed) for fixed in (False, True)]
    read = []
    for recipe in recipes:
        nodes = recipe.engine.session.tape.nodes
        made = {n.output for n in nodes if n.op.kernel in ("rmsnorm.forward", "swiglu.forward")}
        made &= {n["x"] for n in nodes if n.op.kernel == "matmul.forward" and n.block}
        read.append([t for n in nodes if n.phase == "B" for t in n.tensors if t in made])
    assert read[0] and not read[1]
    plain, fixed = (recipe.engine.session.memory() for recipe in recipes)
    assert fixed.activations < plain.activations and 2 * fixed.gradients < 1.2 * plain.gradients


def test_the_file_stays_mapped_and_cannot_be_overwritten(llama):
    recipe = make(llama)
    with pytest.raises(GGUFError, match="this file is being read"):
        gguf.write(llama, {}, {}, overwrite=True)
    recipe.engine.session.close()


def test_an_open_file_will_do_and_may_be_closed_afterwards(llama):
    with gguf.open(llama) as file:
        recipe = make(file)
    ids, labels = draw()
    assert recipe.evaluate(ids, None, labels) == make(llama).evaluate(ids, None, labels)


def test_norms_of_another_type_are_expanded(llama, tmp_path):
    path = write_base(tmp_path / "base.gguf")
    with gguf.open(path) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        half = {n: np.float16(file[n]) for n, info in file.tensors.items() if len(info.shape) == 1}
        tensors = {
            name: (half[name], "F16") if name in half else (np.array(file[name]), "F32")
            for name in file
        }
    gguf.write(tmp_path / "half.gguf", metadata, tensors)
    recipe = make(tmp_path / "half.gguf")
    assert np.array_equal(recipe.engine.weights()["output_norm.weight"], half["output_norm.weight"])
    assert recipe.engine.session.memory().weights > make(path).engine.session.memory().weights
    engine = whole(tmp_path / "half.gguf", recipe)
    assert_close(recipe.engine.logits(draw()[0]), engine.logits(draw()[0]))


def test_weights_by_name(llama):
    engine = make(llama).engine
    with gguf.open(llama) as file:
        for name in file:
            assert np.array_equal(engine.weights()[name], file[name])
    adapters = engine.adapter_weights()
    assert engine.weights().keys() == engine.tensors.keys()
    engine.load_weights({name: 0 * values for name, values in adapters.items()})
    assert not any(values.any() for values in engine.adapter_weights().values())
    frozen = r"load_weights: 'blk.0.attn_k.weight' and \d+ more are frozen in .*adapter_weights\(\)"
    with pytest.raises(ConfigError, match=frozen):
        engine.load_weights(engine.weights())
    with pytest.raises(ConfigError, match=r"load_weights: 'token_embd.weight' is frozen in"):
        engine.load_weights({**adapters, "token_embd.weight": np.zeros((61, 24))})
    with pytest.raises(ConfigError, match=r"missing none, unknown \['none.such'\]"):
        engine.load_weights({**adapters, "none.such": np.zeros(3)})
    with pytest.raises(ShapeError, match=r"blk.0.attn_q.weight.lora_a"):
        engine.load_weights({**adapters, "blk.0.attn_q.weight.lora_a": np.zeros((3, 24))})


# -- The life cycle ----------------------------------------------------------------------------


def test_the_seeds_calls_are_what_realize_does(llama):
    recipe, opts = LoRA(), toynn.RecipeOptions(t_seq=T, seed=4, init_scale=0.01)
    recipe.realize(llama, None, 3, opts)
    engine = LlamaSeqEngine()
    engine.enable_lora_q(3)
    engine.enable_lora_q_adamw()
    with gguf.open(llama) as file:
        engine.realize_for_mmap(file, config("llama"), opts)
    engine.upload_lora_q_init(4, 0.01)
    engine.build_training_step()
    assert list(engine.adapters) == ["blk.0.attn_q.weight", "blk.1.attn_q.weight"]
    assert {adapter.scale for adapter in engine.adapters.values()} == {1.0}
    ids, labels = draw()
    for k in range(3):
        loss = recipe.step(ids, None, labels, HP.hp_for_step(k), k == 0)
        assert engine.step(ids, None, labels, HP.hp_for_step(k), k == 0) == loss
    assert recipe.t_loss is recipe.engine.t_loss
    for name, values in engine.adapter_weights().items():
        assert np.array_equal(recipe.engine.adapter_weights()[name], values)


def test_how_a_and_b_begin(llama):
    recipe = LoRA()
    opts = toynn.RecipeOptions(t_seq=T, seed=4, init_scale=0.01)
    recipe.realize(llama, None, 20, opts, targets="all-linear")
    adapters = recipe.engine.adapter_weights()
    a = np.concatenate([v.ravel() for name, v in adapters.items() if name.endswith("a")])
    assert a.std() == pytest.approx(0.01, rel=0.05)
    assert abs(a.mean()) < 0.0005
    assert not any(v.any() for name, v in adapters.items() if name.endswith("b"))
    streams = [v for name, v in adapters.items() if name.endswith("attn_q.weight.lora_a")]
    assert not np.array_equal(*streams)
    for seed, same in ((4, True), (5, False)):
        recipe.engine.upload_lora_q_init(seed, 0.01)
        again = recipe.engine.adapter_weights()["blk.0.attn_q.weight.lora_a"]
        assert np.array_equal(again, streams[0]) == same
    recipe.engine.init_adapters("peft", 4, 1.0)
    for name, values in recipe.engine.adapter_weights().items():
        if name.endswith("a"):
            bound = values.shape[1] ** -0.5
            assert 0.97 * bound < np.abs(values).max() <= bound
            assert values.std() == pytest.approx(bound / 3**0.5, rel=0.1)
    with pytest.raises(ConfigError, match=r"init must be one of normal, peft, .*; got 'zeros'"):
        recipe.engine.init_adapters("zeros", 4, 1.0)


def test_calls_in_a_wrong_order_name_the_one_that_is_missing(llama):
    with gguf.open(llama) as file:
        engine = LlamaSeqEngine()
        with pytest.raises(LifecycleError, match="enable_lora_q_adamw before enable_lora_q"):
            engine.enable_lora_q_adamw()
        engine.enable_lora_q(2)
        engine.realize_for_mmap(file, None, OPTS)
        with pytest.raises(LifecycleError, match=r"all weights are frozen: .*enable_lora_q_adamw"):
            engine.build_training_step()
        for call in (engine.enable_lora_q_adamw, lambda: engine.enable_lora_q(2)):
            with pytest.raises(LifecycleError, match="after the weights were declared"):
                call()
        with pytest.raises(LifecycleError, match="realize_for_mmap after"):
            engine.realize_for_mmap(file, None, OPTS)
    recipe = LoRA()
    for call in (
        lambda: recipe.step(*_flat(draw()), HP.hp(1), True),
        lambda: recipe.export_adapter("a.gguf"),
        lambda: recipe.export_peft("a"),
        lambda: recipe.load_adapter("a.gguf"),
        lambda: recipe.save("a.gguf"),
    ):
        with pytest.raises(LifecycleError, match=r"LoRA\.\w+ before realize\(\)"):
            call()
    recipe.realize(llama, None, 2, OPTS)
    with pytest.raises(LifecycleError, match=r"LoRA\.realize: once only"):
        recipe.realize(llama, None, 2, OPTS)
    for call in (recipe.engine.export_gguf, recipe.engine.export_hf):
        with pytest.raises(ConfigError, match="export_adapter"):
            call("new")


def test_an_engine_without_adapters_or_with_untrained_ones_computes_logits(llama):
    recipe, ids = make(llama), draw()[0]
    with gguf.open(llama) as file:
        plain, adapted = LlamaSeqEngine(), LlamaSeqEngine()
        plain.realize_for_mmap(file, None, OPTS)
        adapted.enable_lora(recipe.engine.lora, train=False)
        adapted.realize_for_mmap(file, None, OPTS)
        adapted.load_adapter(recipe.engine.adapter())
    expected = LlamaSeqEngine.from_gguf(llama, t_seq=T).logits(ids)
    assert np.array_equal(plain.logits(ids), expected)
    assert np.array_equal(adapted.logits(ids), recipe.engine.logits(ids))
    assert adapted.session.memory().gradients == adapted.session.memory().moments == 0


def test_dropout_is_in_steps_and_nowhere_else(llama):
    ids, labels = draw()
    recipe, again, plain = (make(llama, dropout=p) for p in (0.5, 0.5, 0.0))
    assert recipe.evaluate(ids, None, labels) == plain.evaluate(ids, None, labels)
    assert np.array_equal(recipe.engine.logits(ids), plain.engine.logits(ids))
    losses = [recipe.accumulate(ids, None, labels) for _ in range(3)]
    assert len({*losses, plain.accumulate(ids, None, labels)}) == 4
    for _ in range(3):
        again.evaluate(ids, None, labels)  # which takes none of the masks
    assert [again.accumulate(ids, None, labels) for _ in range(3)] == losses
    assert "dropout.forward" not in str(plain.engine.session.tape)
    drops = [n for n in recipe.engine.session.tape.nodes if n.op.kernel == "dropout.forward"]
    sites = {node.sizes["site"] for node in drops if node.phase == "F"}
    assert len(sites) == len(recipe.engine.adapters)  # each has masks of its own


def test_a_step_that_could_not_be_recorded_leaves_no_dropout_behind(llama, monkeypatch):
    recipe, (ids, labels) = make(llama, dropout=0.5), draw(2)
    expected = recipe.engine.logits(ids[:7])
    with monkeypatch.context() as broken, pytest.raises(MemoryError):
        broken.setattr(type(recipe.engine.model), "loss", Mock(side_effect=MemoryError))
        recipe.step(ids, None, labels, HP.hp(1), True)
    assert np.array_equal(recipe.engine.logits(ids[:6])[:3], expected[:3])


# -- What is refused ---------------------------------------------------------------------------


def test_a_configuration_must_be_the_files(bases, llama):
    def realize(cfg, path=llama, **options):
        LoRA().realize(path, cfg, 2, toynn.RecipeOptions(t_seq=T, **options), targets="o")

    realize(config("llama"))
    realize(config("llama", head_dim=4))
    realize(
        toynn.GPT2Config(**{f: getattr(config("gpt2"), f) for f in _GPT2}, init="lcg"),
        bases["gpt2"],
    )
    with pytest.raises(ConfigError, match=r"d_ff: expected 40; got 48; rope_base: expected 1"):
        realize(config("llama", d_ff=48, rope_base=500.0))
    with pytest.raises(ConfigError, match="d_head: expected 4; got 6"):
        realize(config("llama", head_dim=6))
    with pytest.raises(
        ConfigError, match=r"expected a LlamaConfig, as .* is llama; got GPT2Config"
    ):
        realize(config("gpt2"))
    with pytest.raises(ConfigError, match="arch: expected 'llama'; got 'qwen2'"):
        realize(config("qwen2"))
    with pytest.raises(ConfigError, match=r"untied: expected False, as in .*; got True"):
        realize(None, untied=True)
    with pytest.raises(ConfigError, match="qkv_bias: expected False"):
        realize(None, qkv_bias=True)
    realize(None, bases["qwen3"], untied=True)
    with pytest.raises(ConfigError, match=r"weight_dtype: expected f32, .*; got 'bf16'"):
        realize(None, weight_dtype="bf16")
    with pytest.raises(ConfigError, match="t_seq 17 is longer than the context 16"):
        LoRA().realize(llama, None, 2, toynn.RecipeOptions(t_seq=17))


_GPT2 = ("vocab", "d_model", "n_heads", "d_ff", "n_layers", "context")


def test_other_files_are_refused(llama, tmp_path):
    retype(write_base(tmp_path / "base.gguf"), lambda name: "F32")
    with gguf.open(llama) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        tensors = {name: (np.array(file[name]), "F32") for name in file}
    gguf.write(tmp_path / "a.gguf", metadata | {"general.architecture": "mamba"}, tensors)
    with pytest.raises(GGUFError, match=r"its architecture is 'mamba'; toynn has .*gpt2"):
        LoRA().realize(tmp_path / "a.gguf", None, 2, OPTS)
    del tensors["blk.1.ffn_up.weight"]
    gguf.write(tmp_path / "b.gguf", metadata, tensors)
    recipe = LoRA()
    with pytest.raises(GGUFError, match=r"tensor blk.1.ffn_up.weight is missing"):
        recipe.realize(tmp_path / "b.gguf", None, 2, OPTS)
    recipe.realize(llama, None, 2, OPTS)  # the recipe is as new


def test_expanding_changes_no_number(llama, tmp_path):
    half = write_base(tmp_path / "half.gguf", type="F16")
    expected = LlamaSeqEngine.from_gguf(half, t_seq=T).logits(draw()[0])
    full = dequantized_file(half, tmp_path / "full.gguf")
    got = LlamaSeqEngine.from_gguf(full, t_seq=T).logits(draw()[0])
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_checkpointing_changes_memory_and_not_one_bit(bases, arch):
    ids, labels = draw(2)
    plain = make(bases[arch], t_batch=2, dropout=0.3)
    again = make(bases[arch], t_batch=2, dropout=0.3, checkpointing=True)
    for k in range(3):
        loss = plain.step(ids, None, labels, HP.hp_for_step(k), k == 0)
        assert again.step(ids, None, labels, HP.hp_for_step(k), k == 0) == loss
    for name, values in plain.engine.adapter_weights().items():
        assert np.array_equal(again.engine.adapter_weights()[name], values)
    sizes = [r.engine.session.memory().activations for r in (again, plain)]
    assert sizes[0] < 0.8 * sizes[1]
    opts = toynn.RecipeOptions(t_seq=T, t_batch=2)
    estimate = LoRA.memory_for(bases[arch], 4, replace(opts, checkpointing=True), "all-linear", 0.3)
    assert estimate == again.engine.session.memory()


def test_b_has_a_rate_of_its_own(tmp_path):
    """LoRA+ with a ratio of 4: A moves as at the rate itself, B as at 4 times the rate."""
    path = write_base(tmp_path / "base.gguf")
    ids, labels = draw()

    def moved(rate, **options):
        recipe = make(path, **options)
        before = recipe.engine.adapter_weights()
        hp = toynn.AdamW.for_lora().hp_for_step(0)
        hp[0] = rate
        recipe.step(ids, None, labels, hp, True)
        after = recipe.engine.adapter_weights()
        return {name: after[name] - before[name] for name in before}

    plus, slow, fast = moved(1e-3, loraplus_lr_ratio=4.0), moved(1e-3), moved(4e-3)
    for name, values in plus.items():
        np.testing.assert_array_equal(values, (fast if name.endswith(".lora_b") else slow)[name])
