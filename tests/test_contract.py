"""What holds for the source as a whole: who imports whom, what a kernel comes with, sizes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import toynn
import toynn._kernels as kernels
from toynn.testing.cases import CASES

PACKAGE = Path(toynn.__file__).parent
PYTHON = sorted(PACKAGE.rglob("*.py"))
CYTHON = sorted(PACKAGE.rglob("*.pyx"))
OPS = sorted({path.stem for path in (PACKAGE / "_kernels").glob("*.pyx")} - {"cpu", "limits"})

#: Top to bottom. A module imports from its own row or from rows below: so only the command line,
#: which has `bench`, imports testing.
LAYERS = (
    {"__main__"},
    {"cli"},
    {"testing"},
    {"train", "generate"},
    {"toynn", "config"},  # the public names, show_config
    {"recipes"},
    {"engines"},
    {"nn"},
    {"session"},
    {"ops", "autograd", "tape", "planner", "lowering", "storage", "updates", "checkpointing"},
    {"backends"},
    {"formats"},
    {"_kernels"},
    {"adamw", "schedule", "options", "precision", "checks", "reports", "data", "dtypes"},
    {"errors"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

LONG = {"matmul": 450, "attention": 450, "cross_entropy": 300}  # kernels; the others: 250


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module):
    """The row's name of a module: its first part below toynn."""
    return module.split(".")[1] if "." in module else module


def imports(path):
    """Modules of toynn that a file imports, anywhere in it."""
    if path.suffix == ".pyx":
        for line in path.read_text().splitlines():
            if found := re.match(r"\s*(?:from|c?import)\s+(toynn[\w.]*)", line):
                yield found[1]
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "toynn")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "toynn":  # submodules, or public names
                for alias in node.names:
                    yield f"toynn.{alias.name}" if alias.name in RANK else "toynn"
            elif (node.module or "").startswith("toynn."):
                yield node.module


@pytest.mark.parametrize("path", PYTHON + CYTHON, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    own = layer(module_name(path))
    assert own in RANK, f"{own} has no row in LAYERS: give it one"
    for module in imports(path):
        other = layer(module)
        assert RANK[other] >= RANK[own], f"{own} must not import {module}"
        if own in ("toynn", "config"):
            assert other != "toynn", "the public names are for users"


def test_modules_of_one_row_import_in_no_circle():
    graph = {module_name(path): set(imports(path)) for path in PYTHON}
    state = {}

    def visit(module, trail):
        assert state.get(module) != "open", f"circle: {' -> '.join([*trail, module])}"
        if module in state or module not in graph:
            return
        state[module] = "open"
        for other in graph[module] - {module}:
            # A package is imported with its modules: its __init__ may name them.
            if not module.startswith(f"{other}."):
                visit(other, [*trail, module])
        state[module] = "done"

    for module in graph:
        visit(module, [])


def compared_names(path):
    """Names and attributes that a file compares with something, and its match subjects."""
    for node in ast.walk(ast.parse(path.read_text())):
        sides = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject]
        for side in sides:
            if isinstance(side, ast.Name):
                yield side.id, side.lineno
            elif isinstance(side, ast.Attribute):
                yield side.attr, side.lineno


@pytest.mark.parametrize(("name", "home"), [("backend", "backends"), ("arch", "engines")])
def test_no_switches_outside_their_home(name, home):
    """What differs by backend lives in backends/, what differs by architecture in engines/."""
    for path in PYTHON:
        if layer(module_name(path)) == home:
            continue
        found = [line for compared, line in compared_names(path) if compared.strip("_") == name]
        assert not found, f"{path.relative_to(PACKAGE)}:{found[0]} asks which {name} it is"


def compiled_modules():
    """Plain names of the compiled modules that have a source here."""
    return [module_name(path) for path in CYTHON]


def test_stubs_match_the_compiled_modules(tmp_path):
    pytest.importorskip("mypy", reason="mypy, of the test extra, is not installed")
    command = [sys.executable, "-m", "mypy.stubtest", *compiled_modules()]
    environment = {"PYTHONPATH": str(PACKAGE.parent), "MYPY_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", CYTHON, ids=lambda path: path.stem)
def test_a_compiled_module_has_a_stub_and_a_docstring(path):
    assert path.with_suffix(".pyi").exists()
    assert path.read_text().startswith('"""')


@pytest.mark.parametrize("op", OPS)
def test_a_kernel_is_complete(op):
    module = getattr(kernels, op)
    text = module.__doc__
    assert op in CASES, "a case in toynn/testing/cases"
    assert re.search(r"^ {2,}.* (=|<-|\+=) ", text, re.MULTILINE), "a formula"
    assert re.search(r"\b(Sources?: \S|doi:|arXiv:)", text) or op in (
        "elementwise",  # sums
        "embedding",  # a gather
        "softmax",  # a definition
    ), "the source of the formula"
    for name in [*getattr(module, "entries", ()), "forward"]:
        door = getattr(module, name, None)
        assert door is None or len((door.__doc__ or "").splitlines()) > 1, f"{name}: a docstring"


@pytest.mark.parametrize("op", CASES)
def test_a_case_says_why_its_tolerance(op):
    case = CASES[op]
    assert case.op == op
    assert case.tolerance > 0 and case.reason
    assert (case.function is None) == (case.gradients is None) == (case.inputs is None)


def test_files_stay_short():
    for path in PYTHON:
        assert len(path.read_text().splitlines()) < 460, path
    for path in CYTHON:
        assert len(path.read_text().splitlines()) < LONG.get(path.stem, 250), path
    for path in PACKAGE.rglob("*.h"):
        assert len(path.read_text().splitlines()) < 200, path


def test_testing_is_a_name_of_the_package():
    fresh = "import toynn; print(toynn.testing.gradcheck.__module__); toynn.nothing"
    done = subprocess.run([sys.executable, "-c", fresh], capture_output=True, text=True)
    assert done.stdout.strip() == "toynn.testing.gradcheck"
    assert "module 'toynn' has no attribute 'nothing'" in done.stderr


def test_public_names_exist():
    for path in PYTHON:
        tree = ast.parse(path.read_text())
        listed = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        if listed and path.name != "__main__.py":
            module = __import__(module_name(path), fromlist=["_"])
            for name in listed[0]:
                assert hasattr(module, name), f"{path}: __all__ names {name}"
