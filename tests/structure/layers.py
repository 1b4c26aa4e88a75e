"""Packages, layers and imports of toynn: counted, and checked by test_layers.py.

    python -m tests.structure.layers           print the counts, and what is wrong
    python -m tests.structure.layers --arrows  print every arrow, too, and the imports behind it

A package is a name directly below toynn/: a folder with all its folders, or a module. `toynn`
itself is the public names and the entry point. An arrow is a pair of packages of which the first
imports the second: anywhere in a file, so in functions too, for annotations, in Cython, and by
`import_module` with a constant. A layer is a row of LAYERS.
"""

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import toynn

PACKAGE = Path(toynn.__file__).parent
PYTHON = sorted(PACKAGE.rglob("*.py"))
CYTHON = sorted([*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd")])

MOST_PACKAGES, MOST_LAYERS, MOST_ARROWS = 34, 14, 159  # rewards: of jobs, to errors and system

#: Top to bottom: a package imports from rows below its own. Only the public names and the command
#: line, which has `bench`, import testing.
LAYERS = (
    {"toynn"},
    {"cli", "sklearn"},
    {"jobs", "testing"},
    {"evaluation", "recipes", "train"},
    {"engines", "explorer"},
    {"models"},
    {"nn", "runs"},
    {"session"},
    {"ops"},
    {"graph"},
    {"backends", "formats", "optim"},
    {"_kernels", "data", "distributed", "generation", "options", "rewards"},
    {"numerics", "system"},
    {"errors"},
)
ROW = {name: row for row, layer in enumerate(LAYERS) for name in layer}


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module):
    """The package that a module is in: its first part below toynn."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "toynn"


PACKAGES = {package_of(module_name(path)) for path in PYTHON}


def imports(path):
    """Modules of toynn that a file imports, anywhere in it."""
    if path.suffix in (".pyx", ".pxd"):
        pattern = r"^\s*(?:from|c?import)\s+(toynn[\w.]*)"
        yield from re.findall(pattern, path.read_text(), re.MULTILINE)
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "toynn")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "toynn":  # packages, or public names
                for alias in node.names:
                    yield f"toynn.{alias.name}" if alias.name in PACKAGES else "toynn"
            elif (node.module or "").startswith("toynn."):
                yield node.module
        elif isinstance(node, ast.Call) and "import_module" in vars(node.func).values():
            name = getattr(node.args[0], "value", None)
            if isinstance(name, str) and name.split(".")[0] == "toynn":
                yield name


@cache
def arrows():
    """(package, package that it imports) -> the modules that import, and what."""
    importing = defaultdict(list)
    for path in PYTHON + CYTHON:
        importer = module_name(path)
        for module in imports(path):
            pair = package_of(importer), package_of(module)
            if pair[0] != pair[1]:
                importing[pair].append((importer, module))
    return dict(importing)


def upward(pairs):
    """Arrows that do not point to a row below, or come from or go to a package without a row."""
    return sorted(
        (one, other)
        for one, other in pairs
        if one not in ROW or other not in ROW or ROW[other] <= ROW[one]
    )


def circles(graph):
    """Lists of nodes of which each imports the next, and the last the first: one per way back."""
    state, trail, ways_back = {}, [], []

    def visit(node):
        state[node] = "open"
        trail.append(node)
        for other in sorted(graph.get(node, ())):
            if state.get(other) == "open":
                ways_back.append([*trail[trail.index(other) :], other])
            elif other not in state:
                visit(other)
        trail.pop()
        state[node] = "done"

    for node in sorted(graph):
        if node not in state:
            visit(node)
    return ways_back


def graph_of(pairs):
    graph = defaultdict(set)
    for one, other in pairs:
        graph[one].add(other)
    return graph


def main():
    imports = arrows()
    print(f"packages {len(PACKAGES):4} of at most {MOST_PACKAGES}")
    print(f"layers   {len(LAYERS):4} of at most {MOST_LAYERS}")
    print(f"arrows   {len(imports):4} of at most {MOST_ARROWS}")
    ways_back, upwards = circles(graph_of(imports)), upward(imports)
    print("circles     ", "; ".join(" -> ".join(circle) for circle in ways_back) or "none")
    print("upward      ", "; ".join(f"{one} -> {other}" for one, other in upwards) or "none")
    for layer in LAYERS:
        print(f"    {', '.join(sorted(layer))}")
    for one, other in sorted(imports, key=lambda pair: len(imports[pair])):
        if "--arrows" in sys.argv:
            behind = ", ".join(sorted({f"{who}: {what}" for who, what in imports[one, other]}))
            print(f"{one} -> {other} ({behind})")


if __name__ == "__main__":
    main()
