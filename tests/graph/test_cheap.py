"""What is cheap to compute again is not kept for the backward: the same bits in less memory."""

import numpy as np
import pytest
from llamas import draw, make, shake
from tapes import TAPES, C, Net

from toynn import AdamW, GPT2Config, LlamaConfig, LlamaSeqEngine, RecipeOptions, ops
from toynn.engines import GPT2SeqEngine
from toynn.recipes import GPT2
from toynn.testing import gradcheck


def gradients(name, **session):
    build, *arguments = TAPES[name]
    net = Net(**session)
    s = net.realize(net.loss(build(net, *arguments)))
    for weight in (1.0, 3.0):
        s.run("grads", weight=weight)
    return [s.download(gradient).tobytes() for gradient in net.gradients]


@pytest.mark.parametrize("name", TAPES)
def test_every_op_gives_the_same_gradients(name):
    assert gradients(name, recompute_cheap=True) == gradients(name)


def again(s):
    """Kernels of the nodes of B that write what a node of F has written."""
    return [
        node.op.kernel
        for node in s.tape.nodes
        if node.phase == "B" and any(t is not None and "'" in t.name for t in node.outputs)
    ]


def block(net):
    """Norms and activations, each read by one product or several."""
    s, x = net.s, net.activation()
    normed = ops.layernorm(s, x, net.parameter(C), net.parameter(C))
    gate, up = (ops.linear(s, normed, net.parameter(C, C)) for _ in range(2))
    x = ops.linear(s, ops.swiglu(s, gate, up), net.parameter(C, C))
    x = ops.linear(s, ops.rmsnorm(s, x, net.parameter(C)), net.parameter(C, C), None, "gelu_tanh")
    x = ops.linear(s, x, net.parameter(C, C), None, "gelu_exact")
    return ops.linear(s, ops.silu(s, x), net.parameter(C, C))


def test_each_is_computed_once_and_read_by_all():
    net = Net(recompute_cheap=True)
    s = net.realize(net.loss(block(net)))
    kinds = ["silu", "gelu", "gelu", "rmsnorm", "swiglu", "layernorm"]
    assert again(s) == [f"{kind}.forward" for kind in kinds]
    assert gradcheck(s)


def test_only_for_products_that_are_large_beside_it():
    for outputs, expected in ((512, []), (513, ["silu.forward"])):
        net = Net()
        y = ops.linear(net.s, ops.silu(net.s, net.activation()), net.parameter(outputs, C))
        assert again(net.realize(net.loss(y))) == expected


def test_nothing_for_nobody():
    """A frozen product reads no input to go back; what no parameter made is not kept for more."""
    net = Net(recompute_cheap=True)
    s = net.s
    x = ops.linear(s, ops.silu(s, net.activation()), net.constant(C, C))
    y = ops.linear(s, ops.silu(s, net.input(*x.shape)), net.parameter(C, C))
    assert again(net.realize(net.loss(ops.add(s, x, y)))) == []


def gpt2(**options):
    recipe = GPT2()
    opts = RecipeOptions(t_seq=13, t_batch=2, seed=5, **options)
    recipe.realize(GPT2Config(61, 24, 6, 40, 3, 16), opts)
    return recipe


MODELS = {"gpt2": gpt2} | {
    kind: lambda kind=kind, **options: make(kind, 2, **options)
    for kind in ("llama", "llama-lens", "qwen3")
}


def ten_steps(recipe):
    rng, engine, optimizer = np.random.default_rng(3), recipe.engine, AdamW.for_lora()
    shake(engine, rng)
    results = []
    for k in range(10):
        ids, labels = draw(rng, 2)
        results.append(engine.accumulate(ids, None, labels))
        results.append(engine.step(ids, None, labels, optimizer.hp_for_step(k), k == 0))
        results += [gradient.tobytes() for gradient in engine.gradients().values()]
    return [*results, *(w.tobytes() for w in engine.weights().values())]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_to_the_same_bits_in_less_memory(name):
    kept, lean = MODELS[name](), MODELS[name](recompute_cheap=True)
    assert again(lean.engine.session) and not again(kept.engine.session)
    assert ten_steps(kept) == ten_steps(lean)
    memory, less = (recipe.engine.session.memory() for recipe in (kept, lean))
    assert less.activations < memory.activations


@pytest.mark.parametrize(
    ("engine", "config", "block"),
    [
        (GPT2SeqEngine, GPT2Config(64, 768, 12, 3072, 2, 8), ["gelu", "layernorm", "layernorm"]),
        (LlamaSeqEngine, LlamaConfig(64, 576, 9, 3, 1536, 2, 8), ["swiglu", "rmsnorm", "rmsnorm"]),
    ],
)
def test_wide_models_do_so(engine, config, block):
    model = engine()
    model.declare(config, RecipeOptions(t_seq=8))
    model.step_memory()
    assert again(model.session) == 2 * [f"{op}.forward" for op in block]
