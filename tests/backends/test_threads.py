"""Threads on which a session computes."""

import os
import subprocess
import sys

import pytest
from tiny import Tiny

import toynn
from toynn.backends import threads
from toynn.backends.work import dequantized, seconds, worth
from toynn.errors import ConfigError


def test_threads_agree_bit_for_bit():
    def losses(n_threads):
        tiny = Tiny(n_threads=n_threads)
        for _ in range(3):
            tiny.feed()
            tiny.s.run()
        return tiny.s.download(tiny.loss).tobytes(), [w.tobytes() for w in tiny.state()]

    assert losses(1) == losses(2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_fork_the_child_computes_on_one_thread():
    tiny = Tiny()
    tiny.s.run()
    child = os.fork()
    if child == 0:
        try:
            tiny.s.run()
            os._exit(0 if toynn.get_num_threads() == 1 else 3)
        except BaseException:
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_ask_for_threads():
    tiny = Tiny(n_threads=3)
    tiny.s.run()
    child = os.fork()
    if child == 0:
        try:
            toynn.set_num_threads(2)
            tiny.s.run()
            os._exit(0 if toynn.get_num_threads() == 2 else 3)
        except BaseException:
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0


def test_set_num_threads_and_the_environment(monkeypatch):
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert toynn.get_num_threads() == 3
    monkeypatch.setenv("TOYNN_NUM_THREADS", "5")
    assert toynn.get_num_threads() == 5
    toynn.set_num_threads(2)
    assert toynn.get_num_threads() == 2
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setenv("TOYNN_NUM_THREADS", "many")
    with pytest.raises(ConfigError, match="TOYNN_NUM_THREADS=many"):
        toynn.get_num_threads()
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="from 1 to 1024"):
            toynn.set_num_threads(bad)


@pytest.mark.parametrize(
    ("cpus", "n_threads", "spread"), [(8, 5, True), (8, 4, False), (4, 9, False)]
)
def test_memory_is_spread_if_threads_need_two_nodes(cpus, n_threads, spread, monkeypatch):
    """Two nodes of four cores; with cpus 4, the process may use one of them."""
    asked = []
    monkeypatch.setattr(threads.platform, "cpus", lambda: frozenset(range(100, 100 + cpus)))
    cpus_of = {0: frozenset(range(100, 104)), 1: frozenset(range(104, 108))}
    nodes = lambda cpus: {n: has & cpus for n, has in cpus_of.items() if has & cpus}  # noqa: E731
    monkeypatch.setattr(threads.machine, "nodes", nodes)
    monkeypatch.setattr(threads.platform, "interleave", lambda nodes: asked.append([*nodes]))
    threads.spread_memory.cache_clear()
    toynn.Session(n_threads=n_threads)
    assert asked == ([[0, 1]] if spread else [])
    threads.spread_memory.cache_clear()


@pytest.mark.parametrize(
    ("more", "count"),
    [({"type": 0}, 3), ({"type": 8}, 13), ({"type": 8, "precision": 2}, 3), ({"M": 0}, 3)],
    ids=["float32", "Q8_0", "Q8_0 in 8 bits", "no rows"],
)
def test_a_product_of_one_row_is_worth_threads_for_its_dequantizing(more, count):
    """20 microseconds a thread: 10 for the sums and 50 for the bytes, then 200 for the weights."""
    sizes = {"M": 1, "N": 1000, "K": 1000, "type": 8, "precision": 0} | more
    flops, nbytes = 10**6, 10**6
    assert worth(seconds(flops, nbytes, dequantized(sizes))) == count


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.5, 3), (0.25, 1), (64.0, 8)])
def test_threads_are_at_most_the_quota_rounded_up(quota, cores, monkeypatch):
    monkeypatch.setattr(threads.platform, "cpus", lambda: frozenset(range(100, 108)))
    monkeypatch.setattr(threads, "_quota", lambda: quota)
    monkeypatch.setattr(threads, "_chosen", None)
    for name in ("TOYNN_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert toynn.get_num_threads() == cores


INTERLEAVED = """
import ctypes
import mmap
from pathlib import Path
from toynn.system import platform

if not platform.interleave([0]):
    raise SystemExit(3)
assert not platform.interleave([0])  # it is set already
own = mmap.mmap(-1, 1 << 22)
own[0] = 1
at = ctypes.addressof(ctypes.c_char.from_buffer(own))
lines = Path("/proc/self/numa_maps").read_text().splitlines()
(line,) = [each for each in lines if each.startswith(f"{at:x}")]
assert line.split()[1] == "interleave:0", line
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/numa_maps"), reason="needs Linux with NUMA")
def test_linux_interleaves_memory():
    done = subprocess.run([sys.executable, "-c", INTERLEAVED], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("this container refuses set_mempolicy")
    assert done.returncode == 0, done.stderr
