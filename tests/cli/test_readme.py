"""README's example of fine-tuning, as it is typed: it trains, answers rightly, and stops."""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
from vocabs import bpe_file

from toynn.cli import main

README = Path(__file__).parents[2] / "README.md"
SHAPE = ["--d-model", "256", "--layers", "2", "--heads", "4", "--seq", "64", "--batch", "4"]
BRIEF = ["--eval-every", "0", "--save-every", "0", "--report", "none", "--threads", "1"]


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A model that has read questions with answers: of robots, and where they end."""
    monkeypatch.chdir(tmp_path)
    bpe_file(tmp_path / "vocab.gguf")
    names, things = ("Tom", "Ann", "Zork", "Blip", "Mia"), ("dust", "moon", "sun", "cats", "gold")
    rows = []
    for name, verb, thing in itertools.product(names, ("eat", "like", "see"), things):
        rows.append({"prompt": f"What does {name} {verb}? ", "completion": f"The {thing}."})
        rows.append({"prompt": f"Who {verb}s the {thing}? ", "completion": f"{name} the robot."})
    (tmp_path / "told.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = [
        "train",
        "from-scratch",
        "--arch",
        "llama",
        "--tokenizer",
        "vocab.gguf",
        *SHAPE,
        *BRIEF,
    ]
    words += ["--data", "told.jsonl", "--lr", "3e-3", "--steps", "40", "--out", "made"]
    assert main(words) == 0
    (tmp_path / "made" / "model.gguf").rename(tmp_path / "base.gguf")
    return tmp_path


def test_the_example_of_fine_tuning(base, capsys):
    block = re.search(r"```sh\n(cat > .*?)```", README.read_text(), re.DOTALL)[1]
    name, text = re.search(r"cat > (\S+) <<'END'\n(.*?)END\n", block, re.DOTALL).groups()
    (base / name).write_text(text)
    rows = [json.loads(line) for line in text.splitlines()]
    fetch, train, generate = re.findall(r"^\.venv/bin/toynn (.*)$", block, re.MULTILINE)
    assert fetch.startswith("convert hf:") and fetch.endswith("--out base.gguf")  # needs a network
    capsys.readouterr()
    assert main([*shlex.split(train, comments=True), "--threads", "1"]) == 0
    assert "no valid.jsonl, and 6 examples: nothing is held out" in capsys.readouterr().out
    typed = shlex.split(generate, comments=True)
    assert main(typed) == 0
    answers = {row["prompt"]: row["completion"] for row in rows}
    assert capsys.readouterr().out.strip() == answers[typed[typed.index("--prompt") + 1]]
