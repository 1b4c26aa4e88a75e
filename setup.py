"""Build toynn's Cython modules: the kernels once per ISA level, everything else once.

Cython translates each kernel of toynn/_kernels and its folders to C once. That C is then compiled
once per level, as toynn._kernels.<level>.<op>, with that level's flags; toynn/_kernels/__init__.py
picks a level. Code that several kernels share and that compiles slowly is in .c files there. Each
level compiles these once into an archive, which its modules link.

TOYNN_DEBUG=1          bounds and initialisation checks in all Cython code
TOYNN_LEVELS=generic,avx512
                       build these levels only, and those they need: generic, and avx512 for amx.
                       On arm64 there are generic and neon
TOYNN_TILES=software   at level amx, plain C replaces the tile instructions. So any CPU with
                       AVX512_BF16 can run this level, slowly, if told to: TOYNN_ISA=amx
TOYNN_SANITIZE=address,undefined
                       GCC's or clang's sanitizers watch the C code; the first finding ends the
                       process. Python needs LD_PRELOAD=$(cc -print-file-name=libasan.so) then.
TOYNN_METAL=auto       where to build the bridge to Metal. auto: on macOS; if it fails, the rest is
                       built. 0: nowhere. standin: over the software device of tests/metal_standin

After a change of settings, build with build_ext --force.
"""

import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

WINDOWS = sys.platform == "win32"  # compiled by clang-cl: the same results as clang's
X86 = platform.machine().lower() in ("x86_64", "amd64")
ARM = platform.machine().lower() in ("aarch64", "arm64")
JOBS = os.cpu_count() or 1
if sys.platform == "darwin":  # a universal Python compiles for both CPUs; levels are for one
    os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")
DEBUG = os.environ.get("TOYNN_DEBUG", "0") == "1"
SOFTWARE_TILES = ["-DTN_SOFTWARE_TILES"] if os.environ.get("TOYNN_TILES") == "software" else []
SANITIZE = os.environ.get("TOYNN_SANITIZE", "")
METAL = os.environ.get("TOYNN_METAL", "auto")
BUILD = Path("build/cython")
KERNELS = Path("toynn/_kernels")
HEADERS = sorted([*KERNELS.rglob("*.h"), Path("toynn/system/platform.h")])
INCLUDE = sorted({path.parent.as_posix() for path in HEADERS})
LINKED = sorted(path.as_posix() for path in KERNELS.rglob("*.c"))

# Flags per level, slowest first.
LEVELS: dict[str, list[str]] = {"generic": []}
if X86:
    LEVELS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    LEVELS["avx512"] = [
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
    ]
    if SOFTWARE_TILES or not WINDOWS:  # cpu.pyx does not request tiles from Windows yet
        LEVELS["amx"] = [
            *LEVELS["avx512"],
            "-mavx512bf16",
            *(SOFTWARE_TILES or ["-mamx-tile", "-mamx-bf16", "-mamx-int8"]),
        ]
if ARM:
    LEVELS["neon"] = ["-DTN_NEON"]  # every such CPU has it

# Modules that are built once for all levels: CPU features, tables, the thread pool.
ONCE = ("codebooks", "cpu", "invoke", "pool")

# The modules of a level that does not have all; it uses the rest from the level below.
TILED = ["experts", "grad_norm", "limits", "matmul", "prepacked"]
ONLY = {"amx": [*TILED, "attention"], "neon": [*TILED, "attention", "cached_attention"]}
ONLY_LINKED = {"amx": ["gemm_amx"]}
BELOW = {"amx": "avx512", "neon": "generic"}

# Never -ffast-math: NaN must stay NaN. These only drop errno and floating-point traps.
COMPILE = ["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-pthread"]
LINK = [] if WINDOWS else ["-pthread"]
if SANITIZE:
    LINK += [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all"]
    COMPILE += [*LINK, "-O1", "-g1", "-fno-wrapv", "-fno-omit-frame-pointer"]

# Additional flags of some modules, if the compiler knows them. At -O3 GCC inlines the loops of a
# product into each caller. With this limit (-O2's) it inlines less. A module then compiles in 0.6
# of the time, cached_attention in half of the time, and runs as fast.
MORE = {
    op: ["--param=max-inline-insns-single=70"]
    for op in ("attention", "cached_attention", "experts", "matmul")
}

#: What Cython writes on top of its C. It lists folders in an order that changes, so a second `pip
#: install`, whose Cython is newer than the first one's C, would compile the slowest modules again.
METADATA = re.compile(rb"/\* BEGIN: Cython Metadata.*?END: Cython Metadata \*/\n", re.DOTALL)

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "embedsignature": True,
    "freethreading_compatible": True,  # docs/kernel-rules.md says why
}

PLAIN = "int main(void) { return 0; }"

TILES = r"""
#include "forms.h"
#if !TN_TILES
#error "this compiler lacks __builtin_shufflevector or AMX"
#endif
int main(void) { return 0; }
"""


NEEDS = """
    Debian, Ubuntu  apt install gcc python3-dev
    Fedora          dnf install gcc python3-devel
    Alpine          apk add gcc musl-dev python3-dev
    macOS           xcode-select --install
    Windows         "Desktop development with C++" of the Build Tools for Visual Studio, and of
                    its components "C++ Clang tools for Windows"
    conda           conda install c-compiler python"""

#: Commands of setup.py that compile.
COMPILING = {"build", "build_ext", "bdist_wheel", "develop", "editable_wheel", "install"}

HANG = 600  # seconds: long enough for a busy machine


def compiler() -> list[str]:
    """Return the command of the C compiler; on Windows clang-cl, LLVM's or Visual Studio's."""
    if WINDOWS:
        found = os.environ.get("CC") or shutil.which("clang-cl")
        places = ("LLVM/bin", "Microsoft Visual Studio/*/*/VC/Tools/Llvm/x64/bin")
        for name in ("ProgramFiles", "ProgramFiles(x86)"):
            for place in places:
                each = sorted(Path(os.environ.get(name, "C:/")).glob(f"{place}/clang-cl.exe"))
                found = found or (each and str(each[-1]))
        return [found or "clang-cl"]
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def spelled(flags: list[str]) -> list[str]:
    """Return flags of GCC and clang; on Windows, in clang-cl's form."""
    if not WINDOWS:
        return flags
    own = ("-f", "-m", "-O")
    flags = [flag for flag in flags if flag not in ("-pthread", "-g0")]
    return [f"/clang:{flag}" if flag.startswith(own) else flag for flag in flags]


def expect_compiler() -> None:
    """Exit if there is no C compiler, or if it lacks a header that all modules need."""
    program = compiler()[0]
    if not shutil.which(program):
        sys.exit(f"toynn: the build needs a C compiler; {program!r} was not found. Get one:{NEEDS}")
    include = [f"-I{folder}" for folder in {*map(sysconfig.get_path, ("include", "platinclude"))}]
    for header in ("stdlib.h", "Python.h"):
        text = f"#include <{header}>\nint main(void) {{ return 0; }}"
        if error := probe(text, *include):
            sys.exit(
                f"toynn: the build needs a C compiler that finds {header}; {program!r} fails "
                f"({described(error)}). For Python {platform.python_version()} get:{NEEDS}"
            )


def described(error: Exception) -> str:
    """Return the first error of a compiler, or how it failed."""
    said = (getattr(error, "stderr", None) or b"").decode(errors="replace").splitlines()
    return next((line.strip() for line in said if "error" in line), str(error))


def probe(text: str, *flags: str) -> Exception | None:
    """Compile and link a program; return the error, or None."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(text)
        out = Path(folder, "probe")
        made = ["/c", f"/Fo{out}"] if WINDOWS else ["-o", out]
        command = [*compiler(), *spelled([*flags]), source, *made]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=HANG)
        except (OSError, subprocess.SubprocessError) as error:
            return error
    return None


def levels() -> dict[str, list[str]]:
    """Return the levels that this compiler can build; amx needs GCC 12 or a clang as recent."""
    wanted = os.environ.get("TOYNN_LEVELS", ",".join(LEVELS)).split(",")
    wanted += ["generic", *(BELOW[name] for name in wanted if name in BELOW)]
    include = [f"-I{folder}" for folder in INCLUDE]
    found: dict[str, list[str]] = {}
    for name, flags in LEVELS.items():
        if name not in wanted:
            continue
        below = BELOW.get(name, "generic")
        text = TILES if name == "amx" else PLAIN
        if name != below and below not in found:
            print(f"toynn: no level {name}: it needs {below}")
        elif flags and (error := probe(text, *flags, *include)):
            print(f"toynn: no level {name}: this compiler cannot build it ({described(error)})")
        else:
            found[name] = flags
    return found


def known(flags: list[str]) -> list[str]:
    """Return the flags if the compiler knows them, else none; clang lacks some of GCC's."""
    if WINDOWS or probe(PLAIN, "-Werror", *flags):
        return []
    return flags


def with_loops(paths: list[Path]) -> dict[str, Path]:
    """Return the file to compile for each kernel: its own, or a copy with its loops.

    These, and the structs of its arguments (``toynn._kernels.args.<op>`` for cimport), follow from
    its signatures: toynn/_kernels/base/loops.py. They go to the build folder.
    """
    loops, signature = (loaded(KERNELS / f"base/{name}.py") for name in ("loops", "signature"))
    found = {path.stem: path for path in paths}
    folders = BUILD / "args/toynn/_kernels/args", BUILD / "kernels"
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for op, path in found.items():
        own = path.read_text()
        structs, text = loops.compiled(own, op, signature.Signature.parse)
        if structs:
            write_if_new(folders[0] / f"{op}.pxd", structs)
        if text != own:
            found[op] = folders[1] / f"{op}.pyx"
            write_if_new(found[op], text)
    return found


def loaded(path: Path) -> ModuleType:
    """Return a module of toynn, which cannot be imported before it is compiled."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_if_new(path: Path, text: str) -> None:
    """Write a file only if its text changes: a newer file would trigger a rebuild."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def per_level(kernel: Extension, levels: dict[str, list[str]]) -> list[Extension]:
    """Return an extension for each level, from the C code of one kernel."""
    op = kernel.name.rpartition(".")[2]
    more = known(MORE[op]) if op in MORE else []
    built = []
    for level, flags in levels.items():
        if op not in ONLY.get(level, [op]):
            continue
        folder = Path("toynn/_kernels", level)
        source = BUILD / level / f"{op}.c"
        for path in (folder, source.parent):
            path.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
        text = METADATA.sub(b"", Path(kernel.sources[0]).read_bytes(), 1)
        if not source.exists() or source.read_bytes() != text:
            source.write_bytes(text)
        built.append(
            Extension(
                f"toynn._kernels.{level}.{op}",
                [source.as_posix()],
                include_dirs=INCLUDE,
                extra_compile_args=spelled([*COMPILE, *flags, *more]),
                extra_link_args=LINK,
                depends=kernel.depends,
            )
        )
    return built


class Build(build_ext):
    """Builds the archives of the levels, then the extensions; prints its progress."""

    done = 0

    def build_extensions(self) -> None:
        """Build archives; make each module link its level's archive and that of the level below."""
        if WINDOWS:
            self.compiler.initialize()
            self.compiler.cc = compiler()[0]
            self.compiler.compile_options = [
                each for each in self.compiler.compile_options if each != "/GL"
            ]
        count, jobs = len(self.extensions), self.parallel or 1
        print(f"toynn: {count} modules to build, {jobs} at a time; this takes minutes", flush=True)
        modules = {level: [] for level in LEVELS}
        for module in self.extensions:
            modules.get(module.name.split(".")[-2], []).append(module)
        built = {level: its[0] for level, its in modules.items() if its}
        with ThreadPoolExecutor(self.parallel or 1) as pool:
            archives = dict(zip(built, pool.map(self.archive, built, built.values()), strict=True))
        for level in built:
            needed = [archives[name] for name in (level, BELOW.get(level)) if name in archives]
            for module in modules[level]:
                module.extra_objects += needed
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Build a module and print its number; with parallel builds the number is approximate."""
        super().build_extension(ext)
        self.done += 1
        print(f"toynn: {self.done} of {len(self.extensions)}: {ext.name}", flush=True)

    def archive(self, level: str, module: Extension) -> str:
        """Compile LINKED with a level's flags; return the path of the archive."""
        folder = Path(self.build_temp, level).as_posix()
        own = ONLY_LINKED.get(level)
        path = self.compiler.library_filename("linked", output_dir=folder)
        if self.force or newer_group(module.depends, path, "newer"):
            Path(path).unlink(missing_ok=True)
            objects = self.compiler.compile(
                [source for source in LINKED if not own or Path(source).stem in own],
                output_dir=folder,
                include_dirs=module.include_dirs,
                extra_postargs=spelled([*COMPILE, *LEVELS[level]]),
            )
            self.compiler.create_static_lib(objects, "linked", output_dir=folder)
        return path


def metal() -> list[Extension]:
    """Return the bridge to Metal on macOS, or over the software device; else no extension."""
    if METAL not in ("auto", "0", "standin"):
        sys.exit(f"TOYNN_METAL: expected auto, 0 or standin; got {METAL!r}")
    folder = Path("toynn/backends/metal")
    bridge = Extension(
        "toynn.backends.metal._bridge",
        [(folder / "_bridge.pyx").as_posix()],
        include_dirs=[folder.as_posix()],
        depends=[(folder / name).as_posix() for name in ("bridge.h", "bridge.m")],
    )
    if METAL == "standin":
        command = [sys.executable, "tests/metal_standin/standin.py"]
        asked = subprocess.run(command, capture_output=True, text=True)
        if asked.returncode:
            sys.exit(f"TOYNN_METAL=standin: {asked.stderr}")
        flags = json.loads(asked.stdout)
        unlinked = BUILD / "bridge.o"
        unlinked.parent.mkdir(parents=True, exist_ok=True)
        compile_it = [flags["compiler"], *flags["compile"], "-Wall", "-Wextra", "-Werror", "-g"]
        subprocess.run(
            [*compile_it, "-O1", "-fPIC", "-c", folder / "bridge.m", "-o", unlinked], check=True
        )
        bridge.extra_objects, bridge.extra_link_args = [unlinked.as_posix()], flags["link"]
        bridge.depends.append(unlinked.as_posix())
    elif METAL == "auto" and sys.platform == "darwin":
        bridge.sources.append((folder / "bridge.m").as_posix())
        bridge.extra_compile_args = ["-fno-objc-arc"]
        # Without CoreGraphics a command-line program gets no default device.
        frameworks = ("Metal", "Foundation", "CoreGraphics")
        bridge.extra_link_args = [part for name in frameworks for part in ("-framework", name)]
    else:
        return []
    return [bridge]


def extensions() -> list[Extension]:
    """Return all extensions: kernels per level, those built once, Cython's shared utilities."""
    expect_compiler()
    built_levels = levels()
    headers = [*LINKED, *(path.as_posix() for path in HEADERS)]
    sources = [path for path in sorted(KERNELS.rglob("*.pyx")) if path.stem not in ONCE]
    kernels = [
        Extension(f"toynn._kernels.{op}", [path.as_posix()], depends=headers)
        for op, path in with_loops(sources).items()
    ]
    once = [
        Extension("toynn._cyutility", sources=["toynn/_cyutility.c"]),
        Extension(
            "toynn.system.critical",
            ["toynn/system/critical.pyx"],
            depends=["toynn/system/critical.h", "toynn/system/platform.h"],
        ),
        *(
            Extension(f"toynn._kernels.base.{path.stem}", [path.as_posix()], depends=headers)
            for path in (KERNELS / f"base/{name}.pyx" for name in ONCE)
        ),
        *(
            Extension(f"{folder.replace('/', '.')}.{path.stem}", [path.as_posix()])
            for folder in ("toynn/graph", "toynn/backends/cpu")
            for path in sorted(Path(folder).glob("*.pyx"))
        ),
    ]
    for extension in once:
        extension.include_dirs = ["toynn", *INCLUDE, "toynn/backends/cpu"]
        extension.extra_compile_args = spelled([*COMPILE, *SOFTWARE_TILES])
        extension.extra_link_args = LINK
    translated = cythonize(
        [*kernels, *once, *metal()],
        build_dir=BUILD.as_posix(),
        include_path=[".", (BUILD / "args").as_posix()],
        compiler_directives=DIRECTIVES,
        nthreads=JOBS,
        shared_utility_qualified_name="toynn._cyutility",
    )
    for extension in translated:  # cythonize drops this attribute
        extension.optional = sys.platform == "darwin" and extension.name.endswith(".metal._bridge")
    names = {kernel.name for kernel in kernels}
    built = [extension for extension in translated if extension.name not in names]
    for kernel in translated:
        if kernel.name in names:
            built += per_level(kernel, built_levels)
    return built


if __name__ == "__main__":  # cythonize's workers may import this file
    setup(
        ext_modules=extensions() if COMPILING & {*sys.argv} else [],
        cmdclass={"build_ext": Build},
        options={"build_ext": {"parallel": JOBS}},
    )
