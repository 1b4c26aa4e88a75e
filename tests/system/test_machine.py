"""What is free: the least of what the system, a limit and control groups leave."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from killing import in_child, is_killed

from toynn.system import machine

GIB = 2**30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A machine with 8 GiB available, as its files say; returns a function that writes one."""
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")

    def write(path, content):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{content}\n")

    write("proc/meminfo", f"MemTotal: 99999999 kB\nMemAvailable: {8 * GIB // 1024} kB")
    write("proc/self/status", "VmPeak: 900 kB\nVmSize: 1024 kB\nVmRSS: 5 kB")
    return write


def test_what_is_available(system):
    assert machine.free_memory() == 8 * GIB


def test_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    assert machine.free_memory() is None


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (
            "model\t\t: 85\nmodel name\t: CPU @ 2 GHz\n\nmodel name\t: Other",
            "CPU @ 2 GHz",
        ),
        (
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd03\n\n"
            "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd08",
            "CPU implementer 0x41, CPU part 0xd03, CPU part 0xd08",
        ),
    ],
)
def test_the_name_of_the_processor(system, told, name):
    """What x86-64 calls itself; on arm64 the numbers of the maker and of each kind of core."""
    system("proc/cpuinfo", told)
    assert machine.processor().rpartition(", ")[0] == name


def test_the_name_of_the_processor_on_macos(tmp_path, monkeypatch):
    def sysctl(words, **options):
        return subprocess.CompletedProcess(words, 0, "Apple M2 Pro\n")

    monkeypatch.setattr(machine, "_PROC", tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", sysctl)
    assert machine.processor().startswith("Apple M2 Pro, ")


def test_a_group_of_version_2(system):
    """What it may take, less what it has; what files have of that can be thrown out."""
    system("proc/self/cgroup", "0::/a/b")
    system("cgroup/a/b/memory.max", 4 * GIB)
    system("cgroup/a/b/memory.current", 3 * GIB)
    assert machine.free_memory() == GIB
    system("cgroup/a/b/memory.stat", f"anon 5\nfile 7\ninactive_file {GIB // 2}\nactive_file 9")
    assert machine.free_memory() == GIB + GIB // 2


def test_a_group_above_leaves_less(system):
    system("proc/self/cgroup", "0::/a/b")
    system("cgroup/a/b/memory.max", "max")
    system("cgroup/a/b/memory.current", GIB)
    assert machine.free_memory() == 8 * GIB
    system("cgroup/a/memory.max", 2 * GIB)
    system("cgroup/a/memory.current", 2 * GIB + 1)
    assert machine.free_memory() == 0


def test_a_group_of_version_1(system):
    system("proc/self/cgroup", "7:cpu,memory:/a\n5:freezer:/x\n0::/nothing")
    system("cgroup/memory/a/memory.limit_in_bytes", 3 * GIB)
    system("cgroup/memory/a/memory.usage_in_bytes", GIB)
    assert machine.free_memory() == 2 * GIB
    system("cgroup/memory/a/memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB}")
    assert machine.free_memory() == 3 * GIB


def test_the_tightest_quota_of_the_groups_above_counts(system):
    system("proc/self/cgroup", "0::/a/b")
    assert machine.cpu_quota() is None
    system("cgroup/a/b/cpu.max", "max 100000")
    assert machine.cpu_quota() is None
    system("cgroup/a/cpu.max", "250000 100000")
    assert machine.cpu_quota() == 2.5
    system("cgroup/cpu.max", "800000 100000")
    assert machine.cpu_quota() == 2.5
    system("cgroup/a/b/cpu.max", "50000 100000")
    assert machine.cpu_quota() == 0.5


def test_the_load_is_that_of_the_last_minute(system):
    assert machine.load() is None
    system("proc/loadavg", "1.75 0.50 0.10 2/99 1234")
    assert machine.load() == 1.75


def test_a_quota_of_version_1(system):
    system("proc/self/cgroup", "7:cpu,cpuacct:/a\n5:memory:/x\n0::/nothing")
    system("cgroup/cpu/cpu.cfs_quota_us", -1)
    system("cgroup/cpu/cpu.cfs_period_us", 100000)
    assert machine.cpu_quota() is None
    system("cgroup/cpu/a/cpu.cfs_quota_us", 300000)
    system("cgroup/cpu/a/cpu.cfs_period_us", 100000)
    assert machine.cpu_quota() == 3
    system("cgroup/cpu/a/cpu.cfs_period_us", 0)
    assert machine.cpu_quota() is None


def test_nodes_have_the_cpus_that_this_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_NODES", tmp_path)
    assert machine.nodes(frozenset({0})) == {}
    for node, cpus in {10: "4-5,12", 0: "0-3,8-11", 2: "", "x": "7"}.items():
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    assert machine.nodes(frozenset(range(32))) == {0: {*range(4), *range(8, 12)}, 10: {4, 5, 12}}
    assert machine.nodes(frozenset({1, 9})) == {0: {1, 9}}


def test_files_that_say_nothing(system):
    system("proc/self/cgroup", "0::/a")
    system("cgroup/a/memory.max", "many")
    system("cgroup/a/memory.current", "")
    assert machine.free_memory() == 8 * GIB


def test_a_limit_of_the_process(system):
    """`ulimit -v`, less what the process has: 1 MiB by the file above."""

    def act():
        resource.setrlimit(resource.RLIMIT_AS, (GIB * 64, GIB * 64))
        assert machine.free_memory() == 8 * GIB
        now = int(Path("/proc/self/status").read_text().split("VmSize:")[1].split()[0]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (now + GIB, GIB * 64))
        assert machine.free_memory() == min(8 * GIB, now + GIB - 2**20)

    assert not is_killed(in_child(act))


def test_this_machine_has_some():
    free = machine.free_memory()
    assert free is None or 0 < free < 2**50


def test_peak_memory_is_that_of_the_program_itself():
    held = bytearray(600 << 20)  # by the one that starts it
    held[:: 1 << 12] = b"1" * len(held[:: 1 << 12])
    ask = "from toynn.system.machine import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert 5 << 20 < int(done.stdout) < 300 << 20 < machine.peak_memory()
