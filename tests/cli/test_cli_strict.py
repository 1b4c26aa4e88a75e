"""An adapter of another model of the same shape: every command that takes it says so, once."""

import json
import warnings

import numpy as np
import pytest
from lora_bases import moved, write_base
from some_adapters import draw

import toynn
from toynn.cli import main
from toynn.errors import AdapterError
from toynn.formats import adapters, gguf
from toynn.formats.adapters.adapter import text_of
from toynn.jobs import text

TEXT = "the cat sat on the mat and the rat sat on the cat " * 12
TRAIN = "train lora --model {} --adapter {} --data text.txt --seq 8 --steps 1 --out out"
COMMANDS = {
    "generate": "generate --model {} --adapter {} --prompt one --max-tokens 2",
    "eval": "eval --model {} --adapter {} --data text.txt --seq 8",
    "fuse": "fuse --model {} --adapter {} --out out",
    "export-gguf": "export --to gguf --model {} --adapter {} --out out",
    "export-peft": "export --to peft --model {} --adapter {} --out out",
    "train": TRAIN,
    "train-dpo": TRAIN.replace("text.txt", "prefer.jsonl --loss dpo").replace("--seq 8", ""),
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(text, "SAMPLE_TOKENS", 2)
    (tmp_path / "text.txt").write_text(TEXT)
    prefer = [{"prompt": f"{n}: ", "chosen": "ab" * (n % 3 + 1), "rejected": "x"} for n in range(9)]
    (tmp_path / "prefer.jsonl").write_text("\n".join(map(json.dumps, prefer)))
    write_base(tmp_path / "zork.gguf", vocab=256, context=64)
    moved(tmp_path / "zork.gguf", tmp_path / "bork.gguf")
    with gguf.open(tmp_path / "zork.gguf") as base:
        adapters.write_gguf(tmp_path / "a.gguf", draw(base))
        adapters.write_peft(tmp_path / "peft", draw(base), base)
    return tmp_path


def said(command, capsys, *paths, strict=False):
    """The exit code, the warnings, and the lines of standard error that are about the model."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # as Python has it: a warning is shown once
        code = main(COMMANDS[command].format(*paths).split() + ["--strict"] * strict)
    errors = [line for line in capsys.readouterr().err.splitlines() if "made for" in line]
    return code, [str(each.message) for each in caught], errors


@pytest.mark.parametrize("form", ["a.gguf", "peft"])
@pytest.mark.parametrize("command", COMMANDS)
def test_another_model_is_told_once_or_refused(command, form, files, capsys):
    message = "made for zork.gguf; the base model here is another one, bork.gguf: "
    code, told, (error,) = said(command, capsys, "bork.gguf", form, strict=True)
    assert (code, told) == (2, []) and message in error
    assert not (files / "out").exists()  # what is refused leaves nothing
    code, (told,), errors = said(command, capsys, "bork.gguf", form)
    assert (code, errors) == (0, []) and message in told


@pytest.mark.parametrize("command", COMMANDS)
def test_the_model_itself_and_its_copies_are_not(command, files, capsys):
    assert main(["export", "--to", "hf", "--model", "zork.gguf", "--out", "folder"]) == 0
    assert said(command, capsys, "zork.gguf", "a.gguf", strict=True) == (0, [], [])
    if command not in ("generate", "eval", "train", "train-dpo"):  # which need a tokenizer
        (files / "out").rename("before")
        assert said(command, capsys, "folder", "peft", strict=True) == (0, [], [])


def test_chat_too(files, capsys):
    given = ["chat", "--model", "bork.gguf", "--adapter", "a.gguf", "--strict"]
    assert main(given) == 2
    assert "made for zork.gguf" in capsys.readouterr().err


def test_several_adapters_without_a_model(files, capsys):
    with gguf.open("bork.gguf") as base:
        adapters.write_gguf("b.gguf", draw(base))
    given = ["export", "--to", "gguf", "--adapter", "a.gguf", "b.gguf", "--out", "out"]
    assert main([*given, "--strict"]) == 2
    message = "b.gguf: made for bork.gguf; a.gguf for another model, zork.gguf: "
    assert message in capsys.readouterr().err
    with pytest.warns(UserWarning, match=message):
        assert main(given) == 0


def test_finetune_is_as_strict(files):
    options = {"adapter": "a.gguf", "seq": 8, "steps": 1, "quiet": True}
    with pytest.raises(AdapterError, match=r"made for zork\.gguf"):
        toynn.finetune("bork.gguf", "text.txt", "run", strict=True, **options)
    run = toynn.finetune("zork.gguf", "text.txt", "run", strict=True, **options)
    with gguf.open("zork.gguf") as base:
        told = adapters.base_metadata(base)
        assert run.adapter.metadata == told
        for path in ("run", "run/adapter.gguf"):
            found = adapters.load(path, base, strict=True).metadata
            assert {key: text_of(found, key) for key in told} == told
    assert np.isfinite(run.result.train_loss)
