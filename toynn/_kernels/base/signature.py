"""The signature of a kernel entry: one line that names each tensor, with its shape.

    dx[N C] dw[C]?+ <- dy[N C] x[N C] w[C] r[N]

The kernel writes the tensors before the arrow and reads those after it. Letters are sizes, found
from the shapes of the arrays. Sizes that no array shows, and options, come after "|":

    y[N C]; r[N] <- x[N C] w[C] | eps=1e-5
    y[M N] pre[M N]? <- x[M K] type w[N K] b[N]? | precision=highest activation=none type=F32

    i32 ids[N]    int32; without a word in front of it a tensor is float32
    u16 z[n]      bfloat16, as the 16 bits that it is stored in
    type w[N K]   quantized: the size ``type`` says which type its rows have
    ;             the tensors that follow are saved for the backward
    ?             the tensor may be None: the kernel then gets NULL
    +             the kernel adds to it when told to accumulate, and otherwise overwrites it
    !             updated: the kernel reads it, then writes it
    =x, =x=y      it may be the same memory as x, or as y
    @ldq          its rows are ldq elements apart
    <V, <V,-100   each of its integers is 0 to V - 1; in the second form -100 is allowed too
    name=value    a size with a default: an integer, or a word (precision, type, activation)
    name=1e-5     an option with a default: a float, or a formula of sizes (scale=1/sqrt(D))
    name          a size that must be given; ``float name`` an option
    kept Squares  the C type of KernelArgs.kept

How threads share the work may stand in front, part by part (loops.py makes the loops):

    rows N, sums C over N: dx[N C] dw[C]?+ <- dy[N C] x[N C] w[C] r[N]

This file imports nothing of toynn: setup.py needs it before any module is compiled.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import sqrt
from types import CodeType
from typing import Any, NamedTuple

_TENSOR = re.compile(
    r"(?:(?P<kind>\w+) )?(?P<name>\w+)\[(?P<extents>[^\]]*)\](?P<marks>[?+!]*)"
    r"(?P<in_place>(?:=\w+)*)(?:@(?P<row>\w+))?(?:<(?P<below>[\w*+]+)(?:,(?P<also>-?\d+))?)?"
    r"(?P<saved>;?)(?: |$)"
)
_NAMES = re.compile(r"[A-Za-z]\w*")
_C_TYPES = {"f32": "float", "i32": "int", "u8": "unsigned char", "u16": "unsigned short"}
_C_NAMES = {"do": ' "do_"'}  # a keyword of C


class Unsolved(ValueError):
    """A shape does not fit a signature: see Signature.solve."""


class Cut(NamedTuple):
    """A part of the work: "rows N" is N rows, "sums C over N" C sums, each over N rows."""

    what: str
    number: str = ""
    over: str = ""


@dataclass(frozen=True)
class TensorSpec:
    """What a signature says of one tensor."""

    name: str
    kind: str  # "f32", "i32", "u8", "u16", or the size that holds the quantized type: "type"
    extents: tuple[str, ...]
    written: bool
    saved: bool = False
    nullable: bool = False
    adds: bool = False
    updated: bool = False
    in_place: tuple[str, ...] = ()  # inputs whose memory it may share
    row: str | None = None  # the size that says how many elements apart rows are
    below: CodeType | None = None  # its integers are 0 to below - 1
    also: int | None = None  # an integer that is allowed besides

    @property
    def c_type(self) -> str:
        """The C type of its elements."""
        return ("" if self.written else "const ") + _C_TYPES.get(self.kind, "void")

    @cached_property
    def formulas(self) -> tuple[CodeType, ...]:
        """The extents, compiled."""
        return tuple(compile(text, self.name, "eval") for text in self.extents)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape at these sizes. Raises NameError for a size that is not among them."""
        return tuple(evaluate(formula, sizes) for formula in self.formulas)

    def __str__(self) -> str:
        return f"{self.name}[{' '.join(self.extents)}]"


def evaluate(formula: CodeType, sizes: Mapping[str, Any]) -> Any:
    """Return the value of a formula of a signature. Raises NameError for an unknown size."""
    return eval(formula, {"__builtins__": {}, "sqrt": sqrt}, sizes)


@dataclass(frozen=True)
class Signature:
    """A parsed signature: tensors, sizes and options, each in the order of the kernel's slots."""

    text: str
    specs: tuple[TensorSpec, ...]
    sizes: tuple[str, ...]
    options: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)  # formulas are compiled
    arguments: tuple[str, ...] = ()  # names after "|": sizes and options that are arguments
    kept: str | None = None
    cuts: tuple[Cut, ...] = ()  # the parts of the work, in order; none: the kernel cuts it itself

    def default(self, name: str, sizes: Mapping[str, Any]) -> Any:
        """Return the default of a size or an option; a formula is evaluated at these sizes.

        Raises NameError if a formula needs a size that is not given, and ZeroDivisionError.
        """
        value = self.defaults[name]
        return evaluate(value, sizes) if isinstance(value, CodeType) else value

    @classmethod
    def parse(cls, text: str) -> "Signature":
        """Read a signature. Raises ValueError if it cannot be read."""
        before, _, text = " ".join(text.split()).rpartition(": ")
        cuts = [Cut(*re.split(" over | ", cut)) for cut in before.split(", ") if cut]
        tensors, _, scalars = text.partition(" | ")
        specs = tuple(_specs(tensors))
        shown = [n for s in specs for e in s.extents for n in _NAMES.findall(e)]
        shown += [s.row for s in specs if s.row]
        arguments: list[str] = []
        options: list[str] = []
        defaults: dict[str, Any] = {}
        kept = None
        words = scalars.split()
        while words:
            word = words.pop(0)
            if word == "kept":
                kept = words.pop(0)
                continue
            is_option = word == "float"
            name, _, default = (words.pop(0) if is_option else word).partition("=")
            arguments.append(name)
            if default:
                defaults[name] = _default(default, shown)
                is_option = is_option or isinstance(defaults[name], float)
            if is_option:
                options.append(name)
        sizes = dict.fromkeys(n for n in (*shown, *arguments) if n not in options)
        names = (tuple(sizes), tuple(options), defaults, tuple(arguments))
        return cls(text, specs, *names, kept, tuple(cuts))

    @cached_property
    def _by_name(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for spec in self.specs}

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors: outputs, saved, inputs."""
        return tuple(spec.name for spec in self.specs)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self.tensors)

    @cached_property
    def scalars(self) -> frozenset[str]:
        """Names of all sizes and options."""
        return frozenset((*self.sizes, *self.options))

    @cached_property
    def nullable(self) -> frozenset[str]:
        """Names of the tensors that may be None."""
        return frozenset(spec.name for spec in self.specs if spec.nullable)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors that the kernel writes, other than the saved ones."""
        return tuple(spec.name for spec in self.specs if spec.written and not spec.saved)

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """Names of the tensors that the kernel writes for its backward."""
        return tuple(spec.name for spec in self.specs if spec.saved)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that the kernel only reads."""
        return tuple(spec.name for spec in self.specs if not spec.written)

    @cached_property
    def adds(self) -> tuple[str, ...]:
        """Names of the tensors to which the kernel adds when told to accumulate."""
        return tuple(spec.name for spec in self.specs if spec.adds)

    def __getitem__(self, name: str) -> TensorSpec:
        return self._by_name[name]

    def check(
        self,
        what: str,
        tensors: Collection[str],
        sizes: Collection[str],
        options: Collection[str],
    ) -> None:
        """Raise ValueError unless these are the names, in any order."""
        for kind, needed, got in (
            ("tensors", self.tensors, tensors),
            ("sizes", self.sizes, sizes),
            ("options", self.options, options),
        ):
            if set(needed) != set(got):
                wrong = [f"no {name}" for name in needed if name not in got]
                wrong += [f"{name} is not one" for name in got if name not in needed]
                raise ValueError(
                    f"{what}: its {kind} are {', '.join(needed) or 'none'}; got "
                    f"{', '.join(got) or 'none'}: {', '.join(wrong)}"
                )

    def there(self, tensors: Mapping[str, object]) -> dict[str, int]:
        """Return has_X for each tensor X that may be None: 1 if X is among these, 0 if not."""
        return {f"has_{name}": int(tensors.get(name) is not None) for name in self.nullable}

    def solve(
        self, shapes: Mapping[str, Sequence[int] | None], scalars: Mapping[str, int]
    ) -> dict[str, int]:
        """Return all sizes that extents name, from shapes and from sizes that are given.

        Inputs are looked at before outputs. Raises Unsolved if a shape does not fit (it says which
        tensor needs which shape, and why), or if no shape shows a size.
        """
        sizes = dict(scalars)
        origin = dict.fromkeys(sizes, "")  # by size: the tensor that it was found from
        ordered = sorted(self.specs, key=lambda spec: spec.written)
        waiting = [(s, shape) for s in ordered if (shape := shapes.get(s.name)) is not None]
        for spec, shape in waiting:
            if len(shape) != len(spec.extents):
                raise Unsolved(f"{spec} needs {len(spec.extents)} axes; got {_shown(spec, shape)}")
        while waiting:
            before = len(sizes)
            left = [pair for pair in waiting if not self._fit(*pair, sizes, origin, shapes)]
            if len(left) == len(waiting) and len(sizes) == before:
                names = list(dict.fromkeys(n for s, _ in left for n in _unknown(s, sizes)))
                if all(size for _, shape in left for size in shape):
                    raise Unsolved(f"no array shows {' '.join(names)}: give it by name")
                sizes |= dict.fromkeys(names, 0)  # empty arrays fit any size: take 0
                origin |= dict.fromkeys(names, "")
            waiting = left
        return sizes

    def _fit(
        self,
        spec: TensorSpec,
        shape: Sequence[int],
        sizes: dict[str, int],
        origin: dict[str, str],
        shapes: Mapping[str, Sequence[int] | None],
    ) -> bool:
        """Find sizes from one shape; return False if more sizes must be known first."""
        for formula, extent in zip(spec.formulas, shape, strict=True):
            unknown = [name for name in formula.co_names if name not in sizes]
            if len(unknown) > 1:
                continue
            if unknown:
                values = _solved(formula, unknown[0], extent, sizes)
                if len(values) == 1:
                    (sizes[unknown[0]],) = values
                    origin[unknown[0]] = spec.name
                if values:
                    continue
            elif evaluate(formula, sizes) == extent:
                continue
            raise Unsolved(_misfit(spec, shape, sizes, origin, shapes))
        return not _unknown(spec, sizes)

    def declaration(self, struct: str, tensors: int, sizes: int, options: int) -> str:
        """Return a Cython struct that names the slots, laid out as KernelArgs (abi.pxd)."""
        for kind, names, most in (
            ("tensors", self.tensors, tensors),
            ("sizes", self.sizes, sizes),
            ("options", self.options, options),
        ):
            if len(names) > most:
                raise ValueError(f"{struct}: a kernel has at most {most} {kind}; got {names}")
        fields = [
            (spec.c_type, f"*{spec.name}{_C_NAMES.get(spec.name, '')}") for spec in self.specs
        ]
        fields += _rest("void*", "_t", tensors - len(self.tensors))
        fields += [("Py_ssize_t", name) for name in self.sizes]
        fields += _rest("Py_ssize_t", "_n", sizes - len(self.sizes))
        fields += [("float", name) for name in self.options]
        fields += _rest("float", "_f", options - len(self.options))
        fields += [("void*", "workspace"), ("int", "accumulate"), ("int", "n_threads")]
        fields += [(f"{self.kept or 'const void'}*", "kept")]
        lines = [f"cdef struct {struct}:"]
        for type_, those in groupby(fields, lambda field: field[0]):
            lines.append(f"{type_} {', '.join(name for _, name in those)}")
        return "\n    ".join(lines) + "\n"

    def __str__(self) -> str:
        return self.text


def _specs(text: str) -> list[TensorSpec]:
    before, arrow, behind = text.partition("<-")
    if not arrow:
        raise ValueError(f"a signature needs an arrow: {text!r}")
    specs: list[TensorSpec] = []
    for part, written in ((before, True), (behind, False)):
        part, at, saved = part.strip(), 0, False
        while at < len(part):
            match = _TENSOR.match(part, at)
            if match is None:
                raise ValueError(f"a signature's tensors: cannot read {part[at:]!r}")
            marks = match["marks"]
            specs.append(
                TensorSpec(
                    match["name"],
                    match["kind"] or "f32",
                    tuple(match["extents"].split()),
                    written,
                    saved,
                    "?" in marks,
                    "+" in marks,
                    "!" in marks,
                    tuple(filter(None, match["in_place"].split("="))),
                    match["row"],
                    compile(match["below"], "below", "eval") if match["below"] else None,
                    int(match["also"]) if match["also"] else None,
                )
            )
            saved = saved or bool(match["saved"])
            at = match.end()
    return specs


def _default(text: str, sizes: Collection[str]) -> Any:
    """Return an integer, a float, a word, or a formula of sizes."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    if text.isidentifier() and text not in sizes:
        return text
    return compile(text, "default", "eval")


def _rest(type_: str, name: str, count: int) -> list[tuple[str, str]]:
    return [(type_, f"{name}[{count}]")] if count else []


def _unknown(spec: TensorSpec, sizes: Mapping[str, int]) -> list[str]:
    return [name for formula in spec.formulas for name in formula.co_names if name not in sizes]


def _solved(formula: CodeType, name: str, extent: int, sizes: Mapping[str, int]) -> Collection[int]:
    """Solve formula = extent for a size in which it is linear.

    Returns the one solution, nothing if there is none, and several if any size is a solution (as
    when it is multiplied by 0).
    """
    at_0, at_2 = (evaluate(formula, {**sizes, name: value}) for value in (0, 2))  # 2: for R//2
    if at_2 == at_0:
        return range(2) if extent == at_0 else ()
    value, rest = divmod(2 * (extent - at_0), at_2 - at_0)
    return () if rest or value < 0 else (int(value),)


def _misfit(
    spec: TensorSpec,
    shape: Sequence[int],
    sizes: Mapping[str, int],
    origin: Mapping[str, str],
    shapes: Mapping[str, Sequence[int] | None],
) -> str:
    """Say which shape a tensor needs, and which arrays determine it."""
    solved = {n: sizes[n] for f in spec.formulas for n in f.co_names if n in sizes}
    extents = [
        str(evaluate(formula, sizes)) if set(formula.co_names) <= sizes.keys() else text
        for formula, text in zip(spec.formulas, spec.extents, strict=True)
    ]
    needed = f"({', '.join(extents)}{',' * (len(extents) == 1)})"
    values = ", ".join(f"{name} = {value}" for name, value in solved.items())
    arrays = dict.fromkeys(origin[name] for name in solved if origin[name] not in ("", spec.name))
    shown = ", ".join(f"{name} {tuple(shapes[name] or ())}" for name in arrays)
    return (
        f"{spec} needs shape {needed}"
        + (f" for {values}" if values else "")
        + (f" of {shown}" if shown else "")
        + f"; got {_shown(spec, shape)}"
    )


def _shown(spec: TensorSpec, shape: Sequence[int]) -> str:
    return f"{spec.name} {tuple(shape)}"
