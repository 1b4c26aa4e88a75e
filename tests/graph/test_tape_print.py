"""A printed tape: a line for each node, in 120 columns, with what matters in it."""

import re
from dataclasses import replace

import lora_bases
import pytest
import vits
from tapes import Net

from toynn import GPT2Config, GPT2SeqEngine, LlamaConfig, LlamaSeqEngine, RecipeOptions, ops
from toynn.graph.tape import Role, Tensor


@pytest.mark.parametrize("name", ["gpt2", "large", "lora", "vit", "warm"])
def test_a_printed_tape_fits_into_a_line(name, tmp_path):
    tape = printed_tapes(tmp_path)[name]()
    head, *lines = str(tape).splitlines()
    assert head.split() == ["op", "writes;", "saves", "shape", "reads", "MFLOP", "kB"]
    assert len(lines) == len(tape.nodes)
    assert max(map(len, lines)) <= 120
    column = {word: head.index(word) for word in ("writes", "shape", "reads")}
    for i, (line, node) in enumerate(zip(lines, tape.nodes, strict=True)):
        number, segment, kernel = line.split()[:3]
        assert (number, segment, kernel) == (str(i), node.segment, node.op.kernel)
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


def test_names_of_parts_are_shortened_and_long_lists_cut():
    net = Net()
    tape = net.realize(net.loss(ops.silu(net.s, net.activation()))).tape
    node = replace(tape.nodes[-1])
    tape.nodes.append(node)
    w, wide, other = (Tensor(name, (3, 4), Role.ACTIVATION) for name in ("w", "wide", "other"))
    node.outputs = (None, w, Tensor("w.m", (3, 4), Role.MOMENT), wide)
    node.saved, node.inputs = (None, w), (w, w.at(4), None, w.at(8), w, other)
    line = str(tape).splitlines()[-1]
    assert re.search(r" w, \.m, wide; w +\(3, 4\)  w, \+4, \+8, w, other ", line)
    node.inputs = tuple(Tensor(f"name.{n}", (1,), Role.ACTIVATION) for n in range(30))
    assert re.search(r"  name\.0, name\.1, name\.2, .*\.\.\. ", str(tape).splitlines()[-1])
