""".ci/run: what runs first, what it waits for and what ends it, with commands that only say so."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hang import HANG

ROOT, HERE = Path(__file__).parents[2], "tests/structure/test_ci.py"
TOOLS = ("pip", "toynn", "ruff", "cython-lint", "mypy", "stubtest", "pytest", "python")
#: Each command says its name and words; git makes a folder; Python makes an environment of such
#: commands, and says which variables and compiled files it sees; pip compiles one; the first pytest
#: skips a test, the second ends all.
COMMAND = """#!/bin/sh
name=$(basename "$0")
echo "$name $*" >> "$HOME/ran"
case "$name $1" in
"id "*) echo 0;;
"git "*) mkdir "$4";;
"python3 -c") dirname "$0";;
"python3 -m")
    echo "$(basename "$PWD"):" $(env | cut -d= -f1 | sort) "$PATH" >> "$HOME/seen"
    [ ! -d build ] || find build -type f -newermt 2037-01-01 >> "$HOME/compiled"
    mkdir -p "$3/bin"; for tool in {tools}; do cp "$0" "$3/bin/$tool"; done;;
"pip install") mkdir -p build && echo > build/"$(basename "$PWD")".so;;
"pytest -n")
    echo "SKIPPED [2] tests/structure/test_ci.py:1: X, of no extra, is not installed"
    echo "SKIPPED [1] tests/structure/test_docs.py:5: this CPU lacks it";;
"python .ci/skipped.py") {python} "$@";;
"pytest "*) exit 3;;
"apt-get "*) [ "$2" = update ] || {apt};;
esac
"""

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def ran(folder, apt="true"):
    """What a run for root says, and its commands up to the second pytest."""
    for name in ("id", "apt-get", "git", "python3"):
        path = folder / name
        path.write_text(COMMAND.format(tools=" ".join(TOOLS), apt=apt, python=sys.executable))
        path.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "ADDED": "1"}
    command = ["bash", ROOT / ".ci/run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG)
    return done, (folder / "ran").read_text().splitlines()


@needs_bash
def test_the_blocks_of_readme_run_first_as_they_stand(tmp_path):
    """In a clone each, with what a new user's shell has: what CI installs later hides nothing."""
    blocks = re.findall(r"```sh\n(python3 .*\n)```", (ROOT / "README.md").read_text())
    assert len(blocks) == 2 and all("\n" not in block.strip() for block in blocks)
    _, lines = ran(tmp_path)
    expected = []
    for block, clone in zip(blocks, ("train", "test"), strict=True):
        expected.append(f"git clone --quiet . {clone}")
        commands = block.replace('"', "").strip().split(" && ")
        expected += [command.replace(".venv/bin/", "") for command in commands]
    told = [re.sub(r" /\S*/(\w+)$", r" \1", line) for line in lines if "python3 -" not in line[:9]]
    venvs = [line for line in lines if line == "python3 -m venv .venv"]
    assert told[: len(expected) - 2] == [line for line in expected if "venv" not in line]
    assert len(venvs) == 2
    for line, clone in zip(
        (tmp_path / "seen").read_text().splitlines(), ("train", "test"), strict=True
    ):
        name, *variables, path = line.split()
        assert name == f"{clone}:" and path == f"{tmp_path}:/usr/bin:/bin"
        assert {*variables} - {"OLDPWD", "PWD", "SHLVL", "_"} == {"HOME", "LANG", "PATH"}


@needs_bash
def test_the_first_block_compiles_from_nothing_and_the_second_takes_that_over(tmp_path):
    ran(tmp_path)
    assert (tmp_path / "compiled").read_text() == "build/train.so\n"


@needs_bash
def test_what_the_suite_skipped_runs_when_packages_are_installed(tmp_path):
    """Before, it would find a compiler of which a part is there."""
    late = 'until grep -q stubtest "$HOME/ran"; do sleep 0.01; done; sleep 0.5'
    done, lines = ran(tmp_path, f'{{ {late}; echo installed >> "$HOME/ran"; }}')
    assert done.returncode == 3, done.stderr
    (linted,) = (n for n, line in enumerate(lines) if line.startswith("stubtest"))
    assert linted < lines.index("installed") < lines.index(f"pytest -q -n 2 {HERE}")


def test_a_skipped_test_runs_again_without_the_others_of_its_file():
    """A line stands for its test, decorators included; one outside of tests, for the file."""
    again = runpy.run_path(str(ROOT / ".ci/skipped.py"))["again"]
    lines = {line: n for n, line in enumerate((ROOT / HERE).read_text().splitlines(), 1)}
    name = "test_packages_that_cannot_be_installed_end_the_run"
    inside, decorated = f"def {name}(tmp_path):", '    ("loss", "level", "text", "right"),'
    other = "test_the_main_job_is_compared_with_the_figure_of_readme"

    def found(*places):
        said = [f"SKIPPED [1] {HERE}:{lines[each]}: X is not installed" for each in places]
        return again("\n".join([*said, f"SKIPPED [1] {HERE}:1: too small"]))

    assert found(inside) == [f"{HERE}::{name}"]
    assert found(inside, decorated) == [f"{HERE}::{name}", f"{HERE}::{other}"]
    assert found(inside, "import ast", decorated) == [HERE]
    assert found() == []


@needs_bash
def test_packages_that_cannot_be_installed_end_the_run(tmp_path):
    """Else the steps of Metal and arm64 would be skipped, and nobody would know."""
    done, lines = ran(tmp_path, "{ echo no clang-19; exit 100; }")
    assert done.returncode not in (0, 3) and "no clang-19" in done.stdout
    assert [line for line in lines if line.startswith("pytest")] == ["pytest -n 2"]


def test_a_test_that_lacks_a_package_says_that_it_is_not_installed():
    """By this CI finds what to run again where the package is."""
    wrong = []
    for path in ROOT.glob("tests/**/test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
                name, reason = ast.unparse(node.args[0]).strip("'"), ast.unparse(node)
                if "not installed" not in reason and name not in sys.stdlib_module_names:
                    wrong += [f"{path.name}:{node.lineno}"] * ("." not in name)  # a module of one
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("loss", "level", "text", "right"),
    [
        (0.0, "avx512", "known", True),
        (0.011, "avx512", "known", False),
        (-0.011, "avx2", "known", True),
        (0.031, "avx2", "known", False),
        (0.5, "avx512", "another", True),
    ],
)
def test_the_main_job_is_compared_with_the_figure_of_readme(loss, level, text, right, tmp_path):
    assert '"$bin/python" .ci/figure.py "$work"/train/runs/' in (ROOT / ".ci/run").read_text()
    script = runpy.run_path(str(ROOT / ".ci/figure.py"))
    figure = float(re.search(r"main job .*loss ([\d.]+)", (ROOT / "README.md").read_text())[1])
    known = script["TEXT"] if text == "known" else text
    (tmp_path / "config.toml").write_text(f'[data]\nsha256 = "{known}"\n')
    machine = {"machine": {"ISA level in use": level}}
    (tmp_path / "run.json").write_text(json.dumps(machine))
    reports = ({"iteration": 1475}, {"iteration": 1500, "val_loss": figure + loss})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, reports)))
    assert (script["wrong"](tmp_path) is None) == right


@needs_bash
@pytest.mark.parametrize("now", [100, 1300])
def test_a_long_check_on_a_slow_machine_is_left_out_and_said(now):
    line = re.search(r"^in_time\(\).*$", (ROOT / ".ci/run").read_text(), re.MULTILINE)[0]
    script = f'{line}\nSECONDS={now}\nif in_time 1200 "pytest bench"; then echo ran; fi'
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True)
    assert done.returncode == 0
    said = "\n== LEFT OUT for time (1300 s), run by hand: pytest bench\n"
    assert done.stdout == ("ran\n" if now < 1200 else said)
