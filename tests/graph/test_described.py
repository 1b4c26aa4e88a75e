"""A tape as data, against what the tape, the planner and the kernels' files say themselves."""

import json

import numpy as np
import pytest
from tapes import TAPES, Net

import toynn
from toynn._kernels.source import source_of
from toynn.graph.described import described
from toynn.testing.launches import entries


def gpt2(**options):
    engine = toynn.recipes.GPT2().engine
    engine.declare(toynn.GPT2Config(61, 20, 5, 28, 3, 8), toynn.RecipeOptions(**options))
    engine.step_memory()
    return engine.session


@pytest.mark.parametrize("name", ["linear-bias-gelu_tanh", "attention-in-segments", "mixture"])
def test_users_and_lives_are_those_of_the_memory(name):
    """No two tensors that are live at once share a byte, but where one takes over another's."""
    build, *arguments = TAPES[name]
    net = Net()
    s = net.realize(net.loss(build(net, *arguments)))
    told = json.loads(s.tape.to_json())
    tensors = told["tensors"]
    for i, (node, mine) in enumerate(zip(s.tape.nodes, told["nodes"], strict=True)):
        parts = mine["writes"] | mine["saves"] | mine["reads"]
        assert {name: tensors[t]["name"] for name, t in parts.items()} == {
            name: tensor.name for name, tensor in node.named.items() if tensor is not None
        }
        for part, users in (("writes", "writers"), ("saves", "writers"), ("reads", "readers")):
            for t in mine[part].values():
                assert i in tensors[tensors[t].get("base", t)][users]
    for t in tensors:
        users = t.get("writers", []) + t.get("readers", [])
        if t["role"] == "activation" and users and t["name"] != s.tape.loss.name:
            assert (t["first"], t["last"]) == (min(users), max(users)), t
    arena = [t for t in tensors if t.get("buffer") == "arena" and "base" not in t]
    live = [0] * len(s.tape.nodes)
    for i in range(len(live)):
        taken = np.zeros(told["arena"]["bytes"] // 64, bool)
        for t in arena:
            if t["first"] <= i <= t["last"]:
                place = slice(t["offset"] // 64, -(-(t["offset"] + t["bytes"]) // 64))
                assert not taken[place].any() or i in (t["first"], t["last"]), t
                taken[place] = True
        live[i] = int(taken.sum()) * 64
    assert told["arena"]["live"] == live
    assert told["arena"]["peak"] == live.index(max(live))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_section_has_forward_backward_and_update_of_a_block(checkpointing):
    s = gpt2(checkpointing=checkpointing)
    told = described(s.tape, s.places())
    assert told["sections"] == ["", "blk.0", "blk.1", "blk.2", ""]
    order = {letter: [] for letter in "FBU"}
    for node in told["nodes"]:
        order[node["phase"]].append(node["section"])
        names = [told["tensors"][t]["name"] for part in ("writes", "saves", "reads")
                 for t in node[part].values()]  # fmt: skip
        blocks = {name.split("blk.")[1][0] for name in names if "blk." in name}
        if blocks:  # a weight says itself of which block it is
            assert blocks == {str(node["section"] - 1)}, node
    assert order["F"] == sorted(order["F"]) and order["B"] == sorted(order["B"])[::-1]
    assert {letter: set(found) for letter, found in order.items()} == {
        letter: set(range(5)) for letter in "FBU"
    }


def test_what_a_backward_reads_is_kept_and_gradients_are_named():
    s = gpt2()
    told = described(s.tape, {})
    names = [t["name"] for t in told["tensors"]]
    for node in told["nodes"]:
        kept = {names[t] for t in node.get("kept", ())}
        assert not kept or node["phase"] == "F"
        if node["op"] == "attention.forward":
            assert {name.partition(".")[0] for name in kept} == {"linear", "attention", "lse"}
    weight = told["tensors"][names.index("blk.1.attn_qkv.weight")]
    assert names[weight["gradient"]] == "d_blk.1.attn_qkv.weight" and "offset" not in weight
    readers = [told["nodes"][i]["op"] for i in weight["readers"]]
    assert readers == ["matmul.forward", "matmul.backward_input", "adamw.step"]
    assert [told["nodes"][i]["op"] for i in weight["writers"]] == ["adamw.step"]


def test_every_entry_has_its_formula_and_its_code():
    for kernel, signature in entries():
        source = source_of(kernel)
        lines = source.text.splitlines()
        entry = kernel.partition(".")[2]
        assert any(lines[k].startswith(f"{entry} = entry(") for k in source.code), kernel
        assert source.formula and max(source.formula) < source.about <= min(source.code), kernel
        own = any(name in lines[k] for k in source.formula for name in signature.outputs)
        assert own or kernel in ("attention.backward_sinks", "swiglu.halves_backward"), kernel


def test_the_formula_and_the_code_are_those_of_the_entry_alone():
    source = source_of("rmsnorm.backward")
    lines = source.text.splitlines()
    assert [lines[k].split("=")[0].strip() for k in source.formula] == ["dx[n,c]", "dw[c]"]
    defined = [
        lines[k] for k in source.code if lines[k].startswith(("cdef", "backward", "forward"))
    ]
    assert [line.split("(")[0].split()[-1] for line in defined] == [
        *("backward_row", "backward_sums", "entry"),
    ]
