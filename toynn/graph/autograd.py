"""Reverse-mode differentiation of a tape: from the loss back, each node records its backward.

Gradient rules are in ops/, next to the ops. This module does what all ops share. It finds the
tensors that need a gradient, decides where each gradient is stored, and adds the gradients of
several uses. Blocks of nodes (``Tape.block``) and cheap outputs may be recomputed instead of kept:
see checkpointing.py.
Source: Griewank & Walther, Evaluating Derivatives, 2nd ed. 2008, chapter 3.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from toynn.backends.protocol import Accumulate
from toynn.errors import ConfigError
from toynn.graph import checkpointing
from toynn.graph.tape import Node, Op, Role, Tape, Tensor


class Backward:
    """One walk from the loss to the parameters.

    ``gradient_of`` gives the session's gradient tensor of a parameter; ``add`` and ``accumulate``
    are the ops y = a + b and g (+)= x. With ``recompute`` the nodes of each block are recomputed,
    with ``recompute_cheap`` norms and activations for all their readers.
    """

    def __init__(
        self,
        tape: Tape,
        gradient_of: Callable[[Tensor], Tensor],
        add: Op,
        accumulate: Op,
        recompute: bool = False,
        keep_quadratic: bool = False,
        recompute_cheap: bool = False,
    ) -> None:
        self.tape = tape
        self._gradient_of = gradient_of
        self._add = add
        self._accumulate = accumulate
        self._recompute = recompute
        self._keep_quadratic = keep_quadratic
        self._cheap = 0 if recompute_cheap else checkpointing.CHEAP
        self._active = _reached(tape)
        self._behind = {n.outputs[0]: n.inputs[0] for n in tape.nodes if n.op.straight_through}
        self._originals: dict[Tensor, Tensor] = {}  # by recomputed tensor
        self._copies: dict[Tensor, Tensor] = {}  # of cheap tensors, for all their readers
        self._parts: dict[Tensor, list[Tensor]] = {}
        self._written: dict[Tensor, None] = {}  # in order, so that steps are alike in every process
        self._own: dict[Tensor, Tensor] = {}  # by tensor: a gradient to add to

    def run(self, loss: Tensor, seed: Tensor) -> dict[Tensor, Tensor]:
        """Record phase B and return the gradient of each tensor that has one.

        Raises ConfigError if the loss does not depend on a tensor whose gradient is asked for, and
        for functions in recomputed blocks that are not pure.
        """
        forward = list(self.tape.nodes)
        self.tape.phase = "B"
        self._parts[loss] = [seed.view(loss.shape)]
        makers: dict[Tensor | None, Node] = {
            node.output.whole: node for node in forward if node.outputs[0]
        }
        for block, nodes in groupby(reversed(forward), lambda node: node.block):
            if block is not None and self._recompute:
                self._again(list(nodes)[::-1])
            else:
                for node in nodes:
                    self._sparing(node, makers)
        for tensor, gradient in self.tape.wanted.items():
            if tensor not in self._parts:
                raise ConfigError(f"gradient_of: the loss does not depend on {tensor.name}")
            self.tape.record(self._accumulate, {"g": gradient, "x": self._sum(tensor)})
            self._parts[tensor] = [gradient]
        gradients = {tensor: parts[0] for tensor, parts in self._parts.items()}
        return gradients | {tensor: self._gradient_of(tensor) for tensor in self._written}

    def _back(self, nodes: Iterable[tuple[Node, Node]]) -> None:
        """Record the backward of nodes; each comes with the node whose tensors it reads."""
        try:
            for node, read in nodes:
                if node.outputs[0] is None or not node.op.gradient:
                    continue
                output = node.output.whole
                if output in self._parts and output in self._active:
                    self.tape.current_block = node.block  # of the backward, too
                    node.op.gradient(self, read, self._sum(output).view(node.output.shape))
        finally:
            self.tape.current_block = None

    def _again(self, block: Sequence[Node]) -> None:
        """Record a block's backward, after recomputing what it reads of the block's forward."""
        for node in block:
            if node.op.function and not node.op.function.pure:
                raise ConfigError(
                    f"{node.op.function.name} is in a block that is recomputed: record it with "
                    "pure=True, if the same arrays always give the same result"
                )
        kept = [node for node in block if node.op.quadratic and self._keep_quadratic]
        read, originals = checkpointing.repeated(block, kept)
        copies = [copy for node, copy in zip(block, read, strict=True) if node not in kept]
        self._back_from(copies, originals, zip(reversed(block), reversed(read), strict=True))

    def _sparing(self, node: Node, makers: Mapping[Tensor | None, Node]) -> None:
        """Record a node's backward, after recomputing inputs that are too cheap to keep."""
        if node.op.gradient is None:
            return
        roots = dict.fromkeys(t.root for t in node.inputs if t is not None and self.wants(t))
        nodes = [makers[t] for t in roots if t in makers and t not in self._copies]
        nodes = checkpointing.cheap(nodes, node, self._cheap)
        fresh = {root: self._copies[root] for root in node.roots if root in self._copies}
        if not nodes:
            self._back([(node, checkpointing.reading(node, fresh))])
            return
        copies, originals = checkpointing.repeated(nodes)
        fresh |= {tensor: copy for copy, tensor in originals.items()}
        read = checkpointing.reading(node, fresh)
        for copy in self._back_from(copies, originals, [(node, read)]):
            self._copies[originals[copy.output.root]] = copy.output.root

    def _back_from(
        self,
        copies: Sequence[Node],
        originals: Mapping[Tensor, Tensor],
        nodes: Iterable[tuple[Node, Node]],
    ) -> list[Node]:
        """Record the backward of nodes, after the copies that it needs; return these copies."""
        self._originals.update(originals)
        self.tape.written.update(originals)
        start = len(self.tape.nodes)
        self._back(nodes)
        needed = checkpointing.needed_by(self.tape.nodes[start:], copies)
        self.tape.nodes[start:start] = needed
        return needed

    def wants(self, tensor: Tensor | None) -> bool:
        """Whether a gradient must flow to this tensor: it is a parameter or depends on one."""
        if tensor is None:
            return False
        root = tensor.base or tensor
        return self._originals.get(root, root) in self._active

    def new(self, tensor: Tensor) -> Tensor:
        """Return an activation to hold a gradient of ``tensor``."""
        return self.tape.new(f"d_{tensor.name}", tensor.shape, valid=tensor.valid)

    def contribute(self, tensor: Tensor, gradient: Tensor) -> None:
        """Add ``gradient`` to the gradient of ``tensor``."""
        tensor = self._meant(tensor)
        if not self.wants(tensor):
            return
        gradient = gradient.view(tensor.shape)
        if tensor.role is not Role.PARAMETER:
            self._parts.setdefault(tensor, []).append(gradient)
            return
        self.tape.record(
            self._accumulate,
            {"g": self._gradient_of(tensor), "x": gradient},
            accumulate=self._policy([tensor]),
        )
        self._written[tensor] = None

    def emit(
        self,
        op: Op,
        wrt: Mapping[str, Tensor | None],
        inputs: Mapping[str, Tensor | None],
        node: Node | None = None,
        **scalars: Any,
    ) -> None:
        """Record a backward node; ``wrt`` maps each output to the tensor whose gradient it is.

        Sizes and options are those of ``node``, or ``scalars``. If no gradient is wanted, no node
        is recorded. A kernel with one gradient adds it to what an earlier node wrote for the same
        tensor, if it can. Gradients of parameters go directly to the session's buffers if the
        kernel can accumulate, else through an activation. The kernel gets a null pointer for the
        gradient of a frozen weight. Of a tensor in another shape, it writes the gradient in that.
        """
        shapes = {name: tensor.shape for name, tensor in wrt.items() if tensor is not None}
        wrt = {name: tensor and self._meant(tensor) for name, tensor in wrt.items()}
        wanted = {name for name, tensor in wrt.items() if self.wants(tensor)}
        if not wanted:
            return
        if op.adds:
            (name, tensor), *_ = wrt.items()
            if tensor in self._own:
                tensors = {name: self._own[tensor].view(shapes[name]), **inputs}
                self.tape.record(op, tensors, like=node, accumulate=Accumulate.ALWAYS, **scalars)
                return
        weights = op.weights
        of_weights = [wrt[name] for name in weights]
        parameters = [t for t in of_weights if t is not None and t.role is Role.PARAMETER]
        first = sum(t not in self._written for t in parameters)
        # One flag serves all outputs. So all must be different parameters, and either all or none
        # were written before.
        direct = len(set(parameters)) == len(parameters) == len(
            wanted.intersection(weights)
        ) and first in (0, len(parameters))
        outputs: dict[str, Tensor | None] = {}
        detours: list[tuple[Tensor, Tensor]] = []
        for name, tensor in wrt.items():
            weight = name in weights
            if tensor is None or (weight and name not in wanted):
                outputs[name] = None
            elif weight and direct and tensor.role is Role.PARAMETER:
                outputs[name] = self._gradient_of(tensor).view(shapes[name])
            else:
                gradient = self.new(tensor)
                outputs[name] = gradient.view(shapes[name])
                detours.append((tensor, gradient))
        policy = self._policy(parameters) if direct else Accumulate.NEVER
        self.tape.record(op, {**outputs, **inputs}, like=node, accumulate=policy, **scalars)
        if direct:
            self._written |= dict.fromkeys(parameters)
        for tensor, gradient in detours:
            self.contribute(tensor, gradient)
            if op.adds and tensor.role is not Role.PARAMETER:
                self._own[tensor] = gradient

    def _meant(self, tensor: Tensor) -> Tensor:
        """Return the tensor whose gradient is meant when a rule names this one."""
        tensor = self._originals.get(tensor.whole, tensor.whole)
        return self._behind.get(tensor) or tensor

    def _policy(self, parameters: Sequence[Tensor]) -> Accumulate:
        if not parameters:
            return Accumulate.NEVER
        return Accumulate.ALWAYS if parameters[0] in self._written else Accumulate.MICRO_BATCH

    def _sum(self, tensor: Tensor) -> Tensor:
        """Add the parts of a tensor's gradient into one tensor."""
        parts = self._parts[tensor]
        total = parts[0]
        for part in parts[1:]:
            out = self.new(tensor)
            self.tape.record(self._add, {"y": out, "a": total, "b": part})
            total = out
        self._parts[tensor] = [total]
        return total


def _reached(tape: Tape) -> set[Tensor]:
    """Return the parameters that nodes read, ``tape.wanted``, and all that is computed of them."""
    active: set[Tensor] = set(tape.wanted)
    for node in tape.nodes:
        roots = [t.root for t in node.inputs if t is not None]
        active.update(t for t in roots if t.role is Role.PARAMETER)
        if any(t in active for t in roots):
            active.update(t.root for t in node.outputs if t is not None)
    return active
