"""An installed toynn: beside PyTorch, and in a folder that nobody may write."""

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest

import toynn
from toynn import _kernels

PRODUCT = """
import numpy as np
from toynn import _kernels
def product():
    x, w, y = np.full((64, 512), 2, "f4"), np.eye(512, dtype="f4"), np.empty((64, 512), "f4")
    _kernels.matmul.forward(y, None, x, w, None, n_threads=2)
    assert (y == 2).all()
"""
TORCH = "import torch; assert (torch.ones(512, 512) @ torch.ones(512, 512) == 512).all()"


def run(code, **settings):
    words = [sys.executable, "-B", "-c", code]
    done = subprocess.run(words, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def copy_of_toynn(site):
    """The installed package once more, of hard links."""
    skipped = shutil.ignore_patterns("__pycache__")
    source = Path(toynn.__file__).parent
    return shutil.copytree(source, site / "toynn", ignore=skipped, copy_function=os.link)


@pytest.mark.parity
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("before", [True, False])
def test_torch_is_imported_before_and_after(before):
    """Each has threads of its own, and both compute, the first one again behind the second."""
    first, second = (TORCH, "product()") if before else ("product()", TORCH)
    run(f"{PRODUCT}\n{first}\n{second}\n{first}")


def test_nothing_is_written_beside_the_package(tmp_path):
    """site-packages may be read-only: nothing in it is new or changed behind a command."""
    package = copy_of_toynn(tmp_path / "site")
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        folder.chmod(0o555)

    def state():
        return {path: os.lstat(path).st_mtime_ns for path in (tmp_path / "site").rglob("*")}

    before = state()
    code = f"import toynn; assert toynn.__file__.startswith({str(package)!r})\n{PRODUCT}\nproduct()"
    run(code, PYTHONPATH=str(tmp_path / "site"))
    assert state() == before


def test_a_level_of_another_build_is_not_built(tmp_path):
    """Its folder is left, and its modules are gone: ops would come from the level below."""
    level = _kernels.built_levels()[-1]
    if level == "generic":
        pytest.skip("this build has one level")
    for module in (copy_of_toynn(tmp_path) / "_kernels" / level).glob(f"*{EXTENSION_SUFFIXES[0]}"):
        module.unlink()
    code = f"from toynn import _kernels; assert {level!r} not in _kernels.built_levels()"
    run(code, PYTHONPATH=str(tmp_path), TOYNN_ISA="")


#: What the package index's toynn, another program, has in its __init__.py.
THEIRS = "from .factory import create\n"


@pytest.mark.parametrize("last", ["ours", "theirs", "nobody"])
def test_another_distribution_called_toynn_is_named(last, tmp_path):
    """Both own the folder: who is installed last has its __init__.py; to remove one breaks both."""
    package = copy_of_toynn(tmp_path)
    if last != "ours":
        (package / "__init__.py").unlink()  # a hard link
        (package / "__init__.py").touch()
    if last == "theirs":
        (package / "__init__.py").write_text(THEIRS)
        (package / "factory.py").write_text("create = len")
    if last != "nobody":
        (about := tmp_path / "toynn-0.1.0.dist-info").mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toynn\nVersion: 0.1.0\n")
        (about / "RECORD").write_text("toynn/__init__.py,,\n")
    words = [sys.executable, "-B", "-m", "toynn", "config"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    said = done.stdout if last == "ours" else done.stderr
    assert done.returncode == (0 if last == "ours" else 2) and "Traceback" not in said
    assert "`pip uninstall toynn toynn-train`, then install toynn-train again" in said
    assert ("toynn 0.1.0, another program, has files" in said) == (last != "nobody")
    assert ("__init__.py is not toynn-train's" in said) == (last != "ours")
