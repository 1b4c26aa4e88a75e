"""The differences of Windows; no other module checks for the system.

All other modules call these functions; platform.h has the functions for C code. The process that
renders chat templates loads this file by its path, so it imports nothing of toynn. On Windows:

    open files            cannot be renamed or replaced, unless all who opened them allowed it
    folders               cannot be opened or synced; a folder can replace only an empty one
    locks                 are for bytes, and exclude all other access; folders cannot be locked
    owners and modes      do not exist
    signals               SIGBREAK (Ctrl-Break, a console that closes) instead of SIGHUP; no fork
    limits                belong to jobs, which a process is put into
"""

import contextlib
import ctypes
import errno
import os
import platform as python
import shlex
import signal
import stat
import sys
import time
from collections.abc import Callable, Collection
from ctypes import POINTER, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_ulong, c_void_p
from typing import Any

PathLike = str | os.PathLike[str]

#: The signal of a terminal that has gone, and all signals that ask a program to end.
HANGUP: int | None = getattr(signal, "SIGHUP", None) or getattr(signal, "SIGBREAK", None)
ASKS_TO_STOP: tuple[int, ...] = tuple(filter(None, (signal.SIGINT, signal.SIGTERM, HANGUP)))

_HERE = -100  # AT_FDCWD: paths are relative to the working directory
_TRIES, _PAUSE = 20, 0.05  # tries of a rename, seconds between them: virus scanners open new files
_LOCKED = 1 << 30  # times 2^32: a byte far beyond the end of any file
# winnt.h, winbase.h, winerror.h
_READ, _WRITE, _SHARED, _LINK_ITSELF, _DELETE_ON_CLOSE = 1 << 31, 1 << 30, 7, 1 << 21, 1 << 26
_CREATE_NEW, _OPEN_EXISTING, _OPEN_ALWAYS = 1, 3, 4
_LOCK_VIOLATION = 33
_TIME, _PROCESS_MEMORY, _EXTENDED = 2, 0x100, 9  # limits of a job, and their struct
_NEW_GROUP = 0x200


def read_file(path: PathLike, *, links: bool = True) -> int:
    """Open a file to read; return its descriptor. The file may be replaced or removed meanwhile.

    Opening never waits, not even for a pipe. Without ``links`` a symbolic link is an error.
    """
    if sys.platform == "win32":
        return _open(path, os.O_RDONLY, _READ, _OPEN_EXISTING, 0 if links else _LINK_ITSELF)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    return os.open(path, flags)


def new_file(path: PathLike, mode: int = 0o666) -> int:
    """Create a file to write; return its descriptor. An existing file or link is an error.

    The file may be renamed while it is open.
    """
    if sys.platform == "win32":
        return _open(path, os.O_WRONLY, _WRITE, _CREATE_NEW)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)


def open_lock(path: PathLike) -> int:
    """Open or create a file to lock and write; return its descriptor. A link is an error."""
    if sys.platform == "win32":
        return _open(path, os.O_RDWR, _READ | _WRITE, _OPEN_ALWAYS, _LINK_ITSELF)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def open_folder(path: PathLike) -> int:
    """Return a descriptor for locking a folder.

    On Windows the descriptor is of a file next to the folder, since files in a folder must be
    closed when the folder is renamed. That file is removed when its last descriptor is closed.
    """
    if sys.platform == "win32":
        if not os.path.isdir(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        beside = f"{os.fspath(path)}.lock"
        return _open(beside, os.O_RDWR, _READ | _WRITE, _OPEN_ALWAYS, _DELETE_ON_CLOSE)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def lock(descriptor: int) -> None:
    """Lock a file until it is closed or its process ends.

    Raises BlockingIOError if it is locked, OSError if the file system has no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        handle = c_void_p(msvcrt.get_osfhandle(descriptor))
        if not _kernel().LockFile(handle, 0, _LOCKED, 1, 0):
            failure = ctypes.WinError(ctypes.get_last_error())
            if failure.winerror == _LOCK_VIOLATION:
                raise BlockingIOError(errno.EAGAIN, failure.strerror)
            raise failure
        return
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_at(descriptor: int, path: PathLike) -> bool:
    """Return whether a path still names the opened file; of folders Windows does not tell: True.

    Raises FileNotFoundError if the path does not exist.
    """
    status = os.lstat(path)
    if sys.platform == "win32" and stat.S_ISDIR(status.st_mode):
        return True
    return os.path.samestat(os.fstat(descriptor), status)


def sync_folder(folder: PathLike) -> None:
    """Wait until the names in a folder are on the disk, if the file system supports it.

    On Windows no program can wait for that; NTFS journals each change of names first.
    """
    if sys.platform == "win32":
        return
    try:
        descriptor = open_folder(folder)
    except PermissionError:  # a folder that may be written to but not listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def replace(source: PathLike, target: PathLike) -> None:
    """Rename a file or folder, replacing a file or an empty folder.

    On Windows a target that is open is renamed first, and removed when possible.
    """
    if sys.platform != "win32":
        os.replace(source, target)
        return
    if os.path.isdir(source) and os.path.isdir(target):
        os.rmdir(target)  # an error if it is not empty, as elsewhere
    for left in reversed(range(_TRIES)):
        aside = None
        try:
            os.replace(source, target)
            return
        except PermissionError:
            aside = _make_way(target)
            if aside is None and not left:
                raise
        try:
            if aside is None:
                time.sleep(_PAUSE)
            else:
                os.rename(source, target)
                return
        except OSError:  # e.g. another thread or process was quicker
            if not left:
                raise
        finally:
            _clear(aside, target)


def _make_way(target: PathLike) -> str | None:
    """Rename an open file; return its new name, or None if that failed."""
    head, name = os.path.split(os.fspath(target))
    aside = os.path.join(head, f".{name[:100]}.toynn-old-{os.urandom(8).hex()}")
    with contextlib.suppress(OSError):
        if os.path.isfile(target):
            os.rename(target, aside)
            return aside
    return None


def _clear(aside: str | None, target: PathLike) -> None:
    """Rename a renamed file back if its old name is free; otherwise remove the file.

    A mapped file cannot be removed: see disk.sweep.
    """
    if aside is not None:
        with contextlib.suppress(OSError):
            if not os.path.lexists(target):
                os.rename(aside, target)
            else:
                os.unlink(aside)


def exchange(source: PathLike, target: PathLike) -> None:
    """Swap the names of two folders atomically. Raises OSError if the system cannot do it."""
    swap = ctypes.c_uint(2)  # RENAME_EXCHANGE, and macOS's RENAME_SWAP
    paths = os.fsencode(source), os.fsencode(target)
    try:
        if sys.platform == "win32":
            raise AttributeError
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = library.renamex_np(*paths, swap)
        else:
            failed = library.renameat2(_HERE, paths[0], _HERE, paths[1], swap)
    except AttributeError as error:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def is_own(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user; on Windows always True."""
    return sys.platform == "win32" or status.st_uid == os.geteuid()


def give_owner(descriptor: int, status: os.stat_result) -> None:
    """Give an open file the mode of another file, and its owner where permitted."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))


def in_shell(*words: object) -> str:
    """Join words to a command line, quoted for this system's shell."""
    texts = [str(word) for word in words]
    if sys.platform != "win32":
        return shlex.join(texts)
    import subprocess

    return subprocess.list2cmdline(texts)


def in_child(function: Callable[[], None]) -> None:
    """Register a function to be called in each forked child. Windows has no fork."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


def cpus() -> frozenset[int]:
    """Return the logical CPUs that this process may use; all if the system does not say."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


#: Linux's numbers of the calls get_mempolicy and set_mempolicy, by processor.
_POLICIES = {"x86_64": (239, 238), "aarch64": (236, 237)}
_INTERLEAVE, _BITS = 3, 8 * ctypes.sizeof(c_ulong)


def interleave(nodes: Collection[int]) -> bool:
    """Let Linux take new memory from these NUMA nodes in turn; return whether it will.

    This holds for the calling thread and for threads that it starts later. If numactl, for example,
    has set a policy already, that policy stays.
    """
    calls = _POLICIES.get(python.machine())
    if sys.platform != "linux" or calls is None:
        return False
    library, now = ctypes.CDLL(None, use_errno=True), c_int()
    if library.syscall(calls[0], ctypes.byref(now), None, c_ulong(0), None, c_ulong(0)):
        return False  # a container may refuse it
    mask = (c_ulong * (max(nodes) // _BITS + 1))()
    for node in nodes:
        mask[node // _BITS] |= 1 << node % _BITS
    bits = c_ulong(len(mask) * _BITS + 1)  # the kernel takes one less
    return now.value == 0 and library.syscall(calls[1], _INTERLEAVE, mask, bits) == 0


def new_group() -> dict[str, Any]:
    """Return arguments of subprocess.Popen for a process that Ctrl-C does not reach."""
    return {"creationflags": _NEW_GROUP} if sys.platform == "win32" else {"process_group": 0}


def kill_group(pid: int) -> None:
    """Kill what a process of `new_group` has forked; on Windows that is not known."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


class _Memory(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = [("size", c_uint32), ("load", c_uint32)] + [
        (name, c_uint64) for name in ("total", "free", "a", "b", "c", "d", "e")
    ]


class _Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = [("size", c_uint32), ("faults", c_uint32)] + [
        (name, c_size_t) for name in ("peak", "now", "a", "b", "c", "d", "file", "peak_file")
    ]


class _Limits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = [
        ("seconds", c_int64),  # this and the next field count units of 100 nanoseconds
        ("job_seconds", c_int64),
        ("flags", c_uint32),
        *((name, c_size_t) for name in ("a", "b")),
        ("c", c_uint32),
        ("d", c_size_t),
        *((name, c_uint32) for name in ("e", "f")),
        *((f"io{i}", c_uint64) for i in range(6)),
        *((name, c_size_t) for name in ("memory", "job_memory", "peak", "job_peak")),
    ]


def memory() -> tuple[int, int] | None:
    """Return Windows' total and free memory in bytes; None on other systems."""
    if sys.platform != "win32":
        return None
    status = _Memory(size=ctypes.sizeof(_Memory))
    return (status.total, status.free) if _kernel().GlobalMemoryStatusEx(status) else None


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes; None if unknown."""
    if sys.platform == "win32":
        counters, kernel = _Counters(size=ctypes.sizeof(_Counters)), _kernel()
        return (
            counters.peak
            if kernel.K32GetProcessMemoryInfo(_self(), counters, counters.size)
            else None
        )
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def address_space() -> int | None:
    """Return the limit of this process's address space, `ulimit -v`; None without one."""
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if most == resource.RLIM_INFINITY else most


def processor() -> str:
    """Return the system's name of the processor, such as "Apple M1"; "" if it has none."""
    if sys.platform == "win32":
        import winreg

        with contextlib.suppress(OSError):
            path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
                return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    elif sys.platform == "darwin":
        import subprocess

        words = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        brand = subprocess.run(words, capture_output=True, text=True).stdout.strip()
        return brand or python.processor()
    return python.processor()


def limit(seconds: int | None = None, memory: int | None = None) -> None:
    """Limit this process to ``seconds`` more of CPU time, and to ``memory`` bytes.

    The process ends when it has used up its CPU time; see `time_is_over`.
    """
    if sys.platform == "win32":
        global _job
        kernel, used = _kernel(), sum(os.times()[:2])
        if not _job:
            _job = kernel.CreateJobObjectW(None, None)
            if not (_job and kernel.AssignProcessToJobObject(_job, _self())):
                raise ctypes.WinError(ctypes.get_last_error())
        if memory is not None:
            _limits.memory = memory
            _limits.flags |= _PROCESS_MEMORY
        if seconds is not None:
            _limits.seconds = int((used + 1 + seconds) * 1e7)
            _limits.flags |= _TIME
        size = ctypes.sizeof(_limits)
        if not kernel.SetInformationJobObject(_job, _EXTENDED, ctypes.byref(_limits), size):
            raise ctypes.WinError(ctypes.get_last_error())
        return
    import resource

    if memory is not None:
        _lower(resource.RLIMIT_AS, memory)
    if seconds is not None:
        # Only this limit ends a process that does not end by itself.
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGXCPU})
        _lower(resource.RLIMIT_CPU, int(sum(os.times()[:2])) + 1 + seconds)


def time_is_over(status: int) -> bool:
    """Return whether an exit status means that the `limit` of time was reached."""
    if sys.platform == "win32":
        return status in (0x718, 0xC0000044)  # ERROR_NOT_ENOUGH_QUOTA, STATUS_QUOTA_EXCEEDED
    return status == -signal.SIGXCPU


_job: int | None = None
_limits = _Limits()


def _lower(what: int, value: int) -> None:
    """Set a limit, as far as the system's hard limit permits."""
    if sys.platform != "win32":
        import resource

        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, hard))


def _open(path: PathLike, flags: int, access: int, disposition: int, more: int = 0) -> int:
    """Open a file so that it can be renamed, replaced and removed while it is open."""
    if sys.platform != "win32":
        raise OSError("toynn opens files by handles only on Windows")
    import _winapi
    import msvcrt

    handle = _winapi.CreateFile(os.fspath(path), access, _SHARED, 0, disposition, more, 0)
    return msvcrt.open_osfhandle(handle, flags | os.O_BINARY | os.O_NOINHERIT)


def _kernel() -> Any:
    """Return kernel32, with the types of its functions declared."""
    if sys.platform != "win32":
        raise OSError("kernel32 is a library of Windows")
    library = ctypes.WinDLL("kernel32", use_last_error=True)
    library.CreateJobObjectW.restype = c_void_p
    library.CreateJobObjectW.argtypes = [c_void_p, c_void_p]
    library.AssignProcessToJobObject.argtypes = [c_void_p, c_void_p]
    library.SetInformationJobObject.argtypes = [c_void_p, c_int, c_void_p, c_uint32]
    library.LockFile.argtypes = [c_void_p, *[c_uint32] * 4]
    library.GlobalMemoryStatusEx.argtypes = [POINTER(_Memory)]
    library.K32GetProcessMemoryInfo.argtypes = [c_void_p, POINTER(_Counters), c_uint32]
    return library


def _self() -> c_void_p:
    """Return the pseudo handle of the current process."""
    return c_void_p(-1)
