"""A disk that fails, folders that go, terminals that close: nothing that was saved is lost."""

import errno
import io
import json
import os
import resource
import shutil
import signal
import sys

import numpy as np
import pytest
import runs
from fake_recipe import FakeRecipe
from faults import Faults
from killing import in_child, is_killed
from lora_bases import write_base

from toynn.data.text import RandomWindows, spaced_windows
from toynn.errors import CheckpointError, GGUFError
from toynn.formats import disk
from toynn.train import Trainer
from toynn.train.folder import RunFolder
from toynn.train.interrupt import Interrupt
from toynn.train.lock import Lock
from toynn.train.metrics import MetricsFile, Report

TEXT = np.frombuffer(b"the cat sat on the mat and the rat sat on the cat " * 20, np.uint8) % 48
EVERY = {"steps": 6, "log_every": 2, "eval_every": 4, "save_every": 3, "progress": False}


def trainer(**options):
    data, valid = RandomWindows(TEXT, 2, 8, seed=0), spaced_windows(TEXT, 2, 8, 3)
    recipe = options.pop("recipe", None) or FakeRecipe(48)
    return Trainer(recipe, data, valid=valid, lr=0.1, **EVERY | options)


def go_on(out):
    """Bring a run to its end, whatever a fault has left of it."""
    if any((path / "complete.json").exists() for path in out.glob("checkpoint-*")):
        return trainer(resume=out).fit()
    shutil.rmtree(out, ignore_errors=True)
    return trainer(folder=out).fit()


def weights(out):
    return (out / "model.safetensors").read_bytes(), metrics(out)


def metrics(out):
    lines = (out / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") for line in lines)
    return [(json.loads(line)["iteration"], json.loads(line).get("val_loss")) for line in lines]


def test_every_call_that_changes_the_disk_fails_once(tmp_path, capfd, monkeypatch):
    """Each run says what was not written, or raises it, and comes to the same end afterwards."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a call is counted above it
    straight = tmp_path / "straight"
    with pytest.MonkeyPatch.context() as patch:
        counted = Faults(patch)
        trainer(folder=straight).fit()
    calls, outcomes = counted.calls, {"raised": 0, "said": 0, "nothing": 0}
    assert {"create", "write", "sync", "sync_folder", "rename", "make_folder"} <= set(calls)
    for at, name in enumerate(calls):
        out = tmp_path / f"{at}-{name}"
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, errno.ENOSPC if at % 2 else errno.EIO)
            try:
                trainer(folder=out).fit()
                said = capfd.readouterr().err
                what = "training continues" in said or "toynn: no report: " in said
                assert not said or (str(out) in said and what)
                outcomes["said" if said else "nothing"] += 1
            except CheckpointError as error:
                assert str(out) in str(error)
                outcomes["raised"] += 1
        go_on(out)
        capfd.readouterr()
        assert weights(out) == weights(straight), f"call {at}, {name}"
        assert not list(out.glob(".*")), f"call {at}, {name}"
    assert outcomes["raised"] > 15 and outcomes["said"] > 15 and outcomes["nothing"] == 0


@pytest.mark.parametrize("room", [12_000, 3000])
def test_files_that_may_not_grow(room, tmp_path, capfd):
    """Of 12 kB there is room for the weights alone; of 3 kB for the metrics of a few steps."""
    out = tmp_path / "out"

    def act():
        recipe = FakeRecipe(48)
        if room == 3000:
            recipe.write_run = lambda folder: None
            recipe.read_run = lambda folder: None
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        # What is printed goes to a file, too.
        trainer(folder=out, recipe=recipe, steps=30, save_every=3 * (room > 3000)).fit()

    child = in_child(act)
    status = os.waitpid(child, 0)[1]
    said = capfd.readouterr().err
    if room == 3000:
        assert os.waitstatus_to_exitcode(status) == 1
        assert f"{out / 'metrics.jsonl'}: cannot write (" in said and "File too large" in said
        assert metrics(out)[-1][0] < 30, "whole lines alone"
    else:
        assert os.waitstatus_to_exitcode(status) == 1 and metrics(out)[-1][0] == 30
        assert f"training has ended, and the best weights are in {out}" in said
        assert "optimizer.safetensors: cannot write more than" in said and "bytes free" in said
        assert "training continues, and the next checkpoint will be tried" in said
        assert not list(out.glob("checkpoint-*")) and not list(out.glob(".*"))
        assert (out / "model.safetensors").exists()


def test_the_checkpoint_of_a_signal_is_the_last_and_raises(tmp_path, monkeypatch):
    recipe = FakeRecipe(48)

    def act(recipe):
        if recipe.steps == 4:
            signal.raise_signal(signal.SIGTERM)
            Faults(monkeypatch, 3)

    recipe.on_step = act
    with pytest.raises(CheckpointError, match="cannot write"):
        trainer(folder=tmp_path / "out", recipe=recipe).fit()
    monkeypatch.undo()
    assert (tmp_path / "out" / "checkpoint-3" / "complete.json").exists()


def test_a_second_hangup_is_passed_over_and_a_second_term_is_not():
    """A shell that ends may send SIGHUP once more after its terminal has: at any time."""

    def signalled(second, third=0):
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), second)
            assert interrupt.number == signal.SIGHUP
        os.kill(os.getpid(), third)

    assert not is_killed(in_child(lambda: signalled(signal.SIGHUP)))
    assert not is_killed(in_child(lambda: signalled(signal.SIGHUP, signal.SIGHUP)))
    assert is_killed(in_child(lambda: signalled(signal.SIGHUP, signal.SIGTERM)))
    assert is_killed(in_child(lambda: signalled(signal.SIGTERM)))


def test_a_hangup_ends_a_process_that_has_not_heard_of_one():
    def signalled():
        with Interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)

    assert is_killed(in_child(signalled))


def test_a_folder_that_is_removed_while_running(tmp_path):
    out, recipe = tmp_path / "out", FakeRecipe(48)
    recipe.on_step = lambda recipe: recipe.steps == 3 and shutil.rmtree(out)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: cannot write .*No such file"):
        trainer(folder=out, recipe=recipe).fit()


def test_a_folder_that_is_put_in_the_place_of_the_runs(tmp_path):
    out, recipe = tmp_path / "out", FakeRecipe(48)

    def act(recipe):
        if recipe.steps == 3:
            out.rename(tmp_path / "moved")
            shutil.copytree(tmp_path / "moved", out)

    recipe.on_step = act
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: .*another file has its name"):
        trainer(folder=out, recipe=recipe).fit()
    assert go_on(tmp_path / "moved").iterations == 6


def test_a_folder_that_must_not_be_written(tmp_path):
    out = tmp_path / "out"
    trainer(folder=out, steps=4).fit()

    def act():
        if os.geteuid() == 0:
            os.setuid(65534)
        trainer(resume=out, force=True).fit()

    out.chmod(0o555)
    read, write = os.pipe()

    def caught():
        try:
            act()
        except CheckpointError as error:
            os.write(write, str(error).encode())

    parents = [path for path in (tmp_path, *tmp_path.parents) if path.stat().st_mode & 1 == 0]
    modes = [(path, path.stat().st_mode & 0o777) for path in parents]
    try:
        for path, mode in modes:
            path.chmod(mode | 0o11)
        assert not is_killed(in_child(caught))
    finally:
        for path, mode in modes:
            path.chmod(mode)
    os.close(write)
    assert os.read(read, 1000).decode() == f"{out}: cannot lock: Permission denied"
    os.close(read)


def test_one_run_per_folder(tmp_path):
    with RunFolder(tmp_path / "out") as folder:
        folder.trained = True
        with pytest.raises(CheckpointError, match=f"another run is writing .*{os.getpid()}"):
            RunFolder.resume(folder.path)
        assert (folder.path / ".lock").exists()
    RunFolder.resume(folder.path).close()
    assert not (folder.path / ".lock").exists()


def test_a_lock_goes_with_its_process(tmp_path):
    child = in_child(lambda: (Lock(tmp_path), os.kill(os.getpid(), signal.SIGKILL)))
    assert is_killed(child)
    assert (tmp_path / ".lock").exists()
    Lock(tmp_path).release()


@pytest.mark.parametrize("how", ["rename", "in place"])
def test_a_base_that_changes_is_noticed_at_the_next_saving(how, tmp_path):
    base, out = tmp_path / "base.gguf", tmp_path / "out"
    first = runs.trainer("lora", tmp_path, folder=tmp_path / "straight").fit()
    content = base.read_bytes()

    def change(result):
        if result.iterations != 7:
            return
        if how == "rename":
            shutil.copy(base, tmp_path / "other")
            os.replace(tmp_path / "other", base)
        else:
            base.write_bytes(content)

    with pytest.raises(GGUFError, match=r"base\.gguf: changed since it was opened"):
        runs.trainer("lora", tmp_path, folder=out, on_step=change).fit()
    assert not (out / "checkpoint-8").exists()
    again = runs.trainer("lora", tmp_path, resume=out).fit()
    assert again.val_loss == first.val_loss
    assert runs.learned(out) == runs.learned(tmp_path / "straight")


def test_a_base_that_changes_is_noticed_at_the_next_evaluation(tmp_path):
    """A run that saves nothing on its way does not go on to its end."""
    seen = []

    def change(result):
        seen.append(result.iterations)
        if result.iterations == 3:
            os.utime(tmp_path / "base.gguf", (1, 1))

    trainer = runs.trainer("lora", tmp_path, save_every=0, eval_every=4, on_step=change)
    with pytest.raises(GGUFError, match=r"base\.gguf: changed since it was opened"):
        trainer.fit()
    assert seen[-1] == 4


def test_no_export_over_a_base_that_has_changed(tmp_path):
    recipe = runs.lora(write_base(tmp_path / "base.gguf", vocab=runs.VOCAB, context=runs.T))[0]
    os.utime(tmp_path / "base.gguf", (1, 1))
    for call in (
        lambda: recipe.export_adapter(tmp_path / "a.gguf"),
        lambda: recipe.export_peft(tmp_path / "peft"),
        lambda: recipe.save(tmp_path / "m.gguf"),
    ):
        with pytest.raises(GGUFError, match="changed since it was opened"):
            call()


@pytest.mark.parametrize("stream", [None, "closed", "full"])
def test_a_run_goes_on_where_nobody_can_be_told(stream, tmp_path, monkeypatch, request):
    """stderr was closed before the start, or later, or its disk is full."""
    if stream is None:
        monkeypatch.setattr(sys, "stderr", None)
    else:
        full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
        stderr = io.TextIOWrapper(full, write_through=True)
        request.addfinalizer(full.close)
        if stream == "closed":
            stderr.close()
        monkeypatch.setattr(sys, "stderr", stderr)
    assert trainer(folder=tmp_path / "out", progress=True).fit().iterations == 6


def test_metrics_keep_whole_lines(tmp_path, monkeypatch):
    path, written = tmp_path / "metrics.jsonl", disk.write

    def half(descriptor, data):
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(descriptor, data[: len(data) - 5])

    with MetricsFile(path) as metrics:
        metrics.write(Report(0, 0, 0.5))
        before = path.read_bytes()
        monkeypatch.setattr(disk, "write", half)
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl: cannot write .*No space left"):
            metrics.write(Report(1, 0, 0.5))
    assert path.read_bytes() == before
