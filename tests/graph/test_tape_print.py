"""A printed tape: a line for each node, in 120 columns, with what matters in it."""

import json
import re
from dataclasses import replace
from html import unescape

import lora_bases
import numpy as np
import pytest
import vits
from tapes import Net

from toynn import (
    GPT2Config,
    GPT2SeqEngine,
    LlamaConfig,
    LlamaSeqEngine,
    RecipeOptions,
    Session,
    ops,
)
from toynn.graph.tape import Role, Tensor
from toynn.recipes import GPT2


@pytest.mark.parametrize("name", ["gpt2", "large", "lora", "vit", "warm"])
def test_a_printed_tape_fits_into_a_line(name, tmp_path):
    tape = printed_tapes(tmp_path)[name]()
    head, *lines = str(tape).splitlines()
    stored = ["stored"] if tape.sealed else []
    assert head.split() == ["op", "writes;", "saves", "shape", *stored, "reads", "MFLOP", "kB"]
    inputs = len(tape.inputs) if tape.sealed else 0
    assert max(map(len, lines)) <= (152 if tape.sealed else 120)
    column = {word: head.index(word) for word in ("writes", "shape", "reads")}
    assert [line.split()[:2] for line in lines[:inputs]] == [
        ["input", name] for name in list(tape.inputs)[:inputs]
    ]
    for i, (line, node) in enumerate(zip(lines[inputs:], tape.nodes, strict=True)):
        number, segment, kernel = line.split()[:3]
        assert (number, segment, kernel) == (str(i), node.phase, node.op.kernel)
        written, *_ = (tensor for tensor in node.outputs if tensor is not None)
        assert line[column["writes"] :].startswith(written.name[:20])
        assert line[column["shape"] :].startswith(f"{written.shape} ")
        read = next(tensor for tensor in node.inputs if tensor is not None)
        assert line[column["reads"] :].startswith(read.name[:17])
        flops, nbytes = map(float, line.split()[-2:])
        assert flops == pytest.approx(node.flops / 1e6, rel=0.006, abs=5e-4)
        assert nbytes == pytest.approx(node.nbytes / 1e3, rel=0.006, abs=0.05)


def printed_tapes(folder):
    """Tapes of models of all kinds, with short names and long ones."""

    def gpt2(*sizes):
        engine = GPT2SeqEngine()
        engine.declare(GPT2Config(*sizes), RecipeOptions(t_batch=4))
        engine.step_memory()
        return engine.session.tape

    def warm():
        engine = LlamaSeqEngine()
        engine.declare(LlamaConfig(11, 8, 2, 1, 12, 2, 8, donor_d_in=6), RecipeOptions(untied=True))
        engine.step_memory()
        return engine.session.tape

    def lora():
        return lora_bases.make(lora_bases.write_base(folder / "base.gguf")).engine.session.tape

    return {
        "gpt2": lambda: gpt2(11, 8, 2, 12, 2, 5),
        "large": lambda: gpt2(50257, 768, 12, 3072, 12, 1024),
        "lora": lora,
        "vit": lambda: vits.make().engine.session.tape,
        "warm": warm,
    }


def stored_by_name(s):
    """(buffer, offset) of each tensor that a printed tape writes or is given, as it says."""
    head, *lines = str(s.tape).splitlines()
    writes, shape, stored, reads = map(head.index, ("writes", "shape", "stored", "reads"))
    found = {}
    for line in lines:
        names = re.split("[,;] ", line[writes:shape].strip())
        buffer = ""
        for name, place in zip(names, re.split("[,;] ", line[stored:reads].strip()), strict=True):
            buffer = place.partition("+")[0] or buffer
            full = names[0] + name if name.startswith(".") else name
            found[full] = buffer, int(place.partition("+")[2])
    return found


def test_a_compiled_tape_says_where_each_tensor_is_stored():
    """By the bytes that are there behind a run."""
    s = Session()
    w1, w2 = (s.parameter(f"w{n}", np.full(shape, 0.5)) for n, shape in ((1, (8, 2)), (2, (2, 8))))
    x, labels = s.input("x", (4, 2)), s.input("labels", (4,), "i32")
    hidden = ops.silu(s, ops.linear(s, x, w1))
    logits = s.output(ops.linear(s, hidden, w2))
    step = s.minimize(loss := ops.cross_entropy(s, logits, labels))
    step(x=np.arange(8).reshape(4, 2), labels=[0, 1, 1, 0])
    places = stored_by_name(s)
    buffers = {**s._storage.buffers, "arena": s._compiled[s.tape].arena}
    kept = (w1, w2, x, labels, logits, loss, s.grad(w1), s.grad(w2))
    for tensor in kept:
        buffer, offset = places[tensor.name]
        values = buffers[buffer].download(offset, tensor.shape, tensor.dtype)
        assert (values == s.download(tensor)).all(), tensor
    assert len({places[tensor.name] for tensor in kept}) == len(kept)
    assert {places[f"{w.name}.{m}"][0] for w in (w1, w2) for m in "mv"} == {"moments"}
    # What silu saves is read for the last time where its gradient becomes that of its input.
    taken_over = [tensor.name for node in s.tape.nodes for tensor in node.outputs if tensor]
    shared = [
        name for name in taken_over if places[name] == places[s.tape.nodes[7].outputs[0].name]
    ]
    assert len(shared) > 1, "memory that is used again is seen"
    told = json.loads(s.tape.to_json())
    named = {t["name"]: (t["buffer"], t["offset"]) for t in told["tensors"]}
    assert named.items() >= places.items()


def test_a_part_of_a_tensor_is_stored_behind_its_beginning():
    s = Session()
    qkv = ops.linear(s, s.input("x", (4, 6)), s.parameter("w", np.ones((6, 6))))
    y = ops.attention(s, qkv, batch=1, n_heads=1)
    step = s.minimize(ops.cross_entropy(s, y, s.input("labels", (4,), "i32")))
    assert step(x=np.ones((4, 6)), labels=[0, 1, 0, 1])
    (line,) = (line for line in str(s.tape).splitlines() if "attention.backward" in line)
    start = int(re.search(r" arena\+(\d+)", line)[1])
    assert f" arena+{start}, +{start + 8}, +{start + 16}; +" in line


def test_a_tape_that_is_not_compiled_has_no_places():
    net = Net()
    net.s.set_loss(net.loss(ops.silu(net.s, net.activation())))
    assert "stored" not in str(net.s.tape) and "offset" not in net.s.tape.to_json()


def test_names_of_parts_are_shortened_and_long_lists_cut():
    net = Net()
    net.loss(ops.silu(net.s, net.activation()))
    tape = net.s.tape
    node = replace(tape.nodes[-1])
    tape.nodes.append(node)
    w, wide, other = (Tensor(name, (3, 4), Role.ACTIVATION) for name in ("w", "wide", "other"))
    node.outputs = (None, w, Tensor("w.m", (3, 4), Role.MOMENT), wide)
    node.saved, node.inputs = (None, w), (w, w.at(4), None, w.at(8), w, other)
    line = str(tape).splitlines()[-1]
    assert re.search(r" w, \.m, wide; w +\(3, 4\)  w, \+4, \+8, w, other ", line)
    node.inputs = tuple(Tensor(f"name.{n}", (1,), Role.ACTIVATION) for n in range(30))
    assert re.search(r"  name\.0, name\.1, name\.2, .*\.\.\. ", str(tape).splitlines()[-1])


def test_a_notebook_shows_each_line_once_folded_by_block():
    recipe = GPT2()
    recipe.realize(GPT2Config(11, 8, 2, 12, 2, 5), RecipeOptions(checkpointing=True))
    tape = recipe.engine.session.tape
    shown = tape._repr_html_()
    lines = re.findall(r"(?:<pre[^>]*>|\n)([^<]*?)(?=\n|</pre>)", shown)
    assert [unescape(line) for line in lines] == str(tape).splitlines()
    names = re.findall(r"<summary>([^:]*):", shown)
    order = ["", "blk.0", "blk.1", ""]
    assert names[:4] == [f"F {name}".strip() for name in order]
    assert [name for name in names if name[0] == "B"] == [
        f"B {name}".strip() for name in order[::-1]
    ]
