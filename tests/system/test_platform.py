"""What Windows does otherwise: by Windows' rules, simulated elsewhere, and by its own there.

`python -m tests.windows` runs these under Wine, too.
"""

import contextlib
import ctypes
import errno
import io
import os
import sys
import threading
import types
from pathlib import Path

import pytest
from lora_bases import write_base

from toynn.cli import main
from toynn.errors import CheckpointError
from toynn.formats import disk
from toynn.formats.files import write_atomically
from toynn.formats.folders import new_folder, write_together
from toynn.system import machine, platform
from toynn.system.printing import lenient
from toynn.train.lock import Lock

real = sys.platform


class Kernel:
    """kernel32, as far as the seam calls it: a lock of a file is one of its inode."""

    def __init__(self):
        self.locked = {}

    def LockFile(self, handle, *_):
        status = os.fstat(handle.value)
        owner = self.locked.setdefault((status.st_dev, status.st_ino), handle.value)
        return owner == handle.value


class Opened(dict):
    """The files that are open, by descriptor: path, and whether it goes when it is closed."""

    def holders(self, path):
        there = os.path.lexists(path) and os.lstat(path)
        return there and [d for d in self if os.path.samestat(os.fstat(d), there)]


@pytest.fixture
def windows(monkeypatch):
    """Windows' rules: its own there; elsewhere those for files that are open, folders and locks."""
    if real == "win32":
        yield None
        return
    opened, kernel = Opened(), Kernel()
    replace, rename, unlink, close = os.replace, os.rename, os.unlink, os.close
    flags = {1: os.O_CREAT | os.O_EXCL, 3: 0, 4: os.O_CREAT}  # CREATE_NEW, OPEN_EXISTING, _ALWAYS
    kinds = {1 << 31: os.O_RDONLY, 1 << 30: os.O_WRONLY, 3 << 30: os.O_RDWR}

    def create(path, access, shared, _, disposition, more, __):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Access is denied")
        assert shared == 7, "others may rename and remove it"
        descriptor = os.open(path, kinds[access] | flags[disposition], 0o666)
        opened[descriptor] = (path, bool(more & 1 << 26))
        return descriptor

    def closed(descriptor):
        path, goes = opened.pop(descriptor, ("", False))
        status = os.fstat(descriptor)
        for key, owner in list(kernel.locked.items()):
            if owner == descriptor and key == (status.st_dev, status.st_ino):
                del kernel.locked[key]
        close(descriptor)
        if goes and not opened.holders(path):
            with contextlib.suppress(FileNotFoundError):
                unlink(path)

    def within(folder):
        return [path for path, _ in opened.values() if path.startswith(f"{folder}{os.sep}")]

    def replaced(source, target):
        if os.path.isdir(target) or opened.holders(target) or within(source):
            raise PermissionError(errno.EACCES, "Access is denied")
        replace(source, target)

    def renamed(source, target):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "it is there already")
        if within(source):
            raise PermissionError(errno.EACCES, "Access is denied")
        rename(source, target)

    fake = types.SimpleNamespace(
        get_osfhandle=lambda descriptor: descriptor, open_osfhandle=lambda handle, flags: handle
    )
    violation = OSError(errno.EACCES, "locked")
    violation.winerror = 33
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    monkeypatch.setitem(sys.modules, "_winapi", types.SimpleNamespace(CreateFile=create))
    monkeypatch.setattr(platform, "_kernel", lambda: kernel)
    monkeypatch.setattr(platform, "_PAUSE", 0)
    monkeypatch.setattr(ctypes, "WinError", lambda *_: violation, raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: 33, raising=False)
    for name, value in (("O_BINARY", 0), ("O_NOINHERIT", 0)):
        monkeypatch.setattr(os, name, value, raising=False)
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "fork", "geteuid"):
        monkeypatch.delattr(os, name)
    for name in ("fchmod", "fchown", "register_at_fork", "sched_getaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    for name in ("fcntl", "resource"):
        monkeypatch.setitem(sys.modules, name, None)
    changed = {"replace": replaced, "rename": renamed, "close": closed}
    for name, function in changed.items():
        monkeypatch.setattr(os, name, function)
    # FileIO closes in C: it must not, before the rules are told.
    monkeypatch.setattr(disk.Temporary, "close", _close_by_os)
    monkeypatch.setattr(sys, "platform", "win32")
    yield opened
    assert not opened, "all files are closed at the end"


def _close_by_os(file):
    if not file.closed:
        descriptor = os.dup(file.fileno())
        platform.os.close(file.fileno())
        os.dup2(descriptor, file.fileno())  # for FileIO's own close
        os.closerange(descriptor, descriptor + 1)
        super(disk.Temporary, file).close()


def read(folder):
    return {
        str(path.relative_to(folder)).replace(os.sep, "/"): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_file_is_replaced_while_it_is_written_and_read(windows, tmp_path):
    """Its temporary is open when it gets its name; who reads the old file keeps it."""
    write_atomically(tmp_path / "file", b"old")
    reader = platform.read_file(tmp_path / "file")
    write_atomically(tmp_path / "file", b"new")
    assert os.read(reader, 9) == b"old"
    os.close(reader)
    assert read(tmp_path)["file"] == b"new"


def test_what_others_keep_open_is_an_error_and_the_old_file_stays(windows, tmp_path, monkeypatch):
    """Where a program lets nobody rename what it reads."""
    write_atomically(tmp_path / "file", b"old")
    before = read(tmp_path)
    asked = []

    def refuse(*paths):
        asked.append(paths)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(platform, "_PAUSE", 0)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="cannot write"):
        patch.setattr(os, "replace", refuse)
        patch.setattr(os, "rename", refuse)
        write_atomically(tmp_path / "file", b"new")
    assert read(tmp_path) == before and len(asked) == 2 * platform._TRIES


@pytest.mark.parametrize("at", range(1, 3))
def test_a_file_that_made_way_is_back_where_the_new_one_fails(at, windows, tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", b"old")
    rename, calls = os.rename, []

    def sometimes(source, target):
        calls.append(target)
        if Path(target).name == "file" and len(calls) == 2:
            raise OSError(errno.EIO, "the disk is gone")
        rename(source, target)

    monkeypatch.setattr(platform, "_TRIES", at)
    reader = platform.read_file(tmp_path / "file")
    (tmp_path / "new").write_bytes(b"new")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", sometimes)
        with contextlib.suppress(OSError):
            platform.replace(tmp_path / "new", tmp_path / "file")
    os.close(reader)
    assert read(tmp_path)["file"] == (b"old" if at == 1 else b"new")
    assert len(read(tmp_path)) <= 3


def test_folders_are_new_or_replaced_whole(windows, tmp_path):
    for value in (b"1", b"2"):
        with new_folder(tmp_path / "one", CheckpointError, replace=True) as new:
            new.write("a", value)
        write_together(tmp_path / "both", {"a": value, "b": value}, CheckpointError)
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty", CheckpointError) as new:
        new.write("a", b"3")
    expected = {"one/a": b"2", "both/a": b"2", "both/b": b"2", "empty/a": b"3"}
    assert read(tmp_path) == expected
    with (
        pytest.raises(CheckpointError, match="one: cannot write the folder"),
        new_folder(tmp_path / "one", CheckpointError) as new,
    ):
        new.write("a", b"4")
    assert read(tmp_path) == expected


def test_strays_go_and_what_is_written_stays(windows, tmp_path):
    stray = disk.temporary_name(tmp_path / "x")
    stray.write_bytes(b"of a killed process")
    folder = disk.temporary_name(tmp_path / "y")
    folder.mkdir()
    with new_folder(tmp_path / "new", CheckpointError) as new:
        disk.sweep(tmp_path)
        assert not stray.exists() and not folder.exists()
        new.write("a", b"1")
    assert read(tmp_path) == {"new/a": b"1"}


def test_one_run_holds_a_folder(windows, tmp_path):
    lock = Lock(tmp_path)
    with pytest.raises(CheckpointError, match=rf"another run .* \(process {os.getpid()}\)"):
        Lock(tmp_path)
    lock.release()
    Lock(tmp_path).release()
    assert read(tmp_path) == {}


def test_nothing_forks_and_all_cpus_count(windows):
    platform.in_child(pytest.fail)
    assert platform.cpus() == frozenset(range(os.cpu_count()))
    assert platform.new_group() == {"creationflags": 0x200}
    assert platform.is_own(os.stat_result(range(10))) and platform.address_space() is None
    platform.sync_folder("no such folder")
    with pytest.raises(OSError) as caught:
        platform.exchange("a", "b")
    assert caught.value.errno == errno.ENOSYS


def test_lines_to_type(windows):
    words = "toynn", "train", r"C:\my runs\a", "it's"
    assert platform.in_shell(*words) == r"""toynn train "C:\my runs\a" it's"""


def test_a_template_has_its_bounds(windows, monkeypatch):
    """A job's: of the process's memory, and of its time so far and from now on."""
    if windows is None:
        pytest.skip("limits this process")
    told = []
    kernel = types.SimpleNamespace(
        CreateJobObjectW=lambda *_: 5,
        AssignProcessToJobObject=lambda job, process: job == 5,
        SetInformationJobObject=lambda job, kind, limits, size: (
            told.append((limits._obj.flags, limits._obj.memory, limits._obj.seconds, size)) or 1
        ),
    )
    monkeypatch.setattr(platform, "_kernel", lambda: kernel)
    monkeypatch.setattr(platform, "_job", None)
    monkeypatch.setattr(platform, "_limits", platform._Limits())
    monkeypatch.setattr(os, "times", lambda: (1.0, 2.0, 0, 0, 0))
    platform.limit(memory=2**29)
    platform.limit(seconds=5)
    assert told == [(0x100, 2**29, 0, 144), (0x102, 2**29, 90_000_000, 144)]
    assert platform.time_is_over(0x718) and not platform.time_is_over(1)


def test_memory_is_told():
    """The structs have the sizes of Windows' headers; there they are filled."""
    sizes = [ctypes.sizeof(each) for each in (platform._Memory, platform._Counters)]
    assert sizes == [64, 72]
    total, free, peak = machine.total_memory(), machine.free_memory(), machine.peak_memory()
    if real in ("win32", "linux"):
        assert total > free > 0 and 2**20 < peak < total


@contextlib.contextmanager
def cp1252():
    """Have standard output as Windows has it for a pipe or a file; yield what was written."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    with contextlib.redirect_stdout(stream):
        yield stream.buffer
        stream.detach()  # flushed; who looks at the bytes still can


@pytest.mark.parametrize("words", [["info"], ["check"], ["generate", "--tokens", "2", "--model"]])
def test_no_command_fails_for_letters_that_a_console_lacks(words, tmp_path):
    (folder := tmp_path / "Ω│").mkdir()
    write_base(folder / "m.gguf")
    with cp1252() as written:
        code = main([*words, str(folder / "m.gguf")])
    assert code == 0 if words == ["info"] else code in (0, 2)
    assert words != ["info"] or rb"\u03a9\u2502" in written.getvalue()


def test_nor_does_what_is_called_from_python():
    with cp1252() as written, lenient():
        print("run folder", "Ω│é")
    assert written.getvalue().split() == [b"run", b"folder", rb"\u03a9\u2502" + b"\xe9"]


def test_threads_that_replace_one_file(windows, tmp_path):
    """Each is whole, and none fails, though each finds the other's file open."""
    if windows is not None:
        pytest.skip("the simulation is for one thread")
    failed = []

    def write(value):
        try:
            for _ in range(20):
                write_atomically(tmp_path / "file", bytes([value]) * 3000)
        except CheckpointError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(value,)) for value in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed and set(read(tmp_path)["file"]) in ({1}, {2})
