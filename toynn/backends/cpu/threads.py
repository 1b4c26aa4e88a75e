"""How many threads: the one place that decides it.

In order: ``set_num_threads``, TOYNN_NUM_THREADS, OMP_NUM_THREADS, the physical cores that this
process may use. A kernel gets fewer when its work is not worth waking a thread.
"""

import os

from toynn._kernels import has_openmp
from toynn.errors import ConfigError

__all__ = ["get_num_threads", "set_num_threads", "worth"]

#: Seconds of work for which one more thread pays. Waking one costs 1 to 5 microseconds.
GRAIN = 10e-6
#: Rates from which that time is estimated: one core, data in cache.
FLOPS_PER_SECOND = 1e11
BYTES_PER_SECOND = 2e10

_chosen: int | None = None
_forked = False


def set_num_threads(n: int) -> None:
    """Use at most ``n`` threads from now on, whatever the environment says."""
    global _chosen
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ConfigError(f"set_num_threads: n must be a whole number of at least 1; got {n!r}")
    _chosen = n


def get_num_threads() -> int:
    """Return the number of threads that a run uses now."""
    if _forked or not has_openmp():
        return 1
    return _chosen or _from_environment() or _physical_cores()


def worth(flops: int, nbytes: int) -> int:
    """Return how many threads this much work is worth, at least one."""
    seconds = flops / FLOPS_PER_SECOND + nbytes / BYTES_PER_SECOND
    return max(1, int(seconds / GRAIN))


def _from_environment() -> int | None:
    for name in ("TOYNN_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "").split(",")[0].strip()
        if not value:
            continue
        if not value.isdigit() or int(value) < 1:
            raise ConfigError(f"{name}={value}: must be a whole number of at least 1")
        return int(value)
    return None


def _physical_cores() -> int:
    """Cores of this process's affinity mask, hyper-threads counted once, within a CPU quota."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
                cores.add(file.read().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, min(len(cores), _quota()))


def _quota() -> int:
    """CPUs that the control group grants, rounded up."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return os.cpu_count() or 1


def _after_fork() -> None:
    """Stay on one thread in a forked child: the OpenMP runtime's pool did not come along."""
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
