"""The machine: its processor; its memory, what a process can have of it, and has held."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["free_memory", "peak_memory", "processor", "total_memory"]

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Return the bytes that can be taken without anything being thrown out; None if unknown.

    That is what the system says is available, or less if a control group or a limit of the process
    leaves less. What files have in memory counts as free: it goes when it is needed.
    """
    available = _told(_PROC / "meminfo", "MemAvailable:")
    found = [each for each in (available, _address_space(), *_groups()) if each is not None]
    return min(found, default=None)


def processor() -> str:
    """Return the name of the processor, and how many of its cores are for this process."""
    told = [line.partition(":")[::2] for line in _lines(_PROC / "cpuinfo")]
    told = [(name.strip(), value.strip()) for name, value in told]
    names = [value for name, value in told if name == "model name"][:1]
    if not names:  # arm64 numbers the makers and the kinds of cores
        wanted = ("CPU implementer", "CPU part")
        names = [f"{name} {value}" for name, value in told if name in wanted]
    name = ", ".join(dict.fromkeys(names)) or _brand() or platform.processor()
    own = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    count = len(own(0)) if own else os.cpu_count() or 1
    return f"{name or platform.machine()}, {count} core{'s' if count > 1 else ''}"


def _brand() -> str:
    """Return what macOS calls the processor, "Apple M1"; "" elsewhere."""
    if sys.platform != "darwin":
        return ""
    words = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def total_memory() -> int | None:
    """Return the bytes of memory that the machine has; None if unknown."""
    return _told(_PROC / "meminfo", "MemTotal:")


def peak_memory() -> int | None:
    """Return the most memory that this program has held so far, in bytes; None on Windows.

    Linux says it of the program: ru_maxrss begins with what the one that started it held.
    """
    if sys.platform == "win32":
        return None
    import resource

    if (told := _told(_PROC / "self" / "status", "VmHWM:")) is not None:
        return told
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _told(path: Path, name: str) -> int | None:
    """Return the bytes that a line of kilobytes says, "MemTotal:  16384 kB"; None without one."""
    found = [line.split()[1] for line in _lines(path) if line.startswith(name)]
    return int(found[0]) * 1024 if found else None


def _address_space() -> int | None:
    """Return what `ulimit -v` leaves."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _told(_PROC / "self" / "status", "VmSize:")
    if limit == resource.RLIM_INFINITY or used is None:
        return None
    return max(0, int(limit) - used)


def _groups() -> Iterator[int]:
    """Yield what each control group of the process leaves, of version 2 and of version 1."""
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
