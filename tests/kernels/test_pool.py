"""The thread pool by itself, in C (pool.c), and as kernels use it."""

import os
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import numpy as np
import pytest
from hang import HANG

from tests.sanitized import steady
from toynn import Session, _kernels, ops
from toynn._kernels import pool
from toynn.jobs.options import THREADS

CC = os.environ.get("CC", "cc").split()
HEADERS = Path(_kernels.__file__).parent / "base"
SYSTEM = HEADERS.parents[1] / "system"  # platform.h
CASES = ("all threads", "many calls", "several callers", "fork in the middle", "signals")
CASES += ("recorded",)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or shutil.which(CC[0]) is None, reason="needs fork and a C compiler"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build pool.c with some flags, once."""
    programs = {}

    def build(*flags):
        if flags not in programs:
            program = tmp_path_factory.mktemp("pool") / "pool"
            words = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", *flags]
            done = subprocess.run(
                [
                    *CC,
                    *words,
                    f"-I{HEADERS}",
                    f"-I{SYSTEM}",
                    Path(__file__).with_name("pool.c"),
                    "-o",
                    program,
                ],
                capture_output=True,
                text=True,
                timeout=HANG,
            )
            assert done.returncode == 0, done.stderr
            programs[flags] = program
        return programs[flags]

    return build


def run(words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr or f"hangs or dies: {done.returncode}"


@pytest.mark.parametrize("spin", [2_000_000, 0])
@pytest.mark.parametrize("case", range(len(CASES)), ids=CASES)
def test_all_shares_are_computed_once(built, case, spin):
    """Whether threads still look when the next call comes, or sleep already."""
    run([built(f"-DTN_SPIN={spin}"), str(case)])


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """A sanitizer's flag, and what starts its programs; skip where one of them cannot be had."""
    flag, front = "-fsanitize=thread", steady()
    if front is None:
        pytest.skip("needs setarch -R, which this system lacks or refuses")
    folder = tmp_path_factory.mktemp("sanitizer")
    (folder / "least.c").write_text("int main(void) { return 0; }")
    words = [*CC, flag, folder / "least.c", "-o", folder / "least"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG)
    if done.returncode:
        pytest.skip(f"no sanitizer: {done.stderr[-200:]}")
    return flag, front


@pytest.mark.parametrize("case", range(3), ids=CASES[:3])
def test_the_thread_sanitizer_sees_no_race(built, sanitized, case):
    """Without fork: the sanitizer starts no threads in a forked child."""
    flag, front = sanitized
    run([*front, built(flag, "-DTN_SPIN=20000"), str(case)])


@pytest.mark.parametrize("most", [0, 3])
def test_a_system_that_starts_no_more_threads(built, most):
    run([built(f"-DTN_REFUSE={most}"), str(len(CASES))])


USE = """
import os, threading
from pathlib import Path
import numpy as np
from toynn._kernels import silu

def names():
    return sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))

def ours():
    return [name for name in names() if name.startswith("toynn-")]

x = np.linspace(-9, 9, 100_000, dtype=np.float32)
y = np.empty_like(x)
def compute(n_threads):
    silu.forward(y, x, n_threads=n_threads)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
@pytest.mark.parametrize(
    "code",
    [
        "assert ours() == []; compute(1); assert ours() == []",
        "compute(3); compute(2); assert ours() == ['toynn-1', 'toynn-2'], names()",
        "before = os.sched_getaffinity(0); compute(2); assert os.sched_getaffinity(0) == before",
        "def forever():\n    while True: compute(2)\n"
        "threading.Thread(target=forever, daemon=True).start()\nfor k in range(50): compute(3)",
    ],
    ids=["none before need", "named", "affinity", "exit while another computes"],
)
def test_threads_of_the_pool_in_a_process(code):
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, "-c", USE + code]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=HANG)
    assert done.returncode == 0, done.stderr


REFUSED = """
import resource, warnings
import toynn
from toynn import Session, ops
from toynn._kernels import pool

s = Session()
x = s.input("x", (1000, 1000))
y = s.output(ops.silu(s, x))
s.finalize_weights()
s.realize()
s.upload(x, np.ones(x.shape, np.float32))
def run(n_threads):
    s.n_threads = n_threads
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        s.run()
    return [str(each.message) for each in told]

assert run(1) == [] and ours() == [] and pool.refused() == 0
before = resource.getrlimit(resource.RLIMIT_AS)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**20, before[1]))  # half a thread's stack
(said,) = run(4)
assert said.startswith("toynn computes on 1 thread: the system starts no more"), said
resource.setrlimit(resource.RLIMIT_AS, before)
assert run(4) == [] and ours() == [], names()
toynn.set_num_threads(4)
assert run(4) == [] and len(ours()) == 3 and pool.refused() == 0, names()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
def test_threads_that_the_system_refuses_are_said_once_and_asked_for_anew():
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "TOYNN_NUM_THREADS": "4"}
    words = [sys.executable, "-c", USE + REFUSED]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=HANG)
    assert done.returncode == 0, done.stderr


def launch_of(n_threads, x, **recording):
    """Return what silu computes, and what is recorded of it."""
    session = Session(n_threads=n_threads)
    x_in = session.input("x", x.shape)
    y_out = session.output(ops.silu(session, x_in))
    session.finalize_weights()
    session.realize()
    session.upload(x_in, x)
    with pool.Recording(**recording) as recorded:
        session.run()
    (launch,) = recorded.launches()
    return session.download(y_out), launch


def test_shares_of_more_cores_than_there_are_computed_alone():
    x = np.random.default_rng(0).standard_normal((700, 1000), np.float32)
    expected, (name, nbytes, _, _, calls) = launch_of(1, x, alone=True)
    assert (name, nbytes, calls) == ("silu.forward", 2 * x.nbytes, [])
    y, (_, _, _, cpu, [(spent, shares, pieces)]) = launch_of(6, x, alone=True)
    np.testing.assert_array_equal(y, expected)
    assert len(shares) == 6 and 0 < sum(shares) < sum(shares) + sum(pieces) <= spent <= cpu


def test_recordings_refuse():
    with pool.Recording(), pytest.raises(RuntimeError, match="this thread records already"):
        pool.Recording().__enter__()
    with pytest.raises(ValueError, match="there is room for 3: record fewer runs"):
        launch_of(2, np.zeros((700, 1000), np.float32), capacity=3)


def test_options_take_as_many_threads_as_the_pool():
    assert THREADS.check(_kernels.MAX_THREADS) == _kernels.MAX_THREADS
    with pytest.raises(ArgumentTypeError, match="from 1 to 1024"):
        THREADS.check(_kernels.MAX_THREADS + 1)
