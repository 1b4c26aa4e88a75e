"""The machine: its processor, its memory, and what control groups (cgroups) grant of both."""

from collections.abc import Iterator
from pathlib import Path
from platform import machine

from toynn.system import platform

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_NODES = Path("/sys/devices/system/node")


def free_memory() -> int | None:
    """Return the bytes of memory that this process can still take; None if unknown.

    It is the least of three numbers: what the system reports as available, what control groups
    leave, and what the limit of the process leaves. The file cache counts as free.
    """
    available = _told(_PROC / "meminfo", "MemAvailable:")
    if (windows := platform.memory()) is not None:
        available = windows[1]
    limits = [each for each in (available, _address_space(), *_groups()) if each is not None]
    return min(limits, default=None)


def processor() -> str:
    """Return the name of the processor, and the number of cores that this process may use."""
    fields = [line.partition(":")[::2] for line in _lines(_PROC / "cpuinfo")]
    fields = [(name.strip(), value.strip()) for name, value in fields]
    names = [value for name, value in fields if name == "model name"][:1]
    if not names:  # arm64 numbers the makers and the kinds of cores
        wanted = ("CPU implementer", "CPU part")
        names = [f"{name} {value}" for name, value in fields if name in wanted]
    name = ", ".join(dict.fromkeys(names)) or platform.processor() or machine()
    count = len(platform.cpus())
    return f"{name}, {count} core{'s' if count > 1 else ''}"


def cpu_quota() -> float | None:
    """Return the CPUs whose time the control groups of this process grant; None: no limit.

    The limit is the lowest of the process's group and all groups above it. `docker run --cpus` and
    systemd's CPUQuota set such limits.
    """
    quotas = []
    for folder, unified in _folders("cpu"):
        if unified:
            words = "".join(_lines(folder / "cpu.max")).split()
        else:
            words = ["".join(_lines(folder / f"cpu.cfs_{each}_us")) for each in ("quota", "period")]
        if len(words) == 2 and all(each.isdigit() for each in words) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def load() -> float | None:
    """Return how many threads of all processes computed in the last minute; None if unknown."""
    words = "".join(_lines(_PROC / "loadavg")).split()
    return float(words[0]) if words else None


def nodes(cpus: frozenset[int]) -> dict[int, frozenset[int]]:
    """Return the NUMA nodes of these logical CPUs, each with its CPUs; {} if unknown."""
    cpus_of = {}
    for folder in _NODES.glob("node[0-9]*"):
        inside = cpus & _listed("".join(_lines(folder / "cpulist")))
        if inside and folder.name[4:].isdigit():
            cpus_of[int(folder.name[4:])] = inside
    return dict(sorted(cpus_of.items()))


def total_memory() -> int | None:
    """Return the bytes of memory of the machine; None if unknown."""
    windows = platform.memory()
    return _told(_PROC / "meminfo", "MemTotal:") if windows is None else windows[0]


def peak_memory() -> int | None:
    """Return the peak memory of this process so far, in bytes; None if unknown.

    On Linux this is VmHWM, which counts this program only; ru_maxrss begins with the parent's peak.
    """
    peak = _told(_PROC / "self" / "status", "VmHWM:")
    return platform.peak_memory() if peak is None else peak


def _told(path: Path, name: str) -> int | None:
    """Return the bytes that a line such as "MemTotal:  16384 kB" tells; None without that line."""
    sizes = [line.split()[1] for line in _lines(path) if line.startswith(name)]
    return int(sizes[0]) * 1024 if sizes else None


def _address_space() -> int | None:
    """Return the bytes that `ulimit -v` leaves; None without a limit."""
    limit = platform.address_space()
    used = _told(_PROC / "self" / "status", "VmSize:")
    return None if limit is None or used is None else max(0, limit - used)


def _groups() -> Iterator[int]:
    """Yield the bytes left in each control group of the process."""
    for folder, unified in _folders("memory"):
        if unified:
            names = ("memory.max", "memory.current", "inactive_file")
        else:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used = (_number(folder / each) for each in names[:2])
        if limit is not None and used is not None:
            yield max(0, limit - used + _statistic(folder, names[2]))


def _folders(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control groups, up to the root; True for version 2."""
    for line in _lines(_PROC / "self" / "cgroup"):
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _GROUPS / controller if controllers else _GROUPS
        folder = root / name.strip("/")
        yield folder, not controllers
        while folder != root:
            folder = folder.parent
            yield folder, not controllers


def _listed(text: str) -> set[int]:
    """Read a list of numbers such as 0-3,8."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _number(path: Path) -> int | None:
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def _statistic(folder: Path, name: str) -> int:
    sizes = [line.split()[1] for line in _lines(folder / "memory.stat") if line.startswith(name)]
    return int(sizes[0]) if sizes else 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
