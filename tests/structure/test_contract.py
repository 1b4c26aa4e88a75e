"""What holds for the source as a whole: no switches, what a kernel comes with, public names."""

import ast
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from layers import PACKAGE, PYTHON, imports, module_name, package_of

import toynn._kernels as kernels
from toynn.models import ARCHITECTURES
from toynn.testing.cases import CASES

CYTHON = sorted(PACKAGE.rglob("*.pyx"))
NO_OPS = {"codebooks", "prepacked", "cpu", "invoke", "limits", "pool"}
OPS = sorted({path.stem for path in (PACKAGE / "_kernels").rglob("*.pyx")} - NO_OPS)
BACKENDS = PACKAGE / "backends"


def called(node):
    """The name of a variable or attribute."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name.strip("_")


def compared_names(tree):
    """Names and attributes that a file compares with something, and its match subjects."""
    for node in ast.walk(tree):
        sides = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject]
        yield from ((called(side), side.lineno) for side in sides)


def test_no_switches_on_backends_outside_their_package():
    for path in PYTHON:
        if package_of(module_name(path)) == "backends":
            continue
        lines = [line for name, line in compared_names(tree_of(path)) if name == "backend"]
        assert not lines, f"{path.relative_to(PACKAGE)}:{lines[0]} asks which backend it is"


def test_no_backend_is_imported_by_name():
    """Except by the reference's users: the case table compares with it."""
    folders = tuple(f"toynn.backends.{path.parent.name}" for path in BACKENDS.glob("*/__init__.py"))
    assert len(folders) >= 3
    for path in PYTHON:
        if package_of(module_name(path)) not in ("backends", "testing"):
            named = [name for name in imports(path) if name.startswith(folders)]
            assert not named, f"{path.relative_to(PACKAGE)} imports {named[0]}"


def tree_of(path):
    return ast.parse(path.read_text())


ASKED = ("arch", "architecture", "model_type")
REGISTRIES = ("ARCHITECTURES", "NAME_MAPPINGS")


def texts_in(node):
    """The texts that an expression lists: itself, or those of a tuple, list, set or dict."""
    parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [node])
    return [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]


def switches(tree, architectures):
    """Lines that ask which architecture it is, or list some: (line, what)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {name for side in sides for name in texts_in(side)}
            asked = any(called(side) in ASKED for side in sides)
            if names and (asked or (names & architectures and "arch" in ast.unparse(node))):
                yield node.lineno, "compares an architecture with a name"
        elif isinstance(node, ast.Match) and called(node.subject) in ASKED:
            yield node.lineno, "matches an architecture"
        elif isinstance(node, ast.Dict | ast.Tuple | ast.List | ast.Set):
            if len(architectures & set(texts_in(node))) > 1:
                yield node.lineno, "lists architectures"
        else:
            table, keys = None, []
            if isinstance(node, ast.Subscript):
                table, keys = node.value, [node.slice]
            elif isinstance(node, ast.Call) and called(node.func) == "get":
                table, keys = node.func.value, node.args[:1]
            if any(called(key) in ASKED for key in keys) and called(table) not in REGISTRIES:
                yield node.lineno, "has a table by architecture"


def test_no_switches_on_architectures_outside_models():
    """What differs by architecture is in models/, and what there is its registry says."""
    for path in PYTHON:
        # Two kinds of tokenizers are called as architectures are.
        if package_of(module_name(path)) == "models" or path.parent.name == "tokenizer":
            continue
        asked = list(switches(tree_of(path), set(ARCHITECTURES)))
        assert not asked, f"{path.relative_to(PACKAGE)}:{asked[0][0]} {asked[0][1]}"


@pytest.mark.parametrize(
    "code",
    [
        "if cfg.arch == 'mamba': pass",
        "x = file.architecture != 'llama'",
        "x = self._architecture in ('gpt2', 'mamba')",
        "x = config.get('model_type') or model_type not in ['gpt2']",
        "x = metadata['general.architecture'] == 'llama'",
        "match file.architecture:\n  case 'gpt2': pass",
        "x = {'gpt2': 1, 'llama': 2}",
        "x = TABLE[file.architecture]",
        "x = {'gpt2': 1}[architecture]",
        "x = {'gpt2': 1}.get(arch)",
    ],
)
def test_a_switch_on_architectures_is_seen(code):
    assert list(switches(ast.parse(code), {"gpt2", "llama"}))


@pytest.mark.parametrize("path", CYTHON, ids=lambda path: path.stem)
def test_a_compiled_module_has_a_docstring_and_its_functions_a_stub(path):
    """Of entries the signature says what a stub would."""
    text = path.read_text()
    assert text.startswith('"""')
    hidden = path.stem == path.parent.name  # the folder quants/ stands before a stub of quants
    functions = re.search(r"^(def|cdef class) ", text, re.MULTILINE)
    if functions and not hidden and "cimport entry\n" not in text:
        stubs = PACKAGE / "_kernels" / f"{path.stem}.pyi", path.with_suffix(".pyi")
        assert any(stub.exists() for stub in stubs)  # the module of a level is in _kernels


@pytest.mark.parametrize("op", OPS)
def test_a_kernel_is_complete(op):
    module = getattr(kernels, op)
    text = module.__doc__
    assert op in CASES, "a case in toynn/testing/cases"
    assert re.search(r"^ {2,}.* (=|<-|\+=) ", text, re.MULTILINE), "a formula"
    assert re.search(r"\b(Sources?: \S|doi:|arXiv:)", text) or op in (
        "valid_rows",  # a definition
        "columns",  # a copy
        "elementwise",  # sums
        "embedding",  # a gather
        "softmax",  # a definition
        "sums",  # sums
        "transpose",  # a copy
    ), "the source of the formula"
    for name, entry in module.entries.items():
        assert str(entry.signature) in entry.__doc__, f"{name}: its signature in its docstring"


@pytest.mark.parametrize("op", CASES)
def test_a_case_says_why_its_tolerance(op):
    case = CASES[op]
    assert case.op == op
    assert case.tolerance > 0 and case.reason
    assert (case.function is None) == (case.gradients is None) == (case.inputs is None)


def test_a_model_reads_in_one_sitting():
    for path in (PACKAGE / "models").glob("*.py"):
        assert len(path.read_text().splitlines()) < 460, path


def test_testing_is_a_name_of_the_package():
    fresh = "import toynn; print(toynn.testing.gradcheck.__module__); toynn.nothing"
    done = subprocess.run([sys.executable, "-c", fresh], capture_output=True, text=True)
    assert done.stdout.strip() == "toynn.testing.gradcheck"
    assert "module 'toynn' has no attribute 'nothing'" in done.stderr


def test_public_names_exist():
    bridged = find_spec("toynn.backends.metal._bridge") is not None  # where Metal was built
    for path in PYTHON:
        if path.parent.name == "metal" and not bridged:
            continue
        tree = ast.parse(path.read_text())
        listed = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        if listed and path.name != "__main__.py":
            try:
                module = __import__(module_name(path), fromlist=["_"])
            except ImportError as error:
                assert "'_bridge'" in str(error), path  # which is built on a Mac, or if asked
                continue
            for name in listed[0]:
                assert hasattr(module, name), f"{path}: __all__ names {name}"
