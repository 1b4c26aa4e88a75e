"""Recompute what the backward pass reads, instead of keeping it.

Activation checkpointing runs a block's forward nodes once more, right before its backward. So the
forward pass keeps only the input of a block, and the planner can reuse the memory of the rest. The
same kernels recompute the rest from the same numbers, so the bits are the same.
It may keep the outputs of quadratic ops, too: over long rows attention takes most of the time.
Source: Chen et al. 2016, arXiv:1604.06174.

Even without checkpointing, a product's backward pass recomputes an input that is the output of a
norm or an activation, if that is cheap (CHEAP), or for any product if asked. Source: Korthikanti et
al. 2022, section 5, arXiv:2205.05198, on selective recomputation.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from toynn.graph.tape import Node, Tensor

#: Recomputing a tensor is cheap if its reader takes more flops than this for each of its elements:
#: a product with more than 512 outputs does. A GELU then takes less than 1% of a step.
CHEAP = 1024


def repeated(
    nodes: Sequence[Node], kept: Collection[Node] = ()
) -> tuple[list[Node], dict[Tensor, Tensor]]:
    """Return copies of nodes for phase B, and the original of each tensor that they write.

    A copy's tensor has the name of the original, with a prime. What kept nodes write has no copy.
    """
    fresh: dict[Tensor, Tensor] = {}

    def copied(tensors: Iterable[Tensor | None]) -> tuple[Tensor | None, ...]:
        return tuple(_part_of(fresh, tensor) for tensor in tensors)

    copies = []
    for node in nodes:
        for root in _roots(node.outputs + node.saved) if node not in kept else ():
            fresh.setdefault(root, replace(root, name=f"{root.name}'"))
        copies.append(
            replace(
                node,
                phase="B",
                outputs=copied(node.outputs),
                saved=copied(node.saved),
                inputs=copied(node.inputs),
            )
        )
    return copies, {copy: tensor for tensor, copy in fresh.items()}


def cheap(makers: Iterable[Node], reader: Node, least: int) -> list[Node]:
    """Return nodes that recompute the makers' outputs, where that is cheap next to the reader.

    It is where the reader has more than ``least`` flops for each number: CHEAP, or 0 for any.
    """
    recomputed = [
        maker.op.recompute(maker)
        for maker in makers
        if maker.op.recompute and reader.flops > least * max(t.size for t in maker.outputs if t)
    ]
    return [node for node in recomputed if node is not None]


def reading(node: Node, fresh: Mapping[Tensor, Tensor]) -> Node:
    """Return the node with copies as inputs; the node itself if no input has a copy."""
    if fresh.keys().isdisjoint(node.roots):
        return node
    return replace(node, inputs=tuple(_part_of(fresh, tensor) for tensor in node.inputs))


def _part_of(fresh: Mapping[Tensor, Tensor], tensor: Tensor | None) -> Tensor | None:
    """Return the fresh copy of a tensor or part of one; the tensor itself if it has none."""
    if tensor is None or tensor.root not in fresh:
        return tensor
    root = fresh[tensor.root]
    if tensor.base is None:
        return root
    name = root.name + tensor.name.removeprefix(tensor.base.name)
    return replace(tensor, name=name, base=root)


def needed_by(readers: Iterable[Node], copies: Sequence[Node]) -> list[Node]:
    """Return the copies whose results the readers read, directly or through another copy."""
    read = {root for node in readers for root in node.roots}
    needed: list[Node] = []
    for copy in reversed(copies):
        if not read.isdisjoint(_roots(copy.outputs + copy.saved)):
            needed.append(copy)
            read |= _roots(copy.inputs)
    return needed[::-1]


def _roots(tensors: Iterable[Tensor | None]) -> set[Tensor]:
    return {tensor.root for tensor in tensors if tensor is not None}
