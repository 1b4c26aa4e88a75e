""".ci/run: what it waits for and what ends it, with commands that only say that they ran."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hang import HANG

CI = Path(__file__).parents[2] / ".ci/run"
TOOLS = ("pip", "toynn", "ruff", "cython-lint", "mypy", "stubtest", "pytest", "python")
#: Each command says its name; pytest ends the run; Python makes an environment of such commands.
COMMAND = """#!/bin/sh
name=$(basename "$0")
echo "$name" >> "$HOME/ran"
case $name in
id) echo 0;;
pytest) exit 3;;
python3) mkdir -p "$3/bin"; for tool in {tools}; do cp "$0" "$3/bin/$tool"; done;;
apt-get) [ "$2" = update ] || {apt};;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def ran(folder, apt):
    """What a run for root says, and the commands up to the suite, which fails."""
    for name in ("id", "apt-get", "python3"):
        path = folder / name
        path.write_text(COMMAND.format(tools=" ".join(TOOLS), apt=apt))
        path.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    done = subprocess.run(
        ["bash", CI], env=environment, capture_output=True, text=True, timeout=HANG
    )
    return done, (folder / "ran").read_text().splitlines()


def test_the_suite_begins_when_packages_are_installed(tmp_path):
    """Else it finds a compiler of which a part is there."""
    late = 'until grep -q stubtest "$HOME/ran"; do sleep 0.01; done; sleep 0.5'
    apt = f'{{ {late}; echo installed >> "$HOME/ran"; }}'
    done, found = ran(tmp_path, apt)
    assert done.returncode == 3, done.stderr
    assert found.index("stubtest") < found.index("installed") < found.index("pytest")


def test_packages_that_cannot_be_installed_end_the_run(tmp_path):
    """Else the steps of Metal and arm64 would be skipped, and nobody would know."""
    done, found = ran(tmp_path, "{ echo no clang-19; exit 100; }")
    assert done.returncode not in (0, 3) and "no clang-19" in done.stdout
    assert "pytest" not in found
