"""All commands: their help, their words, the folder of a run as a path, and who listens."""

import os
import re
import subprocess
import sys
from argparse import SUPPRESS

import numpy as np
import pytest
from hang import HANG
from lora_bases import write_base
from some_adapters import draw

import toynn
from toynn.cli import _parser, main
from toynn.cli.completion import _parsers
from toynn.formats import adapters, gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_base(folder / "model.gguf", vocab=256)
    (folder / "text.txt").write_text("the robot is called zork. " * 20)
    with gguf.open(folder / "model.gguf") as file:
        adapters.write_gguf(folder / "adapter.gguf", draw(file))
    return folder


RUN = ("--steps", "1", "--seq", "8", "--batch", "1", "--data", "RUN/text.txt", "--out", "NEW")
FILES = ("--adapter", "RUN/adapter.gguf", "--out", "NEW")


@pytest.mark.parametrize(
    "words",
    [
        ["info", "RUN"],
        ["train", "lora", "--model", "RUN", *RUN],
        ["train", "from-scratch", "--init-from", "RUN", *RUN],
        ["train", "warm-start", "--donor", "RUN", *RUN],
        ["fuse", "--model", "RUN", *FILES],
        ["export", "--model", "RUN", *FILES, "--to", "peft"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_the_folder_of_a_run_is_its_model(words, folder, tmp_path, capsys):
    names = {"RUN": str(folder), "NEW": str(tmp_path / "new")}
    for short, path in names.items():
        words = [word.replace(short, path) for word in words]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "llama-cli" not in said and "llama-completion" not in said  # no tokenizer of bytes


def test_a_folder_with_half_an_adapter(folder, tmp_path):
    """What a run that failed leaves."""
    with gguf.open(folder / "model.gguf") as base:
        expected = adapters.load(folder / "adapter.gguf", base)
        found = adapters.load(folder, base)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, values in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], values)


def test_the_folder_of_a_run_with_an_adapter_needs_no_base(folder, tmp_path, capsys):
    with gguf.open(folder / "model.gguf") as base:
        adapter = adapters.load(folder / "adapter.gguf", base)
        adapters.write_peft(tmp_path, adapter, base)
    (tmp_path / "adapter.gguf").write_bytes((folder / "adapter.gguf").read_bytes())
    words = [
        "export",
        "--to",
        "gguf",
        "--adapter",
        str(tmp_path),
        "--out",
        str(tmp_path / "b.gguf"),
    ]
    assert main(words) == 0
    assert adapters.load(tmp_path / "b.gguf").tensors.keys() == adapter.tensors.keys()


def test_weights_of_a_hugging_face_folder_are_as_readable_as_its_configuration(folder, tmp_path):
    engine = toynn.LlamaSeqEngine.from_gguf(folder / "model.gguf", 4)
    engine.export_hf(tmp_path / "hf")
    modes = {path.stat().st_mode for path in (tmp_path / "hf").iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train", "lora", "--rnk", "3", "--model", "a", "--data", "b"], "toynn train lora"),
        (["info", "a", "b"], "toynn info"),
    ],
)
def test_a_mistyped_option_names_the_help_of_its_command(words, command, capsys):
    assert main(words) == 2
    assert f"(see `{command} --help`)" in capsys.readouterr().err


def test_version_and_help(capsys):
    for option in ("--version", "--help"):
        with pytest.raises(SystemExit) as stop:
            main([option])
        assert stop.value.code == 0
    assert f"toynn {toynn.__version__}" in capsys.readouterr().out


COMMANDS = [name.removeprefix("toynn ") for name, _ in _parsers(_parser(), "toynn")][1:]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_and_help_all_has_the_rest(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def printed(option):
        with pytest.raises(SystemExit) as stop:
            main([*command.split(), option])
        assert stop.value.code == 0
        return capsys.readouterr().out

    brief = printed("--help")
    more = re.search(r"--help-all shows (\d+) more", brief)
    everything = printed("--help-all") if more else brief
    assert len(brief.splitlines()) <= 40
    (parser,) = (each for name, each in _parsers(_parser(), "toynn") if name == f"toynn {command}")
    known = [each for each in parser._actions if each.option_strings and each.help != SUPPRESS]
    flags = [each.option_strings[-1] for each in known]
    assert [flag for flag in flags if f" {flag}" not in everything] == []
    if more:
        shown = re.findall(r"^  -.*", brief, re.MULTILINE)
        assert len(shown) + int(more[1]) == len(flags) - 2  # without the two of help
        assert "Example: toynn " in " ".join(brief.split())  # a line may end within


def test_config(capsys):
    assert main(["config"]) == 0
    assert toynn.__version__ in capsys.readouterr().out


def test_module_runs():
    command = [sys.executable, "-m", "toynn", "train", "gpt2", "--steps", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("toynn: error: argument --steps: must be a whole number")
    assert "Traceback" not in done.stderr


SCRIPT = "import sys\nfrom toynn.cli import main\nsys.exit(main())\n"


@pytest.mark.parametrize("way", ["-m", "-mtoynn", "the script", "import"])
def test_a_level_that_there_is_not(way, tmp_path):
    (tmp_path / "toynn").write_text(SCRIPT)
    words = {
        "-m": ["-X", "utf8", "-m", "toynn", "config"],
        "-mtoynn": ["-mtoynn"],
        "the script": [str(tmp_path / "toynn"), "config"],
        "import": ["-c", "import toynn", "toynn"],
    }[way]
    environment = {**os.environ, "TOYNN_ISA": "avx1024"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=HANG
    )
    *before, line = done.stderr.splitlines()
    assert "TOYNN_ISA=avx1024: this build lacks it; usable here: generic" in line
    if way == "import":
        assert (done.returncode, line.split(":")[0]) == (1, "ImportError")
    else:
        assert (done.returncode, before, done.stdout) == (2, [], "")
        assert line.startswith("toynn: error: ")


@pytest.mark.parametrize("words", [("info",), ("predict", "--model")])
def test_an_error_is_one_line_that_does_nothing_to_the_terminal(capsys, words):
    assert main([*words, "\x1b[2Jno\r\nsuch\x07\nfile", *(["a.png"] if words[1:] else [])]) == 2
    (line,) = capsys.readouterr().err.split("\n")[:-1]
    said = re.sub("--model |cannot read: ", "", line).lower()
    assert said.startswith("toynn: error: \ufffd[2jno such\ufffd file: no such file or ")


def test_nobody_may_listen(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as after >&- in a shell
    assert main(["config"]) == 0
