"""Which level is used, and why a better one is not: `toynn config` says so."""

import errno
import platform
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import toynn
from toynn import _kernels
from toynn.cli import main


@pytest.mark.parametrize(
    ("supported", "refusal", "forced", "expected"),
    [
        (["avx512"], errno.ENOSPC, None, {"amx": "system refuses memory for its tiles (ENOSPC"}),
        (["avx512"], errno.EPERM, None, {"amx": "the CPU has it, but the system refuses memory"}),
        (["avx512"], 0, None, {"amx": "this CPU lacks it"}),
        (["avx512", "amx"], 0, None, {"amx": "computed in software here"}),
        (["avx2", "avx512"], 0, "avx2", {"avx512": "TOYNN_ISA=avx2", "amx": "this CPU lacks it"}),
    ],
)
def test_why_a_level_is_not_used(monkeypatch, capsys, supported, refusal, forced, expected):
    """Linux refuses tiles with ENOSPC where a signal's stack is too small, seccomp with EPERM."""
    monkeypatch.setattr(_kernels, "built_levels", lambda: ["generic", "avx2", "avx512", "amx"])
    monkeypatch.setattr(_kernels, "supported_levels", lambda: ["generic", *supported])
    monkeypatch.setattr(_kernels, "amx_refusal", lambda: refusal)
    if forced:
        monkeypatch.setenv("TOYNN_ISA", forced)
    else:
        monkeypatch.delenv("TOYNN_ISA", raising=False)
    monkeypatch.setattr(_kernels, "level", forced or "avx512")
    monkeypatch.setattr("toynn.backends.config.multiplies_in", dict)
    monkeypatch.setattr("toynn.backends.config.automatic_precision", lambda *_: ("highest", ""))
    assert _kernels.unused_levels().keys() == expected.keys()
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, why in expected.items():
        assert any(line.startswith(f"  not {name}") and why in line for line in lines)


def test_the_level_in_use_is_not_among_them():
    assert toynn._kernels.level not in _kernels.unused_levels()


def test_a_cpu_older_than_all_levels_has_generic(monkeypatch):
    """Where another level is asked for, one line says which there are."""
    monkeypatch.setattr(_kernels, "built_levels", lambda: ["generic", "avx2"])
    monkeypatch.setattr(_kernels, "supported_levels", lambda: ["generic"])
    monkeypatch.delenv("TOYNN_ISA", raising=False)
    assert _kernels._choose() == "generic"
    monkeypatch.setenv("TOYNN_ISA", "avx2")
    with pytest.raises(ImportError, match=r"^TOYNN_ISA=avx2: this CPU .* usable here: generic$"):
        _kernels._choose()


def test_a_cpu_older_than_numpys_wheels(tmp_path):
    """NumPy would end the process; toynn says what to do."""
    emulator = shutil.which("qemu-x86_64-static")
    if not emulator or platform.machine() != "x86_64":
        pytest.skip("it needs QEMU's user emulation of x86-64")
    if np.lib.NumpyVersion(np.__version__) < "2.4.0":
        pytest.skip("a NumPy that runs on old CPUs")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {emulator} -cpu core2duo {sys.executable} "$@"\n')
    python.chmod(0o755)
    code = f"import sys; sys.executable = {str(python)!r}\nimport toynn"
    run = subprocess.run([python, "-c", code], capture_output=True, text=True)
    said = "ImportError: NumPy cannot be imported on this CPU: .* pip install 'numpy<2.4'\n"
    assert run.returncode == 1 and re.search(said, run.stderr), run.stderr


def test_an_older_numpy_runs_there(monkeypatch):
    monkeypatch.setattr(_kernels, "runs_wheels", lambda: False)
    monkeypatch.delitem(sys.modules, "numpy")
    _kernels._expect_numpy()
