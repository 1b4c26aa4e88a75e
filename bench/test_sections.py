"""The sections of compare.py: their flop counts, and their message if no shape matches."""

import ast
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from inspect import ismodule
from itertools import pairwise
from pathlib import Path

import growth
import pytest
import sections
import steps
from sections import SECTIONS

import toynn
from toynn.distributed import mpi
from toynn.ops import loss

HERE = Path(__file__).parent
ROOT, README = HERE.parent, HERE.parent / "README.md"


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
    session = recipe.session
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


def commands():
    """The sections of compare.py, in thirds, and the other commands of bench/ that pages name."""
    pages = "\n".join(page.read_text() for page in [README, *(ROOT / "docs").glob("*.md")])
    named = re.findall(r"(?:mpiexec -n 2 )?python bench/[^`#\n]*", pages)
    others = sorted({each.strip() for each in named if "compare.py" not in each})
    # A process of its own for each would import PyTorch and transformers twice for each.
    thirds = (" ".join([*SECTIONS][n::3]) for n in range(3))
    sections = (f"python bench/compare.py {names} --threads 1 --rounds 1" for names in thirds)
    elsewhere = ("--held", "mine.c")  # in a control group, and in tests/kernels/test_ladder.py
    return [*sections, *(each for each in others if not any(word in each for word in elsewhere))]


@pytest.mark.parametrize("command", commands())
def test_a_command_runs_at_its_smallest_shapes(command, tmp_path):
    for name in ("torch", "transformers", "peft", "mpi4py"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    words = shlex.split(command.replace("FOLDER", str(tmp_path)))
    words = [{"python": sys.executable, "mpiexec": mpi.mpiexec()}.get(each, each) for each in words]
    site = str(Path(toynn.__file__).parents[1])
    environment = os.environ | {"BENCH_SMALLEST": "1", "PYTHONPATH": site, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    said = done.stdout.splitlines()
    assert len(said) > 1
    if "compare.py" in command:
        heads = [n for n, line in enumerate(said) if re.match(r"\w+, 1 thread, ", line)]
        assert [said[n].split(",")[0] for n in heads] == words[2:-4]
        assert all(after - n > 1 for n, after in pairwise([*heads, len(said)]))


def test_losses_by_precision():
    words = [sys.executable, "-c", "import seeds; seeds.table(1, 'q8_0')"]
    site = str(Path(toynn.__file__).parents[1])
    environment = os.environ | {"BENCH_SMALLEST": "1", "PYTHONPATH": site}
    done = subprocess.run(words, cwd=HERE, env=environment, capture_output=True, text=True)
    base, before, heads, *rows = done.stdout.splitlines()
    assert base.startswith("base: ") and before.startswith("q8_0: ")
    known = heads.split()[3:]
    assert known[:2] == ["highest", "medium"]
    measured = [row.split() for row in rows if row.startswith("q8_0")]
    assert [row[1] for row in measured] == ["sft", "dpo"]
    assert all(len(row) == 3 + 2 * len(known) for row in measured)
    loss, accuracy = measured[0][3:5]
    assert 3 < float(loss) < 8 and accuracy.endswith("%")  # log 256 is 5.5
