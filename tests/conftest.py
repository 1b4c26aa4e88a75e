"""Child processes of the tests import the same toynn as the tests do."""

from pathlib import Path

import pytest

import toynn


@pytest.fixture(autouse=True)
def same_toynn_in_child_processes(monkeypatch):
    # Run from the repository root, `python -m toynn` would find the sources, which may be unbuilt.
    monkeypatch.setenv("PYTHONPATH", str(Path(toynn.__file__).parents[1]))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
