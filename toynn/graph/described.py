"""A tape as plain data: nodes by segment and section, tensors with places, lives and users.

What a page, a program or a notebook shows of a step is made from this. Keys that say nothing (no
base, no gradient, no place) are left out.

A section is a block of the model, or what lies between two blocks. Forward, backward and update of
a block are one section: the backward of a node is where the node is, and the update of a weight is
where the weight is read first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import accumulate
from typing import Any, TypeAlias

from toynn._kernels.source import source_of
from toynn.backends.protocol import Place, aligned
from toynn.graph.tensor import Role, Tensor, place_of
from toynn.numerics.precision import ALL_PRECISIONS

#: tape.py imports this module, so it cannot be imported here: a toynn.graph.tape.Tape, and a Node.
Tape: TypeAlias = Any
Node: TypeAlias = Any

__all__ = ["described", "numbered", "sources"]


def described(tape: Tape, places: Mapping[Tensor, Place]) -> dict[str, Any]:
    """Return a tape as dicts, lists, texts and numbers; ``places`` are those of its tensors, or {}.

    ``tensors`` are listed once each; elsewhere a tensor is its number in that list. ``first`` and
    ``last`` are the nodes between which a tensor is live. ``arena`` is what the tape's own tensors
    take: its bytes, how many are live at each node, and the node where most are (``peak``).
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
        found: dict[str, Any] = {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "dtype": tensor.dtype,
            "role": tensor.role.value,
            "bytes": tensor.nbytes,
        }
        if tensor.base is not None:
            found |= {"base": numbers[tensor.base], "first_element": tensor.offset}
        else:
            found |= {"writers": writers.get(root, []), "readers": readers.get(root, [])}
        if tensor in gradients and gradients[tensor] in numbers:
            found["gradient"] = numbers[gradients[tensor]]
        if root in lives:
            found["first"], found["last"] = lives[root]
        if root in places:
            found |= asdict(place_of(tensor, places))
        return found

    def node_as(i: int, node: Node) -> dict[str, Any]:
        signature = node.op.signature
        parts = {
            "writes": zip(signature.outputs, node.outputs, strict=True),
            "saves": zip(signature.saved, node.saved, strict=True),
            "reads": zip(signature.inputs, node.inputs, strict=True),
        }
        found: dict[str, Any] = {"op": node.op.kernel, "segment": node.segment}
        found |= {"section": of_nodes[i]}
        found |= {part: listed(named) for part, named in parts.items()}
        if kept := _kept(tape, i, readers):
            found["kept"] = [numbers[tensor] for tensor in kept]
        found |= {"sizes": node.sizes}
        if node.options:
            found["options"] = node.options
        if node.accumulate:
            found["accumulate"] = node.accumulate.name.lower()
        if "precision" in node.sizes:
            found["precision"] = ALL_PRECISIONS[node.sizes["precision"]]
        found |= {"flops": node.flops, "bytes": node.nbytes}
        return found | ({"at_most": True} if node.at_most else {})

    found: dict[str, Any] = {
        "sections": sections,
        "nodes": [node_as(i, node) for i, node in enumerate(tape.nodes)],
        "tensors": [tensor_as(tensor) for tensor in numbers],
        "inputs": [numbers[tensor] for tensor in tape.inputs.values() if tensor in numbers],
    }
    if tape.loss in numbers:
        found["loss"] = numbers[tape.loss]
    return found | {"arena": _arena(tape, lives, places)}


def sources(tape: Tape) -> dict[str, Any]:
    """Return what the kernels' own files say of the entries on a tape, and the files' texts.

    ``kernels`` are by entry: ``path``, and lines of the file, from 0 on: ``formula`` and ``code``
    of the entry, and how many lines the docstring (``about``) has. ``files`` are texts by path.
    """
    kernels, files = {}, {}
    for kernel in sorted({node.op.kernel for node in tape.nodes}):
        told = asdict(source_of(kernel))
        files[told["path"]] = told.pop("text")
        kernels[kernel] = told
    return {"kernels": kernels, "files": files}


def numbered(tape: Tape) -> dict[Tensor, int]:
    """Return the number of each tensor, and of each part of one, behind its base."""
    found: dict[Tensor, int] = {}
    for node in tape.nodes:
        for tensor in node.tensors:
            if tensor is not None:
                found.setdefault(tensor.root, len(found))
                found.setdefault(tensor, len(found))
    return found


def _users(nodes: Iterable[Node]) -> tuple[dict[Tensor, list[int]], dict[Tensor, list[int]]]:
    """Return the numbers of the nodes that write each tensor, and of those that read it.

    What a node updates, or adds to always, it reads and writes.
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
    """Return what a forward node writes and reads that the backward reads, weights left out."""
    node = tape.nodes[i]
    if node.segment != "F":
        return []
    roots = dict.fromkeys(t.root for t in node.tensors if t is not None)
    own = (t for t in roots if t.role is Role.ACTIVATION)
    return [t for t in own if any(tape.nodes[r].segment == "B" for r in readers.get(t, ()))]


def _sections(tape: Tape) -> tuple[list[str], list[int]]:
    """Return the names of the sections ("": of no block), and the section of each node."""
    names: list[str] = []
    of_nodes: list[int] = []
    first_read: dict[Tensor, int] = {}  # the section in which a parameter is read first
    for node in tape.nodes:
        if node.segment in "FE":
            if not names or names[-1] != (node.block or ""):
                names.append(node.block or "")
            for tensor in node.inputs:
                if tensor is not None:
                    first_read.setdefault(tensor.root, len(names) - 1)
    at = len(names) - 1
    forward = _forward_sections(tape, names)
    for node in tape.nodes:
        if node.segment in "FE":
            of_nodes.append(next(forward))
        elif node.segment == "B":
            at = _back_to(names, at, node.block or "")
            of_nodes.append(at)
        else:
            weight = node.output.root
            of_nodes.append(first_read.get(weight, len(names) - 1))
    return names, of_nodes


def _forward_sections(tape: Tape, names: list[str]) -> Iterator[int]:
    at = 0
    for node in tape.nodes:
        if node.segment in "FE":
            at += names[at] != (node.block or "")
            yield at


def _back_to(names: list[str], at: int, name: str) -> int:
    """Return the section of this name that the way back comes to next, from section ``at``."""
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
            changes[first] -= nbytes  # it takes over the memory of a tensor that is read here last
            changes[first + 1] += nbytes
    live = list(accumulate(changes[:count]))
    ends = [places[t].offset + aligned(t.nbytes) for t in lives if t in places]
    peak = max(range(count), key=live.__getitem__, default=0)
    found: dict[str, Any] = {"live": live, "peak": peak}
    return found | ({"bytes": max(ends)} if ends else {})
