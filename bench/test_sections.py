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

import toynn
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
    small = toynn.LlamaConfig(256, 64, 2, 1, 128, 1, 64)
    steps = {"sft": 1, "dpo": 1}
    for name, value in {"SHAPE": small, "BASE_STEPS": 1, "STEPS": steps, "SEEDS": (0,)}.items():
        monkeypatch.setattr(seeds, name, value)
    monkeypatch.setattr(seeds, "ASKED", 4)
    monkeypatch.setattr(seeds, "HELD_OUT", ("shlex",))
    seeds.table(1, "q8_0")
    base, before, heads, *rows = capsys.readouterr().out.splitlines()
    assert base.startswith("base: ") and before.startswith("q8_0: ")
    known = heads.split()[3:]
    assert known[:2] == ["highest", "medium"]
    measured = [row.split() for row in rows if row.startswith("q8_0")]
    assert [row[1] for row in measured] == ["sft", "dpo"]
    assert all(len(row) == 3 + 2 * len(known) for row in measured)
    loss, accuracy = measured[0][3:5]
    assert 3 < float(loss) < 8 and accuracy.endswith("%")  # log 256 is 5.5
