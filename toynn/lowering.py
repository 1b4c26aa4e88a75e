"""From a recorded tape to what a backend runs: places for tensors, launches for nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toynn import dtypes
from toynn.backends.protocol import Backend, Buffer, Launch, Place, Program, aligned
from toynn.errors import ConfigError
from toynn.planner import plan
from toynn.tape import Node, Role, Tape, Tensor

__all__ = ["CompiledTape", "arena_size", "compile_tape"]

_FROM_OUTSIDE = (Role.PARAMETER, Role.CONSTANT, Role.INPUT)


@dataclass(frozen=True)
class CompiledTape:
    """A tape that can run: its program, its arena, and where its tensors lie there."""

    program: Program
    arena: Buffer
    offsets: Mapping[Tensor, int]  # bytes, of inputs and kept outputs
    segments: Mapping[str, str]  # of which launches a run to each end consists
    needed: Mapping[str, frozenset[Tensor]]  # what those read that must have been uploaded
    written: Mapping[str, frozenset[Tensor]]  # what those compute
    gradients: frozenset[Tensor]  # of the loss, with respect to anything


def arena_size(tape: Tape, places: Mapping[Tensor, Place], backend: Backend, n_threads: int) -> int:
    """Return the bytes of a tape's arena, the kernels' scratch memory included."""
    layout = plan(tape)
    launches = _lower(tape, places, layout.offsets)
    return aligned(layout.nbytes) + _workspace(launches, backend, n_threads)


def compile_tape(
    tape: Tape,
    places: Mapping[Tensor, Place],
    buffers: Mapping[str, Buffer],
    backend: Backend,
    n_threads: int,
) -> CompiledTape:
    """Plan the arena of a tape, allocate it, and turn the nodes into a program."""
    layout = plan(tape)
    launches = _lower(tape, places, layout.offsets)
    scratch = Place("arena", aligned(layout.nbytes))
    arena = backend.allocate(scratch.offset + _workspace(launches, backend, n_threads))
    program = backend.compile(launches, {**buffers, "arena": arena}, scratch, n_threads)
    segments = {to: tape.segments(to) for to in ("loss", "grads", "update")}
    nodes = {
        to: [node for node in tape.nodes if node.segment in running]
        for to, running in segments.items()
    }
    return CompiledTape(
        program,
        arena,
        {t: layout.offsets[t] for t in (*tape.inputs.values(), *tape.kept)},
        segments,
        {to: _from_outside(running) for to, running in nodes.items()},
        {to: _written(running) for to, running in nodes.items()},
        frozenset((tape.gradients or {}).values()),
    )


def _from_outside(nodes: Iterable[Node]) -> frozenset[Tensor]:
    read = {t.root for node in nodes for t in node.tensors if t is not None}
    return frozenset(t for t in read if t.role in _FROM_OUTSIDE)


def _written(nodes: Iterable[Node]) -> frozenset[Tensor]:
    return frozenset(t.root for node in nodes for t in node.outputs + node.saved if t)


def _workspace(launches: list[Launch], backend: Backend, n_threads: int) -> int:
    return max((backend.workspace(launch, n_threads) for launch in launches), default=0)


def _lower(
    tape: Tape, places: Mapping[Tensor, Place], offsets: Mapping[Tensor, int]
) -> list[Launch]:
    def place(tensor: Tensor | None) -> Place | None:
        if tensor is None:
            return None
        root = tensor.root
        if root not in offsets and root not in places:
            raise ConfigError(f"{root.name} belongs to another session")
        start = Place("arena", offsets[root]) if root in offsets else places[root]
        return Place(start.buffer, start.offset + dtypes.nbytes(tensor.dtype, tensor.offset))

    def launch(node: Node) -> Launch:
        return Launch(
            node.segment,
            node.op.kernel,
            tuple(place(tensor) for tensor in node.tensors),
            tuple(node.sizes.values()),
            tuple(node.options.values()),
            node.accumulate,
            node.flops,
            node.nbytes,
        )

    return [launch(node) for node in tape.nodes]
