"""What needs no second process: the environment, a group of one, the cost, the threads."""

import sys
import types
from contextlib import nullcontext

import numpy as np
import pytest

from toynn import distributed
from toynn.backends import config, threads
from toynn.distributed import LINKS, Cost, Group, mpi
from toynn.distributed.launcher import Launch
from toynn.distributed.sums import Summing
from toynn.distributed.waits import END, NOTHING, SAY, Notes, Wait


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, Launch(1, 3)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, Launch(0, 2)),
        ({"PMI_RANK": "1"}, None),
        ({"PMI_RANK": "-1", "PMI_SIZE": "many"}, None),
    ],
)
def test_the_environment_says_who_started_a_process(variables, expected):
    assert Launch.found(variables) == expected


def test_a_group_of_one_does_nothing():
    group = distributed.init()
    assert (group.rank, group.size) == (distributed.rank(), distributed.size()) == (0, 1)
    values = np.arange(3, dtype=np.float32)
    group.summing("ordered")(values)
    assert group.share(values) is values and values.tolist() == [0, 1, 2]
    assert group.exchange([1.0, 2.0]).tolist() == [[1.0, 2.0]]
    assert group.gather("x") == ["x"] and group.tell("x") == "x"
    assert group.fail(ValueError("why")) == "why"
    assert type(group) is Group


class Wire:
    """A communicator whose other ranks are arrays; what one rank sends itself is what it has."""

    def __init__(self, rank, parts):
        self.rank, self.size, self.parts = rank, len(parts), parts

    def Alltoallv(self, sent, received):
        into, (counts, begins) = received
        first = sum(len(np.array_split(self.parts[0], self.size)[r]) for r in range(self.rank))
        for rank, part in enumerate(self.parts):
            piece = part[first : first + counts[rank]]
            into[begins[rank] : begins[rank] + counts[rank]] = piece

    def Allgatherv(self, _, received):
        self.gathered = received[0]


def test_a_sum_names_the_rank_whose_part_is_not_finite():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(12).astype(np.float32) for _ in range(3)]
    parts[1][5] = np.inf
    wire = Wire(1, parts)
    summing = Summing(type("MPI", (), {"IN_PLACE": None}), wire, nullcontext)
    summing.ordered(parts[1].copy())
    assert summing.culprits == {1}
    np.testing.assert_array_equal(wire.gathered[4:8], ((parts[0] + parts[1]) + parts[2])[4:8])


class Post:
    """A communicator of three ranks: what is sent to one lies in its box."""

    def __init__(self, rank, boxes):
        self.rank, self.size, self.boxes = rank, 3, boxes

    def Isend(self, note, rank):
        self.boxes[rank].append(tuple(note))
        return self

    def Test(self):
        return True

    def Iprobe(self):
        return bool(self.boxes[self.rank])

    def Recv(self, note):
        note[:] = self.boxes[self.rank].pop(0)


def test_a_wait_says_for_whom_and_ends_by_its_own_clock():
    """Ranks 0 and 2 wait for rank 1. One of them speaks; the other one where it cannot."""
    now, boxes = [0.0], [[(1, 6)], [], [(1, 6)]]  # notes of rank 1, of a wait that is over
    notes = {rank: Notes(Post(rank, boxes)) for rank in (0, 2)}
    waits = {rank: Wait(notes[rank], 7, 100.0, clock=lambda: now[0]) for rank in (0, 2)}

    def at(seconds):
        now[0] = seconds
        return [wait.look() for wait in waits.values()]

    assert at(0.9) == [NOTHING, NOTHING] and not boxes[1]  # a step may take so long
    assert at(2.0) == [NOTHING, NOTHING] and boxes[1] == [(0, 7), (2, 7)]
    assert at(29.9) == [NOTHING, NOTHING]
    assert at(30.0) == [SAY, NOTHING]
    assert waits[0].missing == waits[2].missing == [1]
    assert at(99.0) == [NOTHING, NOTHING]  # it has been said, by rank 0
    assert at(100.0) == [END, NOTHING]
    assert at(110.0) == [END, END]  # rank 0 has stopped since, perhaps


def test_a_wait_without_a_limit_does_not_end():
    now = [0.0]
    wait = Wait(Notes(Post(2, [[], [], []])), 1, 0.0, clock=lambda: now[0])
    now[0] = 30.0
    assert wait.look() == SAY and wait.missing == [0, 1]
    now[0] = 1e9
    assert wait.look() == NOTHING


def test_notes_do_not_pile_up_at_a_rank_that_is_always_the_last():
    boxes = [[], [], []]
    last, others = Notes(Post(1, boxes)), [Notes(Post(rank, boxes)) for rank in (0, 2)]
    for number in range(1, 50):
        for each in others:
            each.send(number)
        wait = Wait(last, number, 100.0, clock=lambda: 0.0)
        assert wait.look() == NOTHING  # nobody is waited for
        assert not boxes[1]


def test_a_note_that_comes_before_the_wait_counts():
    """Of the others rank 0 has come, and has said so before this rank did."""
    now, boxes = [0.0], [[], [(0, 1), (2, 1), (0, 2)], []]
    wait = Wait(Notes(Post(1, boxes)), 2, 0.0, clock=lambda: now[0])
    now[0] = 29.0
    assert wait.look() == NOTHING and wait.missing == [2]


def test_the_cost_is_that_of_the_formula():
    cost = Cost(nbytes=10**8, work=2.0, memory=1e-9)
    rate = LINKS["1 Gbit/s"]
    assert rate == pytest.approx(117.5e6)
    expected = 2 * 7 / 8 * 1e8 / 117.5e6 + 14 * 50e-6 + 0.1
    assert cost.summing(8, rate) == pytest.approx(expected)
    assert cost.faster(8, rate) == pytest.approx(8 * 2 / (2 + expected))
    assert cost.summing(1, rate) == 0 and cost.faster(1, rate) == 1
    assert cost.moved(2) == 1e8


@pytest.mark.parametrize(
    ("processes", "number", "cores", "expected"),
    [
        ([{0, 1, 2, 3}], 0, 4, 4),
        ([{0, 1, 2, 3}] * 2, 1, 4, 2),
        ([{0, 1, 2, 3}] * 3, 0, 4, 1),
        ([{0, 1, 2, 3}] * 8, 7, 4, 1),
        ([{0, 1}, {2, 3}], 1, 2, 2),  # bound apart
        ([{0, 1, 2, 3}, {2, 3}], 0, 4, 3),
    ],
)
def test_processes_share_cores(processes, number, cores, expected, monkeypatch):
    for name in ("OMP_NUM_THREADS", "TOYNN_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_physical_cores", lambda: cores)
    monkeypatch.setattr(threads, "_share", None)
    monkeypatch.setattr(threads, "_chosen", None)
    threads.share_cores([frozenset(each) for each in processes], number)
    assert threads.get_num_threads() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert threads.get_num_threads() == 7


def test_libraries_are_named_in_a_few_words():
    assert mpi.named("MPICH Version:      5.0.2\nMPICH Release date: ...\n") == "MPICH 5.0.2"
    assert mpi.named("Open MPI v4.1.4, package: Debian OpenMPI\0") == "Open MPI v4.1.4"


def test_the_configuration_says_which_mpi_there_is(monkeypatch):
    monkeypatch.setattr(mpi, "_version", lambda: None)
    assert config.describe()["MPI"].startswith("none: pip install")


def test_mpi4py_without_a_library_is_said(monkeypatch):
    """mpi4py's wheels raise RuntimeError, a line for each place where they looked."""

    class Lacking:
        def find_spec(self, name, path=None, target=None):
            if name == "mpi4py.MPI":
                raise RuntimeError("cannot load MPI library\nlibmpi.so: no such file")

    package = types.ModuleType("mpi4py")
    package.rc, package.__path__ = types.SimpleNamespace(initialize=True), []
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Lacking(), *sys.meta_path])
    monkeypatch.setattr(mpi, "_version", lambda: "4.1.2")
    assert mpi.described() == (
        f"none: mpi4py 4.1.2 cannot be used (cannot load MPI library): {mpi.INSTALL}"
    )
