"""The number of threads: the one place that decides it.

In order: the session's own number (``n_threads``), ``set_num_threads``, TOYNN_NUM_THREADS,
OMP_NUM_THREADS, the physical cores that this process may use, or its share of those where several
processes train together. A kernel gets fewer threads if its work does not repay waking one. A
program gets fewer while other processes want the cores (backends/cpu/work.py and thread_count.pyx).
"""

import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from toynn._kernels import MAX_THREADS, pool
from toynn.errors import ConfigError
from toynn.system import platform
from toynn.system.printing import counted

__all__ = ["get_num_threads", "set_num_threads", "share_cores", "warn_of_refusal"]

_chosen: int | None = None
_share: int | None = None  # of the cores, among processes that train together
_forked = False
_warned = False  # that the system starts no more threads


def set_num_threads(n: int) -> None:
    """Use at most ``n`` threads from now on, whatever the environment says.

    A forked child computes on one thread until it calls this. Where the system has refused to start
    a thread, it is asked again.

    Raises ConfigError for a number that is none.
    """
    global _chosen, _forked, _warned
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_THREADS:
        raise ConfigError(
            f"set_num_threads: n must be a whole number from 1 to {MAX_THREADS}; got {n!r}"
        )
    _chosen, _forked, _warned = n, False, False
    pool.ask_again()


def warn_of_refusal() -> None:
    """Warn, once, if the system has refused to start a thread that a kernel was to use."""
    global _warned
    if not _warned and (count := pool.refused()):
        _warned = True
        warnings.warn(
            f"toynn computes on {counted(count, 'thread')}: the system starts no more (see ulimit "
            "-u, ulimit -v and the container's limits); toynn.set_num_threads(n) asks it again",
            stacklevel=2,
        )


def get_num_threads(own: int | None = None) -> int:
    """Return the number of threads that a run uses now, in a session that has a number of its own.

    Raises ConfigError for a TOYNN_NUM_THREADS that is no number.
    """
    if _forked:
        return 1
    if own is not None:
        return min(int(own), MAX_THREADS)
    return _chosen or _from_environment() or _share or _physical_cores()


def share_cores(processes: Sequence[frozenset[int]], own: int) -> None:
    """Use a fair share of the cores where several processes of this machine may use the same.

    ``processes`` are the logical CPUs that each may use, ``own`` says which of them this one is. A
    CPU that k of them may use counts as one k-th. Numbers that were set go before it.
    """
    global _share
    cpus = processes[own]
    fair = sum(1 / sum(cpu in each for each in processes) for cpu in cpus)
    _share = max(1, int(_physical_cores() * fair / len(cpus) + 1e-9))


def _from_environment() -> int | None:
    """Read the variables; a bad OMP_NUM_THREADS is ignored: it is meant for other libraries too."""
    own = os.environ.get("TOYNN_NUM_THREADS", "").strip()
    if own:
        if _number(own) is None:
            raise ConfigError(
                f"TOYNN_NUM_THREADS={own}: must be a whole number from 1 to {MAX_THREADS}"
            )
        return _number(own)
    return _number(os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip())


def _number(text: str) -> int | None:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS:
        return int(text)
    return None


def _physical_cores() -> int:
    """Cores of this process's affinity mask, hyper-threads counted once, within a CPU quota."""
    return max(1, min(_cores(platform.cpus()), _quota()))


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


@cache
def _quota() -> int:
    """CPUs that the control group grants, rounded up."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return os.cpu_count() or 1


def _after_fork() -> None:
    """Compute on one thread in a forked child: its siblings use the other cores."""
    global _forked
    _forked = True


platform.in_child(_after_fork)
