"""Build the software device: the executor and the checker, and Metal's objects over them.

    python standin.py

prints the flags with which a program that uses Metal is compiled and linked against it, as JSON:
setup.py asks for them with TOYNN_METAL=standin. Needs clang 19, the Objective-C runtime of GCC, and
GNUstep.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msl

__all__ = ["OBJC", "compile_flags", "link_flags", "objects", "runtime"]

HERE = Path(__file__).parent
COMPILER = msl.COMPILER.replace("clang++", "clang")
OBJC = [
    *("-fobjc-runtime=gcc", "-fno-objc-arc", "-fblocks"),
    *("-fobjc-exceptions", "-fexceptions", "-fconstant-string-class=NSConstantString"),
]


def missing() -> str | None:
    """Return what the machine lacks to build this, or None."""
    if shutil.which(COMPILER) is None or shutil.which(msl.COMPILER) is None:
        return f"{COMPILER} is not installed (Debian: clang-19)"
    if not (_gcc() / "include" / "objc").is_dir():
        return "GCC's headers for Objective-C are not installed (Debian: libobjc-12-dev)"
    if not Path("/usr/include/GNUstep/Foundation").is_dir():
        return (
            "GNUstep is not installed (Debian: libgnustep-base-dev, gnustep-base-runtime, "
            "libblocksruntime-dev)"
        )
    return None


def _gcc() -> Path:
    printed = subprocess.run(["gcc", "-print-libgcc-file-name"], capture_output=True, text=True)
    return Path(printed.stdout.strip()).parent


def runtime() -> Path:
    """Build the executor and the checker once; return the shared object."""
    return msl.once("libsoft.so", _build_runtime, msl.headers())


def _build_runtime(target: Path) -> None:
    sources = [HERE / "runtime.cpp", HERE / "checker.cpp"]
    flags = ["-std=c++17", "-O2", "-g", "-fPIC", "-shared"]
    _run(msl.COMPILER, *flags, *sources, "-o", target, "-ldl")


def compile_flags() -> list[str]:
    """Flags for Objective-C that includes Metal.h and Foundation.h."""
    # GCC's folder has other headers that clang must not see: a link to the one that is needed.
    headers = msl.ROOM / "objc"
    headers.mkdir(parents=True, exist_ok=True)
    link = headers / "objc"
    if not link.is_symlink():
        link.symlink_to(_gcc() / "include" / "objc")
    includes = ["-I", str(HERE / "include"), "-I", str(headers)]
    return [*OBJC, *includes, "-isystem", "/usr/include/GNUstep"]


def objects() -> Path:
    """Build Metal's objects once; return the shared object, which the executor lies beside."""
    return msl.once("libstandin.so", _build_objects, msl.headers(), sys.executable)


def _build_objects(target: Path) -> None:
    defines = [f'-DSTANDIN_PYTHON="{sys.executable}"', f'-DSTANDIN_HERE="{HERE}"']
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    flags = ["-g", "-O2", "-fPIC", "-shared", *warnings, *defines, *compile_flags()]
    _run(COMPILER, *flags, HERE / "standin.m", "-o", target, *_libraries(runtime()))


def _libraries(*shared: Path) -> list[str]:
    linked = [part for path in shared for part in (str(path), f"-Wl,-rpath,{path.parent}")]
    return [*linked, "-lgnustep-base", f"-L{_gcc()}", "-lobjc", "-ldl"]


def link_flags() -> list[str]:
    """Flags that link a program with the software device."""
    return _libraries(objects(), runtime())


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr}")


if __name__ == "__main__":
    if why := missing():
        sys.exit(why)
    print(json.dumps({"compiler": COMPILER, "compile": compile_flags(), "link": link_flags()}))
