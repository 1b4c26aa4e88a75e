"""toynn on Windows' own CPython under Wine, cross compiled: by hand.

    python -m tests.windows                             every kernel case, pool, files, self-test
    python -m tests.windows --levels generic,avx512     at these levels
    python -m tests.windows --compile                   only compile, by MinGW's GCC
    python -m tests.windows tests/session -k feed       other tests

clang compiles for MinGW, and Wine runs the results: with the python311.dll and extension modules
that panda3d's wheel for Windows carries, the standard library and headers of Debian's sources,
NumPy's wheel for Windows. All of it lies in --build (minutes at first); as root, missing packages
of Debian are installed. Wine is not Windows: what it shows is that the code for Windows compiles,
runs, and computes what it should, with Windows' rules for files that are open. MinGW's GCC compiles
alone: it does not align the stack for AVX on Windows (GCC's bug 54412). Its header for AMX takes a
stride for a long, which has 32 bits there: that level is not built on Windows.

Two libraries of Wine 8 lack what wheels call. So stand-ins are built: one passes on what the C
library's mathematics has and computes complex numbers itself, one gives random numbers.
"""

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from tests.arm64 import replace
from tests.sanitized import ROOT, copy_tree, finish, installed, run

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = VERSION.replace(".", "")
PACKAGES = {
    "wine": "wine wine64",
    "x86_64-w64-mingw32-gcc": "gcc-mingw-w64-x86-64",
    "clang-19": "clang-19",
}
WHEELS = ("numpy", "gguf", "safetensors", "tqdm", "pytest", "hypothesis", "ml_dtypes", "jinja2")
GCC = "x86_64-w64-mingw32-gcc"
#: UCRT, the C library of CPython for Windows, where MinGW's default is an older one.
LIBRARIES = (
    "-nodefaultlibs -Wl,--start-group -lmingw32 -lgcc -lgcc_eh -lmoldname -lmingwex -lucrt "
    "-ladvapi32 -lshell32 -luser32 -lkernel32 -Wl,--end-group"
)
COMPILER = """\
#!/bin/sh
exec %(ccache)s%(clang)s -DMS_WIN64 -D_UCRT -I"%(root)s/include" "$@" \\
    -Wno-unused-command-line-argument
"""
LINKER = """\
#!/bin/sh
exec %(clang)s -static-libgcc -shared "$@" -L"%(root)s" -lpython%(tag)s %(libraries)s \\
    -Wno-unused-command-line-argument
"""
PYTHON = """\
#!/bin/bash
# Wine gives CPython no handle of a stream that is a file.
set -o pipefail
unset PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH
wine "%(root)s/python.exe" "$@" < /dev/null 2>&1 | cat
"""
PROGRAM = """\
#include <wchar.h>
int Py_Main(int count, wchar_t** words);
int wmain(int count, wchar_t** words) { return Py_Main(count, words); }
"""
RANDOM = """\
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG size);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
    return SystemFunction036(data, (ULONG)size);
}
"""
MATHS, STAND_IN = "api-ms-win-crt-math-l1-1-0.dll", "xpi-ms-win-crt-math-l1-1-0.dll"
COMPLEX = re.compile(
    r"c(real|imag|abs|arg|exp|pow|log|sqrt|a?sin|a?cos|a?tan|a?sinh|a?cosh|a?tanh)([fl]?)"
)
#: What runs by default beside the kernels: the seam by Windows' own rules, and a step's numbers.
TESTS = ("tests/system/test_platform.py", "tests/session/test_feed.py")
POOL = ("all threads", "many calls", "several callers")


def main() -> int:
    """Build, and run what is asked for; return the first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path(tempfile.gettempdir()) / "toynn-windows")
    parser.add_argument("--levels", default="generic,avx512", help="default: generic,avx512")
    parser.add_argument("--compile", action="store_true", help="only compile, by MinGW's GCC")
    arguments, rest = parser.parse_known_args()
    folder = arguments.build.resolve()
    if missing := prepare(folder):
        print(f"windows: skipped: {missing}", flush=True)
        return 0
    if arguments.compile:
        build(folder, "tree-gcc", "generic,avx2,avx512", GCC)
        return 0
    build(folder, "tree", arguments.levels, "clang-19 --target=x86_64-w64-windows-gnu")
    settings = {"WINEPREFIX": str(folder / "prefix"), "WINEDEBUG": "-all"}
    python, tree = str(folder / "python"), folder / "tree"
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    if rest:
        return finish([*pytest, *rest], tree, settings).returncode
    if code := pool(folder, settings):
        return code
    for level in arguments.levels.split(","):
        print(f"windows: {level}", flush=True)
        words = [*pytest, "-m", "kernels", "tests/kernels"]
        if code := finish(words, tree, settings | {"TOYNN_ISA": level}).returncode:
            return code
    for words in ([*pytest, *TESTS], [python, "-m", "toynn", "selftest", "--no-speeds"]):
        if code := finish(words, tree, settings).returncode:
            return code
    return 0


def pool(folder: Path, settings: dict[str, str]) -> int:
    """Build the C test of the thread pool and run its cases; return what they return."""
    source, program = ROOT / "tests/kernels/pool.c", folder / "pool.exe"
    include = [f"-I{ROOT / 'toynn' / name}" for name in ("_kernels", "system")]
    words = [GCC, "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *include, str(source)]
    run([*words, "-o", str(program), "-static", "-lpthread"], folder, {})
    for number, case in enumerate(POOL):
        print(f"windows: pool: {case}", flush=True)
        words = ["wine", str(program), str(number)]
        if code := finish(words, folder, settings).returncode:
            return code
    return 0


def prepare(folder: Path) -> str:
    """Fetch what is missing; return why it cannot be had, or ""."""
    if VERSION != "3.11":
        return f"it needs Python 3.11, whose sources Debian has; this is {VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    apt, why = installed(PACKAGES, folder)
    if why:
        return why
    root = folder / "root"
    if not root.exists():
        if not apt:
            return "it needs apt-get and root to fetch Debian's sources of Python"
        part = folder / "root.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        unpack_sources(folder, part, apt)
        unpack_program(folder, part)
        stand_in(part)
        replace(root, part)
    (folder / "python").write_text(PYTHON % {"root": root})
    (folder / "python").chmod(0o755)
    prefix = {"WINEPREFIX": str(folder / "prefix"), "WINEDEBUG": "-all"}
    if not (folder / "prefix").exists():  # Wine says that it is Windows 7 until it is told
        key = ["wine", "reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f"]
        finish(key, folder, prefix, capture=True)
    return ""


def unpack_sources(folder: Path, root: Path, apt: str) -> None:
    """Fetch Debian's sources of Python: its headers and library are those of any system."""
    state = folder / "apt"
    for name in ("lists/partial", "sources", "fetched"):
        (state / name).mkdir(parents=True, exist_ok=True)
    for path in Path("/etc/apt").rglob("*.*"):
        if path.suffix in (".list", ".sources") and "debian" in (text := path.read_text()):
            text = re.sub(r"^(Types:|(?=deb ))\s*deb\b", r"\1 deb-src", text, flags=re.MULTILINE)
            (state / "sources" / path.name).write_text(
                "\n".join(line.lstrip() for line in text.splitlines())
            )
    told = {"sourcelist": "-", "sourceparts": state / "sources"}
    words = [word for name, what in told.items() for word in ("-o", f"Dir::Etc::{name}={what}")]
    words += ["-o", f"Dir::State::lists={state / 'lists'}"]
    run([apt, "-qq", *words, "update"], folder, {})
    source = [apt, "-qq", *words, "source", "--download-only", "--tar-only"]
    run([*source, f"python{VERSION}"], state / "fetched", {})
    archive = next((state / "fetched").glob("*.orig.tar.*"))
    run(["tar", "-xf", str(archive), "--strip-components=1", "--one-top-level=src"], root, {})
    shutil.copytree(root / "src/Include", root / "include")
    shutil.copy(root / "src/PC/pyconfig.h", root / "include")
    skipped = shutil.ignore_patterns("test", "tests", "idlelib", "tkinter", "__pycache__")
    shutil.copytree(root / "src/Lib", root / "Lib", ignore=skipped)
    shutil.rmtree(root / "src")


def unpack_program(folder: Path, root: Path) -> None:
    """Fetch CPython's DLL and modules for Windows, and wheels; build python.exe and python3.dll."""
    words, wheels = [sys.executable, "-m", "pip", "-q"], folder / "wheels"
    how = ["--only-binary=:all:", "--platform", "win_amd64", "--python-version", TAG]
    how += ["--implementation", "cp"]
    how += [word for abi in (f"cp{TAG}", "abi3", "none") for word in ("--abi", abi)]
    run([*words, "download", "--no-deps", "-d", str(wheels), *how, "panda3d"], folder, {})
    with zipfile.ZipFile(next(wheels.glob("panda3d-*.whl"))) as wheel:
        for name in wheel.namelist():
            place, base = name.split("/")[0], name.split("/")[-1]
            if (place == "deploy_libs" and not base.startswith(("api-", "tcl", "tk"))) or (
                base == "MSVCP140.dll"
            ):
                (root / base).write_bytes(wheel.read(name))
    packages = root / "Lib/site-packages"
    run([*words, "install", "--target", str(packages), *how, *WHEELS], folder, {})
    library(root, f"python{TAG}", exported(root / f"python{TAG}.dll"))
    forwarded = [f"{name} = python{TAG}.{name}" for name in exported(root / f"python{TAG}.dll")]
    shared(root, "python3.dll", "int nothing;", forwarded)
    shared(root, "bcryptprimitives.dll", RANDOM, [])
    (root / "python.c").write_text(PROGRAM)
    words = [GCC, "-municode", "python.c", "-o", "python.exe", "-L.", f"-lpython{TAG}"]
    run(words, root, {})


def exported(path: Path) -> list[str]:
    """Return the names that a DLL exports."""
    text = dumped(path).partition("[Ordinal/Name Pointer] Table")[2].partition("\n\n")[0]
    return re.findall(r"\s(_?Py\w+)$", text, re.MULTILINE)


def dumped(path: Path) -> str:
    """Return what objdump says of a file's imports and exports."""
    words = ["x86_64-w64-mingw32-objdump", "-p", str(path)]
    return subprocess.run(words, capture_output=True, text=True).stdout


def library(root: Path, name: str, names: list[str]) -> None:
    """Make the library by which a DLL is linked."""
    lines = [f"LIBRARY {name}.dll", "EXPORTS", *names]
    (root / f"{name}.def").write_text("\n".join(lines))
    words = ["x86_64-w64-mingw32-dlltool", "-d", f"{name}.def", "-l", f"lib{name}.a"]
    run(words, root, {})


def shared(root: Path, name: str, source: str, lines: list[str]) -> None:
    """Build a DLL from C and lines of EXPORTS."""
    (root / "dll.c").write_text(source)
    (root / "dll.def").write_text("\n".join([f"LIBRARY {name}", "EXPORTS", *lines]))
    words = [GCC, "-O1", "-static-libgcc", "-shared", "dll.c", *["dll.def"] * bool(lines)]
    run([*words, "-o", name, "-ladvapi32"], root, {})


def stand_in(root: Path) -> None:
    """Have wheels call a stand-in for the C library's mathematics: Wine 8 lacks complex numbers."""
    names: set[str] = set()
    for path in (root / "Lib/site-packages").rglob("*"):
        if path.suffix in (".pyd", ".dll") and MATHS.encode() in path.read_bytes():
            for part in dumped(path).split("DLL Name: ")[1:]:
                if part.startswith(MATHS):
                    names |= set(re.findall(r"^\s+[0-9a-f]+\s+\d+\s+(\w+)$", part, re.MULTILINE))
            path.write_bytes(path.read_bytes().replace(MATHS.encode(), STAND_IN.encode()))
    source = ["#include <complex.h>"]
    for suffix, real in (("f", "float"), ("", "double"), ("l", "double")):
        source.append(f"typedef struct {{ {real} re, im; }} pair{suffix};")
    lines = []
    for name in sorted(names):
        found = COMPLEX.fullmatch(name)
        if not found:
            lines.append(f"{name} = ucrtbase.{name}")
            continue
        lines.append(f"{name} = own_{name}")
        base, suffix = found[1], found[2]
        own = f"c{base}{'f' if suffix == 'f' else ''}"  # long double is double there
        real = "float" if suffix == "f" else "double"
        z = "__builtin_complex(z.re, z.im)"
        if base in ("real", "imag", "abs", "arg"):
            source.append(f"{real} own_{name}(pair{suffix} z) {{ return {own}({z}); }}")
            continue
        more = (f", pair{suffix} w", f", {z.replace('z.', 'w.')}") if base == "pow" else ("", "")
        source.append(
            f"pair{suffix} own_{name}(pair{suffix} z{more[0]}) {{ {real} complex y = "
            f"{own}({z}{more[1]}); return (pair{suffix}){{__real__ y, __imag__ y}}; }}"
        )
    shared(root, STAND_IN, "\n".join(source), lines)


def build(folder: Path, name: str, levels: str, compiler: str) -> None:
    """Build levels in a copy of the tree; what Cython has translated here is taken over."""
    tree = folder / name
    copy_tree(tree)
    if (ROOT / "build/cython").exists():
        shutil.copytree(ROOT / "build/cython", tree / "build/cython", dirs_exist_ok=True)
    plain = {
        key: value
        for key, value in sysconfig.get_config_vars().items()
        if isinstance(value, int | str)
    }
    plain |= {"EXT_SUFFIX": f".cp{TAG}-win_amd64.pyd", "SHLIB_SUFFIX": ".pyd"}
    plain |= dict.fromkeys(
        ("CFLAGS", "OPT", "CCSHARED", "LDFLAGS", "BASECFLAGS", "PY_LDFLAGS", "PY_CFLAGS"), ""
    )
    (folder / "_sysconfigdata_windows.py").write_text(f"build_time_vars = {plain!r}\n")
    values = {"root": folder / "root", "clang": compiler, "tag": TAG, "libraries": LIBRARIES}
    values["ccache"] = "ccache " * bool(shutil.which("ccache"))
    for each, text in (("cc", COMPILER), ("ld", LINKER)):
        (folder / f"{each}-{name}").write_text(text % values)
        (folder / f"{each}-{name}").chmod(0o755)
    settings = {
        "CC": str(folder / f"cc-{name}"),
        "LDSHARED": str(folder / f"ld-{name}"),
        "CFLAGS": "",
        "PYTHONPATH": str(folder),
        "_PYTHON_SYSCONFIGDATA_NAME": "_sysconfigdata_windows",
        "_PYTHON_HOST_PLATFORM": "win-amd64",
        "TOYNN_LEVELS": levels,
    }
    run([sys.executable, "setup.py", "-q", "build_ext", "--inplace", "-j1"], tree, settings)


if __name__ == "__main__":
    sys.exit(main())
