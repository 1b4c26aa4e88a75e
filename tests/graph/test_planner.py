"""The planner on random tapes: what lives at the same time does not overlap, nothing is lost."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from llamas import KINDS, config

import toynn
from toynn._kernels.base.signature import Signature
from toynn.backends.protocol import ALIGNMENT, aligned
from toynn.engines.plans import LEVELS, ROUNDED
from toynn.graph.planner import _Slot, _slots, layout_of
from toynn.graph.tape import Op, Role, Tape, Tensor


def made_up(signature):
    """Return an op whose kernel there is not."""
    op = Op("made.up", lambda sizes: 0)
    op.__dict__["signature"] = Signature.parse(signature)
    return op


FREE = made_up("a[A 2]; b[B 2] <- x[X 2] y[Y 2]? z[Z 2]?")
IN_PLACE = made_up("a[A 2]=x; b[B 2] <- x[X 2] y[Y 2]? z[Z 2]?")


@st.composite
def tapes(draw):
    """Nodes that write a or two tensors and read up to three: whole, or a part of their rows."""
    tape = Tape()
    sizes = st.sampled_from([1, 3, 16, 17, 48, 160])
    weight = Tensor("w", (7, 2), Role.PARAMETER)
    for i in range(draw(st.integers(1, 3))):
        tape.inputs[f"in{i}"] = Tensor(f"in{i}", (draw(sizes), 2), Role.INPUT)
    known = [weight, *tape.inputs.values()]
    for _ in range(draw(st.integers(1, 14))):
        read = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        for i, tensor in enumerate(read):
            if tensor.shape[0] > 1 and draw(st.booleans()):
                first = draw(st.integers(0, tensor.shape[0] - 1))
                read[i] = tensor.rows(first, draw(st.integers(first + 1, tensor.shape[0])))
        x, y, z = (*read, None, None)[:3]
        alike = draw(st.booleans())  # then the output may take the memory of x over
        a = tape.new("a", x.shape if alike else (draw(sizes), 2))
        b = tape.new("b", (draw(sizes), 2))
        op = draw(st.sampled_from([FREE, IN_PLACE]))
        unseen = {size: 0 for size, tensor in (("Y", y), ("Z", z)) if tensor is None}
        tape.record(op, {"a": a, "b": b, "x": x, "y": y, "z": z}, **unseen)
        known += draw(st.sampled_from([[a], [a, b], []]))
        if draw(st.integers(0, 5)) == 0:
            tape.outputs.add(a)
    return tape


def run(tape, layout):
    """Go through the nodes, with one arena in which each tensor leaves its number.

    Before a node, each tensor that it reads must still have its own number wherever it lies. A node
    may write over what it reads in place alone. At the end inputs and kept tensors are still there.
    """
    arena = np.zeros(layout.nbytes, np.int64)
    numbers = {}

    def place(tensor):
        start = layout.offsets[tensor.root]
        return arena[start : start + tensor.root.nbytes]

    def write(tensor):
        numbers[tensor.root] = len(numbers) + 1
        place(tensor)[:] = numbers[tensor.root]

    def intact(tensor):
        return (place(tensor) == numbers[tensor.root]).all()

    for tensor in tape.inputs.values():
        write(tensor)
    for node in tape.nodes:
        read = [t for t in node.inputs if t is not None and t.root in layout.offsets]
        written = [t for t in node.outputs + node.saved if t is not None]
        for tensor in read:
            assert tensor.root in numbers, f"{tensor} is read and was never written"
            assert intact(tensor), f"{tensor} was written over before node {node.op.kernel}"
        for tensor in written:
            write(tensor)
        assert all(intact(tensor) for tensor in written), "two outputs overlap"
        donor = node["x"].root if node.op is IN_PLACE else None
        for tensor in read:
            taken = not intact(tensor)
            assert not taken or tensor.root is donor, f"{tensor} was written over while it was read"
    for tensor in (*tape.inputs.values(), *tape.outputs):
        assert intact(tensor), f"{tensor} did not last"


@settings(max_examples=300, derandomize=True, phases=[Phase.generate])
@given(tapes())
def test_no_tensor_is_written_over_while_it_lives(tape):
    layout = layout_of(tape)
    owned = {t.root for node in tape.nodes for t in node.tensors if t is not None}
    owned = {t for t in owned if t.role is not Role.PARAMETER} | set(tape.inputs.values())
    assert layout.offsets.keys() == owned
    for tensor, offset in layout.offsets.items():
        assert offset % ALIGNMENT == 0 and 0 <= offset <= layout.nbytes - tensor.nbytes
    run(tape, layout)


def test_an_undo_log_lies_where_nothing_lives_when_updates_run():
    recipe = toynn.recipes.GPT2()
    recipe.realize(toynn.GPT2Config(31, 8, 2, 16, 2, 8), toynn.RecipeOptions(t_batch=2))
    tape = recipe.engine.session.tape
    update = next(i for i, node in enumerate(tape.nodes) if node.phase == "U")
    late = {*tape.inputs.values(), *tape.outputs}
    late |= {t for node in tape.nodes[update:] for t in node.roots}
    without = layout_of(tape)
    most = without.nbytes - sum(aligned(t.nbytes) for t in late if t in without.offsets)
    for nbytes, free in ((most // 4, True), (2 * without.nbytes, False)):
        layout = layout_of(tape, aligned(nbytes))
        end = layout.undo_log + aligned(nbytes)
        for tensor in late & layout.offsets.keys():
            start = layout.offsets[tensor]
            assert start >= end or start + tensor.nbytes <= layout.undo_log
        assert end <= layout.nbytes and (layout.nbytes == without.nbytes) == free


def by_hand(tape, undo_log):
    """Return offsets and bytes of a plan, greedy by size: each slot at the lowest gap."""
    slots = _slots(tape)
    update = next((i for i, n in enumerate(tape.nodes) if n.phase == "U"), len(tape.nodes))
    spare = _Slot(undo_log, update, len(tape.nodes))
    placed = []
    every = dict.fromkeys((*slots.values(), spare))
    for slot in sorted(every, key=lambda slot: (-slot.nbytes, slot.first)):
        live = [s for s in placed if s.first <= slot.last and slot.first <= s.last]
        slot.offset = 0
        for begin, end in sorted((s.offset, s.offset + s.nbytes) for s in live):
            if begin - slot.offset >= slot.nbytes:
                break
            slot.offset = max(slot.offset, end)
        placed.append(slot)
    most = max(slot.offset + slot.nbytes for slot in placed)
    return {t: slot.offset for t, slot in slots.items()}, most, spare.offset


@pytest.mark.parametrize("level", [*LEVELS, *ROUNDED])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "olmoe", "qwen35", "lfm2"])
def test_plans_are_greedy_by_size(kind, level):
    """Plans stay the same to the byte, however fast gaps are found."""
    changes, needed = KINDS[kind]
    engine = toynn.LlamaSeqEngine()
    options = toynn.RecipeOptions(t_seq=8, packed=True, **needed | level._asdict())
    engine.declare(config(**changes), options)
    engine.step_memory()
    tape = engine.session.tape
    for undo_log in (0, aligned(30_000)):
        layout = layout_of(tape, undo_log)
        assert (layout.offsets, layout.nbytes, layout.undo_log) == by_hand(tape, undo_log)
