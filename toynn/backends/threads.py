"""The number of threads: the one place that decides it.

The first of these that is set counts:

- the session's own number (``n_threads``);
- the number given to ``set_num_threads``;
- TOYNN_NUM_THREADS, then OMP_NUM_THREADS;
- this process's share of the cores, if several processes train together;
- the physical cores that this process may use, or fewer by a control group's quota.

A kernel gets fewer threads if its work does not pay for waking them (work.py). A program gets
fewer while other processes want the cores (cpu/thread_count.pyx).
"""

import os
import warnings
from collections.abc import Sequence
from functools import cache
from math import ceil
from pathlib import Path

from toynn._kernels import MAX_THREADS
from toynn._kernels.base import pool
from toynn.errors import ConfigError
from toynn.system import machine, platform
from toynn.system.printing import counted

_quota = cache(machine.cpu_quota)
_chosen: int | None = None
_share: int | None = None  # this process's share of the cores, if several train together
_forked = False
_warned = False  # whether warn_of_refusal has warned


def set_num_threads(n: int) -> None:
    """Use at most ``n`` threads from now on, whatever the environment says.

    A forked child computes on one thread until it calls this. If the system has refused to start a
    thread, it is asked again.

    Raises ConfigError unless ``n`` is a whole number from 1 to the largest allowed one.
    """
    global _chosen, _forked, _warned
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_THREADS:
        raise ConfigError(
            f"set_num_threads: n must be a whole number from 1 to {MAX_THREADS}; got {n!r}"
        )
    _chosen, _forked, _warned = n, False, False
    pool.ask_again()


@cache
def spread_memory(n_threads: int) -> None:
    """Take memory from several NUMA nodes in turn if so many threads need more than one node.

    Otherwise a whole array would come from the node of the thread that first writes it, and all
    threads would read weights from the memory of one node.
    """
    nodes = machine.nodes(platform.cpus())
    if len(nodes) > 1 and n_threads > max(_cores(cpus) for cpus in nodes.values()):
        platform.interleave(nodes)


def warn_of_refusal() -> None:
    """Warn, once, if the system has refused to start a thread for a kernel."""
    global _warned
    if not _warned and (count := pool.refused()):
        _warned = True
        warnings.warn(
            f"toynn computes on {counted(count, 'thread')}: the system starts no more (see ulimit "
            "-u, ulimit -v and the container's limits); toynn.set_num_threads(n) asks it again",
            stacklevel=2,
        )


def get_num_threads(number: int | None = None) -> int:
    """Return the number of threads that a run uses now; ``number`` is the session's, or None.

    Raises ConfigError if TOYNN_NUM_THREADS is not a number of threads.
    """
    if _forked:
        return 1
    if number is not None:
        return min(int(number), MAX_THREADS)
    return _chosen or _from_environment() or _share or _physical_cores()


def share_cores(processes: Sequence[frozenset[int]], number: int) -> None:
    """Use a fair share of the cores that several processes of this machine may use.

    ``processes`` has the logical CPUs that each process may use; ``number`` is the index of this
    one. A CPU that k processes may use counts as 1/k. A number that the user has set goes first.
    """
    global _share
    cpus = processes[number]
    fair = sum(1 / sum(cpu in each for each in processes) for cpu in cpus)
    _share = max(1, int(_physical_cores() * fair / len(cpus) + 1e-9))


def _from_environment() -> int | None:
    """Read the variables. A bad OMP_NUM_THREADS is ignored: other libraries read it too."""
    number = os.environ.get("TOYNN_NUM_THREADS", "").strip()
    if number:
        if _number(number) is None:
            raise ConfigError(
                f"TOYNN_NUM_THREADS={number}: must be a whole number from 1 to {MAX_THREADS}"
            )
        return _number(number)
    return _number(os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip())


def _number(text: str) -> int | None:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS:
        return int(text)
    return None


def _physical_cores() -> int:
    """Physical cores of this process's affinity mask, at most the CPU quota rounded up."""
    cores, quota = _cores(platform.cpus()), _quota()
    return cores if quota is None else max(1, min(cores, ceil(quota)))


@cache
def _cores(cpus: frozenset[int]) -> int:
    """Count the physical cores among logical CPUs."""
    cores = set[object]()
    for cpu in cpus:
        try:
            topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
            cores.add((topology / "thread_siblings_list").read_text("ascii").strip())
        except OSError:
            cores.add(cpu)
    return len(cores)


def _after_fork() -> None:
    """Compute on one thread in a forked child: other processes use the other cores."""
    global _forked
    _forked = True


platform.in_child(_after_fork)
