"""The hostile GGUF files by way of the command line: one line that says what, exit code 2."""

import pytest
from lora_bases import write_base
from test_gguf_hostile import HOSTILE, LLAMA_CPP

from toynn.cli import main

CASES = LLAMA_CPP | HOSTILE
COMMANDS = {
    "info": ["info", "{bad}"],
    "generate": ["generate", "--model", "{bad}", "--prompt", "a"],
    "train lora": ["train", "lora", "--model", "{bad}", "--data", "{text}", "--out", "{out}"],
    "train from-scratch": [
        *("train", "from-scratch", "--init-from", "{bad}", "--data", "{text}", "--out", "{out}"),
    ],
    "fuse": ["fuse", "--model", "{bad}", "--adapter", "{bad}", "--out", "{out}"],
    "fuse an adapter": ["fuse", "--model", "{good}", "--adapter", "{bad}", "--out", "{out}"],
    "export": ["export", "--to", "hf", "--model", "{bad}", "--out", "{out}"],
}


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "text.txt").write_text("a text of some words " * 50)
    return {
        "bad": tmp_path / "model.gguf",
        "good": write_base(tmp_path / "good.gguf"),
        "text": tmp_path / "text.txt",
        "out": tmp_path / "out",
    }


def refused(paths, command, capsys):
    """The line with which a command refuses the bad file; it leaves nothing."""
    words = [word.format(**paths) for word in COMMANDS[command]]
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("toynn: error: ") and "Traceback" not in "".join(lines)
    assert not paths["out"].exists()
    return lines[-1]


@pytest.mark.parametrize("name", CASES)
def test_info_refuses_them_with_the_same_words(name, paths, capsys):
    file, *parts = CASES[name]
    paths["bad"].write_bytes(file if isinstance(file, bytes) else bytes(file))
    line = refused(paths, "info", capsys)
    assert str(paths["bad"]) in line
    for part in parts:
        assert part in line
    assert main(["info", str(paths["good"])]) == 0  # the process lives on


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", list(CASES)[::12])
def test_every_command_refuses_them(command, name, paths, capsys):
    file, *_ = CASES[name]
    paths["bad"].write_bytes(file if isinstance(file, bytes) else bytes(file))
    assert str(paths["bad"]) in refused(paths, command, capsys)
