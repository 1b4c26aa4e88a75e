"""The planner decides where each activation is stored, by when it is live.

A tensor is live from the first node that touches it to the last. Two tensors may share memory if
they are never live together. A backend may want an undo log for updates. It is live in phase U,
when activations are freed, so it reuses their memory. One arena holds everything; its size is known
before it is allocated. Larger tensors are placed first, each at the lowest free offset (greedy by
size: Pisarchyk & Lee 2020, arXiv:2001.03288).
"""

from dataclasses import dataclass

from toynn.backends.protocol import aligned
from toynn.graph.placement import lowest_offsets
from toynn.graph.tape import Tape, Tensor


@dataclass(frozen=True)
class Layout:
    """Byte offsets of a tape's tensors and of its undo log in its arena, and the arena's size."""

    offsets: dict[Tensor, int]
    nbytes: int
    undo_log: int = 0


@dataclass(eq=False)
class _Slot:
    """Memory of one tensor, or of several that reuse it in place, one after the other."""

    nbytes: int
    first: int
    last: int


def layout_of(tape: Tape, undo_log: int = 0) -> Layout:
    """Place every tensor that the tape owns, and ``undo_log`` bytes for phase U."""
    slots = _slots(tape)
    first = next((i for i, node in enumerate(tape.nodes) if node.phase == "U"), len(tape.nodes))
    spare = _Slot(undo_log, first, len(tape.nodes))
    every = dict.fromkeys((*slots.values(), spare))
    order = sorted(every, key=lambda slot: (-slot.nbytes, slot.first))
    found = lowest_offsets([(slot.nbytes, slot.first, slot.last) for slot in order])
    offsets = dict(zip(order, found, strict=True))
    nbytes = max(offset + slot.nbytes for slot, offset in offsets.items())
    return Layout({tensor: offsets[slot] for tensor, slot in slots.items()}, nbytes, offsets[spare])


def _slots(tape: Tape) -> dict[Tensor, _Slot]:
    lives = tape.lives()
    slots: dict[Tensor, _Slot] = {}
    for i, node in enumerate(tape.nodes):
        named, donors = node.named, node.op.donors
        for name, tensor in named.items():
            root = None if tensor is None else tensor.base or tensor
            if root is None or root in slots or root not in lives:
                continue
            donor = named.get(donors.get(name, ""))
            if donor in slots and donor.nbytes == root.nbytes and slots[donor].last == i:
                slots[root] = slots[donor]
                slots[root].last = lives[root][1]
            else:
                slots[root] = _Slot(aligned(root.nbytes), *lives[root])
    for tensor in tape.inputs.values():
        slots.setdefault(tensor, _Slot(aligned(tensor.nbytes), *lives[tensor]))
    return slots
