"""What holds for all tests: one toynn, in child processes too, and no clock that decides."""

import math
import os
import signal
import sys
from pathlib import Path

# Before NumPy is imported. Threads of its OpenBLAS wait busily: beside other processes, products of
# references then take ten times the CPU time of one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

import toynn

# For tests of what `python -m tests.NAME` runs; behind the toynn that is installed.
sys.path.append(str(Path(__file__).parents[1]))

# Started in the background or by nohup, tests would ignore signals, and so would their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says how busy the machine is.
settings.register_profile("toynn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("toynn")


@pytest.fixture(autouse=True)
def hangups_end_processes():
    # Behind a run that a hangup has stopped, they are ignored.
    yield
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    # A run that a signal has stopped evaluates and shows as much on any machine.
    monkeypatch.setattr("toynn.train.loop.PATIENCE", math.inf)
    monkeypatch.setattr("toynn.jobs.job.PATIENCE", math.inf)


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


@pytest.fixture(scope="module")
def as_llama_cpp_divides():
    """Let a Gemma 3n divide by n - 1 in the standard deviation of its gates."""
    from toynn.models.gemma3n import Gemma3nConfig

    own = Gemma3nConfig.cutoff

    def cutoff(cfg, n):
        z = own(cfg, n)
        return z and z * (cfg.d_ff / (cfg.d_ff - 1)) ** 0.5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gemma3nConfig, "cutoff", cutoff)
        yield
