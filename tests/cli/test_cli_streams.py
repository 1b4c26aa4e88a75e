"""Standard output and error that cannot be written any more: what is saved, and the exit codes."""

import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hang import HANG
from test_cli_chat import model  # noqa: F401  # a fixture
from test_cli_resume import SHAPE, TOKENS, begun, contents, files, here  # noqa: F401  # two are fixtures

import toynn
from toynn.cli import main

KINDS = ("pipe", "full", "terminal", "closed", "none")
BUFFERED = (True, False)
MODEL = ("--model", "base.gguf")
SHORT = ("--steps", "2", "--log-every", "1", "--batch", "2")
TEXT = (*SHORT, *SHAPE, "--seq", "8", "--data", "text.txt", "--sample-every", "1")
LINES = (*SHORT, "--seq", "24", "--data")
TINY = (*MODEL, "--rank", "2")
#: Commands that are there for what they write: to OUT.
SAVING = {
    "gpt2": ("train", "gpt2", *TEXT),
    "from-scratch": ("train", "from-scratch", *TEXT),
    "warm-start": ("train", "warm-start", *SHORT, *TOKENS, *SHAPE, "--donor", "base.gguf"),
    "lora": ("train", "lora", *TINY, *LINES, "pairs.jsonl"),
    "preference": ("train", "lora", *TINY, *LINES, "pairs.csv", "--loss", "dpo"),
    "vit": ("train", "vit", *SHORT, *SHAPE, "--data", "pictures.npz"),
    "convert": ("convert", "folder"),
    "export": ("export", *MODEL, "--to", "hf"),
    "export an adapter": ("export", *MODEL, "--adapter", "tuned", "--to", "peft"),
    "fuse": ("fuse", *MODEL, "--adapter", "tuned"),
    "generate": ("generate", *MODEL, "--prompt", "the", "--max-tokens", "3"),
}
#: Commands that are there for what they print.
PRINTING = {
    "config": ("config",),
    "help": ("train", "gpt2", "--help"),
    "info": ("info", "base.gguf"),
    "info of a run": ("info", "tuned"),
    "generate": ("generate", *MODEL, "--prompt", "the", "--max-tokens", "3"),
    "eval": ("eval", *MODEL, "--data", "pairs.jsonl"),
    "check": ("check", "--data", "pairs.jsonl"),
    "runs": ("runs", "."),
    "plot": ("plot", "tuned"),
    "predict": ("predict", "--model", "seen", "--csv", "cat.png"),
    "completion": ("completion", "bash"),
    "chat": ("chat", "--model", "chatty.gguf", "--max-tokens", "3"),
}


@pytest.fixture(scope="module")
def made(files, model):  # noqa: F811
    """What the commands read: a run of adapters, one of pictures, a folder of Hugging Face's."""
    from PIL import Image

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(files)
        rows = ["prompt,chosen,rejected", *(f"say {n},a{n},b{n}" for n in range(20))]
        Path("pairs.csv").write_text("\n".join(rows))
        for name, out in (("lora", "tuned"), ("vit", "seen")):
            assert main([*SAVING[name], "--report", "none", "--out", out]) == 0
        assert main(["export", *MODEL, "--to", "hf", "--out", "folder"]) == 0
        Image.new("L", (8, 8)).save("cat.png")
        shutil.copy(model, "chatty.gguf")


@pytest.fixture
def lost(request):
    """Make a stream that cannot be written: its reader, its terminal, its disk's room is gone."""

    def make(kind, buffered):
        if kind == "none":
            return None
        if kind == "full":
            end = os.open("/dev/full", os.O_WRONLY)
        else:
            other, end = os.pipe() if kind == "pipe" else pty.openpty()
            os.close(other)
        stream = io.TextIOWrapper(io.FileIO(end, "w"), write_through=True)
        if buffered:
            stream = io.TextIOWrapper(io.BufferedWriter(stream.detach()))
        if kind == "closed":
            stream.close()
        request.addfinalizer(stream.close)  # which flushes, as Python does at exit
        return stream

    return make


def saved(out):
    return contents(out) if out.is_dir() else out.read_bytes()


def into(name, folder):
    """The name of what a command writes into a folder."""
    ends = {"convert": ".gguf", "fuse": ".gguf", "generate": ".jsonl"}
    return folder / f"out{ends.get(name, '')}"


@pytest.mark.parametrize(
    ("name", "kind", "buffered"),
    [("gpt2", kind, buffered) for kind in KINDS for buffered in BUFFERED[: 1 + (kind != "none")]]
    + [(name, ("pipe", "full")[k % 2], True) for k, name in enumerate(SAVING) if name != "gpt2"],
)
def test_what_is_saved_is_saved(name, kind, buffered, here, made, lost, tmp_path, monkeypatch):  # noqa: F811
    """To the bit, with the exit code of a command that somebody watches."""
    whole, out = into(name, tmp_path / "a"), into(name, tmp_path / "b")
    whole.parent.mkdir()
    out.parent.mkdir()
    assert main([*SAVING[name], "--out", str(whole)]) == 0
    for which in ("stdout", "stderr"):
        monkeypatch.setattr(sys, which, lost(kind, buffered))
    assert main([*SAVING[name], "--out", str(out)]) == 0
    assert saved(out) == saved(whole)


def test_a_report_is_written(here, made, lost, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sys, "stdout", lost("full", True))
    assert main(["report", "tuned"]) == 0
    assert Path("tuned/report.html").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_stopped_is_shown_to_nobody(number, here, lost, tmp_path, monkeypatch):  # noqa: F811
    """Its sample is written, and its page says that it was stopped, and not that it failed."""
    for which in ("stdout", "stderr"):
        monkeypatch.setattr(sys, which, lost("terminal", True))
    assert begun("gpt2", tmp_path / "out", lambda: signal.raise_signal(number), 3) == 128 + number
    assert (tmp_path / "out/checkpoint-3/complete.json").exists()
    assert (tmp_path / "out/sample.txt").exists() and (tmp_path / "out/report.html").exists()
    notes = json.loads((tmp_path / "out/run.json").read_text())
    assert (notes["state"], notes["why"]) == ("stopped", f"by {number.name}")


@pytest.mark.parametrize("buffered", BUFFERED)
@pytest.mark.parametrize("name", PRINTING)
def test_what_is_there_to_be_read(name, buffered, here, made, lost, monkeypatch, capfd):  # noqa: F811
    """Nobody reads it: 141, in silence. A full disk is an error. A stream that is none is none."""
    if name == "plot":
        pytest.importorskip("plotext", reason="plotext, of the plot extra, is not installed")

    def ended(kind):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        monkeypatch.setattr(sys, "stdout", lost(kind, buffered))
        try:
            return main(PRINTING[name])
        except SystemExit as stop:
            return stop.code

    assert ended("none") == 0
    capfd.readouterr()
    assert ended("pipe") == 141
    assert "error" not in capfd.readouterr().err
    assert ended("full") == 2
    said = capfd.readouterr().err
    assert "toynn: error: standard output: cannot write: No space left on device\n" in said


@pytest.mark.parametrize("name", ["eval", "generate", "chat", "predict"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_said_beside_is_dropped(name, kind, here, made, lost, monkeypatch, capsys):  # noqa: F811
    """Speeds, notes, progress."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    monkeypatch.setattr(sys, "stderr", lost(kind, True))
    assert main(PRINTING[name]) == 0
    assert capsys.readouterr().out


def test_finetune_goes_on(here, made, lost, tmp_path, monkeypatch):  # noqa: F811
    """As the command does, in a script whose output nobody reads."""
    for which in ("stdout", "stderr"):
        monkeypatch.setattr(sys, which, lost("pipe", False))
    run = toynn.finetune("base.gguf", "pairs.jsonl", tmp_path / "out", rank=2, steps=1, seq=24)
    assert run.adapter.pairs and (run.path / "run.json").exists()
    assert run.evaluate("pairs.jsonl")["loss"] > 0


BUG = "from toynn.cli import info, main; info.run = None; import sys; sys.exit(main())"


@pytest.mark.parametrize(
    ("words", "end", "code", "unbuffered"),
    [
        ("-m toynn config", "", 141, ""),
        ("-m toynn config", "", 141, "1"),
        ("-m toynn config", "> /dev/full", 2, ""),
        ("-m toynn --help", "> /dev/full", 2, ""),
        ("-m toynn info none", "2>&1", 2, ""),
        (f"-c '{BUG}' info x", "2> /dev/full", 1, ""),
    ],
)
def test_the_exit_codes_of_processes(words, end, code, unbuffered):
    """Where the reader has gone. Python's flush at exit, which ends with 120, has nothing left."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} {words} {end}"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=HANG,
    )
    os.close(writer)
    assert done.returncode == code, done.stderr
