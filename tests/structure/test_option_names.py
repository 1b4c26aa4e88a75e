"""Messages name options once, by the flag or by Python's name; ``toynn.errors.said`` chooses."""

import argparse
import ast
import re
import threading
from pathlib import Path

import pytest

import toynn
from toynn.cli import _parser, main
from toynn.cli.train import also
from toynn.errors import ConfigError, flags_stay, said
from toynn.formats import gguf
from toynn.jobs.made import OPTIONS
from toynn.options import RecipeOptions

PACKAGE = Path(toynn.__file__).parent
#: What has "--" and is no message: variables of a style sheet; flags of llama.cpp; words of calls.
OTHERS = {"runs/style.py", "runs/tables.py", "runs/commands.py", "jobs/peers.py"}
FOREIGN = {"--lora", "--no-X"}
#: Options of calls that no command has.
CALLS = {"causal", "label_losses", "pure"}
IDIOM = re.compile(r"(?<![\w|])([a-z_]+)=(?:True|False|None)\b")


def messages():
    """Each text in the package but docstrings, with X for what is filled in, and where it is."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name in OTHERS or name.startswith("cli/"):
            continue
        tree = ast.parse(path.read_text())
        seen = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                seen |= {id(each.value) for each in node.body[:1] if isinstance(each, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in seen:
                continue
            if isinstance(node, ast.JoinedStr):
                seen |= {id(part) for part in node.values}
                parts = [getattr(part, "value", "") for part in node.values]
                parts = [part if isinstance(part, str) else "X" for part in parts]
                yield f"{name}:{node.lineno}", "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{name}:{node.lineno}", node.value


def unquoted(message):
    return "".join(message.split("`")[::2])


def flags(parser):
    """The flags of a parser and of its commands."""
    names = set(parser._option_string_actions)
    inner = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return names.union(*(flags(each) for choices in inner for each in choices.values()))


def test_every_flag_in_a_message_is_one():
    known = flags(_parser()) | set(also(OPTIONS)) | FOREIGN
    wrong = [
        (where, flag)
        for where, message in messages()
        for flag in re.findall(r"(?<![\w'\"/-])--[a-z][\w-]*", unquoted(message))
        if flag not in known
    ]
    assert wrong == []


def test_python_is_told_no_flag_and_the_command_line_no_keyword():
    wrong = []
    for where, message in messages():
        text = unquoted(said(message))
        if re.search(r"(?<![\w'\"/-])--[a-z]", text) or "|--" in text:
            wrong.append((where, text))
        names = re.findall(r"\b([a-z_]+)=", text)
        if re.search(r"\b([a-z_]+)=\S*,? or \1=", text):
            wrong.append((where, "twice", names))
        with flags_stay():
            text = unquoted(said(message))
        if "|--" in text or set(IDIOM.findall(text)) - CALLS:
            wrong.append((where, text))
    assert wrong == []


@pytest.mark.parametrize(
    ("message", "python"),
    [
        ("raise the bound with --max-line", "raise the bound with max_line="),
        ("(or hold nothing out: --holdout 0)", "(or hold nothing out: holdout=0)"),
        ("(--valid FILE or --holdout N does)", "(valid=FILE or holdout=N does)"),
        ("argument --steps: must be a whole number", "steps: must be a whole number"),
        ("--metric kl: it is for texts", 'metric="kl": it is for texts'),
        ("--valid /a/b.txt: expected one source", 'valid="/a/b.txt": expected one source'),
        ("give more --steps or --epochs, or go on", "give more steps= or epochs=, or go on"),
        ("(--batch, --seq), or --backend cpu", '(batch=, seq=), or backend="cpu"'),
        ("--loss dpo, orpo or kto", 'loss="dpo", orpo or kto'),
        ("x: overwrite=True|--overwrite replaces it", "x: overwrite=True replaces it"),
        ("name the base (base=|--model)", "name the base (base=)"),
        ("run `toynn fuse --out b`, then --seq", "run `toynn fuse --out b`, then seq="),
        ("got '--steps' there", "got '--steps' there"),
        # A value that goes on behind a space may be a path, or no value.
        ("--adapter /my models/a: no adapter", "adapter /my models/a: no adapter"),
        ("--adapter my models/a", "adapter my models/a"),
        ("--out=/my runs/a", "out=/my runs/a"),
        ("--data C:\\my texts\\a", "data C:\\my texts\\a"),
        ("--data /a(1)/b: it is", "data /a(1)/b: it is"),
        ("--backend cpu computes it", "backend cpu computes it"),
        ("--data in/x.jsonl", 'data="in/x.jsonl"'),
        ("--data or.txt: it is", 'data="or.txt": it is'),
        ("--data as-told.", 'data="as-told".'),
        ("--steps or, with it,", "steps= or, with it,"),
        ("--lr 1e-4 is more", "lr=1e-4 is more"),
        ("--lr -2.5E+3.", "lr=-2.5E+3."),
        ("a-b--c /x--y", "a-b--c /x--y"),
    ],
)
def test_what_python_is_told(message, python):
    assert str(ConfigError(message)) == python == said(python)
    with flags_stay():
        assert "|--" not in str(ConfigError(message)) and ("--" in said(message))


def test_threads_of_a_command_speak_as_it_does():
    told = []
    with flags_stay():
        with flags_stay():
            pass
        thread = threading.Thread(target=lambda: told.append(str(ConfigError("--seq: long"))))
        thread.start()
        thread.join()
    assert told == ["--seq: long"] and str(ConfigError("--seq: long")) == "seq: long"


def test_python_and_the_command_line_each_read_their_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where rows are kept
    path = tmp_path / "a.gguf"
    gguf.write(path, {"general.architecture": "llama"}, {})
    with pytest.raises(toynn.errors.GGUFError, match=r"exists; pass overwrite=True to replace it$"):
        gguf.write(path, {"general.architecture": "llama"}, {})
    (tmp_path / "config.json").touch()
    assert main(["convert", str(tmp_path), "--out", str(path)]) == 2
    said_there = capsys.readouterr().err
    assert (
        "already exists; pass --overwrite to replace it" in said_there and "=True" not in said_there
    )
    for changed, words in (
        ({"steps": 0}, "steps: must be a whole number from 1"),
        ({"epochs": -1}, "epochs: must be a number above 0; got -1"),
        ({"steps": 1, "loss": "dpo2"}, "loss: must be one of sft, dpo, orpo, kto; got 'dpo2'"),
        ({"checkpointing": 3}, "checkpointing: must be True or False; got 3"),
        ({"out": str(tmp_path)}, "already exists; name a new folder with out="),
    ):
        with pytest.raises(toynn.errors.ToynnError) as caught:
            toynn.finetune(path, rows=[{"text": "a"}], **{"steps": 1, **changed})
        text = str(caught.value)
        assert words in text and "--" not in text
    with pytest.raises(ConfigError) as caught:
        RecipeOptions(t_batch=0)
    assert "--" not in str(caught.value)


def test_an_error_that_quotes_a_long_value_keeps_its_begin_and_end():
    message = str(ConfigError(f"a.gguf: key: expected gpt2; got {'x' * 10**5}: name another file"))
    assert len(message) < 1000
    assert message.startswith("a.gguf: key: expected gpt2; got x")
    assert message.endswith("x: name another file")
