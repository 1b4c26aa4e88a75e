"""setup.py: what it says where a compiler lacks something, and how far a build is."""

import _osx_support
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("Cython", reason="Cython, which builds need, is not installed")
pytest.importorskip(
    "setuptools.modified", reason="setuptools 77, which builds need, is not installed"
)
ROOT = Path(__file__).parents[2]
PACKAGES = ("apt install gcc", "dnf install gcc", "apk add gcc", "xcode-select", "Visual Studio")


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A function that makes cc, in front of which a line of Python has its way with its words."""

    def make(line):
        path = tmp_path / "some-cc"
        path.write_text(f"#!{sys.executable}\nimport os, sys\nwords = sys.argv[1:]\n{line}\n")
        with path.open("a") as file:
            file.write("os.execvp('cc', ['cc', *words])\n")
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))

    return make


@pytest.fixture
def setup(monkeypatch):
    """setup.py as a module."""
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("setup_of_toynn", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(folder, **environment):
    (folder / "setup.py").write_text((ROOT / "setup.py").read_text())
    command = [sys.executable, "setup.py", "build_ext"]
    found = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )
    assert found.returncode == 1
    assert all(each in found.stderr for each in PACKAGES) and "Traceback" not in found.stderr
    assert [path.name for path in folder.iterdir() if "cc" not in path.name] == ["setup.py"]
    return found.stderr


@pytest.mark.parametrize("named", ["", "other-cc -O2"])
def test_no_compiler(named, tmp_path):
    said = build(tmp_path, PATH=str(tmp_path), CC=named)
    assert f"the build needs a C compiler; '{'other-cc' if named else ''}" in said
    assert "was not found" in said


@pytest.mark.parametrize("lacks", ["stdlib.h", "Python.h"])
def test_a_compiler_without_headers(lacks, tmp_path, compiler):
    if lacks == "stdlib.h":
        compiler("words = ['-nostdinc', *words]")
    else:
        compiler("words = [word for word in words if not word.startswith('-I')]")
    said = build(tmp_path)
    assert f"a C compiler that finds {lacks}; " in said and f"error: {lacks}: No such file" in said


@pytest.mark.parametrize(
    "refused, built",
    [
        ("-mamx-tile", ["generic", "avx2", "avx512"]),
        ("-mavx512bf16", ["generic", "avx2", "avx512"]),
        ("-mavx512f", ["generic", "avx2"]),
        ("-mavx", ["generic"]),
    ],
)
def test_levels_that_a_compiler_lacks(refused, built, compiler, setup, capsys, monkeypatch):
    """The others are built, and each that is missing is named with what the compiler said."""
    if list(setup.LEVELS) != ["generic", "avx2", "avx512", "amx"]:
        pytest.skip("levels of x86-64")
    monkeypatch.delenv("TOYNN_LEVELS", raising=False)
    said = f"cc: error: unrecognized command-line option {refused}"
    compiler(f"if any(word.startswith({refused!r}) for word in words): sys.exit({said!r})")
    assert list(setup.levels()) == built
    output = capsys.readouterr().out
    missing = [name for name in setup.LEVELS if name not in built]
    assert [line.split(":")[1] for line in output.splitlines()] == [
        f" no level {name}" for name in missing
    ]
    assert f"no level {missing[0]}: this compiler cannot build it ({said})" in output
    if built[-1] != "avx512":
        assert "no level amx: it needs avx512" in output


def test_the_build_says_how_far_it_is(setup, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.c").write_text("int PyInit_a(void) { return 0; }\nint PyInit_b(void);")
    (tmp_path / "b.c").write_text("int PyInit_b(void) { return 0; }")
    monkeypatch.setattr(setup, "LINKED", [])
    monkeypatch.chdir(tmp_path)
    from setuptools import Distribution

    modules = [setup.Extension(f"x.{name}", [f"{name}.c"]) for name in "ab"]
    distribution = Distribution({"name": "x", "ext_modules": modules})
    command = setup.Build(distribution)
    command.ensure_finalized()
    command.run()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("toynn: ")]
    assert lines == [
        "toynn: 2 modules to build, 1 at a time; this takes minutes",
        "toynn: 1 of 2: x.a",
        "toynn: 2 of 2: x.b",
    ]


def test_modules_say_that_they_need_no_gil(setup, tmp_path, monkeypatch):
    """So does the one that Cython adds for what all share: else Python 3.14t turns its GIL on."""
    monkeypatch.chdir(tmp_path)
    Path("x.pyx").touch()
    modules = [setup.Extension(name, [f"{name}.{end}"]) for name, end in (("x", "pyx"), ("y", "c"))]
    how = {"compiler_directives": setup.DIRECTIVES, "shared_utility_qualified_name": "y"}
    for module in setup.cythonize(modules, build_dir="c", quiet=True, **how):
        text = Path(module.sources[0]).read_text()
        declared = re.findall(r"#define __Pyx_FREETHREADING_COMPATIBLE (\w+)", text)
        assert declared[-1:] == ["Py_MOD_GIL_NOT_USED"], module.name


@pytest.mark.parametrize("given", ["", "-arch x86_64"])
def test_on_a_mac_a_universal_python_compiles_for_one_cpu(given, monkeypatch):
    """Levels are one CPU's: -DTN_NEON does not compile for the other."""
    monkeypatch.setenv("ARCHFLAGS", given)
    if not given:
        monkeypatch.delenv("ARCHFLAGS")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py", run_name="setup_of_toynn")
    flags = {"CFLAGS": "-O2 -arch arm64 -arch x86_64 -g"}
    _osx_support._override_all_archs(flags)  # what distutils calls
    assert flags["CFLAGS"].split() == ["-O2", "-g", *(given or "-arch arm64").split()]


def test_on_windows_clang_cl_gets_the_flags_that_decide_about_bits(monkeypatch, tmp_path):
    """The levels and flags of Linux, but for AMX; spelled as clang-cl takes them."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    linux = runpy.run_path("setup.py", run_name="setup_of_toynn")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ProgramFiles", str(tmp_path))
    windows = runpy.run_path("setup.py", run_name="setup_of_toynn")
    assert list(linux["LEVELS"]) == ["generic", "avx2", "avx512", "amx"]
    assert windows["LEVELS"] == {k: v for k, v in linux["LEVELS"].items() if k != "amx"}
    spelled = windows["spelled"]
    assert spelled(windows["COMPILE"]) == [
        *("/clang:-O3", "/clang:-fno-math-errno", "/clang:-fno-trapping-math"),
        "/clang:-ffp-contract=fast",
    ]
    expected = ["/clang:-mavx2", "/clang:-mfma", "/clang:-mf16c"]
    assert spelled(windows["LEVELS"]["avx2"]) == expected
    assert spelled(["-DTN_SOFTWARE_TILES"]) == ["-DTN_SOFTWARE_TILES"] and windows["LINK"] == []
    assert linux["spelled"](linux["COMPILE"]) == linux["COMPILE"]
    with pytest.raises(SystemExit, match="needs a C compiler; 'clang-cl' was not found"):
        windows["expect_compiler"]()
    (tmp_path / "LLVM/bin").mkdir(parents=True)
    (found := tmp_path / "LLVM/bin/clang-cl.exe").touch()
    assert windows["compiler"]() == [str(found)]
