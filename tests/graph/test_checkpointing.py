"""Activation checkpointing: the same bits in less memory, nothing computed again for nothing."""

import re

import numpy as np
import pytest
from llamas import draw, make, shake
from tapes import TAPES, C, N, Net

from toynn import AdamW, GPT2Config, RecipeOptions, Session, ViTConfig, ops
from toynn.errors import ConfigError
from toynn.recipes import GPT2, VitTiny
from toynn.testing import gradcheck


def gpt2(layers=3, **options):
    recipe = GPT2()
    opts = RecipeOptions(t_seq=13, t_batch=2, seed=5, **options)
    recipe.realize(GPT2Config(61, 24, 6, 40, layers, 16), opts)
    return recipe


MODELS = {
    "gpt2": gpt2,
    "llama-tied": lambda **options: make("llama", 2, **options),
    "llama-lens": lambda **options: make("llama-lens", 2, **options),
    "llama-bf16": lambda **options: make("llama-untied", 2, weight_dtype="bf16", **options),
    "qwen2-f16": lambda **options: make("qwen2", 2, weight_dtype="f16", **options),
    "qwen3": lambda **options: make("qwen3-untied-bias", 2, **options),
}


def ten_steps(recipe):
    """Bytes of all that ten steps of three micro-batches compute."""
    rng, engine, optimizer = np.random.default_rng(3), recipe.engine, AdamW.for_lora()
    engine.session.max_grad_norm = 0.5
    shake(engine, rng)
    results = []
    for k in range(10):
        for _ in range(2):
            ids, labels = draw(rng, 2)
            results.append(engine.accumulate(ids, None, labels))
        ids, labels = draw(rng, 2)
        results.append(engine.step(ids, None, labels, optimizer.hp_for_step(k), k == 0))
        results += [gradient.tobytes() for gradient in engine.gradients().values()]
    results.append(engine.step(ids[:13], None, labels[:13], optimizer.hp_for_step(10), False))
    dense = np.eye(61)[np.arange(26)]
    results.append(engine.step(ids, None, dense, optimizer.hp_for_step(11), False))
    results += [w.tobytes() for w in engine.weights().values()]
    return [*results, engine.logits(ids).tobytes(), engine.evaluate(ids, None, labels)]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_to_the_same_bits_in_less_memory(name):
    plain, again = (MODELS[name](checkpointing=on) for on in (False, True))
    assert ten_steps(plain) == ten_steps(again)
    memory, less = (recipe.engine.session.memory() for recipe in (plain, again))
    assert less.activations < memory.activations
    assert (less.weights, less.moments, less.gradients) == (
        memory.weights,
        memory.moments,
        memory.gradients,
    )


def test_attention_that_is_kept_is_computed_once_and_changes_no_bit():
    again, kept = (gpt2(checkpointing=True, keep_attention=keep) for keep in (False, True))
    assert ten_steps(again) == ten_steps(kept)
    computed = [node for _, node in repeats(kept.engine.session)]
    assert computed and not [node for node in computed if node.op.quadratic]
    assert [node for _, node in repeats(again.engine.session) if node.op.quadratic]


def test_attention_is_kept_beside_checkpointing_alone():
    with pytest.raises(ConfigError, match="keep_attention=True is for checkpointing=True"):
        Session(keep_attention=True)


def test_a_further_block_keeps_one_matrix():
    activations = [
        gpt2(layers, checkpointing=True).engine.session.memory().activations for layers in (3, 4, 9)
    ]
    row = 26 * 24 * 4  # bytes of the residual stream
    assert activations[2] - activations[1] == 5 * (activations[1] - activations[0])
    assert row <= activations[1] - activations[0] < row + 64


def test_a_further_block_keeps_the_output_of_attention_if_asked():
    two = [
        gpt2(layers, checkpointing=True, keep_attention=True).engine.session.memory().activations
        for layers in (3, 8)
    ]
    rows = 4 * (2 * 26 * 24 + 26 * 6)  # bytes of the residual stream, of o and of 6 log-sum-exps
    assert 5 * rows <= two[1] - two[0] < 5 * (rows + 128)


def tape(name, *, checkpointing, **session):
    """A tape of the table, all of it in one block, and what it computes."""
    build, *arguments = TAPES[name]
    net = Net(checkpointing=checkpointing, **session)
    with net.s.tape.block("all"):
        y = build(net, *arguments)
    return net, net.realize(net.loss(y))


@pytest.mark.parametrize("name", TAPES)
def test_every_op_gives_the_same_gradients(name):
    results = []
    for checkpointing in (False, True):
        net, s = tape(name, checkpointing=checkpointing)
        for weight in (1.0, 3.0):
            s.run("grads", weight=weight)
        results.append([s.download(gradient).tobytes() for gradient in net.gradients])
    assert results[0] == results[1]


def repeats(s):
    """Nodes that run again, each with its place on the tape."""
    return [(i, n) for i, n in enumerate(s.tape.nodes) if n.block and is_copy(n)]


def is_copy(node):
    written = [t for t in node.outputs + node.saved if t]
    return node.phase == "B" and any(t.name.endswith("'") for t in written)


@pytest.mark.parametrize("name", TAPES)
def test_nothing_is_computed_again_that_nobody_reads(name):
    _, s = tape(name, checkpointing=True)
    assert not repeats(tape(name, checkpointing=False)[1])
    for i, node in repeats(s):
        written = {t for t in node.outputs + node.saved if t}
        read = {t.root for later in s.tape.nodes[i + 1 :] for t in later.tensors if t}
        assert written & read
        assert all(t.name.endswith("'") for t in written)


@pytest.mark.parametrize("name", ["gpt2", "llama-tied"])
def test_the_last_product_of_a_block_runs_once(name):
    recipe = MODELS[name](checkpointing=True)
    nodes = recipe.engine.session.tape.nodes
    for block in {node.block for node in nodes} - {None}:
        forward = [n.op.kernel for n in nodes if n.block == block and n.phase == "F"]
        again = [n.op.kernel for n in nodes if n.block == block and is_copy(n)]
        assert forward[-2:] == ["matmul.forward", "elementwise.add"]
        assert again == forward[:-2]
    kinds = [node.phase for node in nodes]
    assert kinds == sorted(kinds, key="FEBU".index)
    printed = str(recipe.engine.session.tape)
    assert re.search(r" B  matmul.forward +linear\.\d+' +\(26, 24\)", printed)
    assert not re.search(r" F  .*'", printed)


def test_dropout_repeats_its_mask():
    """With a mask of its own, the backward of the second layer would be wrong."""

    def build(checkpointing, step):
        net = Net(checkpointing=checkpointing)
        s = net.s
        x, control = net.activation(), s.input("dropout", (2,), "i32")
        net.values[control] = np.array([step, 1])
        for n in range(3):
            with s.tape.block(f"blk.{n}"):
                y = ops.dropout(s, x, 0.5, control, n)
                y = ops.linear(s, y, net.parameter(C, C), None, "gelu_tanh")
                x = ops.add(s, x, ops.linear(s, y, net.parameter(C, C)))
        net.realize(net.loss(x))
        net.s.run("grads")
        return net, [s.download(gradient).tobytes() for gradient in net.gradients]

    (net, again), (_, plain), (_, other) = build(True, 4), build(False, 4), build(True, 5)
    assert again == plain != other
    kernels = [node.op.kernel for _, node in repeats(net.s)]
    assert kernels == 3 * ["dropout.forward", "matmul.forward"]
    assert gradcheck(net.s)


def test_a_block_without_parameters_below_it_is_not_computed_again():
    net = Net(checkpointing=True)
    s, x = net.s, net.input(N, C)
    for n in range(3):
        with s.tape.block(f"blk.{n}"):
            w = net.parameter(C, C) if n == 1 else net.constant(C, C)
            x = ops.silu(s, ops.linear(s, ops.silu(s, x), w))
    net.realize(net.loss(x))
    assert [node.block for _, node in repeats(s)] == 2 * ["blk.2"] + 2 * ["blk.1"]
    assert gradcheck(s)


def test_blocks_are_marked_once_and_not_within_each_other():
    s = Session()
    x = s.input("x", (2, 3))
    with s.tape.block("blk.0"):
        y = ops.silu(s, x)
        with pytest.raises(ConfigError, match=r"block blk.1: .* has a block blk.0 already"):
            s.tape.block("blk.1").__enter__()
    with pytest.raises(ConfigError, match=r"block blk.0: .* has a block blk.0 already"):
        s.tape.block("blk.0").__enter__()
    ops.silu(s, y)
    assert [node.block for node in s.tape.nodes] == ["blk.0", None]


def test_a_model_from_a_file_can_be_trained_so_too(tmp_path):
    gpt2().save(tmp_path / "model.gguf")
    recipe = GPT2()
    recipe.realize_from(
        tmp_path / "model.gguf", options=RecipeOptions(t_seq=13, t_batch=2, checkpointing=True)
    )
    assert ten_steps(recipe) == ten_steps(gpt2())
    assert repeats(recipe.engine.session)


def test_a_vision_transformer_too():
    """Its last block reads only some rows of what goes in."""
    results, activations = [], []
    config = ViTConfig(image=16, patch=4, d_model=24, n_heads=3, d_ff=40, n_layers=4, classes=5)
    for checkpointing in (False, True):
        recipe, optimizer = VitTiny(), AdamW.for_lora()
        recipe.realize(config, RecipeOptions(t_batch=3, seed=2, checkpointing=checkpointing))
        rng, losses = np.random.default_rng(6), []
        for k in range(10):
            images, labels = rng.standard_normal((3, 16, 16, 3)), rng.integers(0, 5, 3)
            losses.append(recipe.step(images, None, labels, optimizer.hp_for_step(k), k == 0))
        arrays = [*recipe.engine.weights().values(), *recipe.engine.gradients().values()]
        results.append((losses, [array.tobytes() for array in arrays]))
        activations.append(recipe.engine.session.memory().activations)
    assert results[0] == results[1]
    assert activations[1] < 0.6 * activations[0]
    assert {node.block for _, node in repeats(recipe.engine.session)} == {
        f"blocks.{n}" for n in range(4)
    }
