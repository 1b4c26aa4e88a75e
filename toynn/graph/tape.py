"""The tape: one training step, written down before it runs.

A Node is one kernel call, with the tensors that it writes, saves and reads. The nodes stand in the
order in which they run, in segments: F (forward), E (evaluation), B (backward) and U (update). Only
a run that stops at the loss needs E; in other runs B does its work. Nothing here computes; ops/
says what each kind of node means.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import groupby
from typing import Any

import toynn._kernels as kernels
from toynn._kernels.signature import Signature
from toynn.backends.protocol import Accumulate, Place
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.graph.described import described
from toynn.graph.reports import Shown
from toynn.graph.sizes import Solved, solve
from toynn.graph.tensor import Role, Tensor, ValidRows, place_of
from toynn.numerics import checks, dtypes
from toynn.numerics.checks import Check
from toynn.numerics.precision import ALL_PRECISIONS

__all__ = ["Node", "Op", "Role", "Tape", "Tensor", "ValidRows"]

_OF_A_TAPE = (Role.ACTIVATION, Role.INPUT)


#: What a printed tape says of each node; the shape is that of the first tensor that it writes.
COLUMNS = ("", "", "op", "writes; saves", "shape", "stored", "reads", "MFLOP", "kB")
WRITES, STORED, READS = map(COLUMNS.index, ("writes; saves", "stored", "reads"))
FIGURES = (0, 7, 8)  # of the columns
WIDTH = 120  # of its lines, if names need no more than 20 of it
MOST_STORED = 30  # more characters of a line where it says what is stored where


@dataclass(frozen=True)
class Op:
    """What a kind of node means. ops/ has one for each kernel entry.

    The kernel's signature (toynn/_kernels/signature.py) says which tensors, sizes and options a
    node has, which of them it writes, saves and reads, and which may be None.
    ``gradient(back, node, dy)`` records the backward nodes of ``node``; see autograd.py.
    ``recompute(node)`` returns a node that computes the output of ``node`` once more, cheaply, from
    what the backward of ``node`` reads anyway, or None: see checkpointing.py.
    ``adds``: its one output is the gradient of an activation, and the kernel adds to it when told
    to accumulate. All other outputs to which a kernel adds are gradients of weights.
    ``rows`` names a size and a tensor, "M x": the size grows with the tensor's rows. If not all
    rows are valid, the kernel is given a smaller size, and its outputs have as many valid rows.
    ``segments`` names a tensor that parts rows into segments: ``flops`` is then an upper bound,
    that of one segment. Both count all rows that the tensor has room for.
    ``name`` is what its output is called on a tape; "": as the module of the kernel.
    ``grouped``: a row of x[N C] may hold several rows of the kernel, as wide as w[C]: heads.
    """

    kernel: str  # module and entry of toynn._kernels: "rmsnorm.forward"
    flops: Callable[[Mapping[str, int]], int]  # from the sizes, and has_X of what may be None
    gradient: Callable[[Any, "Node", Tensor], None] | None = None
    updates: bool = False  # it belongs to segment U
    adds: bool = False
    nbytes: Callable[[Mapping[str, int]], int] | None = None  # default: each tensor once
    straight_through: bool = False  # its output's gradient is taken for its input's
    recompute: Callable[["Node"], "Node | None"] | None = None
    rows: str = ""
    segments: str = ""
    name: str = ""
    grouped: bool = False

    @cached_property
    def solved(self) -> dict[tuple[Any, ...], Solved]:
        """Sizes and options of nodes so far, by shapes and given values: layers are alike."""
        return {}

    @cached_property
    def signature(self) -> Signature:
        """The kernel's signature: its tensors, sizes and options."""
        return kernels.find(self.kernel).signature

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the outputs that are gradients of weights."""
        return () if self.adds else self.signature.adds

    def check_names(self, tensors: Mapping[str, Tensor | None], given: Iterable[str]) -> None:
        """Raise ConfigError for a tensor, size or option that is unknown, or needed and None."""
        signature = self.signature
        unknown = [name for name in tensors if name not in signature.names]
        unknown += [name for name in given if name not in signature.scalars]
        needed = dict.fromkeys((*signature.inputs, *tensors))
        missing = [n for n in needed if n not in signature.nullable and tensors.get(n) is None]
        if unknown or missing:
            why = f"has no {', '.join(unknown)}" if unknown else f"needs {', '.join(missing)}"
            raise ConfigError(f"recording {self.kernel}: {why}; its signature is {signature}")

    def check_types(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Raise ShapeError for a tensor that is read and has another type than the kernel reads."""
        for name in self.signature.inputs:
            tensor, kind = tensors.get(name), self.signature[name].kind
            needed = "i32" if kind == "i32" else "f32"
            if tensor is None or tensor.dtype == needed:
                continue
            if kind != "type" or tensor.dtype not in dtypes.QUANTIZED:
                called = tensor.root.name
                raise ShapeError(f"{self.kernel}: {called} must be {needed}; got {tensor.dtype}")


@dataclass(eq=False)
class Node:
    """One kernel call. Tensors in the order of the op's names; None is a null."""

    op: Op
    segment: str
    outputs: tuple[Tensor | None, ...]
    saved: tuple[Tensor | None, ...]
    inputs: tuple[Tensor | None, ...]
    sizes: dict[str, int]
    options: dict[str, float]
    accumulate: Accumulate
    block: str | None = None  # of the model, to which it belongs

    @property
    def named(self) -> dict[str, Tensor | None]:
        """All tensors by the names that the op has for them: outputs, saved, inputs."""
        return dict(zip(self.op.signature.tensors, self.tensors, strict=True))

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor of this name, which must not be a null."""
        tensor = self.named[name]
        assert tensor is not None, f"{self.op.kernel}: {name} is a null"
        return tensor

    @property
    def output(self) -> Tensor:
        """The first tensor that it writes."""
        tensor = self.outputs[0]
        assert tensor is not None, f"{self.op.kernel}: writes no {self.op.signature.outputs[0]}"
        return tensor

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiply-add counts two."""
        return self.op.flops(self._counted)

    @property
    def _counted(self) -> dict[str, int]:
        """Sizes, and has_X of each tensor that may be missing."""
        signature = self.op.signature
        return {**self.sizes, **(signature.there(self.named) if signature.nullable else {})}

    @property
    def at_most(self) -> bool:
        """Whether a run may take fewer flops, as rows come in segments that are fed."""
        return bool(self.op.segments) and self.named[self.op.segments] is not None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All tensors: outputs, saved, inputs."""
        return self.outputs + self.saved + self.inputs

    @property
    def leader(self) -> Tensor | None:
        """The tensor whose valid rows a run computes; None: all rows."""
        name = self.op.rows.partition(" ")[2]
        tensor = self.named[name] if name else None
        return None if tensor is None or tensor.root.valid is None else tensor

    @property
    def touched(self) -> tuple[Tensor, ...]:
        """All tensors that are not null, and the count of the valid rows."""
        valid = self.leader.valid_rows if self.leader is not None else None
        return tuple(t for t in self.tensors if t is not None) + ((valid.count,) if valid else ())

    @property
    def nbytes(self) -> int:
        """Bytes moved if every tensor is read or written once, or as the op says."""
        if self.op.nbytes is not None:
            return self.op.nbytes(self._counted)
        touched: dict[Tensor, int] = {}  # of each root, by its parts; not more than there is
        for tensor in filter(None, self.tensors):
            nbytes = touched.get(tensor.root, 0) + tensor.nbytes
            touched[tensor.root] = min(nbytes, tensor.root.nbytes)
        return sum(touched.values())


@dataclass(eq=False, repr=False)
class Tape(Shown):
    """Nodes in order, with what the session must know of them."""

    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    checks: dict[Tensor, list[Check]] = field(default_factory=dict)  # of uploads
    kept: set[Tensor] = field(default_factory=set)  # outputs: kept until the next run
    loss: Tensor | None = None
    gradients: dict[Tensor, Tensor] | None = None  # of each tensor, once backward is recorded
    written: set[Tensor] = field(default_factory=set)  # by the nodes so far
    segment: str = "F"
    current_block: str | None = None  # to which the next node will belong
    places: Mapping[Tensor, Place] = field(
        default_factory=dict
    )  # of all roots, once it is compiled
    #: Its session's: what keeps other threads out of a call.
    exclusively: Callable[[str], AbstractContextManager[object]] = nullcontext

    @property
    def sealed(self) -> bool:
        """Whether the tape is compiled: nothing more can be recorded."""
        return bool(self.places)

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """Leave the tape as it was if what is recorded here ends in an error."""
        before = {
            name: copy(value) if isinstance(value, list | dict | set) else value
            for name, value in vars(self).items()
        }
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

    def input(
        self, name: str, shape: Sequence[int], dtype: str = "f32", count: Tensor | None = None
    ) -> Tensor:
        """Add an input; see Session.input. Raises ConfigError and ShapeError."""
        if dtype not in ("f32", "i32"):
            raise ConfigError(f"input {name}: dtype must be f32 or i32; got {dtype!r}")
        if name in self.inputs:
            raise ConfigError(f"input {name}: this tape has one already")
        tensor = Tensor(name, checks.dimensions(name, shape), Role.INPUT, dtype)
        if count is not None:
            if count.shape or count.dtype != "i32" or not tensor.shape:
                raise ShapeError(f"input {name}: needs rows, and a count () of i32; got {count!r}")
            self.checks.setdefault(count, []).append(checks.count_within(tensor.shape[0]))
            tensor.valid = ValidRows(count)
        self.inputs[name] = tensor
        return tensor

    def record(
        self,
        op: Op,
        tensors: Mapping[str, Tensor | None],
        *,
        like: Node | None = None,
        accumulate: Accumulate = Accumulate.NEVER,
        **given: Any,
    ) -> Node:
        """Append a node to the current segment; return it.

        ``tensors`` have the names of the op's signature. Inputs must be given, unless they may be
        None. Outputs may be left out: they are made, or None if the signature allows it. ``given``
        are options, and sizes that no tensor shows; all other sizes follow from the tensors.
        ``like``: take sizes and options from this node, if both have them.

        Raises ConfigError if a name is missing or unknown, or a tensor must not be None;
        LifecycleError if nothing more can be recorded; ShapeError for tensors that the op does not
        take.
        """
        with self.exclusively(f"recording {op.kernel}"):
            if self.sealed:
                raise LifecycleError(f"recording {op.kernel} after realize(): the tape is compiled")
            if self.segment == "U" and not op.updates:
                raise LifecycleError(f"recording {op.kernel} after build_backward()")
            signature = op.signature
            if like is not None:
                alike = (*like.sizes.items(), *like.options.items())
                given = {name: value for name, value in alike if name in signature.scalars} | given
            shapes = [(name, t and (t.shape, t.dtype)) for name, t in tensors.items()]
            key = (*shapes, *given.items())
            solved = op.solved.get(key)
            if solved is None:  # else the names are right, too
                op.check_names(tensors, given)
            for name in signature.inputs:
                tensor = tensors.get(name)
                if tensor is not None:
                    self._check_input(op, tensor)
            if solved is None:
                op.check_types(tensors)
                solved = solve(op.kernel, signature, tensors, given, grouped=op.grouped)
                op.solved[key] = solved
            if solved.shapes:
                tensors = {**tensors, **self._make(op, solved.shapes)}
            outputs, saved, inputs = (
                tuple(map(tensors.get, names))
                for names in (signature.outputs, signature.saved, signature.inputs)
            )
            node = Node(
                op,
                self.segment,
                outputs,
                saved,
                inputs,
                dict(solved.sizes),
                dict(solved.options),
                accumulate,
                self.current_block,
            )
            self._pass_on_rows(node)
            self.nodes.append(node)
            self.written.update(t.root for t in outputs + saved if t is not None)
            return node

    def _make(self, op: Op, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return new tensors of these shapes: a name of one letter says less than the op's."""
        signature, label = op.signature, op.name or op.kernel.partition(".")[0]
        first = signature.outputs[0]
        return {
            name: self.new(
                label if name == first and len(name) == 1 else name,
                shape,
                "i32" if signature[name].kind == "i32" else "f32",
            )
            for name, shape in shapes.items()
        }

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """Mark the nodes recorded within as a block: with checkpointing, it is computed twice.

        What goes in and comes out should be little, and what happens within much: a whole block of
        a transformer.

        Raises ConfigError for a name that was there, and within another block.
        """
        if self.current_block or any(node.block == name for node in self.nodes):
            raise ConfigError(
                f"block {name}: this tape has a block {self.current_block or name} already; blocks "
                "have different names and do not contain each other"
            )
        self.current_block = name
        try:
            yield
        finally:
            self.current_block = None

    def _check_input(self, op: Op, tensor: Tensor) -> None:
        """Raise ConfigError for what another tape computes or is given."""
        root = tensor.root
        if root in self.written or root.role not in _OF_A_TAPE:
            return
        if root not in self.inputs.values():
            raise ConfigError(f"{op.kernel}: {root.name} was recorded on another tape")

    def _pass_on_rows(self, node: Node) -> None:
        """Give what a node writes as many valid rows as what it reads."""
        leader = node.leader
        if leader is None:
            for tensor in node.inputs:
                if tensor is not None and tensor.root.valid is not None and not node.op.rows:
                    raise ConfigError(
                        f"recording {node.op.kernel}: it computes all rows, but not all "
                        f"of {tensor.root.name} are valid: {tensor.root.valid.count.name} says how "
                        "many"
                    )
            return
        for name in node.op.signature.outputs + node.op.signature.saved:
            tensor = node.named[name]
            if tensor is None or tensor.base is not None or name in node.op.weights:
                continue
            if tensor.valid is None and tensor.shape[:1] == leader.shape[:1]:
                tensor.valid = leader.valid_rows

    def supersede(self, nodes: Sequence[Node]) -> bool:
        """Move nodes to segment E, the last of which computes the loss; say whether that was done.

        Not where the loss is not the tape's, or a node of F reads it. If it was, segment B must
        compute the loss too.
        """
        (loss,) = nodes[-1].outputs
        if loss is not self.loss or any(
            loss in node.inputs for node in self.nodes if node.segment == "F"
        ):
            return False
        for node in nodes:
            node.segment = "E"
        return True

    def new(
        self, name: str, shape: tuple[int, ...], dtype: str = "f32", valid: ValidRows | None = None
    ) -> Tensor:
        """Return a new activation, with a number in its name that tells it from its like."""
        return Tensor(f"{name}.{len(self.nodes)}", shape, Role.ACTIVATION, dtype, valid=valid)

    @property
    def roots(self) -> set[Tensor]:
        """All tensors that the nodes so far write, save and read."""
        return {tensor.root for node in self.nodes for tensor in node.touched}

    def lives(self) -> dict[Tensor, tuple[int, int]]:
        """Return the first and the last node that touches each tensor that the tape owns.

        An input is uploaded before the first node (-1). Inputs and kept outputs stay until the next
        run: their last node is the number of nodes.
        """
        found: dict[Tensor, tuple[int, int]] = {}
        for i, node in enumerate(self.nodes):
            for touched in node.touched:
                if touched.root.role in _OF_A_TAPE:
                    found[touched.root] = found.get(touched.root, (i, i))[0], i
        forever = len(self.nodes)
        found.update((tensor, (-1, forever)) for tensor in self.inputs.values())
        found.update((t, (found[t][0], forever)) for t in self.kept & found.keys())
        return found

    def segments(self, to: str) -> str:
        """Return which segments a run to ``to`` consists of: loss, grads or update.

        "apply" is an update by gradients that are there already.
        """
        if self.gradients is None:
            return "" if to == "apply" else "FE"
        return {"loss": "FE", "grads": "FB", "update": "FBU", "apply": "U"}[to]

    # -- Showing the step ----------------------------------------------------------------------

    def precisions(self) -> set[str]:
        """Return the precisions of its products."""
        sizes = (node.sizes for node in self.nodes)
        return {ALL_PRECISIONS[each["precision"]] for each in sizes if "precision" in each}

    def __repr__(self) -> str:
        segments = Counter(node.segment for node in self.nodes)
        counts = ", ".join(f"{name} {segments[name]}" for name in "FEBU" if segments[name])
        return f"Tape({len(self.nodes)} nodes: {counts or 'empty'})"

    def __str__(self) -> str:
        given = self.inputs.values() if self.places else ()
        rows = [
            COLUMNS,
            *(_input_cells(tensor, self.places) for tensor in given),
            *(_cells(i, node, self.places) for i, node in enumerate(self.nodes)),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths[STORED] = min(widths[STORED], MOST_STORED) if self.places else 0
        # Names share what the other columns leave of a line.
        others = sum(widths) - widths[WRITES] - widths[STORED] - widths[READS]
        room = WIDTH - others - 2 * (len(COLUMNS) - 2)
        half = max(room // 2, 20)
        widths[WRITES] = min(widths[WRITES], max(half, room - widths[READS]))
        widths[READS] = min(widths[READS], max(half, room - widths[WRITES]))
        return "\n".join(_line(row, widths) for row in rows)

    def _repr_html_(self) -> str:
        """Return the printed tape, folded by section: what a notebook shows."""
        lines, told = str(self).splitlines(), described(self, self.places)
        first = len(lines) - len(self.nodes)
        head = "\n".join(lines[:first])
        parts = [f'<pre style="line-height: 1.2">{escape(head)}</pre>']
        numbered = enumerate(told["nodes"])
        for key, group in groupby(numbered, lambda one: (one[1]["segment"], one[1]["section"])):
            nodes = list(group)
            name = " ".join(filter(None, (key[0], told["sections"][key[1]])))
            mflop = sum(node["flops"] for _, node in nodes) / 1e6
            body = "\n".join(lines[first + i] for i, _ in nodes)
            parts.append(
                f"<details><summary>{escape(name)}: {len(nodes)} nodes, {_figure(mflop, 3)} MFLOP"
                f'</summary><pre style="line-height: 1.2">{escape(body)}</pre></details>'
            )
        return "".join(parts)

    def to_json(self) -> str:
        """Return the step as JSON: nodes in order, and their tensors; see toynn/graph/described.py.

        Of a compiled tape with the place of each tensor: a buffer, and an offset in bytes.
        """
        return json.dumps(described(self, self.places))


def _called(node: Node) -> str:
    """Name a kernel, with the precision of a product that may be less exact than float32."""
    exactness = ALL_PRECISIONS[node.sizes.get("precision", 0)]
    return node.op.kernel if exactness == "highest" else f"{node.op.kernel} ({exactness})"


def _cells(number: int, node: Node, places: Mapping[Tensor, Place]) -> tuple[str, ...]:
    """Return what the columns of a printed tape say of a node."""
    outputs, saved = ([t for t in part if t is not None] for part in (node.outputs, node.saved))
    stored = _stored([*outputs, *saved], places) if places else []
    written, kept = (", ".join(part) for part in (stored[: len(outputs)], stored[len(outputs) :]))
    names = _names(saved)
    return (
        str(number),
        node.segment,
        _called(node),
        _names(outputs) + (names and f"; {names}"),
        str(outputs[0].shape) if outputs else "",
        written + (kept and f"; {kept}"),
        _names(node.inputs),
        "<" * node.at_most + _figure(node.flops / 1e6, 3),
        _figure(node.nbytes / 1e3, 1),
    )


def _input_cells(tensor: Tensor, places: Mapping[Tensor, Place]) -> tuple[str, ...]:
    """Return what the columns say of an input, whose memory no other tensor shares."""
    (stored,) = _stored([tensor], places)
    return "", "", "input", tensor.name, str(tensor.shape), stored, "", "", ""


def _stored(tensors: Sequence[Tensor], places: Mapping[Tensor, Place]) -> list[str]:
    """Say where tensors begin: "arena+128"; only "+192" in the buffer of the one in front."""
    found = [place_of(tensor, places) for tensor in tensors]
    before = ["", *(place.buffer for place in found)]
    return [
        f"{'' if place.buffer == last else place.buffer}+{place.offset}"
        for place, last in zip(found, before, strict=False)
    ]


def _figure(number: float, digits: int) -> str:
    return f"{number:.{digits if number < 100 else 0}f}"


def _line(row: Iterable[str], widths: Iterable[int]) -> str:
    """Fill the cells of a row up to the widths of their columns; what is longer ends in dots.

    There is no column of what is stored where if it has no width.
    """
    cells = []
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        if column == STORED and not width:
            continue
        cut = cell if len(cell) <= width else f"{cell[: width - 3]}..."
        cells.append(cut.rjust(width) if column in FIGURES else cut.ljust(width))
    return "  ".join(cells).rstrip()


def _names(tensors: Iterable[Tensor | None]) -> str:
    """Names of tensors; of a name that begins as the one in front of it, the rest."""
    shown: list[str] = []
    stem = None
    for name in (tensor.name for tensor in tensors if tensor is not None):
        rest = name.removeprefix(stem or "")
        if stem is not None and rest.startswith(("+", ".")):
            shown.append(rest)
        else:
            shown.append(name)
            stem = name
    return ", ".join(shown)
