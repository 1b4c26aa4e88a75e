"""``toynn train --data a.jsonl:0.7 b.txt:0.3``: what a run of several sources says and keeps."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from lora_bases import write_base

import toynn
from toynn.cli import main, parsed
from toynn.cli.train import job_of
from toynn.errors import CheckpointError
from toynn.jobs import text

LORA = ["train", "lora", "--model", "base.gguf", "--warmup", "0", "--steps", "4", "--seq", "32"]
LORA += ["--batch", "2", "--lr", "0.01", "--eval-every", "2", "--save-every", "2"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(text, "SAMPLE_TOKENS", 4)
    write_base(tmp_path / "base.gguf", vocab=256, context=64)
    rows = [{"prompt": f"say {n}: ", "completion": "ab" * (n % 3 + 1)} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "b.txt").write_text("the cat sat on the mat and the rat sat on the cat " * 9)
    pairs = [{"prompt": f"{n}: ", "chosen": "ab" * (n % 3 + 1), "rejected": "x"} for n in range(9)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    return tmp_path


def test_a_run_of_two_sources(here, capsys):
    assert main([*LORA, "--data", "a.jsonl:0.75", "b.txt:0.25", "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "data        a.jsonl: 75.0% of the rows; an epoch goes through it" in out
    tables = tomllib.loads((here / "run" / "config.toml").read_text())
    assert tables["train"]["data"] == ["a.jsonl:0.75", "b.txt:0.25"]
    data = tables["data"]
    assert data["sources"] == ["a.jsonl", "b.txt"] and data["shares"] == [0.75, 0.25]
    assert [len(each) for each in data["sha256"]] == [64, 64] and data["train"][0] == 18
    last = json.loads((here / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    losses = last["val_loss"], last["val_loss/a.jsonl"], last["val_loss/b.txt"]
    assert min(losses[1:]) < losses[0] < max(losses[1:])
    assert main(["train", "--config", "run/config.toml", "--out", "again"]) == 0
    adapters = [(here / run / "adapter.gguf").read_bytes() for run in ("run", "again")]
    assert adapters[0] == adapters[1]
    words = ["train", "--config", "run/config.toml", "--out", "other"]
    assert (
        job_of(parsed([*words, "--data", "b.txt"])).options.data == "b.txt"
    )  # in the place of the file's


@pytest.mark.parametrize("data", [{"a.jsonl": 3, "b.txt": 0.5}, ["a.jsonl", Path("b.txt")]])
def test_finetune_takes_several_sources(here, data):
    options = {"steps": 1, "warmup": 0, "seq": 32, "quiet": True}
    run = toynn.finetune("base.gguf", data, "run", **options)
    typed = tomllib.loads((run.path / "config.toml").read_text())["train"]["data"]
    assert typed == (["a.jsonl:3", "b.txt:0.5"] if isinstance(data, dict) else ["a.jsonl", "b.txt"])
    assert {"val_loss/a.jsonl", "val_loss/b.txt"} <= run.metrics[-1].keys()


def test_a_run_of_two_sources_goes_on_with_the_same_bits(here, capsys):
    assert main([*LORA, "--data", "b.txt:2", "a.jsonl:1", "--out", "run"]) == 0
    whole = (here / "run" / "adapter.gguf").read_bytes()
    assert main(["train", "--resume", "run/checkpoint-2"]) == 0
    assert "resumed from step 2" in capsys.readouterr().out
    assert (here / "run" / "adapter.gguf").read_bytes() == whole


def test_epochs_extend_a_run_of_two_sources(here, capsys):
    """Of the rows of both: the second part begins where the first one ended."""
    at = LORA.index("--steps")
    words = [*LORA[:at], *LORA[at + 2 :], "--data", "b.txt:2", "a.jsonl:1"]
    words += ["--lr-schedule", "constant"]
    assert main([*words, "--epochs", "0.5", "--out", "run"]) == 0
    steps = tomllib.loads((here / "run" / "config.toml").read_text())["run"]["steps"]
    assert main(["train", "--resume", "run", "--epochs", "1"]) == 0
    assert f"extended    from {steps} steps to " in capsys.readouterr().err
    assert main([*words, "--epochs", "1", "--out", "once"]) == 0
    ended = [
        max(Path(run).glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
        for run in ("run", "once")
    ]
    weights = [(path / "adapter.safetensors").read_bytes() for path in ended]
    assert ended[0].name == ended[1].name and weights[0] == weights[1]


def test_finetune_extends_a_run(here, capsys):
    options = {"warmup": 0, "seq": 32, "eval_every": 2, "save_every": 2, "dropout": 0.2}
    run = toynn.finetune("base.gguf", "a.jsonl", "run", steps=4, **options)
    shutil.copytree("run", "again")
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="has taken 4 steps"):
        toynn.finetune("base.gguf", "a.jsonl", resume="run", steps=3)
    with pytest.raises(CheckpointError, match=r"config\.rank: 8 then, 4 now"):
        toynn.finetune("base.gguf", "a.jsonl", resume="run", rank=4, steps=8)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == files
    run = toynn.finetune("base.gguf", "a.jsonl", resume="run", steps=8, eval_every=4)
    assert run.result.iterations == 8 and run.path == Path("run")
    assert "extended    from 4 steps to 8" in capsys.readouterr().err
    assert main(["train", "--resume", "again", "--steps", "8", "--eval-every", "4"]) == 0
    adapters = [(here / name / "adapter.gguf").read_bytes() for name in ("run", "again")]
    assert adapters[0] == adapters[1]


def test_what_is_written_at_the_end_is_of_each_source(here, capsys):
    rows = [{"prompt": f"ask {n}: ", "completion": "c"} for n in range(40)]
    (here / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main([*LORA, "--data", "b.txt", "a.jsonl", "c.jsonl", "--out", "run"]) == 0
    asked = re.findall(r"^prompt +(\w+) \d+: $", capsys.readouterr().out, re.MULTILINE)
    assert asked == ["say", "ask", "say"]
    words = ["train", "gpt2", "--steps", "1", "--warmup", "0", "--seq", "8", "--d-model", "16"]
    assert main([*words, "--data", "b.txt", "a.jsonl", "--out", "new"]) == 0
    out = capsys.readouterr().out
    assert "--- sample: 32 tokens of the validation data of b.txt, then the model's own ---" in out
    assert "tokens of the validation data of a.jsonl, then the model's own ---\nsay " in out
    written = (here / "new" / "sample.txt").read_text()
    assert "sat" in written.partition("\n---\n")[0] and "say" in written.partition("\n---\n")[2]


def test_preferences_of_two_sources(here, capsys):
    (here / "x:y.jsonl").write_bytes((here / "p.jsonl").read_bytes())
    assert (
        main(
            [
                *LORA,
                "--data",
                "p.jsonl",
                "x:y.jsonl",
                "--loss",
                "dpo",
                "--holdout",
                "1",
                "--out",
                "run",
            ]
        )
        == 0
    )
    last = json.loads((here / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"val_loss/p.jsonl", "val_loss/x:y.jsonl"} <= last.keys()
    assert "50.0% of the rows; an epoch goes through it 1.00 x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a.jsonl:0.5 b.txt", "b.txt: it has no weight, but others have one"),
        ("a.jsonl:0 b.txt:1", "--data a.jsonl:0: expected a weight above 0"),
        ("a.jsonl:nan b.txt:1", "expected a finite number after the colon"),
        ("a.jsonl a.jsonl", "--data a.jsonl: named twice"),
        (
            "a.jsonl --data b.txt",
            "--data: given twice; name several after one flag: --data a.jsonl b",
        ),
        ("a.jsonl p.jsonl", "p.jsonl:1: expected text, prompt and completion, or messages; got"),
        ("a.jsonl:1 none.jsonl:1", "none.jsonl: cannot read: No such file"),
    ],
)
def test_sources_that_make_no_mixture(here, data, message, capsys):
    assert main([*LORA, "--data", *data.split(), "--out", "run"]) == 2
    assert message in capsys.readouterr().err
    assert not (here / "run").exists()
