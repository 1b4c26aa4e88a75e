"""The planner decides where each activation is stored, by when it is live.

A tensor is live from the first node that touches it to the last. Two tensors may share memory if
they are never live together. A backend may want an undo log for updates. It is live in phase U,
when activations are freed, so it reuses their memory. One arena holds everything; its size is known
before it is allocated. Larger tensors are placed first, each at the lowest free offset (greedy by
size: Pisarchyk & Lee 2020, arXiv:2001.03288).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toynn.backends.protocol import aligned
from toynn.graph.tape import Tape, Tensor

NO_END = 1 << 62  # an offset behind everything


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
    every = dict.fromkeys((*slots.values(), spare))
    # Begins, ends, first and last nodes of slots, by the begins; an empty slot stands at each end.
    placed = np.zeros((4, len(every) + 2), np.int64)
    placed[:, 0], placed[:, 1] = (0, 0, -1, len(tape.nodes)), (NO_END, 0, -1, len(tape.nodes))
    begins, ends, firsts, lasts = placed
    for n, slot in enumerate(sorted(every, key=lambda slot: (-slot.nbytes, slot.first)), 2):
        live = ((firsts[:n] <= slot.last) & (lasts[:n] >= slot.first)).nonzero()[0]
        slot.offset = _lowest_gap(slot.nbytes, begins.take(live), ends.take(live))
        i = begins[:n].searchsorted(slot.offset, "right")
        placed[:, i + 1 : n + 1] = placed[:, i:n]
        begins[i], ends[i] = slot.offset, slot.offset + slot.nbytes
        firsts[i], lasts[i] = slot.first, slot.last
    nbytes = int(ends.max())
    return Layout({tensor: slot.offset for tensor, slot in slots.items()}, nbytes, spare.offset)


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


def _lowest_gap(nbytes: int, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Return the lowest offset of a gap of ``nbytes`` between slots in the order of the begins."""
    tops = np.maximum.accumulate(ends)[:-1]  # of all up to each
    return int(tops[(begins[1:] - tops >= nbytes).argmax()])  # there is room before the last slot
