"""What a frozen model costs in the backward pass: the way from the loss to its adapters."""

from itertools import count

import numpy as np
import pytest
from tapes import C, N, Net

from toynn import nn, ops
from toynn.testing import gradcheck

LAYERS, RANK = 4, 2


def adapted(layer, *, mapped, checkpointing=False):
    """Blocks of frozen weights; one has an adapter beside its projection to q."""
    net = Net(checkpointing=checkpointing)
    s, numbers = net.s, count()

    def frozen(*shape):
        if not mapped:
            return net.constant(*shape)
        values = net.rng.standard_normal(shape).astype(np.float32)
        return s.mapped(f"m{next(numbers)}", values)

    x = ops.embedding(s, frozen(7, C), net.integers(N, 7))
    for n in range(LAYERS):
        with s.tape.block(f"blk.{n}"):
            normed = ops.rmsnorm(s, x, frozen(C))
            adapter = None
            if n == layer:
                adapter = nn.LoRA(net.parameter(RANK, C), net.parameter(C, RANK), 0.5)
            q = nn.linear(s, normed, frozen(C, C), frozen(C), adapter=adapter)
            k, v = (ops.linear(s, normed, frozen(C, C), frozen(C)) for _ in range(2))
            heads = ops.attention(s, q, k, v, batch=2, n_heads=2)
            x = ops.add(s, x, ops.linear(s, heads, frozen(C, C)))
            normed = ops.layernorm(s, x, frozen(C), frozen(C))
            up = ops.linear(s, normed, frozen(2 * C, C), frozen(2 * C), "gelu_tanh")
            x = ops.add(s, x, ops.linear(s, up, frozen(C, 2 * C)))
    return net, net.realize(net.loss(ops.linear(s, x, frozen(7, C))))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_only_the_way_to_the_adapters_is_computed(layer, mapped):
    net, s = adapted(layer, mapped=mapped)
    backward = [node for node in s.tape.nodes if node.segment == "B"]

    a, _ = net.parameters()
    (low,) = (n.outputs[0] for n in s.tape.nodes if n.segment == "F" and a in n.inputs)
    products = [n for n in backward if n.op.kernel == "matmul.backward_weight"]
    assert {n.outputs[0].role.value for n in products} == {"gradient"}
    assert [n.outputs[0].shape for n in products] == [(C, RANK), (RANK, C)]  # dB, dA
    assert "elementwise.bias_backward" not in net.kernels()

    above = LAYERS - 1 - layer  # blocks through which the gradient goes: q, k, v, o, up, down
    assert net.kernels().count("matmul.backward_input") == 1 + 6 * above + 3 + 1  # head, .., B
    assert net.kernels().count("attention.backward") == above + 1
    assert net.kernels().count("rmsnorm.backward") == above
    assert low in s.tape.gradients
    for node in s.tape.nodes:  # nothing is computed for what does not depend on an adapter
        if node.block is not None and node.block < f"blk.{layer}":
            assert not any(t in s.tape.gradients for t in node.outputs)
    assert not [t for t in s.tape.gradients if t.role.value == "constant"]
    assert gradcheck(s)


@pytest.mark.parametrize("layer", [0, 3])
def test_checkpointing_computes_no_block_below_the_adapters_again(layer):
    net, s = adapted(layer, mapped=False, checkpointing=True)
    again = {node.block for node in s.tape.nodes if node.block and node.segment == "B"}
    assert again == {f"blk.{n}" for n in range(layer, LAYERS)}
    plain, _ = adapted(layer, mapped=False)
    for gradient, expected in zip(net.gradients, plain.gradients, strict=True):
        s.run("grads")
        plain.s.run("grads")
        assert s.download(gradient).tobytes() == plain.s.download(expected).tobytes()


def test_the_products_with_frozen_matrices_cost_twice_the_forward_at_most():
    net, s = adapted(0, mapped=False)
    flops = {"F": 0, "B": 0}
    for node in s.tape.nodes:
        if node.op.kernel.startswith("matmul") and not set(net.parameters()) & set(node.inputs):
            flops[node.segment] += node.flops
    trained = sum(n.flops for n in s.tape.nodes if n.op.kernel == "matmul.backward_weight")
    assert trained == 2 * 2 * N * C * RANK
    assert 0 < flops["B"] - trained < flops["F"]
