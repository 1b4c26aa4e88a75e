"""A folder is a package: a name with an underscore in front is used in its own package only.

`_kernels` counts as one package with its folders, and its own name is not private.
Tests may import private names of any package.
"""

import ast
import re
from pathlib import Path

import pytest

import toynn

PACKAGE = Path(toynn.__file__).parent
SOURCES = sorted(
    path for kind in ("py", "pyi", "pyx", "pxd") for path in PACKAGE.rglob(f"*.{kind}")
)
PUBLIC = {"_kernels"}  # in spite of the underscore
KERNELS = "toynn._kernels"
CIMPORT = re.compile(r"^\s*from\s+(toynn[\w.]*)\s+c?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)
PLAIN = re.compile(r"^\s*c?import\s+(toynn[\w.]*)", re.MULTILINE)


def private(name):
    return name.startswith("_") and not name.endswith("__") and name not in PUBLIC


def imported(text, *, cython):
    """Dotted paths of all that a source imports from toynn, names and modules alike."""
    if cython:
        yield from PLAIN.findall(text)
        for module, names in CIMPORT.findall(text):
            for name in names.strip("() \n").split(","):
                if name := name.partition("#")[0].strip().partition(" as ")[0]:
                    yield f"{module}.{name}"
        return
    tree, modules = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                modules[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):  # toynn.package.module._name, by the names that were imported
        if isinstance(node, ast.Attribute) and private(node.attr):
            base = ast.unparse(node.value)
            yield f"{modules.get(base, base)}.{node.attr}"


def trespasses(text, folder, *, cython=False):
    """What a source in a folder ("toynn.cli") imports that is private to another one."""
    for path in imported(text, cython=cython):
        parts = path.split(".")
        for i, part in enumerate(parts):
            if parts[0] != "toynn" or not private(part):
                continue
            home = ".".join(parts[:i])
            if not (PACKAGE.parent / home.replace(".", "/")).is_dir():
                home = home.rpartition(".")[0]  # a name of a module
            both_kernels = home.startswith(KERNELS) and folder.startswith(KERNELS)
            if home != folder and not both_kernels:
                yield path


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_is_private_stays_in_its_package(path):
    folder = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
    private = list(trespasses(path.read_text(), folder, cython=path.suffix in (".pyx", ".pxd")))
    assert not private, f"{private[0]} is private to its folder: make it public, or do without"


@pytest.mark.parametrize(
    ("code", "folder", "cython"),
    [
        ("from toynn.cli._text import harmless", "toynn.train", False),
        ("from toynn.cli import _text", "toynn", False),
        ("from toynn.formats.quants import _blocks", "toynn.engines", False),
        ("import toynn.cli._text as text", "toynn.train", False),
        ("from toynn.formats import quants as q\nq._blocks", "toynn.engines", False),
        ("import toynn\ntoynn.formats.quants._blocks()", "toynn.engines", False),
        ("from toynn._kernels._types import TYPES", "toynn.formats", False),
        ("from toynn._kernels._types cimport TYPES", "toynn.backends.cpu", True),
        ("from toynn._kernels.base.abi cimport (\n    one, _two as t)", "toynn.backends.cpu", True),
    ],
)
def test_a_trespass_is_seen(code, folder, cython):
    assert list(trespasses(code, folder, cython=cython))
    assert not list(trespasses(code.replace("_t", "t").replace("_b", "b"), folder, cython=cython))


def test_what_is_no_trespass():
    for code in (
        "from toynn.cli._text import harmless",
        "from toynn.cli import _text\n_text._deep",
        "from toynn import _kernels\nfrom toynn._kernels import random\nself._engine.__doc__",
    ):
        assert not list(trespasses(code, "toynn.cli"))
