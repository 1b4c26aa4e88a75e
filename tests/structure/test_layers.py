"""Imports point one way, and packages, layers and arrows between them stay few."""

from layers import (
    LAYERS,
    MOST_ARROWS,
    MOST_LAYERS,
    MOST_PACKAGES,
    PACKAGES,
    PYTHON,
    ROW,
    arrows,
    circles,
    graph_of,
    imports,
    module_name,
    upward,
)


def test_packages_layers_and_arrows_are_few():
    imports = arrows()
    assert len(PACKAGES) <= MOST_PACKAGES, sorted(PACKAGES)
    assert len(LAYERS) <= MOST_LAYERS
    assert len(imports) <= MOST_ARROWS, "python -m tests.structure.layers --arrows lists them"
    assert ROW.keys() == PACKAGES, "every package has its row in LAYERS, once"


def test_imports_point_down():
    imports = arrows()
    wrong = {pair: imports[pair] for pair in upward(imports)}
    assert not wrong, f"not to a row below: {wrong}"


def test_packages_import_in_no_circle():
    assert not circles(graph_of(arrows()))


def test_modules_import_in_no_circle():
    """Of one package, too. A package is imported with its modules: its __init__ may name them."""
    graph = {module_name(path): set(imports(path)) for path in PYTHON}
    inner = {
        module: {other for other in others - {module} if not module.startswith(f"{other}.")}
        for module, others in graph.items()
    }
    assert not circles(inner)


def test_what_is_wrong_is_seen(tmp_path):
    """An import in a function, by a constant, for an annotation, and in Cython."""
    code = """
from typing import TYPE_CHECKING
from toynn import jobs, Session
if TYPE_CHECKING:
    from toynn.train.loop import train
def late():
    import toynn.cli
    return import_module("toynn.testing"), import_module("numpy")
"""
    plain, compiled = tmp_path / "plain.py", tmp_path / "compiled.pyx"
    plain.write_text(code)
    compiled.write_text(
        "from toynn.graph cimport x\n    from toynn.nn import y\ncimport toynn.ops\n"
    )
    assert sorted(imports(plain)) == [
        "toynn",
        "toynn.cli",
        "toynn.jobs",
        "toynn.testing",
        "toynn.train.loop",
    ]
    assert list(imports(compiled)) == ["toynn.graph", "toynn.nn", "toynn.ops"]
    down, up, flat = ("graph", "backends"), ("graph", "session"), ("jobs", "testing")
    assert upward([down, up, flat, ("graph", "new")]) == [("graph", "new"), up, flat]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}}) == [["a", "b", "c", "a"]]
    assert not circles({"a": {"b", "c"}, "b": {"c"}})
