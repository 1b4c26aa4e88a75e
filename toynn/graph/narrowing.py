"""Store what the forward pass keeps for the backward pass in bfloat16: half the bytes.

The forward pass computes with float32 numbers. After the last node of it that reads a tensor, the
tensor is narrowed to bfloat16. Before the backward nodes of a block read it, it is widened again.
So the loss has the same bits. Gradients are those of rounded activations: docs/memory.md has the
rule and the bounds.
Source: Chen et al. 2021, ActNN, arXiv:2104.14129, stores activations in 2 bits; here they have 16.
"""

from toynn.errors import ConfigError
from toynn.graph.checkpointing import reading
from toynn.graph.tape import Node, Op, Role, Tape, Tensor


def narrow_kept(tape: Tape, narrow: Op, widen: Op) -> None:
    """Narrow the activations that blocks keep on a tape whose backward pass is recorded.

    These are the float32 matrices (N, C) that a forward node of a block (``Tape.block``) reads, or
    writes as its output, and that the backward pass reads. What a node saves, such as a statistic
    of each row, and rounded weights stay as they are.

    Raises ConfigError if a node is a function of NumPy.
    """
    for node in tape.nodes:
        if node.op.function:
            raise ConfigError(f"{node.op.function.name} needs activations in float32, not bfloat16")
    nodes, tape.nodes = tape.nodes, []
    kept = _kept(nodes)
    last = {root: i for i, n in enumerate(nodes) if n.phase in "FE" for root in _roots(n, kept)}
    narrowed: dict[Tensor, Tensor] = {}
    wide: dict[tuple[str | None, Tensor], Tensor] = {}  # by block
    for i, node in enumerate(nodes):
        tape.phase, tape.current_block = node.phase.replace("E", "F"), node.block
        roots = _roots(node, kept)
        if node.phase == "B":
            for x in roots:
                if (node.block, x) not in wide:
                    y = wide[node.block, x] = tape.new(f"{x.name}~", x.shape, valid=x.valid)
                    tape.record(widen, {"y": y, "z": narrowed[x]})
            node = reading(node, {x: wide[node.block, x] for x in roots})
        tape.nodes.append(node)
        for x in roots:
            if last[x] == i:
                z = narrowed[x] = tape.new(f"bf16({x.name})", x.shape, "bf16", x.valid)
                tape.record(narrow, {"z": z, "x": x})
    tape.phase, tape.current_block = "B", None


def _kept(nodes: list[Node]) -> set[Tensor]:
    """Return the activations of blocks that the backward pass reads."""
    written: set[Tensor] = set()  # by the forward pass
    of_blocks: set[Tensor] = set()
    read: set[Tensor] = set()  # by the backward pass
    for node in nodes:
        roots = [t.root for t in node.inputs if t is not None]
        if node.phase == "B":
            read.update(roots)
            continue
        if not node.op.straight_through:
            written.update(t.root for t in node.outputs if t is not None and _is_matrix(t.root))
        if node.block is not None:
            of_blocks.update(roots, (t.root for t in node.outputs if t is not None))
    return written & of_blocks & read


def _is_matrix(x: Tensor) -> bool:
    return x.role is Role.ACTIVATION and x.dtype == "f32" and len(x.shape) == 2


def _roots(node: Node, kept: set[Tensor]) -> list[Tensor]:
    """Return the tensors among ``kept`` that a node touches, each once, in its order."""
    return [root for root in node.roots if root in kept]
