"""``toynn embed``: vectors of texts, by any form of data and of output."""

import json
import re

import numpy as np
import pytest
from small_encoders import with_words

pytest.importorskip("tokenizers", reason="tokenizers is not installed")

from toynn.cli import main
from toynn.engines.encoder import Encoder, Task
from toynn.formats.sentences import Sentences

TEXTS = ["a cat sat", 'dogs, "a" cat\nsat', "cat " * 30, "dog"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoder = Encoder.load(with_words(tmp_path / "plain"))
    encoder.sentences = Sentences("mean", True, 20, {"query": "find: "})
    encoder.export_hf("model")
    return tmp_path


def embed(*words, model="model"):
    return main(["embed", "--model", str(model), "--out", "v.npy", *map(str, words)])


def test_vectors_come_in_the_order_of_the_file(here, capsys):
    expected = Encoder.load("model").encode(TEXTS)
    rows = [{"title": "x", "text": text} for text in TEXTS]
    (here / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    (here / "a.csv").write_text("n,what\n" + "".join(f"1,{text}\n" for text in quoted))
    (here / "a.txt").write_text("".join(text.replace("\n", " ") + "\r\n" for text in TEXTS))
    for name, more in (("a.jsonl", ()), ("a.csv", ("--columns", "text=what")), ("a.txt", ())):
        assert embed("--data", name, "--overwrite", "--batch", 25, *more) == 0
        assert np.load("v.npy").tobytes() == expected.tobytes()
        out = capsys.readouterr().out.splitlines()
        assert out[0] == "vectors     4 of 16 numbers in v.npy"
        assert out[1] == "cut         1 texts, to 20 tokens"
        assert re.fullmatch(r"time {8}[\d.]+ s, [\d,]+\.\d texts/s", out[2])
    assert main(["embed", "-m", "model", "--data", "a.jsonl", "--out", "v.jsonl"]) == 0
    found = [json.loads(line) for line in (here / "v.jsonl").read_text().splitlines()]
    assert [row["text"] for row in found] == TEXTS
    assert np.float32([row["vector"] for row in found]).tobytes() == expected.tobytes()


@pytest.mark.parametrize("prompt", ["find: ", "query"])
def test_a_prompt_is_a_text_or_a_name(prompt, here, capsys):
    (here / "a.txt").write_text("cat\ndogs")
    assert embed("--data", "a.txt", "--prompt", prompt) == 0
    expected = Encoder.load("model").encode(["find: cat", "find: dogs"])
    assert np.load("v.npy").tobytes() == expected.tobytes()
    assert "prompt      'find: ' before each text\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        ("text\ncat\n \n", (), "a.csv:3 (row 2): text: expected a text; got an empty one"),
        (
            "what\ncat\n",
            (),
            "a.csv:2 (row 1): expected a column 'text'; got 'what'; --columns text=",
        ),
        ("what\ncat\n", ("--columns", "what=text"), "got 'what'; type --columns text=what"),
        ("text\n", (), "a.csv: expected texts; it has none"),
        (b"text\n\xff\n", (), "a.csv:2: not UTF-8 text"),
        ("text\ncat\n", ("--out", "v.npz"), "expected one of .npy, .jsonl, .parquet"),
        ("text\ncat\n", ("--out", "a.csv.npy"), "it exists: name a new file, or add --overwrite"),
        ("text\ncat\n", ("--model", "classes"), "it has a head of classes or scores"),
    ],
)
def test_what_is_wrong_is_said_and_writes_nothing(content, more, message, here, capsys):
    content = content if isinstance(content, bytes) else content.encode()
    (here / "a.csv").write_bytes(content)
    (here / "a.csv.npy").write_text("old")
    if "classes" in more:
        Encoder.load("plain", Task("sequence", 2)).export_hf("classes")
    assert embed("--data", "a.csv", *more) == 2
    assert message in capsys.readouterr().err
    assert not (here / "v.npy").exists() and (here / "a.csv.npy").read_text() == "old"


def test_a_file_of_lines_has_no_blank_one(here, capsys):
    (here / "a.txt").write_text("cat\n\ndog\n")
    assert embed("--data", "a.txt") == 2
    assert "a.txt:2: text: expected a text; got an empty one" in capsys.readouterr().err
