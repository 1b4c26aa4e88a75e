"""Every public function that raises says what: its docstring, or its class's, names the errors.

What counts is a `raise` of one of toynn's errors in the function, or in a private function or
method of its module that it calls. What public functions that it calls raise, those say.
"""

import ast
from pathlib import Path

import pytest

import toynn
from toynn import errors

PACKAGE = Path(toynn.__file__).parent
#: Packages that are no library: commands, test helpers, and kernels, which raise ValueError.
OTHERS = {"cli", "testing", "_kernels", "backends", "__main__.py"}
MODULES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in OTHERS
    and (path.name == "__init__.py" or not path.name.startswith("_"))
]
SPECIAL = {"__init__", "__post_init__", "__call__", "__getitem__", "__enter__"}


def raised(function):
    """Names of toynn's errors that a function raises itself."""
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(kind, ast.Name) and kind.id in errors.__all__:
                yield kind.id


def called(function):
    """Names of the functions and own methods that a function calls."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif ast.unparse(node.func).startswith(("self.", "cls.")):
                yield ast.unparse(node.func).partition(".")[2]


def silent(text):
    """Public functions that do not say what they raise: (line, name, errors)."""
    functions = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            functions.append((None, node))
        elif isinstance(node, ast.ClassDef):
            functions += [(node, each) for each in node.body if isinstance(each, ast.FunctionDef)]
    private = {each.name: each for _, each in functions if each.name.startswith("_")}

    def all_raised(function, seen):
        kinds = set(raised(function))
        for name in set(called(function)) & private.keys() - seen:
            kinds |= all_raised(private[name], seen | {name})
        return kinds

    for owner, function in functions:
        hidden = function.name.startswith("_") and function.name not in SPECIAL
        if hidden or (owner is not None and owner.name.startswith("_")):
            continue
        alike = [each for of, each in functions if (of, each.name) == (owner, function.name)]
        told = [owner, *alike] if owner else alike  # a property's setter has its getter's
        said = " ".join(ast.get_docstring(node) or "" for node in told)
        missing = sorted(kind for kind in all_raised(function, set()) if kind not in said)
        if missing:
            yield function.lineno, function.name, missing


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_who_raises_says_what(path):
    functions = [
        f"{path.relative_to(PACKAGE)}:{line}: {name} raises {', '.join(kinds)}"
        for line, name, kinds in silent(path.read_text())
    ]
    assert not functions, "its docstring does not name what it raises:\n" + "\n".join(functions)


def test_a_silent_function_is_seen():
    text = '''
def open(path):
    """Open it."""
    _check(path)

def _check(path):
    if not path:
        raise DataError("no path")

class File:
    """A file. Reading raises LifecycleError."""

    def read(self):
        """Read it."""
        raise LifecycleError

    def write(self):
        """Write it. Raises DataError."""
        self._refuse()
        raise GGUFError("no")

    def _refuse(self):
        raise DataError("no")
'''
    assert [function[1:] for function in silent(text)] == [
        ("open", ["DataError"]),
        ("write", ["GGUFError"]),
    ]
