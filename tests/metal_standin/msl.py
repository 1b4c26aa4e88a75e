"""Metal's shading language as C++ on the CPU: ``compile(text, options)`` gives a shared object.

The compiler reads a shader three times. First for its macros alone: what comes out has the names of
its lines. From that the arguments of kernels are read, attributes are taken away, and what Metal
refuses is refused: double, std::, positions of several widths, a buffer without an address space.
Then with address spaces as clang's own, only to see that they agree; then without them, to run.

    python msl.py SHADER.metal [--checked] [--fast]

compiles it once and prints where the object is.
"""

import fcntl
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["COMPILER", "ROOM", "Refused", "compile", "compiled", "headers", "once"]

HERE = Path(__file__).resolve().parent
#: Where what is compiled stays, by a hash of what it was compiled from.
ROOM = HERE.parents[1] / "build" / "metal_standin"
COMPILER = os.environ.get("STANDIN_CXX", "clang++-19")

#: Attributes that number a thread, and whether they are scalars always.
NUMBERS = {
    "thread_position_in_grid": False,
    "thread_position_in_threadgroup": False,
    "threadgroup_position_in_grid": False,
    "threads_per_threadgroup": False,
    "threadgroups_per_grid": False,
    "threads_per_grid": False,
    "thread_index_in_threadgroup": True,
    "thread_index_in_simdgroup": True,
    "simdgroup_index_in_threadgroup": True,
    "simdgroups_per_threadgroup": True,
    "threads_per_simdgroup": True,
}
#: What C++ has and Metal lacks.
LACKS = (
    *("double", "goto", "new", "delete", "throw", "try", "virtual", "dynamic_cast", "typeid"),
    *("std", "printf", "asm", "thread_local"),
)
FLAGS = [
    *("-std=c++14", "-x", "c++", "-I", str(HERE), "-Xclang", "-cl-single-precision-constant"),
    *("-Wall", "-Wextra", "-Wno-unknown-attributes", "-Wno-unused-function"),
    *("-Wno-unused-parameter", "-Wno-duplicate-decl-specifier", "-Wno-ignored-qualifiers"),
    *("-Wno-unused-const-variable", "-Werror=return-type", "-Werror=uninitialized"),
    "-fconvergent-functions",
    "-ferror-limit=20",
]
#: This CPU's operation for a product and a sum, if it has one.
FUSED = ["-mfma"] if " fma " in Path("/proc/cpuinfo").read_text(errors="replace") else []
CHECKED = [
    *("-O1", "-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0"),
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
]


class Refused(Exception):
    """A shader that does not compile; its text says where and why."""


class Argument(NamedTuple):
    """One of a kernel: where it comes from (a name of runtime.h), which buffer, its text."""

    source: str
    index: int
    text: str


def once(name: str, make: Callable[[Path], None], *inputs: bytes | str) -> Path:
    """Return the file that ``make`` makes of these inputs, and make it if it is not there."""
    digest = hashlib.sha256()
    for data in inputs:
        digest.update(data.encode() if isinstance(data, str) else data)
    target = ROOM / digest.hexdigest()[:20] / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                part = target.with_name(f"part-{name}")
                make(part)
                part.rename(target)
    return target


def headers() -> bytes:
    """Return the sources on which what is compiled depends."""
    kinds = (".h", ".hpp", ".cpp", ".m")
    paths = sorted(path for path in HERE.rglob("*") if path.suffix in kinds)
    return b"".join(path.read_bytes() for path in [*paths, Path(__file__)])


def compiled(text: str, checked: bool = False, fast: bool = False) -> Path:
    """Compile the text of a shader once; return the shared object. Raises Refused."""

    def make(target: Path) -> None:
        compile(text, target, checked=checked, fast=fast)

    return once("library.so", make, headers(), text, f"{checked}{fast}")


def compile(text: str, target: Path, *, checked: bool = False, fast: bool = False) -> None:
    """Turn the text of a shader into a shared object; raises Refused."""
    source = target.with_suffix(".metal")
    source.write_text(text)
    simdgroups = re.search(r"^\s*#define\s+TOYNN_SIMDGROUPS\s+1\b", text, re.M) is not None
    body, table = _translate(source)
    flags = [*FLAGS, f"-DTOYNN_SIMDGROUPS={int(simdgroups)}"]
    cpp, unlinked = target.with_suffix(".cpp"), target.with_suffix(".o")
    cpp.write_text(body)
    _run(*flags, "-fsyntax-only", "-DSOFT_STRICT", cpp)
    cpp.write_text(body + table)
    flags += ["-fPIC", "-fvisibility=hidden", "-g1", *(CHECKED if checked else ["-O2"])]
    # As Metal does it, a product and a sum are one operation; but not where the checker looks on:
    # kernels are right in both ways.
    exact = f"-ffp-contract={'off' if checked else 'fast'}"
    _run(*flags, *FUSED, "-ffast-math" if fast else exact, "-c", cpp, "-o", unlinked)
    _run("-shared", "-Wl,--allow-shlib-undefined", unlinked, "-o", target, "-lm")


def _run(*arguments: str | Path) -> str:
    done = subprocess.run([COMPILER, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def _translate(source: Path) -> tuple[str, str]:
    """Return the C++ of a shader, and of the table of its kernels."""
    headers = ["-nostdinc", "-I", HERE / "nothing", "-D__METAL__=1", "-D__METAL_VERSION__=310"]
    text = _run("-E", "-x", "c++", *headers, source)
    problems = [f"Metal has no {word}" for word in LACKS if re.search(rf"\b{word}\b", text)]
    text = _threadgroup_variables(text)
    numbers, kernels = _numbers(text), {}
    for kernel in re.finditer(r"\bkernel\s+void\s+(\w+)\s*\(", text):
        name = kernel[1]
        arguments = _split(_bracketed(text, kernel.end()))
        kernels[name] = [_argument(name, argument, numbers, problems) for argument in arguments]
        _check(name, kernels[name], problems)
    if problems:
        raise Refused("".join(f"error: {problem}\n" for problem in problems))
    body = re.sub(r"\[\[\s*\w+\s*(?:\(\s*[\w:]+\s*\))?\s*\]\]", "", text)
    body = re.sub(r"^(#\s*define\s+TOYNN_SIMDGROUPS.*)$", "", body, flags=re.M)
    return f'#include "msl.h"\n{body}', _table(kernels)


def _threadgroup_variables(text: str) -> str:
    """Give ``threadgroup T a[N], b[M];`` one place for all threads of a group."""
    ids = iter(range(64))

    def declare(match: re.Match[str]) -> str:
        out = []
        for declared in match[2].split(","):
            name, extents = re.fullmatch(r"\s*(\w+)\s*(.*?)\s*", declared, re.S).groups()
            out.append(f"SOFT_THREADGROUP_VARIABLE({next(ids)}, {match[1]}, {name}, {extents});")
        return " ".join(out)

    one = r"\w+\s*(?:\[[^\];]*\]\s*)*"
    return re.sub(rf"(?<![\w(,<])threadgroup\s+([\w:]+)\s+({one}(?:,\s*{one})*);", declare, text)


def _bracketed(text: str, start: int) -> str:
    """Return what lies between an opening bracket that ends before ``start`` and its closing."""
    depth, end = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[start : end - 1]


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def _numbers(text: str) -> dict[str, int]:
    """Return the enumerators of structs by the names that they have outside: ``Struct::name``."""
    declared = r"\bstruct\s+(\w+)\s*\{[^{}]*\benum\s*\{([^{}]*)\}"
    return {
        f"{struct}::{name.strip()}": number
        for struct, names in re.findall(declared, text)
        for number, name in enumerate(names.split(","))
    }


def _argument(kernel: str, text: str, numbers: Mapping[str, int], problems: list[str]) -> Argument:
    match = re.search(r"\[\[\s*(\w+)\s*(?:\(\s*([\w:]+)\s*\))?\s*\]\]", text)
    if not match:
        problems.append(f"{kernel}: argument without [[...]]: {text.strip()}")
        return Argument("", 0, text)
    attribute, declared = match[1], " ".join(text[: match.start()].split())
    if attribute == "buffer":
        if not re.search(r"\b(device|constant)\b", declared):
            problems.append(f"{kernel}: a buffer is in device or constant memory: {declared}")
        if not match[2].isdigit() and match[2] not in numbers:
            problems.append(f"{kernel}: no buffer is called {match[2]}: {declared}")
            return Argument("", 0, text)
        index = int(match[2]) if match[2].isdigit() else numbers[match[2]]
        return Argument("SOFT_BUFFER", index, declared)
    if attribute not in NUMBERS:
        problems.append(f"{kernel}: the attribute {attribute} is unknown to the stand-in")
    return Argument(f"SOFT_{attribute.upper()}", 0, declared)


def _check(kernel: str, arguments: list[Argument], problems: list[str]) -> None:
    """Refuse what Metal refuses: one place given twice, widths that differ, a wrong type."""
    seen, widths = set(), set()
    for source, index, text in arguments:
        if (source, index) in seen:
            problems.append(f"{kernel}: {text} is given twice")
        seen.add((source, index))
        if source == "SOFT_BUFFER":
            if index > 30:
                problems.append(f"{kernel}: buffers are numbered 0 to 30: {text}")
            continue
        width = re.match(r"(?:const\s+)?(?:uint|ushort)([23]?)\b", text)
        if not width:
            problems.append(f"{kernel}: {source} is of uint or ushort: {text}")
        elif NUMBERS.get(source.removeprefix("SOFT_").lower()):
            if width[1]:
                problems.append(f"{kernel}: {source} is one number: {text}")
        else:
            widths.add(width[1])
    if len(widths) > 1:
        problems.append(f"{kernel}: positions of several widths")


def _table(kernels: dict[str, list[Argument]]) -> str:
    lines = [
        f"\n#undef {word}" for word in ("device", "constant", "threadgroup", "thread", "kernel")
    ]
    rows = []
    for name, arguments in kernels.items():
        listed = ", ".join(f'{{{source}, {index}, "{name}"}}' for source, index, _ in arguments)
        lines.append(f"\nstatic const soft_argument soft_arguments_{name}[] = {{{listed}}};")
        lines.append(
            f"\nstatic void soft_call_{name}() {{ soft::call(&{name}, soft_arguments_{name}); }}"
        )
        rows.append(f'{{"{name}", soft_call_{name}, {len(arguments)}, soft_arguments_{name}}}, ')
    exported = 'extern "C" __attribute__((visibility("default"))) const soft_kernel soft_kernels[]'
    return "".join(lines) + f"\n{exported} = {{{''.join(rows)}{{0, 0, 0, 0}}}};\n"


if __name__ == "__main__":
    try:
        text, flags = Path(sys.argv[1]).read_text(), sys.argv[2:]
        print(compiled(text, checked="--checked" in flags, fast="--fast" in flags))
    except Refused as error:
        sys.exit(str(error))
