"""The machine: its processor, and its memory: in all, free, and used by this process."""

from collections.abc import Iterator
from pathlib import Path
from platform import machine

from toynn.system import platform

__all__ = ["free_memory", "peak_memory", "processor", "total_memory"]

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Return the bytes of memory that this process can still take; None if unknown.

    It is what the system reports as available, or less because of a control group or a limit of the
    process. The file cache counts as free.
    """
    available = _told(_PROC / "meminfo", "MemAvailable:")
    if (windows := platform.memory()) is not None:
        available = windows[1]
    found = [each for each in (available, _address_space(), *_groups()) if each is not None]
    return min(found, default=None)


def processor() -> str:
    """Return the name of the processor, and the number of cores that this process may use."""
    told = [line.partition(":")[::2] for line in _lines(_PROC / "cpuinfo")]
    told = [(name.strip(), value.strip()) for name, value in told]
    names = [value for name, value in told if name == "model name"][:1]
    if not names:  # arm64 numbers the makers and the kinds of cores
        wanted = ("CPU implementer", "CPU part")
        names = [f"{name} {value}" for name, value in told if name in wanted]
    name = ", ".join(dict.fromkeys(names)) or platform.processor() or machine()
    count = len(platform.cpus())
    return f"{name}, {count} core{'s' if count > 1 else ''}"


def total_memory() -> int | None:
    """Return the bytes of memory of the machine; None if unknown."""
    windows = platform.memory()
    return _told(_PROC / "meminfo", "MemTotal:") if windows is None else windows[0]


def peak_memory() -> int | None:
    """Return the peak memory of this process so far, in bytes; None if unknown.

    Linux's VmHWM is for this program; its ru_maxrss would begin with the parent's memory.
    """
    told = _told(_PROC / "self" / "status", "VmHWM:")
    return platform.peak_memory() if told is None else told


def _told(path: Path, name: str) -> int | None:
    """Return the bytes from a line in kilobytes, "MemTotal:  16384 kB"; None without one."""
    found = [line.split()[1] for line in _lines(path) if line.startswith(name)]
    return int(found[0]) * 1024 if found else None


def _address_space() -> int | None:
    """Return the bytes left of `ulimit -v`."""
    limit = platform.address_space()
    used = _told(_PROC / "self" / "status", "VmSize:")
    return None if limit is None or used is None else max(0, limit - used)


def _groups() -> Iterator[int]:
    """Yield the bytes left in each control group of the process, of version 2 and version 1."""
    for line in _lines(_PROC / "self" / "cgroup"):
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, names = _GROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = _GROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = root / name.strip("/")
        while True:
            limit, used = (_number(folder / each) for each in names[:2])
            if limit is not None and used is not None:
                yield max(0, limit - used + _statistic(folder, names[2]))
            if folder == root:
                break
            folder = folder.parent


def _number(path: Path) -> int | None:
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def _statistic(folder: Path, name: str) -> int:
    found = [line.split()[1] for line in _lines(folder / "memory.stat") if line.startswith(name)]
    return int(found[0]) if found else 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
