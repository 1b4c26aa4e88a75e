"""Files and folders that are whole or absent: faults, kills, threads, links, modes, strays."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from faults import each_call

from toynn.errors import CheckpointError, DataError, GGUFError, ToynnError
from toynn.formats import disk, gguf
from toynn.formats.files import replacing, write_atomically
from toynn.formats.folders import new_folder, write_together
from toynn.system import platform

LLAMA = {"general.architecture": "llama"}
WEIGHTS = np.arange(64, dtype=np.float32).reshape(2, 32)


def contents(folder):
    """All that is in a folder, by name, hidden files too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write_file(folder, value):
    write_atomically(folder / "file", bytes([value]) * 3000)


def write_gguf(folder, value):
    gguf.write(folder / "m.gguf", LLAMA, {"w": (WEIGHTS * value, "f32")}, overwrite=True)


def write_pair(folder, value):
    parts = [bytes([value]), memoryview(np.full(3, value))]
    write_together(folder / "pair", {"weights": parts, "config": bytes([value])}, DataError)


def write_pair_beside(folder, value):
    (folder / "pair").mkdir(exist_ok=True)
    (folder / "pair" / "mine.txt").write_text("mine")
    write_pair(folder, value)


def write_folder(folder, value):
    with new_folder(folder / "new", DataError, replace=True) as new:
        new.write("a", bytes([value]))
        new.write("b", bytes([value]))


WRITERS = [write_file, write_gguf, write_pair, write_pair_beside, write_folder]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("swap", ["exchanged", "one by one"])
def test_each_call_may_fail_once(tmp_path, monkeypatch, write, swap):
    """What was there is there, or what is new; nothing is mixed, and nothing is left."""
    if swap == "one by one":
        monkeypatch.setattr(disk, "exchange", no_exchange)
    states = []
    for value in (2, 1):
        write(tmp_path, value)
        states.append(contents(tmp_path))
    failed = 0
    for call in each_call(monkeypatch, lambda: write(tmp_path, 1), lambda: write(tmp_path, 2)):
        try:
            write(tmp_path, 2)
        except ToynnError as error:
            failed += 1
            assert "cannot write" in str(error) and "No space left on device" in str(error), call
        assert contents(tmp_path) in states, call
        write(tmp_path, 2)  # and it goes on afterwards
        assert contents(tmp_path) == states[0], call
    assert failed >= 5


def no_exchange(source, target):
    raise OSError(errno.EINVAL, "a file system that cannot")


def test_the_mode_of_a_replaced_file_is_kept(tmp_path):
    old = os.umask(0o027)
    try:
        write_file(tmp_path, 1)
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
        for mode in (0o600, 0o666, 0o444):
            (tmp_path / "file").chmod(mode)
            seen = []
            with replacing(tmp_path / "file", "", DataError) as file:
                seen.append(os.fstat(file.fileno()).st_mode & 0o777)
            assert seen == [mode]  # while it is written, too
            assert (tmp_path / "file").stat().st_mode & 0o777 == mode
        write_pair(tmp_path, 1)
        (tmp_path / "pair").chmod(0o700)
        write_pair(tmp_path, 2)
        assert (tmp_path / "pair").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(old)


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    """Even one whose name was guessed."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = {disk.temporary_name(tmp_path / "file").name for _ in range(100)}
    assert len(names) == 100
    monkeypatch.setattr(disk, "temporary_name", lambda *_: tmp_path / "guessed")
    for plant in (lambda: (tmp_path / "guessed").symlink_to(victim), lambda: os.mkfifo("guessed")):
        monkeypatch.chdir(tmp_path)
        plant()
        with pytest.raises(CheckpointError, match=r"file: cannot write 3000 bytes .*: File exists"):
            write_file(tmp_path, 1)
        with pytest.raises(DataError, match=r"cannot write the folder .*: File exists"):
            write_folder(tmp_path, 1)
        assert victim.read_text() == "precious"
        (tmp_path / "guessed").unlink()


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "file")
    with pytest.raises(CheckpointError, match="file: cannot write: it is not a regular file"):
        write_file(tmp_path, 1)
    with pytest.raises(GGUFError, match="file: cannot write: it is not a regular file"):
        gguf.write(tmp_path / "file", LLAMA, {}, overwrite=True)
    (tmp_path / "pair").write_text("mine")
    with pytest.raises(DataError, match="pair: cannot make the folder: File exists"):
        write_pair(tmp_path, 1)
    assert (tmp_path / "pair").read_text() == "mine"


def test_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("e" * 250 + "\udcff\udcff")
    write_atomically(path, b"1")
    write_atomically(path, b"2")
    assert [*contents(tmp_path).values()] == [b"2"]


@pytest.mark.parametrize("write", WRITERS)
def test_threads_that_write_one_path(tmp_path, write):
    """All succeed, or say that another was there first; what is left is of one of them."""
    refused = []

    def several(value):
        for _ in range(12):
            try:
                write(tmp_path, value)
            except ToynnError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=several, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not refused
    left = contents(tmp_path)
    expected = []
    for value in (1, 2, 3):
        write(tmp_path, value)
        expected.append(contents(tmp_path))
    assert left in expected


def test_a_new_folder_has_one_winner(tmp_path):
    with (
        pytest.raises(DataError, match=r"new: cannot write the folder .*: Directory not empty"),
        new_folder(tmp_path / "new", DataError) as slower,
    ):
        slower.write("a", b"1")
        with new_folder(tmp_path / "new", DataError) as faster:
            faster.write("a", b"2")
    assert contents(tmp_path) == {"new/a": b"2"}


KILLED = """
import sys
from pathlib import Path
from toynn.errors import DataError
from toynn.formats.files import replacing
from toynn.formats.folders import new_folder

with replacing(Path("file"), "", DataError) as file, new_folder(Path("new"), DataError) as folder:
    file.write(b"half")
    file.flush()
    folder.write("a", b"1")
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_strays_go_with_the_next_writer_and_what_is_written_stays(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout.readline() == b"writing\n"
        half = contents(tmp_path)
        assert sorted(half.values()) == [b"1", b"half"]
        write_atomically(tmp_path / "other", b"")
        assert contents(tmp_path) == {**half, "other": b""}  # its process lives
        child.send_signal(signal.SIGKILL)
    assert contents(tmp_path) == {**half, "other": b""}
    strangers = {
        ".x.toynn-tmp-0123": b"of another form",
        ".x.toynn-tmp-0123456789abcdef.txt": b"longer",
        "x.toynn-tmp-0123456789abcdef": b"not hidden",
    }
    for name, content in strangers.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".x.toynn-tmp-0123456789abcdef").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / ".x.toynn-tmp-fedcba9876543210")
    write_atomically(tmp_path / "other", b"2")
    assert contents(tmp_path) == {
        **strangers,
        "other": b"2",
        ".x.toynn-tmp-0123456789abcdef": b"2",  # the link
    }
    assert (tmp_path / ".x.toynn-tmp-fedcba9876543210").exists()


def test_strays_of_others_stay(tmp_path, monkeypatch):
    stray = disk.temporary_name(tmp_path / "file")
    stray.write_text("of another user")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: stray.stat().st_uid + 1)
        write_file(tmp_path, 1)
    assert stray.exists()
    write_file(tmp_path, 1)
    assert not stray.exists()


def test_a_temporary_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    hold = disk.hold
    swept = []

    def swept_first(descriptor, path):
        if len(swept) < 2:
            swept.append(path)
            disk.sweep(path.parent)
            assert not path.exists()
        return hold(descriptor, path)

    early = []

    def opened(path, call):
        if ".toynn-tmp-" in path.name and len(early) < 2:
            early.append(path)
            disk.sweep(path.parent)
        return call(path)

    monkeypatch.setattr(disk, "hold", swept_first)
    write_file(tmp_path, 1)
    swept.clear()
    monkeypatch.setattr(
        platform, "open_folder", lambda path, call=platform.open_folder: opened(path, call)
    )
    write_folder(tmp_path, 1)
    assert len(early) == 2
    assert contents(tmp_path) == {"file": bytes([1]) * 3000, "new/a": b"\1", "new/b": b"\1"}


def test_where_files_cannot_be_locked_nothing_is_swept(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    (stray := disk.temporary_name(tmp_path / "file")).write_text("perhaps of a living one")
    monkeypatch.setattr(platform, "lock", no_locks)
    write_file(tmp_path, 1)
    assert set(contents(tmp_path)) == {"file", stray.name}


def test_a_folder_that_one_stands_in_keeps_being_it(tmp_path, monkeypatch):
    write_pair(tmp_path, 1)
    inode = (tmp_path / "pair").stat().st_ino
    monkeypatch.chdir(tmp_path / "pair")
    write_together(Path(), {"weights": b"2", "config": b"2"}, DataError)
    assert Path("config").read_bytes() == b"2"
    assert os.stat(".").st_ino == os.stat(tmp_path / "pair").st_ino == inode
    monkeypatch.chdir(tmp_path)
    write_pair(tmp_path, 3)
    assert os.stat(tmp_path / "pair").st_ino != inode


def test_only_what_changes_is_replaced(tmp_path):
    """So a run that keeps its best adapter again leaves no moment without a configuration."""
    write_pair_beside(tmp_path, 1)
    config = (tmp_path / "pair" / "config").stat()
    write_together(tmp_path / "pair", {"weights": b"new", "config": b"\1"}, DataError)
    assert (tmp_path / "pair" / "config").stat() == config
    assert (tmp_path / "pair" / "weights").read_bytes() == b"new"


def test_links_into_elsewhere_are_written_through(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "pair").symlink_to("far")
    write_pair(tmp_path, 1)
    assert (tmp_path / "pair").is_symlink()
    (tmp_path / "far" / "config").rename(tmp_path / "config")
    (tmp_path / "far" / "config").symlink_to(tmp_path / "config")
    write_pair(tmp_path, 2)
    assert (tmp_path / "far" / "config").is_symlink()
    assert (tmp_path / "config").read_bytes() == (tmp_path / "far" / "config").read_bytes() == b"\2"
