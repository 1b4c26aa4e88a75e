"""Every op as a small tape: kernels, gradient rules, planner and program by finite differences."""

from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest
from tapes import TAPES, B, C, N, Net, V, frozen_matrix

from toynn import GPT2Config, RecipeOptions, ops
from toynn.backends.protocol import Accumulate
from toynn.graph.tape import Op
from toynn.recipes import GPT2
from toynn.testing import gradcheck


@pytest.mark.parametrize("name", TAPES)
def test_tape(name):
    build, *arguments = TAPES[name]
    net = Net()
    s = net.realize(net.loss(build(net, *arguments)))
    assert gradcheck(s)


@pytest.mark.parametrize("name", TAPES)
def test_micro_batches_add_up_and_a_step_starts_afresh(name):
    build, *arguments = TAPES[name]
    net = Net()
    s = net.realize(net.loss(build(net, *arguments)))

    def gradients():
        return [s.download(gradient) for gradient in net.gradients]

    s.run("grads")
    first = gradients()
    s.run("grads", weight=3.0)
    for again, gradient in zip(gradients(), first, strict=True):
        np.testing.assert_allclose(again, gradient, rtol=1e-5, atol=1e-6)
    s.run("update")
    s.run("grads")
    for again, gradient in zip(gradients(), first, strict=True):
        assert again.tobytes() == gradient.tobytes()


def labels_with_ignored_rows(net):
    labels = net.integers(N, V)
    net.values[labels][1::2] = -100
    return labels


def dense_labels(net):
    labels = net.input(N, V)
    net.values[labels] = net.rng.random((N, V)) * [[0], [1], [2], [0.5], [1], [1]]
    return labels


@pytest.mark.parametrize("labels", [labels_with_ignored_rows, dense_labels])
def test_cross_entropy(labels):
    net = Net()
    assert gradcheck(net.realize(ops.cross_entropy(net.s, net.activation(V), labels(net))))


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_the_loss_of_the_rows_that_count(chunk):
    net = Net()
    s, w = net.s, net.parameter(V, C)
    rows, picked = ops.valid_rows(s, labels_with_ignored_rows(net), V)
    x = ops.rmsnorm(s, ops.embedding(s, net.activation(), rows), net.parameter(C))
    if chunk is None:
        loss = ops.cross_entropy(s, ops.linear(s, x, w), picked)
    else:
        loss = ops.linear_cross_entropy(s, x, w, picked, None, chunk)
    assert gradcheck(net.realize(loss))


def test_a_sum_of_losses():
    net = Net()
    s, x = net.s, net.activation()
    second = ops.scale(s, net.loss(ops.silu(s, x)), 0.3)
    assert gradcheck(net.realize(ops.add(s, net.loss(x), second)))


def test_frozen_weights_get_no_gradient_and_no_node():
    net = Net()
    s, w = net.s, net.parameter(V, C)
    frozen = ops.embedding(s, net.constant(V, C), net.integers(N, V))
    frozen = ops.linear(s, frozen, net.constant(C, C), net.constant(C), "gelu_tanh")
    frozen = ops.layernorm(s, frozen, net.constant(C), net.constant(C))
    frozen = ops.add(s, frozen, ops.attention(s, frozen, frozen, frozen, batch=B, n_heads=2))
    net.realize(net.loss(ops.linear(s, frozen, w)))
    assert net.kernels() == ["cross_entropy.backward", "matmul.backward_weight"]
    assert gradcheck(s)
    assert not [t for t in s.tape.gradients if t.role.value == "constant"]


def test_a_frozen_matrix_costs_only_the_way_through():
    net = Net()
    net.realize(net.loss(frozen_matrix(net)))
    assert net.kernels() == [
        "cross_entropy.backward",
        "elementwise.bias_backward",
        "matmul.backward_input",
        "gelu.backward",
        "matmul.backward_input",
        "matmul.backward_weight",
    ]


def test_every_op_with_a_gradient_is_in_a_tape():
    recorded = set()
    for build, *arguments in TAPES.values():
        net = Net()
        net.realize(net.loss(build(net, *arguments)))
        recorded |= {node.op.kernel for node in net.s.tape.nodes}
    modules = [import_module(f"toynn.ops.{found.name}") for found in iter_modules(ops.__path__)]
    table = [op for module in modules for op in vars(module).values() if isinstance(op, Op)]
    missing = {op.kernel for op in table if op.gradient} - recorded
    own = {"cross_entropy.forward_dense"}
    own |= {
        "cached_attention.forward",
        "shortconv.cached",
        "delta.cached",
        "ssd.cached",
        "latent.absorb",
        "latent.expand",
    }  # which refuse
    own |= {"chunked_cross_entropy.forward", "token_sums.forward"}
    own |= {"pooling.forward"}  # tests/engines/test_encoder.py
    own |= {"dpo.forward", "orpo.forward", "kto.forward"}  # tests/parity/test_preference_parity.py
    assert missing == own, "which have tests of their own"


def test_products_add_to_one_gradient():
    net = Net()
    x = ops.silu(net.s, net.activation())
    q, k, v = (ops.linear(net.s, x, net.parameter(C, C)) for _ in range(3))
    s = net.realize(net.loss(ops.add(net.s, ops.add(net.s, q, k), v)))
    products = [node for node in s.tape.nodes if node.op.kernel == "matmul.backward_input"][-3:]
    assert len({node.outputs[0] for node in products}) == 1
    never, always = Accumulate.NEVER, Accumulate.ALWAYS
    assert [node.accumulate for node in products] == [never, always, always]
    assert not [n for n in s.tape.nodes if n.phase == "B" and n.op.kernel == "elementwise.add"]
    assert gradcheck(s)


def test_a_whole_model():
    recipe = GPT2()
    recipe.realize(GPT2Config(11, 8, 2, 12, 2, 5), RecipeOptions(t_batch=2, seed=3))
    rng = np.random.default_rng(4)
    for name, w in recipe.engine.parameters.items():  # the init has gradients near zero
        gain = name.endswith("norm.weight")
        recipe.engine.session.upload(w, gain + 0.3 * rng.standard_normal(w.shape))
    ids, labels = rng.integers(0, 11, (2, 10))
    recipe.evaluate(ids, None, labels)  # uploads them
    assert gradcheck(recipe.engine.session)
    assert not recipe.engine.session.pending
