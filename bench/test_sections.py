"""The sections of compare.py: their flop counts, and their message if no shape matches."""

import ast
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import growth
import pytest
import sections
import seeds
import steps

from toynn.ops import loss


def test_a_name_that_no_shape_has(capsys):
    sections.matmul(1, 1, "no such shape")
    assert "no shape has such a name" in capsys.readouterr().out


def test_the_work_of_a_step_is_what_it_runs(monkeypatch):
    whole = steps.gpt2_recipe(shape := steps.SHAPES["d64_L2_T32_B1"]).engine.session.tape
    monkeypatch.setattr(loss, "WHOLE", 0)
    monkeypatch.setattr(loss, "ROWS", 8)
    recipe = steps.gpt2_recipe(shape)
    ids, labels = steps.draw(shape)
    steps.toynn_step(recipe, ids, steps.positions(shape), labels)()
    session = recipe.engine.session
    ran = sum(row.flops for row in session.profile().rows)
    assert growth.work(session.tape) == ran != growth.work(whole)


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("*.py")), ids=lambda p: p.stem)
def test_what_a_bench_asks_of_toynn_is_there(path):
    """What it imports, also within functions, and attributes of toynn's modules."""
    nodes, modules = list(ast.walk(ast.parse(path.read_text()))), {}
    for node in nodes:
        if isinstance(node, ast.Import):
            own = [each for each in node.names if each.name.split(".")[0] == "toynn"]
            modules |= {e.asname or "toynn": import_module(e.name.split(".")[0]) for e in own}
            modules |= {e.asname: import_module(e.name) for e in own if e.asname}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "toynn":
            for each in node.names:
                found = getattr(import_module(node.module), each.name)
                if ismodule(found):
                    modules[each.asname or each.name] = found
    attributes = [
        (n.value.id, n.attr)
        for n in nodes
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
    ]
    assert not [(m, a) for m, a in attributes if m in modules and not hasattr(modules[m], a)]


def test_losses_by_precision(monkeypatch, capsys):
    for name, value in (("BASE_STEPS", 1), ("STEPS", 1), ("VALID", 1), ("SEEDS", (0,))):
        monkeypatch.setattr(seeds, name, value)
    monkeypatch.setattr(seeds, "MODULES", ("typing",))
    seeds.table(1)
    heads, row, last = capsys.readouterr().out.splitlines()
    known = heads.removesuffix("less highest").split()[2:]
    assert known[:2] == ["highest", "medium"] and len(row.split()) == 1 + 2 * len(known)
    assert last == "between seeds, highest: 0.0000"
