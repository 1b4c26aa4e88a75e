"""Child processes of the tests import the same toynn as the tests do."""

import signal
from pathlib import Path

import pytest

import toynn

# Started in the background or by nohup, tests would ignore signals, and so would their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def same_toynn_in_child_processes(monkeypatch):
    # Run from the repository root, `python -m toynn` would find the sources, which may be unbuilt.
    monkeypatch.setenv("PYTHONPATH", str(Path(toynn.__file__).parents[1]))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")


@pytest.fixture(autouse=True)
def the_precision_of_before():
    # A run of the command line sets it for its process.
    before = toynn.get_float32_matmul_precision()
    yield
    toynn.set_float32_matmul_precision(before)
