"""Turn a recorded tape into a backend's program: places of tensors, launches of nodes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from toynn.backends.protocol import (
    Backend,
    Buffer,
    Feed,
    Launch,
    Place,
    Program,
    RowLimit,
    UndoLog,
    aligned,
)
from toynn.errors import ConfigError
from toynn.graph.planner import Layout, layout_of
from toynn.graph.tape import Node, Role, Tape, Tensor
from toynn.graph.tensor import place_of

_UPDATED = (Role.PARAMETER, Role.MOMENT)
_FROM_OUTSIDE = (Role.PARAMETER, Role.CONSTANT, Role.INPUT)


@dataclass(frozen=True)
class CompiledTape:
    """A tape that can run: its program, its arena, and where its tensors are stored there."""

    program: Program
    arena: Buffer
    offsets: Mapping[Tensor, int]  # bytes, of inputs and kept outputs
    phases: Mapping[str, str]  # the phases that a run executes, by its ``to``
    needed: Mapping[str, frozenset[Tensor]]  # tensors that must be uploaded before such a run
    written: Mapping[str, frozenset[Tensor]]  # tensors that such a run computes
    gradients: frozenset[Tensor]  # of the loss, with respect to anything
    feeds: dict[tuple[Tensor, ...], Feed | None] = field(default_factory=dict)  # by their inputs

    @property
    def nbytes(self) -> int:
        """Bytes of the arena and of the program's own memory."""
        return self.arena.nbytes + self.program.scratch


@dataclass(frozen=True)
class Lowered:
    """A tape with its planned arena and its launches."""

    tape: Tape
    layout: Layout
    undo_log: UndoLog | None
    places: Mapping[Tensor, Place]  # of the roots of all its tensors
    launches: list[Launch]
    backend: Backend

    @cached_property
    def nbytes(self) -> int:
        """The bytes that the tape will take when it is compiled."""
        return aligned(self.layout.nbytes) + self.backend.scratch(self.launches, self.undo_log)


def lower(tape: Tape, places: Mapping[Tensor, Place], backend: Backend) -> Lowered:
    """Plan the arena of a tape, and turn its nodes into launches.

    Raises ConfigError for a tensor of another session.
    """
    layout, undo_log = _planned(tape, places, backend)
    placed = {tensor: Place("arena", offset) for tensor, offset in layout.offsets.items()}
    for root in tape.roots - placed.keys():
        if root not in places:
            raise ConfigError(f"{root.name} belongs to another session")
        placed[root] = places[root]
    return Lowered(tape, layout, undo_log, placed, _launches(tape, placed), backend)


def compile_tape(lowered: Lowered, buffers: Mapping[str, Buffer]) -> CompiledTape:
    """Allocate the arena of a tape, and compile the launches to a program."""
    tape, layout, undo_log = lowered.tape, lowered.layout, lowered.undo_log
    backend = lowered.backend
    arena = backend.allocate(aligned(layout.nbytes))
    used = {"arena", *_buffers_of(lowered.launches, undo_log)}  # a program keeps these alive
    at_hand = {name: buffer for name, buffer in buffers.items() if name in used}
    program = backend.compile(lowered.launches, {**at_hand, "arena": arena}, undo_log)
    phases = {to: tape.phases(to) for to in ("loss", "grads", "update", "apply")}
    nodes = {
        to: [node for node in tape.nodes if node.phase in running] for to, running in phases.items()
    }
    return CompiledTape(
        program,
        arena,
        {t: layout.offsets[t] for t in (*tape.inputs.values(), *tape.outputs)},
        phases,
        {to: _from_outside(running) for to, running in nodes.items()},
        {to: _written(running) for to, running in nodes.items()},
        frozenset((tape.gradients or {}).values()),
    )


def _buffers_of(launches: Iterable[Launch], undo_log: UndoLog | None) -> Iterator[str]:
    """Yield the names of all buffers that are read or written."""
    for launch in launches:
        yield from (place.buffer for place in launch.tensors.values() if place is not None)
        if launch.limit is not None:
            yield launch.limit.count.buffer
    if undo_log is not None:
        yield from (place.buffer for place, _ in undo_log.overwritten)


def _planned(
    tape: Tape, places: Mapping[Tensor, Place], backend: Backend
) -> tuple[Layout, UndoLog | None]:
    """Plan the arena, with room for an undo log of updates if the backend wants one."""
    updated = {t.root for node in tape.nodes if node.phase == "U" for t in node.outputs if t}
    owned = [t for t in updated if t.role in _UPDATED and t in places] if backend.undo_logs else []
    overwritten: list[tuple[Place, int]] = []
    for tensor in sorted(owned, key=lambda t: (places[t].buffer, places[t].offset)):
        place, nbytes = places[tensor], aligned(tensor.nbytes)
        if overwritten:
            before, length = overwritten[-1]
            if place == Place(before.buffer, before.offset + length):  # they are side by side
                overwritten[-1] = before, length + nbytes
                continue
        overwritten.append((place, nbytes))
    layout = layout_of(tape, sum(nbytes for _, nbytes in overwritten))
    undo_log = UndoLog(Place("arena", layout.undo_log), tuple(overwritten)) if overwritten else None
    return layout, undo_log


def _from_outside(nodes: Iterable[Node]) -> frozenset[Tensor]:
    return frozenset(t for node in nodes for t in node.roots if t.role in _FROM_OUTSIDE)


def _written(nodes: Iterable[Node]) -> frozenset[Tensor]:
    return frozenset(t.root for node in nodes for t in node.outputs + node.saved if t)


def _launches(tape: Tape, places: Mapping[Tensor, Place]) -> list[Launch]:
    constant = Role.CONSTANT

    def launch(node: Node) -> Launch:
        stored: dict[str, Place | None] = dict.fromkeys(node.named)
        frozen = []
        for name, tensor in node.named.items():
            if tensor is None:
                continue
            base = tensor.base
            stored[name] = places[tensor] if base is None else place_of(tensor, places)
            if (base or tensor).role is constant:
                frozen.append(name)
        return Launch(
            node.phase,
            node.op.kernel,
            stored,
            node.sizes,
            node.options,
            node.accumulate,
            node.flops,
            node.nbytes,
            valid_rows(node) if node.op.leads else None,
            frozenset(frozen),
            node.op.function,
        )

    def valid_rows(node: Node) -> RowLimit | None:
        leader = node.leader
        valid = leader.valid_rows if leader is not None else None
        if leader is None or valid is None:
            return None
        count = place_of(valid.count, places)
        return RowLimit(count, node.op.rows.partition(" ")[0], valid.first, leader.shape[0])

    return [launch(node) for node in tape.nodes]
