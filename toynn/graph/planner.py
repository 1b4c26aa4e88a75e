"""The planner decides where each activation is stored, by when it is live.

A tensor is live from the first node that touches it to the last. Two tensors may share memory if
they are never live together. A backend may want an undo log for updates. It is live in phase U,
when activations are freed, so it reuses their memory. One arena holds everything; its size is known
before it is allocated. Larger tensors are placed first, each at the lowest free offset (greedy by
size: Pisarchyk & Lee 2020, arXiv:2001.03288).
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from toynn.backends.protocol import aligned
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
    offset: int = -1


def layout_of(tape: Tape, undo_log: int = 0) -> Layout:
    """Place every tensor that the tape owns, and ``undo_log`` bytes for phase U."""
    slots = _slots(tape)
    first = next((i for i, node in enumerate(tape.nodes) if node.phase == "U"), len(tape.nodes))
    spare = _Slot(undo_log, first, len(tape.nodes))
    placed: list[_Slot] = []  # by their offsets
    for slot in sorted(
        dict.fromkeys((*slots.values(), spare)), key=lambda slot: (-slot.nbytes, slot.first)
    ):
        slot.offset = _lowest_gap(slot, placed)
        insort(placed, slot, key=lambda each: each.offset)
    nbytes = max((slot.offset + slot.nbytes for slot in placed), default=0)
    return Layout({tensor: slot.offset for tensor, slot in slots.items()}, nbytes, spare.offset)


def _slots(tape: Tape) -> dict[Tensor, _Slot]:
    lives = tape.lives()
    slots: dict[Tensor, _Slot] = {}
    for i, node in enumerate(tape.nodes):
        named = node.named
        for name, tensor in named.items():
            if tensor is None or tensor.root not in lives or tensor.root in slots:
                continue
            root = tensor.root
            donor = named.get(next(iter(node.op.signature[name].in_place), ""))
            if donor in slots and donor.nbytes == root.nbytes and slots[donor].last == i:
                slots[root] = slots[donor]
                slots[root].last = lives[root][1]
            else:
                slots[root] = _Slot(aligned(root.nbytes), *lives[root])
    for tensor in tape.inputs.values():
        slots.setdefault(tensor, _Slot(aligned(tensor.nbytes), *lives[tensor]))
    return slots


def _lowest_gap(slot: _Slot, placed: Iterable[_Slot]) -> int:
    """Return the lowest offset at which ``slot`` overlaps no slot that is live with it.

    ``placed`` are in the order of their offsets.
    """
    offset = 0
    for other in placed:
        if other.offset - offset >= slot.nbytes:
            break
        if other.first <= slot.last and slot.first <= other.last:  # both are live at once
            offset = max(offset, other.offset + other.nbytes)
    return offset
