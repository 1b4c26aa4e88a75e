"""What a frozen model costs in the backward pass: the way from the loss to its adapters."""

from itertools import count

import numpy as np
import pytest
from tapes import C, N, Net

from toynn import nn, ops
from toynn.testing import gradcheck

LAYERS, RANK = 4, 2


def adapted(layer, *, mapped, checkpointing=False, beside="q"):
    """Blocks of frozen weights; one has adapters beside its projections to q, k or v."""
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
            heads = []
            for name in "qkv":
                adapter = None
                if n == layer and name in beside:
                    adapter = nn.LoRA(net.parameter(RANK, C), net.parameter(C, RANK), 0.5)
                heads.append(nn.linear(s, normed, frozen(C, C), frozen(C), adapter=adapter))
            heads = ops.attention(s, *heads, batch=2, n_heads=2)
            x = ops.add(s, x, ops.linear(s, heads, frozen(C, C)))
            normed = ops.layernorm(s, x, frozen(C), frozen(C))
            up = ops.linear(s, normed, frozen(2 * C, C), frozen(2 * C), "gelu_tanh")
            x = ops.add(s, x, ops.linear(s, up, frozen(C, 2 * C)))
    return net, net.realize(net.loss(ops.linear(s, x, frozen(7, C))))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_only_the_way_to_the_adapters_is_computed(layer, mapped):
    net, s = adapted(layer, mapped=mapped)
    backward = [node for node in s.tape.nodes if node.phase == "B"]

    a, _ = net.parameters()
    (low,) = (n.outputs[0] for n in s.tape.nodes if n.phase == "F" and a in n.inputs)
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


@pytest.mark.parametrize("beside", ["q", "k", "v", "qk", "qv", "kv", "qkv"])
def test_the_lowest_attention_gives_gradients_to_what_is_adapted_alone(beside):
    _, s = adapted(1, mapped=False, beside=beside)
    *above, lowest = (n for n in s.tape.nodes if n.op.kernel == "attention.backward")
    assert [n.outputs.count(None) for n in above] == [0] * (LAYERS - 2)
    there = {name for name, x in lowest.named.items() if x is not None}
    assert there & {"dq", "dk", "dv"} == {f"d{name}" for name in beside}
    assert ("delta" in there) == (beside != "v")  # a weight's gradient needs no score's
    products = 1 + (beside != "v") + len(beside)
    assert lowest.flops * 5 == above[0].flops * products
    assert lowest.nbytes < above[0].nbytes or beside == "qkv"
    for i, node in enumerate(s.tape.nodes):  # each of them, and all else, is read
        read = {t for later in s.tape.nodes[i + 1 :] for t in later.roots}
        for tensor in node.outputs if node.phase == "B" else ():
            assert tensor is None or tensor.role.value == "gradient" or tensor.root in read
    assert gradcheck(s)


@pytest.mark.parametrize("layer", [0, 3])
def test_checkpointing_computes_no_block_below_the_adapters_again(layer):
    net, s = adapted(layer, mapped=False, checkpointing=True)
    backward = [node for node in s.tape.nodes if node.phase == "B"]
    again = {node.block for node in backward if node.output.name.endswith("'")}
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
            flops[node.phase] += node.flops
    trained = sum(n.flops for n in s.tape.nodes if n.op.kernel == "matmul.backward_weight")
    assert trained == 2 * 2 * N * C * RANK
    assert 0 < flops["B"] - trained < flops["F"]
