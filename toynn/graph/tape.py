"""The tape: one training step, recorded before it runs.

A Node is one kernel call, with the tensors that it writes, saves and reads. Nodes are in the order
in which they run, in phases: F (forward), E (evaluation), B (backward) and U (update). Only a run
that stops at the loss needs E; in other runs B computes the same. Nothing here computes; ops/
defines what each kind of node means.
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
from toynn._kernels.base.signature import Signature
from toynn.backends.host import HostFunction
from toynn.backends.protocol import Accumulate, Place
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.graph.described import described
from toynn.graph.reports import Shown
from toynn.graph.sizes import Solved, aliases, solve
from toynn.graph.tensor import Role, Tensor, ValidRows, place_of
from toynn.numerics import checks, dtypes
from toynn.numerics.checks import Check
from toynn.numerics.precision import NUMBERED

__all__ = ["Node", "Op", "Role", "Tape", "Tensor", "ValidRows"]

_OF_A_TAPE = (Role.ACTIVATION, Role.INPUT)
#: The dtype of a tensor by its kind in a signature; others are f32, or quantized.
_DTYPES = {"i32": "i32", "u16": "bf16"}


#: The columns of a printed tape; the shape is that of the first written tensor.
COLUMNS = ("", "", "op", "writes; saves", "shape", "stored", "reads", "MFLOP", "kB")
WRITES, STORED, READS = map(COLUMNS.index, ("writes; saves", "stored", "reads"))
FIGURES = (0, 7, 8)  # columns of numbers
WIDTH = 120  # of a line, if names fit into 20 characters
MOST_STORED = 30  # the most characters of the column of places


@dataclass(frozen=True)
class Op:
    """The meaning of a kind of node. ops/ has one for each kernel entry.

    The kernel's signature (_kernels/base/signature.py) lists a node's tensors, sizes and options.
    It says which tensors the node writes, saves and reads, and which may be None.

    Attributes
    ----------
    gradient
        ``gradient(back, node, dy)`` records the backward nodes of ``node``; see autograd.py.
    adds
        Set if the kernel's one output is the gradient of an activation, to which it adds when told
        to accumulate. In other ops, outputs that the kernel adds to are gradients of weights.
    recompute
        ``recompute(node)`` returns a node that cheaply recomputes the output of ``node`` from what
        its backward reads anyway, or None: see checkpointing.py.
    rows
        A size and a tensor, "M x": the size grows with the tensor's rows. If not all rows are
        valid, the kernel gets a smaller size, and its outputs have as many valid rows.
    segments
        A tensor that splits rows into segments: ``flops`` is then an upper bound, for one segment.
    name
        The name of its output on a tape; "": the kernel's module.
    function
        A HostFunction that is called in place of a kernel: the program is cut there.
    grouped
        A row of x[N C] may hold several rows of the kernel, as wide as w[C]: heads.
    quadratic
        Whether its time grows with the square of the rows: checkpointing may keep its output.
    """

    kernel: str  # module and entry of toynn._kernels: "rmsnorm.forward"
    flops: Callable[[Mapping[str, int]], int]  # from sizes, and has_X of tensors that may be None
    gradient: Callable[[Any, "Node", Tensor], None] | None = None
    updates: bool = False  # whether it belongs to phase U
    adds: bool = False
    nbytes: Callable[[Mapping[str, int]], int] | None = None  # default: each tensor once
    straight_through: bool = False  # the gradient of its output serves as that of its input
    recompute: Callable[["Node"], "Node | None"] | None = None
    rows: str = ""
    segments: str = ""
    name: str = ""
    grouped: bool = False
    quadratic: bool = False
    function: HostFunction | None = None

    @cached_property
    def solved(self) -> dict[tuple[Any, ...], Solved]:
        """A cache of sizes and options by shapes and given values, since layers are alike."""
        return {}

    @cached_property
    def signature(self) -> Signature:
        """The kernel's signature: its tensors, sizes and options."""
        return self.function.signature if self.function else kernels.find(self.kernel).signature

    @cached_property
    def leads(self) -> str:
        """The tensor whose valid rows a run computes; "": none."""
        return self.rows.partition(" ")[2]

    @cached_property
    def donors(self) -> dict[str, str]:
        """The first input whose memory a tensor may share, by the tensor's name."""
        return {spec.name: spec.in_place[0] for spec in self.signature.specs if spec.in_place}

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the outputs that are gradients of weights."""
        return () if self.adds else self.signature.adds

    def check_names(self, tensors: Mapping[str, Tensor | None], scalars: Iterable[str]) -> None:
        """Raise ConfigError for a tensor, size or option that is unknown, or needed and None."""
        signature = self.signature
        unknown = [name for name in tensors if name not in signature.names]
        unknown += [name for name in scalars if name not in signature.scalars]
        needed = dict.fromkeys((*signature.inputs, *tensors))
        missing = [n for n in needed if n not in signature.nullable and tensors.get(n) is None]
        if unknown or missing:
            why = f"has no {', '.join(unknown)}" if unknown else f"needs {', '.join(missing)}"
            raise ConfigError(f"recording {self.kernel}: {why}; its signature is {signature}")

    def check_types(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Raise ShapeError for an input of another type than the kernel reads."""
        for name in self.signature.inputs:
            tensor, kind = tensors.get(name), self.signature[name].kind
            needed = _DTYPES.get(kind, "f32")
            if tensor is None or tensor.dtype == needed:
                continue
            if kind != "type" or tensor.dtype not in dtypes.QUANTIZED:
                what = f"{self.kernel}: {name} must be {needed}; got {tensor.dtype}"
                raise ShapeError(what + aliases({name: tensor}))


@dataclass(eq=False, slots=True)
class Node:
    """One kernel call. Tensors are in the order of the op's names; None is a null pointer."""

    op: Op
    phase: str
    outputs: tuple[Tensor | None, ...]
    saved: tuple[Tensor | None, ...]
    inputs: tuple[Tensor | None, ...]
    solved: Solved
    accumulate: Accumulate
    block: str | None = None  # the model's block that it belongs to
    #: All tensors by the op's names: outputs, saved, inputs.
    named: dict[str, Tensor | None] = field(init=False)
    #: The tensors that own the memory of these, each once, and the count of valid rows.
    roots: tuple[Tensor, ...] = field(init=False)
    apart: bool = field(init=False)  # whether no two tensors share memory

    def __post_init__(self) -> None:
        self.named = dict(zip(self.op.signature.tensors, self.tensors, strict=True))
        owners = [t.base or t for t in self.named.values() if t is not None]
        roots = dict.fromkeys(owners)
        self.apart = len(roots) == len(owners)
        leader = self.leader
        if leader is not None and leader.root.valid is not None:
            roots[leader.root.valid.count] = None
        self.roots = tuple(roots)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sizes by the names of the op's signature."""
        return self.solved.sizes

    @property
    def options(self) -> Mapping[str, float]:
        """Options by the names of the op's signature."""
        return self.solved.options

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor of this name, which must not be None."""
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
        solved = self.solved
        if solved.flops is None:
            solved.flops = self.op.flops(self._counted)
        return solved.flops

    @property
    def _counted(self) -> dict[str, int]:
        """Sizes, and has_X of each tensor that may be missing."""
        signature = self.op.signature
        return {**self.sizes, **(signature.there(self.named) if signature.nullable else {})}

    @property
    def at_most(self) -> bool:
        """Whether flops are an upper bound, as rows come in segments."""
        return bool(self.op.segments) and self.named[self.op.segments] is not None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All tensors: outputs, saved, inputs."""
        return self.outputs + self.saved + self.inputs

    @property
    def leader(self) -> Tensor | None:
        """The tensor whose valid rows a run computes; None: all rows."""
        name = self.op.leads
        tensor = self.named[name] if name else None
        return None if tensor is None or (tensor.base or tensor).valid is None else tensor

    @property
    def nbytes(self) -> int:
        """Bytes moved if every tensor is read or written once, unless the op says otherwise."""
        known = self.apart or self.op.nbytes is not None
        if known and self.solved.nbytes is not None:
            return self.solved.nbytes
        nbytes = self._touched() if self.op.nbytes is None else self.op.nbytes(self._counted)
        if known:
            self.solved.nbytes = nbytes
        return nbytes

    def _touched(self) -> int:
        """Return the bytes of all tensors."""
        touched: dict[Tensor, int] = {}  # bytes of each root's parts, at most all of it
        for tensor in self.named.values():
            if tensor is not None:
                root = tensor.base or tensor
                touched[root] = min(touched.get(root, 0) + tensor.nbytes, root.nbytes)
        return sum(touched.values())


@dataclass(eq=False, repr=False)
class Tape(Shown):
    """Nodes in order, and what the session must know about them."""

    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    checks: dict[Tensor, list[Check]] = field(default_factory=dict)  # of uploads
    outputs: set[Tensor] = field(default_factory=set)  # they stay until the next run
    #: Inputs and activations whose gradients are asked for, and the tensors that will hold them.
    wanted: dict[Tensor, Tensor] = field(default_factory=dict)
    loss: Tensor | None = None
    gradients: dict[Tensor, Tensor] | None = None  # by tensor, after backward is recorded
    #: Nodes and gradients after each walk back, by what it recomputes; (): before any. Empty once
    #: the tape is compiled.
    walks: dict[tuple[bool, ...], tuple[tuple[Node, ...], dict[Tensor, Tensor]]] = field(
        default_factory=dict
    )
    written: set[Tensor] = field(default_factory=set)  # by the nodes so far
    phase: str = "F"
    current_block: str | None = None  # the next node's block
    blocks: set[str] = field(default_factory=set)  # that have nodes
    places: Mapping[Tensor, Place] = field(default_factory=dict)  # of all roots, after compilation
    #: The session's function that keeps other threads out of a call.
    exclusively: Callable[[str], AbstractContextManager[object]] = nullcontext
    owner: Callable[[], Any] | None = None  # returns the session of the tensors made here

    @property
    def sealed(self) -> bool:
        """Whether the tape is compiled: nothing more can be recorded."""
        return bool(self.places)

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """Restore the tape if the block ends with an error."""
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
        shape = checks.dimensions(name, shape)
        tensor = Tensor(name, shape, Role.INPUT, dtype, owner=self.owner)
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
        **scalars: Any,
    ) -> Node:
        """Append a node to the current phase; return it.

        ``tensors`` have the names of the op's signature. Inputs must be given, unless they may be
        None. Missing outputs are made, or are None if the signature allows it. ``scalars`` are
        options, and sizes that do not follow from the tensors. Sizes and options that ``like`` has
        too are taken from it.

        Raises ConfigError for a missing or unknown name, and for a tensor that must not be None.
        Raises LifecycleError if the tape is closed for recording. Raises ShapeError for tensors
        that do not fit the op.
        """
        with self.exclusively(f"recording {op.kernel}"):
            if self.sealed:
                raise LifecycleError(f"recording {op.kernel} after realize(): the tape is compiled")
            if self.phase == "U" and not op.updates:
                raise LifecycleError(f"recording {op.kernel} after build_backward()")
            signature = op.signature
            shapes = [(name, t and (t.shape, t.dtype)) for name, t in tensors.items()]
            key = (like and like.solved, *shapes, *scalars.items())
            solved = op.solved.get(key)
            if solved is None:  # else the names were checked before
                if like is not None:
                    alike = (*like.sizes.items(), *like.options.items())
                    scalars = {k: value for k, value in alike if k in signature.scalars} | scalars
                op.check_names(tensors, scalars)
            for name in signature.inputs:
                tensor = tensors.get(name)
                if tensor is not None:
                    self._check_input(op, tensor)
            if solved is None:
                op.check_types(tensors)
                solved = solve(op.kernel, signature, tensors, scalars, grouped=op.grouped)
                op.solved[key] = solved
            if solved.shapes:
                tensors = {**tensors, **self._make(op, solved.shapes)}
            find = tensors.get
            node = Node(
                op,
                self.phase,
                tuple(map(find, signature.outputs)),
                tuple(map(find, signature.saved)),
                tuple(map(find, signature.inputs)),
                solved,
                accumulate,
                self.current_block,
            )
            self._pass_on_rows(node)
            self.nodes.append(node)
            self.written.update([t.base or t for t in node.outputs + node.saved if t is not None])
            return node

    def _make(self, op: Op, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return new tensors of these shapes; a name of one letter is replaced by the op's."""
        signature, label = op.signature, op.name or op.kernel.partition(".")[0]
        first = signature.outputs[0]
        return {
            name: self.new(
                label if name == first and len(name) == 1 else name,
                shape,
                _DTYPES.get(signature[name].kind, "f32"),
            )
            for name, shape in shapes.items()
        }

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """Mark the nodes recorded inside as a block, which checkpointing recomputes.

        A good block has small inputs and outputs and much inside: a transformer block.

        Raises ConfigError for a name that was used, and inside another block.
        """
        if self.current_block or name in self.blocks:
            raise ConfigError(
                f"block {name}: this tape has a block {self.current_block or name} already; blocks "
                "have different names and do not contain each other"
            )
        self.current_block = name
        try:
            yield
        finally:
            self.current_block = None
            if self.nodes and self.nodes[-1].block == name:
                self.blocks.add(name)

    def _check_input(self, op: Op, tensor: Tensor) -> None:
        """Raise ConfigError for a tensor of another tape or session."""
        root, owner = tensor.base or tensor, self.owner
        if root.owner is not owner and root.owner and owner and root.owner != owner:
            raise ConfigError(f"{op.kernel}: {root.name} belongs to another session")
        if root in self.written or root.role not in _OF_A_TAPE:
            return
        if root not in self.inputs.values():
            raise ConfigError(f"{op.kernel}: {root.name} was recorded on another tape")

    def _pass_on_rows(self, node: Node) -> None:
        """Give the tensors that a node writes as many valid rows as those that it reads."""
        leader = node.leader
        if leader is None:
            for tensor in () if node.op.rows else node.inputs:
                if tensor is not None and (valid := (tensor.base or tensor).valid) is not None:
                    raise ConfigError(
                        f"recording {node.op.kernel}: it computes all rows, but not all "
                        f"of {tensor.root.name} are valid: {valid.count.name} says how "
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
        """Move nodes, the last of which computes the loss, to E; return whether they were moved.

        They stay if their loss is not the tape's, or if a node of F reads it. If they were moved,
        phase B must compute the loss, too.
        """
        (loss,) = nodes[-1].outputs
        if loss is not self.loss or any(
            loss in node.inputs for node in self.nodes if node.phase == "F"
        ):
            return False
        for node in nodes:
            node.phase = "E"
        return True

    def new(
        self, name: str, shape: tuple[int, ...], dtype: str = "f32", valid: ValidRows | None = None
    ) -> Tensor:
        """Return a new activation; a number makes its name unique."""
        name = f"{name}.{len(self.nodes)}"
        return Tensor(name, shape, Role.ACTIVATION, dtype, valid=valid, owner=self.owner)

    @property
    def roots(self) -> set[Tensor]:
        """All tensors that the nodes so far write, save and read."""
        return set().union(*(node.roots for node in self.nodes))

    def lives(self) -> dict[Tensor, tuple[int, int]]:
        """Return the first and the last node that touches each tensor that the tape owns.

        An input is uploaded before the first node: its first is -1. Inputs and outputs stay
        until the next run: their last is the number of nodes.
        """
        firsts: dict[Tensor, int] = {}
        lasts: dict[Tensor, int] = {}
        for i, node in enumerate(self.nodes):
            for root in node.roots:
                if root in firsts or root.role in _OF_A_TAPE:
                    firsts.setdefault(root, i)
                    lasts[root] = i
        lives = {root: (first, lasts[root]) for root, first in firsts.items()}
        forever = len(self.nodes)
        lives.update((tensor, (-1, forever)) for tensor in self.inputs.values())
        lives.update((t, (lives[t][0], forever)) for t in self.outputs & lives.keys())
        return lives

    def phases(self, to: str) -> str:
        """Return the phases of a run to "loss", "grads" or "update".

        "apply" is an update with gradients of earlier runs.
        """
        if self.gradients is None:
            return "" if to == "apply" else "FE"
        return {"loss": "FE", "grads": "FB", "update": "FBU", "apply": "U"}[to]

    # -- Showing the step ----------------------------------------------------------------------

    def precisions(self) -> set[str]:
        """Return the precisions of its products."""
        sizes = (node.sizes for node in self.nodes)
        return {NUMBERED[each["precision"]] for each in sizes if "precision" in each}

    def __repr__(self) -> str:
        phases = Counter(node.phase for node in self.nodes)
        counts = ", ".join(f"{name} {phases[name]}" for name in "FEBU" if phases[name])
        return f"Tape({len(self.nodes)} nodes: {counts or 'empty'})"

    def __str__(self) -> str:
        inputs = self.inputs.values() if self.places else ()
        rows = [
            COLUMNS,
            *(_input_cells(tensor, self.places) for tensor in inputs),
            *(_cells(i, node, self.places) for i, node in enumerate(self.nodes)),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths[STORED] = min(widths[STORED], MOST_STORED) if self.places else 0
        # Names share the rest of a line.
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
        for key, group in groupby(numbered, lambda one: (one[1]["phase"], one[1]["section"])):
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

        For a compiled tape each tensor has its place: a buffer, and an offset in bytes.
        """
        return json.dumps(described(self, self.places))


def _called(node: Node) -> str:
    """Return a kernel's name, with its precision unless that is "highest"."""
    if node.op.function:
        return f"{node.op.kernel} (Python)"
    exactness = NUMBERED[node.sizes.get("precision", 0)]
    return node.op.kernel if exactness == "highest" else f"{node.op.kernel} ({exactness})"


def _cells(number: int, node: Node, places: Mapping[Tensor, Place]) -> tuple[str, ...]:
    """Return a node's cells in a printed tape."""
    outputs, saved, read = (
        [t.whole for t in part if t is not None] for part in (node.outputs, node.saved, node.inputs)
    )
    stored = _stored([*outputs, *saved], places) if places else []
    written, kept = (", ".join(part) for part in (stored[: len(outputs)], stored[len(outputs) :]))
    names = _names(saved)
    return (
        str(number),
        node.phase,
        _called(node),
        _names(outputs) + (names and f"; {names}"),
        str(outputs[0].shape) if outputs else "",
        written + (kept and f"; {kept}"),
        _names(read),
        "<" * node.at_most + _figure(node.flops / 1e6, 3),
        _figure(node.nbytes / 1e3, 1),
    )


def _input_cells(tensor: Tensor, places: Mapping[Tensor, Place]) -> tuple[str, ...]:
    """Return an input's cells in a printed tape."""
    (stored,) = _stored([tensor], places)
    return "", "", "input", tensor.name, str(tensor.shape), stored, "", "", ""


def _stored(tensors: Sequence[Tensor], places: Mapping[Tensor, Place]) -> list[str]:
    """Return where tensors begin: "arena+128", or "+192" in the same buffer as the one before."""
    places_of = [place_of(tensor, places) for tensor in tensors]
    before = ["", *(place.buffer for place in places_of)]
    return [
        f"{'' if place.buffer == last else place.buffer}+{place.offset}"
        for place, last in zip(places_of, before, strict=False)
    ]


def _figure(number: float, digits: int) -> str:
    return f"{number:.{digits if number < 100 else 0}f}"


def _line(row: Iterable[str], widths: Iterable[int]) -> str:
    """Pad the cells of a row to the widths of their columns; longer cells end with dots.

    The column of places is left out if its width is 0.
    """
    cells = []
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        if column == STORED and not width:
            continue
        cut = cell if len(cell) <= width else f"{cell[: width - 3]}..."
        cells.append(cut.rjust(width) if column in FIGURES else cut.ljust(width))
    return "  ".join(cells).rstrip()


def _names(tensors: Iterable[Tensor]) -> str:
    """Join the names of tensors; a name that continues the one before is shortened."""
    shown: list[str] = []
    stem = None
    for name in (tensor.name for tensor in tensors):
        rest = name.removeprefix(stem or "")
        if stem is not None and rest.startswith(("+", ".")):
            shown.append(rest)
        else:
            shown.append(name)
            stem = name
    return ", ".join(shown)
