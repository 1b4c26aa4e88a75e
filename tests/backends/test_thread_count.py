"""How many threads a program uses beside other processes: on a machine that is simulated here.

``Machine`` notes how long calls of a usual millisecond took, so no test waits.
"""

import ctypes

import numpy as np
import pytest

import toynn
from toynn import ops
from toynn._kernels import attention
from toynn.backends import threads
from toynn.backends.cpu.program import CompiledProgram
from toynn.backends.cpu.thread_count import ThreadCount

MS = 1_000_000


class Machine:
    """Runs calls of a program: ``cost(size)`` says how many milliseconds one takes on so many."""

    def __init__(self, full, cost):
        self.count, self.cost = ThreadCount(full), cost
        self.usual, self.time, self.on = cost(full), 0.0, {}

    def work(self, seconds):
        """Return the mean milliseconds per call for a while."""
        calls, start = 0, self.time
        while self.time - start < 1e3 * seconds:
            took = self.cost(self.count.size)
            self.on[self.count.size] = self.on.get(self.count.size, 0) + took
            self.count.note(self.usual * MS, took * MS)
            if not self.count.on_trial():
                self.usual = min(took, self.usual * 33 / 32)
            self.time += took
            calls += 1
        return (self.time - start) / calls


def quiet(size):
    return 16 / size


def crowded(room):
    """Other processes leave so many cores: on more, threads wait for each other."""
    return lambda size: 16 / size if size <= room else 100.0


@pytest.mark.parametrize("full", [2, 3, 8, 16])
def test_a_quiet_machine_uses_all_threads(full):
    machine = Machine(full, quiet)
    assert machine.work(60) < 1.01 * quiet(full)
    assert machine.count.size == full
    assert len(machine.on) > 1  # now and then a trial with fewer


def test_a_burst_now_and_then_is_no_cause_for_a_trial():
    calls = 0

    def cost(size):  # two hundred milliseconds as usual, then one slow call, of a window
        nonlocal calls
        calls += 1
        return 30.0 if calls % 25 == 0 else quiet(size)

    machine = Machine(2, cost)
    machine.work(60)
    assert 0 < machine.on[1] < 0.015 * machine.time


def test_beside_one_process_two_threads_become_one():
    machine = Machine(2, quiet)
    machine.work(10)
    machine.cost = crowded(1)
    machine.work(1)
    assert machine.count.size == 1
    assert machine.work(20) < 1.15 * quiet(1)


def test_a_process_that_was_there_before_is_noticed():
    machine = Machine(2, crowded(1))
    machine.work(2)
    assert machine.work(20) < 1.15 * quiet(1)


def test_all_threads_come_back_when_the_machine_is_quiet_again():
    machine = Machine(2, crowded(1))
    machine.work(10)
    machine.cost = quiet
    machine.work(2)
    assert machine.work(20) < 1.01 * quiet(2)


def test_no_more_threads_than_pay():
    """Equally fast on fewer: the cores are better left to the others."""
    machine = Machine(2, lambda size: 8.0 if size == 1 else 8.2)
    machine.work(20)
    machine.cost = lambda size: 8.0 if size == 1 else 9.0
    machine.work(20)
    assert machine.count.size == 1


@pytest.mark.parametrize("room", [4, 6, 9, 11, 15])
def test_of_many_threads_as_many_as_there_is_room_for(room):
    machine = Machine(16, crowded(room))
    machine.work(20)
    assert machine.work(40) < 1.5 * quiet(room)
    assert all(1 <= size <= 16 for size in machine.on)


def test_short_stalls_are_borne():
    """A daemon that takes a core for 2 ms now and then is no reason for fewer threads."""
    count = iter(range(10**9))
    machine = Machine(2, lambda size: 16 / size + (2.0 if next(count) % 8 == 0 else 0))
    machine.work(30)
    assert machine.on[2] > 0.98 * sum(machine.on.values())


def test_one_thread_stays_one():
    machine = Machine(1, crowded(0))
    machine.work(1)
    assert machine.count.size == machine.count.full == 1


class Arguments(ctypes.Structure):
    """KernelArgs of toynn/_kernels/base/abi.pxd."""

    _fields_ = (
        ("t", ctypes.c_void_p * 12),
        ("n", ctypes.c_ssize_t * 12),
        ("f", ctypes.c_float * 4),
        ("workspace", ctypes.c_void_p),
        ("accumulate", ctypes.c_int),
        ("n_threads", ctypes.c_int),
    )


def test_each_run_says_how_many_threads_there_may_be():
    allowed = []
    kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(Arguments))
    kernel = kind(lambda arguments: allowed.append(arguments.contents.n_threads))
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    program, name = CompiledProgram(1, 0, []), b"toynn.kernel"
    address = ctypes.cast(kernel, ctypes.c_void_p)
    program.append("F", capsule(address, name, None), [], (), (), 0, 6, 1e-3)
    for n_threads in (4, 1, 3, 9, 4):
        program.run("F", False, n_threads)
    assert allowed == [4, 1, 3, 6, 4]


def test_a_session_tries_fewer_threads_says_so_and_computes_the_same(monkeypatch):
    monkeypatch.setattr(threads, "_chosen", 2)
    s = toynn.Session()
    x, w = s.input("x", (256, 512)), s.parameter("w", (512, 512))
    y = s.output(ops.linear(s, x, w))
    s.finalize_weights()
    s.realize()
    rng = np.random.default_rng(0)
    s.upload(x, rng.standard_normal(x.shape, np.float32))
    s.upload(w, rng.standard_normal(w.shape, np.float32))
    s.run("loss")
    before = s.download(y).tobytes()
    assert "on fewer threads" not in str(s.profile())
    while not s.profile().short_handed_ms:  # until enough work is done for the first trial
        for _ in range(100):
            s.run("loss")
        assert s.profile().ms < 20e3
    assert s.download(y).tobytes() == before
    assert "on fewer threads" in str(s.profile())


def test_a_kernel_that_finds_its_work_small_is_not_short_handed():
    """Attention keeps to one thread by itself: that says nothing about other processes."""
    B, T, H, D = 1, 32, 2, 64
    q, k, v, o, do, dq, dk, dv = np.zeros((8, B * T, H * D), np.float32)
    lse, delta = np.zeros((2, B, H, T), np.float32)
    entry, rows = attention.entries["backward"], H * D
    named = {"B": B, "T": T, "H": H, "D": D, "KV": H, "E": D, "ldq": rows, "ldk": rows, "ldv": rows}
    named |= {"causal": 1, "window": 0, "precision": 0}
    room = np.zeros(entry.workspace(named, 2), np.uint8)
    program = CompiledProgram(1, room.ctypes.data, [])
    addresses = [x.ctypes.data for x in (dq, dk, dv, delta, do, o, lse, q, k, v)]
    sizes = tuple(named[name] for name in entry.signature.sizes)
    program.append("B", entry.capsule, addresses, sizes, (1.0, 0.0), 0, 2, 1e-3)
    program.run("B", False, 2)
    assert program.short_handed() == 0
