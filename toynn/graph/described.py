"""Describe a tape as plain data: nodes with phases and sections, tensors with places and users.

Pages, programs and notebooks that show a step use this. Empty keys (no base, no gradient, no place)
are left out.

A section is a block of the model, or the nodes between two blocks. It holds the forward, backward
and update of a block. The backward of a node belongs to the node's section. The update of a weight
belongs to the section that reads the weight first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import accumulate
from typing import Any, TypeAlias

from toynn._kernels.source import function_source, source_of
from toynn.backends.protocol import Place, aligned
from toynn.graph.tensor import Role, Tensor, place_of
from toynn.numerics.precision import NUMBERED

#: tape.py imports this module, so it cannot be imported here: a toynn.graph.tape.Tape, and a Node.
Tape: TypeAlias = Any
Node: TypeAlias = Any


def described(tape: Tape, places: Mapping[Tensor, Place]) -> dict[str, Any]:
    """Return a tape as dicts, lists, strings and numbers; ``places`` may be {}.

    ``tensors`` lists each tensor once; elsewhere a tensor is its index in that list. A tensor is
    live from node ``first`` to node ``last``. ``arena`` has the bytes of the tape's own tensors,
    the bytes live at each node, and the node with the most live bytes (``peak``).
    """
    numbers = numbered(tape)
    lives = tape.lives()
    writers, readers = _users(tape.nodes)
    sections, of_nodes = _sections(tape)
    gradients = tape.gradients or {}

    def listed(named: Iterable[tuple[str, Tensor | None]]) -> dict[str, int]:
        return {name: numbers[tensor] for name, tensor in named if tensor is not None}

    def tensor_as(tensor: Tensor) -> dict[str, Any]:
        root = tensor.root
        record: dict[str, Any] = {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "dtype": tensor.dtype,
            "role": tensor.role.value,
            "bytes": tensor.nbytes,
        }
        if tensor.base is not None:
            record |= {"base": numbers[tensor.base], "first_element": tensor.offset}
        else:
            record |= {"writers": writers.get(root, []), "readers": readers.get(root, [])}
        if tensor in gradients and gradients[tensor] in numbers:
            record["gradient"] = numbers[gradients[tensor]]
        if root in lives:
            record["first"], record["last"] = lives[root]
        if root in places:
            record |= place_of(tensor, places)._asdict()
        return record

    def node_as(i: int, node: Node) -> dict[str, Any]:
        signature = node.op.signature
        parts = {
            "writes": zip(signature.outputs, node.outputs, strict=True),
            "saves": zip(signature.saved, node.saved, strict=True),
            "reads": zip(signature.inputs, node.inputs, strict=True),
        }
        record: dict[str, Any] = {"op": node.op.kernel, "phase": node.phase}
        record |= {"section": of_nodes[i]}
        record |= {part: listed(named) for part, named in parts.items()}
        if kept := _kept(tape, i, readers):
            record["kept"] = [numbers[tensor] for tensor in kept]
        record |= {"sizes": dict(node.sizes)}
        if node.options:
            record["options"] = dict(node.options)
        if node.accumulate:
            record["accumulate"] = node.accumulate.name.lower()
        if "precision" in node.sizes:
            record["precision"] = NUMBERED[node.sizes["precision"]]
        record |= {"flops": node.flops, "bytes": node.nbytes}
        return record | ({"at_most": True} if node.at_most else {})

    document: dict[str, Any] = {
        "sections": sections,
        "nodes": [node_as(i, node) for i, node in enumerate(tape.nodes)],
        "tensors": [tensor_as(tensor) for tensor in numbers],
        "inputs": [numbers[tensor] for tensor in tape.inputs.values() if tensor in numbers],
    }
    if tape.loss in numbers:
        document["loss"] = numbers[tape.loss]
    return document | {"arena": _arena(tape, lives, places)}


def sources(tape: Tape) -> dict[str, Any]:
    """Return the documentation and source lines of the kernels on a tape, and their files' texts.

    ``kernels`` has for each entry its ``path``, the lines (from 0) of its ``formula``, of all
    ``formulas`` of its file, and of its ``code``, and the number of lines of the docstring
    (``about``). ``files`` are texts by path.
    """
    kernels, files = {}, {}
    functions = {node.op.kernel: node.op.function for node in tape.nodes}
    for kernel, function in sorted(functions.items()):
        told = asdict(function_source(kernel, function.compute) if function else source_of(kernel))
        files[told["path"]] = told.pop("text")
        kernels[kernel] = told
    return {"kernels": kernels, "files": files}


def numbered(tape: Tape) -> dict[Tensor, int]:
    """Return a number for each tensor and part of one; a part comes after its base."""
    numbers: dict[Tensor, int] = {}
    for node in tape.nodes:
        for tensor in node.tensors:
            if tensor is not None:
                numbers.setdefault(tensor.root, len(numbers))
                numbers.setdefault(tensor, len(numbers))
    return numbers


def _users(nodes: Iterable[Node]) -> tuple[dict[Tensor, list[int]], dict[Tensor, list[int]]]:
    """Return for each tensor the numbers of the nodes that write it and that read it.

    A tensor that a node updates, or always adds to, counts as read and written.
    """
    writers: dict[Tensor, list[int]] = {}
    readers: dict[Tensor, list[int]] = {}
    for i, node in enumerate(nodes):
        written = {t.root for t in node.outputs + node.saved if t is not None}
        read = {t.root for t in node.inputs if t is not None}
        signature = node.op.signature
        updated = [name for name in signature.tensors if signature[name].updated]
        read |= {node[name].root for name in updated}
        for users, tensors in ((writers, written), (readers, read)):
            for tensor in tensors:
                users.setdefault(tensor, []).append(i)
    return writers, readers


def _kept(tape: Tape, i: int, readers: Mapping[Tensor, list[int]]) -> list[Tensor]:
    """Return a forward node's activations that the backward pass reads."""
    node = tape.nodes[i]
    if node.phase != "F":
        return []
    roots = dict.fromkeys(t.root for t in node.tensors if t is not None)
    activations = (t for t in roots if t.role is Role.ACTIVATION)
    return [t for t in activations if any(tape.nodes[r].phase == "B" for r in readers.get(t, ()))]


def _sections(tape: Tape) -> tuple[list[str], list[int]]:
    """Return the names of the sections ("": not a block), and the section of each node."""
    names: list[str] = []
    of_nodes: list[int] = []
    first_read: dict[Tensor, int] = {}  # the section in which a parameter is read first
    for node in tape.nodes:
        if node.phase in "FE":
            if not names or names[-1] != (node.block or ""):
                names.append(node.block or "")
            for tensor in node.inputs:
                if tensor is not None:
                    first_read.setdefault(tensor.root, len(names) - 1)
    at = len(names) - 1
    forward = _forward_sections(tape, names)
    for node in tape.nodes:
        if node.phase in "FE":
            of_nodes.append(next(forward))
        elif node.phase == "B":
            at = _back_to(names, at, node.block or "")
            of_nodes.append(at)
        else:
            weight = node.output.root
            of_nodes.append(first_read.get(weight, len(names) - 1))
    return names, of_nodes


def _forward_sections(tape: Tape, names: list[str]) -> Iterator[int]:
    at = 0
    for node in tape.nodes:
        if node.phase in "FE":
            at += names[at] != (node.block or "")
            yield at


def _back_to(names: list[str], at: int, name: str) -> int:
    """Return the nearest section of this name at or before section ``at``."""
    behind = (k for k in range(at, -1, -1) if names[k] == name)
    return next(behind, at)


def _arena(
    tape: Tape, lives: Mapping[Tensor, tuple[int, int]], places: Mapping[Tensor, Place]
) -> dict[str, Any]:
    """Return the bytes of the tape's own tensors: in all, live at each node, and the peak."""
    count = len(tape.nodes)
    changes = [0] * (count + 2)
    left = {
        (places[t].offset, last)
        for t, (first, last) in lives.items()
        if t in places and first < last
    }
    for tensor, (first, last) in lives.items():
        nbytes = aligned(tensor.nbytes)
        changes[max(first, 0)] += nbytes
        changes[last + 1] -= nbytes
        if tensor in places and (places[tensor].offset, first) in left:
            changes[first] -= nbytes  # it reuses the memory of a tensor whose last reader is here
            changes[first + 1] += nbytes
    live = list(accumulate(changes[:count]))
    ends = [places[t].offset + aligned(t.nbytes) for t in lives if t in places]
    peak = max(range(count), key=live.__getitem__, default=0)
    arena: dict[str, Any] = {"live": live, "peak": peak}
    return arena | ({"bytes": max(ends)} if ends else {})
