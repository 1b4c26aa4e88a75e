"""The loops around a kernel's functions, and the structs of its arguments, from its signatures.

    python -m toynn._kernels.base.loops rmsnorm          print those of rmsnorm

A kernel's file has formulas, functions of one row, and signatures, which say how threads share the
work: "rows N: y[N C] <- ..". For each signature, ``forward = entry(..)``, setup.py appends to a
copy of the file what this module writes: the function ``_forward``, which a program calls, and for
each part of the work a loop over some of it. The function that the loop calls is in the file:

    rows N          forward_row, for each row; or forward_rows, for a stretch of ``count`` rows.
                    So are cut: heads, groups, blocks, .. Rows without outputs are not visited
    elements n      forward_element, likewise, in tasks of 4096
    columns C       forward_columns, for ``width`` columns, from column ``at`` on
    sums C over N   forward_sums, for each of N rows in order: adds what the row gives to the
                    sums of ``width`` columns. They begin at 0, or at what is there (accumulate)
    once            forward_once, on one thread

Its parameters are found by name, and the compiler checks their types. A tensor whose first axes are
the rows is a pointer to the row, or one number; any other tensor is a pointer to all of it, or its
only number. Sizes, options and accumulate are as they are; ``at`` is the number of the row;
``Forward* a`` is everything. A ``bint`` of elements is a switch: the loop is written for both its
values. If all outputs of a part may be None, and are, it is left out. A signature without parts has
its ``_forward`` in the file. ``_forward_scratch`` returns the bytes of scratch memory it needs.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # setup.py loads this file before toynn is compiled
    from toynn._kernels.base.signature import Cut, Signature, TensorSpec

FOLDER = Path(__file__).parents[1]
#: An entry: its name, its function if that is not _NAME, and its signature.
_ENTRY = re.compile(
    r'^(\w+) = entry\((\s*<kernel_fn>[\w\[\]]+,)?(\s*(?:"[^"]*"\s*)+)', re.MULTILINE
)
_FUNCTION = re.compile(
    r"^cdef (?:inline )?([\w* ]+?) ?\b(\w+)\(\s*([^)]*?),?\s*\) noexcept nogil:", re.MULTILINE
)
_KEPT = re.compile(r"^# kept: (from .* cimport .*)$", re.MULTILINE)
_SHORT = "# cython: {}=False".format("warn.multiple_declarators")  # float *x, *y
_HEAD = """
# -- Written by toynn/_kernels/base/loops.py -----------------------------------------------------
from toynn._kernels.base._columns cimport COLS, begin_sums, end_sums, parallel_columns
from toynn._kernels.base._parallel cimport parallel_for, part_fn
from toynn._kernels.base._pointwise cimport ahead, parallel_elements
from toynn._kernels.base.abi cimport kernel_fn, scratch_fn
from toynn._kernels.args.{} cimport {}
"""


class Parameter(NamedTuple):
    """A parameter of a function in the kernel's file."""

    type: str
    name: str


class Function(NamedTuple):
    """A function in the kernel's file."""

    type: str
    name: str
    parameters: list[Parameter]


def compiled(text: str, op: str, parse: "Callable[[str], Signature]") -> tuple[str, str]:
    """Return the structs of a kernel's file, and the file with its loops; "" and as it is if none.

    Raises ValueError for a function or a parameter that is not as the signature says.
    """
    parsed = {name: parse(ast.literal_eval(f"({text})")) for name, _, text in _ENTRY.findall(text)}
    if not parsed:
        return "", text
    functions = _functions(text)
    entries = [_Entry(op, name, signature, functions) for name, signature in parsed.items()]
    abi = Path(__file__).with_name("abi.pxd").read_text()
    kinds = ("MAX_TENSORS", "MAX_SIZES", "MAX_OPTIONS")
    most = [int(re.findall(rf"{kind} = (\d+)", abi)[0]) for kind in kinds]
    structs = [each.signature.declaration(each.struct, *most) for each in entries]

    def call(match: re.Match[str]) -> str:
        name, by_hand, signature = match.groups()
        scratch = f"_{name}_scratch"
        scratch = f"<scratch_fn>{scratch}" if scratch in functions else "NULL"
        ours = f"{name} = entry(<kernel_fn>_{name},{signature.rstrip()}, {scratch}"
        return match[0] if by_hand else ours

    whole = _ENTRY.sub(call, text)
    if whole != text:
        whole += _HEAD.format(op, ", ".join(each.struct for each in entries))
        whole += "\n".join(line for each in entries for line in each.loops())
    return "\n".join([_SHORT, *_KEPT.findall(text), *structs]), whole


def written(op: str) -> str:
    """Return what is written for a kernel, structs and loops."""
    from toynn._kernels.base.signature import Signature

    path = next(FOLDER.rglob(f"{op}.pyx"))
    structs, whole = compiled(path.read_text(encoding="utf-8"), op, Signature.parse)
    loops = whole.partition(_HEAD.partition("from")[0])[2]
    return structs.removeprefix(f"{_SHORT}\n") + re.sub(r"^from .*\n", "", loops, flags=re.M)


def _functions(text: str) -> dict[str, Function]:
    functions = {}
    for type_, name, listed in _FUNCTION.findall(text):
        parts = [" ".join(part.split()) for part in listed.split(",")]
        matches = [re.fullmatch(r"(.+?) ?(\w+)", part) for part in parts]
        functions[name] = Function(type_, name, [Parameter(*m.groups()) for m in matches if m])
    return functions


@dataclass
class _Entry:
    """An entry, whose loops are written."""

    op: str
    name: str
    signature: "Signature"
    functions: dict[str, Function]

    @property
    def struct(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("_"))

    def loops(self) -> Iterator[str]:
        """Yield the loops of all parts of the work, then the function that deals them."""
        deals: list[str] = []
        for cut in self.signature.cuts:
            function, loop = self._function(cut), f"<part_fn>_{self.name}_{cut.what}"
            if cut.what == "once":
                deal = self._call(function, cut, "", {})
            elif cut.what in ("columns", "sums"):
                yield from self._columns(function, cut)
                deal = f"parallel_columns({loop}, a, {self._read(cut.number)})"
            else:
                yield from self._rows(function, cut)
                rests = [self._read(_rest(s, cut.number)) for s in self._outputs(function)]
                some = f" if {' or '.join(dict.fromkeys(rests))} else 0" if all(rests) else ""
                kind = "parallel_elements" if cut.what == "elements" else "parallel_for"
                deal = f"{kind}({loop}, a, {self._read(cut.number)}{some})"
            outputs, indent = self._outputs(function), 4
            if outputs and all(spec.nullable for spec in outputs):
                deals.append(f"    if {' or '.join(f'a.{s.name} != NULL' for s in outputs)}:")
                indent = 8
            deals += _wrapped(indent, deal)
        if deals:
            yield from ("", f"cdef void _{self.name}({self.struct}* a) noexcept nogil:", *deals, "")

    def _function(self, cut: "Cut") -> Function:
        names = [f"{self.name}_{cut.what}", f"{self.name}_{cut.what.removesuffix('s')}"]
        for name in names:
            if name in self.functions:
                return self.functions[name]
        raise ValueError(f"{self.op}.{self.name}: {cut.what} need a function {' or '.join(names)}")

    def _outputs(self, function: Function) -> "list[TensorSpec]":
        """Return what a function writes: all outputs, if its parameters do not tell."""
        outputs = [spec for spec in self.signature.specs if spec.written]
        names = {p.name for p in function.parameters if re.match(r"(?!const).*\*", p.type)}
        return [spec for spec in outputs if spec.name in names] or outputs

    def _begin(self, cut: "Cut") -> str:
        arguments = f"{self.struct}* a, Py_ssize_t first, Py_ssize_t last"
        return f"\ncdef void _{self.name}_{cut.what}({arguments}) noexcept nogil:"

    def _rows(self, function: Function, cut: "Cut") -> Iterator[str]:
        """Yield the loop over rows first .. last - 1."""
        yield self._begin(cut)
        elements, whole = cut.what == "elements", function.name.endswith(cut.what)
        if not whole:
            yield "    cdef Py_ssize_t i"
        if elements:
            yield from self._ahead(cut)
        if whole:
            more = {"count": "last - first", "at": "first"}
            yield from _wrapped(4, self._call(function, cut, "first", more))
            return
        names = [p.name for p in function.parameters]
        for option in self.signature.options:  # C cannot know that y[i] = .. leaves it as it is
            if option in names:
                yield f"    cdef float {option} = a.{option}"
        more = {name: name for name in self.signature.options} | {"at": "i"}
        result = "" if function.type == "void" else f"a.{self.signature.outputs[0]}[i] = "
        switches = [p.name for p in function.parameters if p.type == "bint"]
        if not elements or not switches:
            yield "    for i in range(first, last):"
            if not elements:
                yield from self._ahead(cut, function)
            yield from _wrapped(8, result + self._call(function, cut, "i", more))
            return
        for line, value in ((f"if a.{switches[0]}", "True"), ("else", "False")):
            yield f"    {line}:"
            yield "        for i in range(first, last):"
            call = self._call(function, cut, "i", {**more, switches[0]: value})
            yield from _wrapped(12, result + call)

    def _ahead(self, cut: "Cut", function: Function | None = None) -> Iterator[str]:
        """Yield lines that fetch the inputs of what comes next: of elements, or of a row."""
        for spec in self.signature.specs:
            if spec.kind != "f32" or spec.nullable or spec.written or not _leads(spec, cut.number):
                continue
            size = self._read(_rest(spec, cut.number))
            if function is None:
                yield f"    ahead(a.{spec.name} + first, last - first)"
            elif size and any(p.name == spec.name and "*" in p.type for p in function.parameters):
                factor = f"({size})" if " " in size else size
                yield f"        ahead(a.{spec.name} + i * {factor}, {size})"

    def _columns(self, function: Function, cut: "Cut") -> Iterator[str]:
        """Yield the loop over blocks first .. last - 1 of COLS columns."""
        sums = [s for s in self._outputs(function) if cut.over and _rest(s, cut.number) == ""]
        ends = {s.name: self._address(s, "c") for s in sums}
        more = {"width": "width", "at": "c"} | {s.name: s.name for s in sums}
        call = self._call(function, cut, "n", more)
        yield self._begin(cut)
        yield f"    cdef Py_ssize_t b, c, width{', n' if cut.over else ''}"
        yield from (f"    cdef float[COLS] {name}" for name in ends)
        yield "    for b in range(first, last):"
        yield f"        c, width = b * COLS, min(COLS, {self._read(cut.number)} - b * COLS)"
        if not cut.over:
            yield from _wrapped(8, call)
            return
        for name, end in ends.items():
            yield f"        begin_sums({name}, {end}, width, a.accumulate)"
        yield f"        for n in range({self._read(cut.over)}):"
        yield from _wrapped(12, call)
        yield from (f"        end_sums({end}, {name}, width)" for name, end in ends.items())

    def _call(self, function: Function, cut: "Cut", index: str, more: dict[str, str]) -> str:
        """Return a call of a function; ``more`` are arguments besides those of the signature."""
        arguments = (self._argument(function, p, cut, index, more) for p in function.parameters)
        return f"{function.name}({', '.join(arguments)})"

    def _argument(
        self, function: Function, p: Parameter, cut: "Cut", index: str, more: dict[str, str]
    ) -> str:
        signature = self.signature
        if p.type == f"{self.struct}*":
            return "a"
        if p.name in more:
            return more[p.name]
        if p.name not in signature.names:
            known = {"accumulate", *signature.scalars}
            if p.name not in known:
                names = ", ".join(sorted(signature.names | known))
                where = f"{self.op}.{self.name}: {function.name}"
                raise ValueError(f"{where} has a parameter {p.name}; the signature has {names}")
            return f"a.{p.name}"
        spec, places = signature[p.name], []
        rows = cut.over or ("" if cut.what == "columns" else cut.number)
        rest = "*".join(spec.extents)
        if rows and _leads(spec, rows):
            rest = _rest(spec, rows)
            size = self._read(rest)
            places.append(
                f"{index} * ({size})" if " " in size else f"{index} * {size}" if size else index
            )
        if cut.what in ("columns", "sums") and spec.extents[-1] == cut.number:
            places.append("c")
        if "*" in p.type:
            return self._address(spec, *places)
        if rest != ("" if places else "1"):
            raise ValueError(f"{self.op}.{self.name}: {function.name} takes one number of {spec}")
        return f"a.{p.name}[{places[0] if places else 0}]"

    def _address(self, spec: "TensorSpec", *places: str) -> str:
        place = " + ".join((f"a.{spec.name}", *places))
        if not (spec.nullable and places):
            return place
        return f"<{spec.c_type}*>NULL if a.{spec.name} == NULL else {place}"

    def _read(self, formula: str) -> str:
        """Return a formula of sizes as the loops read them."""
        names = "|".join((*self.signature.sizes, "n_threads"))
        read = re.sub(rf"\b({names})\b", r"a.\1", formula)
        return re.sub(r"(?<=\w|\))([*+-]|//)(?=\w|\()", r" \1 ", read)


def _leads(spec: "TensorSpec", number: str) -> bool:
    """Whether the first axes of a tensor are these rows; an inner axis may have more in it."""
    first, whole, rows = f"{spec.extents[0]}*", f"{'*'.join(spec.extents)}*", f"{number}*"
    return rows == first or (rows.startswith(first) and whole.startswith(rows))


def _rest(spec: "TensorSpec", number: str) -> str:
    """Return the product of a tensor's extents without these rows; "" for 1."""
    extents = (f"({e})" if re.search("[+-]", e) and "(" not in e else e for e in spec.extents)
    whole = f"{'*'.join(extents)}*"
    return whole.removeprefix(f"{number}*").removesuffix("*")


def _wrapped(indent: int, text: str) -> list[str]:
    """Break a call at 100 columns, between its arguments."""
    glued = re.sub("(?<!,) ", "\N{NO-BREAK SPACE}", text)
    lines = wrap(glued, 96 - indent, break_long_words=False, break_on_hyphens=False)
    lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
    return [" " * (indent + 4 * bool(k)) + line for k, line in enumerate(lines)]


if __name__ == "__main__":
    print(*map(written, sys.argv[1:]), sep="\n")
