"""toynn.finetune: the command in one call, with its defaults, its checks and its folder."""

import inspect
import json
from typing import get_args

import numpy as np
import pytest
from lora_bases import write_base

import toynn
from toynn.cli import main
from toynn.errors import ConfigError, DataError
from toynn.formats import adapters
from toynn.jobs.lora_options import LoRAOptions
from toynn.options import options_of
from toynn.session import Session

FLAGS = dict(holdout=1, steps=60, seq=24, warmup=1, rank=3, lr=0.02, eval_every=30, log_every=30)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_base(folder / "base.gguf", vocab=256, context=64)
    rows = [{"prompt": f"{n}: ", "completion": "yes"} for n in range(12)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def run(files):
    model, data = files / "base.gguf", files / "rows.jsonl"
    return toynn.finetune(
        model, data, files / "run", quiet=True, targets=["attention", "down"], **FLAGS
    )


def test_it_is_the_command(run, files, capsys):
    words = ["train", "lora", "--model", str(files / "base.gguf"), "--targets", "attention,down"]
    words += ["--data", str(files / "rows.jsonl"), "--out", str(files / "typed")]
    for name, value in FLAGS.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    assert main(words) == 0
    assert "run folder" in capsys.readouterr().out
    for name in ("adapter.gguf", "adapter_model.safetensors"):
        assert (files / "typed" / name).read_bytes() == (run.path / name).read_bytes()


def test_what_a_run_has(run, files):
    assert (run.path, run.result.iterations) == (files / "run", 60)
    assert run.report.read_text().startswith("<!DOCTYPE html>")
    assert [line["iteration"] for line in run.metrics] == [0, 30, 60]
    best = min(line["val_loss"] for line in run.metrics)
    assert run.evaluate()["loss"] == run.result.val_loss == best < run.metrics[0]["val_loss"]
    saved = adapters.load(run.path / "adapter.gguf")
    assert run.adapter.rank == 3 and run.adapter.tensors.keys() == saved.tensors.keys()
    for name, values in saved.tensors.items():
        np.testing.assert_array_equal(run.adapter.tensors[name], values)
    assert repr(run).startswith(f"Run({str(run.path)!r}, 60 steps, loss ")
    assert run._repr_html_().count("<tr>") == 6 and str(run.path) in run._repr_html_()


def test_it_writes_and_is_measured(run, files):
    assert run.generate("3: ", temperature=0, max_tokens=3) == "yes"
    found = run.evaluate(files / "rows.jsonl", seq=24)
    assert found["examples"] == 12 and found["perplexity"] == pytest.approx(np.exp(found["loss"]))
    assert found["loss"] < run.metrics[0]["val_loss"]
    with pytest.raises(DataError, match=r"none\.jsonl"):
        run.evaluate(files / "none.jsonl")


def test_it_prints_unless_it_is_quiet(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    for quiet in (True, False):
        run = toynn.finetune(
            "base.gguf",
            "rows.jsonl",
            quiet=quiet,
            checkpointing=True,
            save_every=0,
            **FLAGS | {"steps": 1, "warmup": 0},
        )
        assert ("memory " in capsys.readouterr().out) is not quiet
        assert run.path.parent.name == "runs"


def test_precision_and_threads_are_the_runs_own(files, tmp_path, monkeypatch):
    """Nothing is set for the process, not even meanwhile; the run's sessions have both."""
    made = []
    monkeypatch.setattr(Session, "finalize_weights", seen(Session.finalize_weights, made))
    monkeypatch.setattr(toynn.numerics.precision, "_chosen", "high")
    monkeypatch.setattr(toynn.backends.threads, "_chosen", 2)
    run = toynn.finetune(
        files / "base.gguf",
        files / "rows.jsonl",
        tmp_path / "run",
        quiet=True,
        precision="medium",
        threads=1,
        **FLAGS | {"steps": 1, "warmup": 0},
    )
    assert len(made) == 2, "the model with adapters, and the base that it is shown beside"
    for session, globals_then in made:
        assert (session.matmul_precision, session.n_threads) == ("medium", 1)
        assert session.backend.threads() == 1
        assert globals_then == ("high", 2)
    assert (toynn.get_float32_matmul_precision(), toynn.get_num_threads()) == ("high", 2)
    machine = json.loads((run.path / "run.json").read_text())["machine"]
    assert (machine["threads"], machine["matmul precision"]) == ("1", "medium")


def seen(method, made):
    """A method that notes on what it is called, and what holds for the process then."""

    def wrapped(session):
        made.append((session, (toynn.get_float32_matmul_precision(), toynn.get_num_threads())))
        return method(session)

    return wrapped


def test_it_goes_on_with_a_run_and_with_a_file(files, tmp_path, monkeypatch):
    model, data = files / "base.gguf", files / "rows.jsonl"
    path, short = tmp_path / "run", FLAGS | {"steps": 4, "save_every": 2, "eval_every": 2}
    run = toynn.finetune(model, data, path, quiet=True, **short)
    again = toynn.finetune(model, data, resume=path / "checkpoint-2", quiet=True)
    assert again.result.iterations == 4 and again.metrics == again.metrics[:1] + run.metrics[1:]
    told = json.loads((path / "run.json").read_text())["sessions"][1]["command"]
    assert told == f"toynn train lora --model={model} --data={data} --resume={path}/checkpoint-2"
    copy = toynn.finetune(
        model, data, tmp_path / "copy", config=path / "config.toml", quiet=True, rank=2
    )
    assert copy.adapter.rank == 2 and copy.result.iterations == 4


def test_what_is_refused(files, tmp_path):
    model, data = files / "base.gguf", files / "rows.jsonl"
    for flags, message in (
        ({"rnk": 3}, "there is no option 'rnk'; did you mean rank.$"),
        ({"b_rate": 3}, "there is no option 'b_rate'; its name is loraplus_lr_ratio now"),
        ({"rank": 0}, "^rank: must be a whole number"),
        ({"rank": True}, "^rank: must be a whole number"),
        ({"decay": "all"}, "there is no option 'decay'; it has model, data, "),
        ({"stepz": 3}, "there is no option 'stepz'; did you mean steps.$"),
        ({"num_train_epochs": 3}, "did you mean epochs"),
        ({"lora_alpha": 3}, "did you mean alpha"),
        ({"max_seq_len": 3}, "did you mean seq"),
        ({"iters": 3}, "there is no option 'iters'; did you mean steps"),
        ({"learning_rate": 3}, "did you mean lr"),
        ({"max_seq_length": 3}, "did you mean seq"),
        ({"steps_per_eval": 3}, "did you mean eval_every"),
        ({"folder": 3}, "did you mean out"),
        ({"adam_beta2": 3}, "; AdamW's betas are 0.9 and 0.999"),
        (
            {"lr_decay_iters": 5},
            "; the rate falls along lr_schedule=, over all steps",
        ),
        (
            {"load_in_4bit": True},
            "; the model may be a quantized file, such as `toynn convert --outtype q8_0`",
        ),
        ({"loss": "ppo"}, "^loss: must be one of sft, dpo, orpo, kto; got 'ppo'"),
        ({"dora": 1}, "^dora: must be True or False; got 1"),
        ({"init": "zero"}, "^init: must be one of"),
        ({"targets": "nose"}, "nose"),
        ({"loss": "dpo"}, "chosen"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            toynn.finetune(model, data, tmp_path / "run", quiet=True, **flags)
    for rows, message in (
        ([{"prompt": "a"}], "^finetune: rows: row 1: expected text, prompt and completion"),
        ([{"text": "a"}, {"prompt": "a", "completion": "b"}], ": row 2: .* as row 1 has; got pro"),
        ([{"text": "a"}], "^finetune: rows: 0 examples"),
    ):
        for given in ({"rows": rows}, {"data": rows}):
            with pytest.raises(DataError, match=message):
                toynn.finetune(model, out=tmp_path / "run", quiet=True, **given)
    other = tmp_path / "other.csv"
    other.write_text('text\n"a\n",3\n')
    with pytest.raises(DataError, match=r"other\.csv:2 \(row 1\): .*; the row ends on line 3"):
        toynn.finetune(model, rows=[{"text": "a" * 99}], valid=other, quiet=True)
    for rows in ([3], {3: 0.5}, 7, {}):
        with pytest.raises(ConfigError, match="data: expected a path, a list of paths, a m"):
            toynn.finetune(model, rows, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    assert "finetune" in dir(toynn) and toynn.Run


class Loaded:
    """Rows as a datasets.Dataset gives them: by number, or one after the other."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def __iter__(self):
        return iter(self.rows)


def test_rows_are_data(run, files, tmp_path):
    rows = [json.loads(line) for line in (files / "rows.jsonl").read_text().splitlines()]
    model, saved = files / "base.gguf", []
    flags = FLAGS | {"targets": ["attention", "down"]}
    for name, given in {
        "list": {"rows": rows},
        "iterator": {"rows": iter(rows)},
        "data": {"data": rows},
        "dataset": {"data": Loaded(rows)},
    }.items():
        made = toynn.finetune(model, out=tmp_path / name, quiet=True, **given, **flags)
        saved.append((made.path / "adapter.gguf").read_bytes())
    assert len({*saved, (run.path / "adapter.gguf").read_bytes()}) == 1
    (kept,) = tmp_path.glob("rows-*.jsonl")
    assert [json.loads(line) for line in kept.read_text().splitlines()] == rows
    toynn.finetune(model, kept, quiet=True, resume=made.path, steps=62)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"rows": []}, DataError, "expected at least one; got none"),
        ({"data": []}, DataError, "expected at least one; got none"),
        ({"rows": [{"text": "a"}, "b"]}, ConfigError, "row 2: expected a mapping, such as"),
        ({"rows": [{"text": {1, 2}}]}, DataError, "row 1: not JSON"),
        ({"rows": [{"text": float("nan")}]}, DataError, "row 1: not JSON"),
        ({"rows": [{"text": "\ud800"}]}, DataError, "not UTF-8"),
        (
            {"rows": [{"text": "a"}], "data": "b"},
            ConfigError,
            "either data or rows; got both or neither",
        ),
        ({}, ConfigError, "either data or rows; got both or neither"),
    ],
)
def test_rows_that_are_none(files, tmp_path, given, error, message):
    with pytest.raises(error, match=message):
        toynn.finetune(files / "base.gguf", out=tmp_path / "run", quiet=True, **given, **FLAGS)
    assert not list(tmp_path.iterdir())


def test_its_signature_names_the_options_with_types_and_defaults():
    shown = inspect.signature(toynn.finetune).parameters
    assert [*shown][:3] == ["model", "data", "out"]
    assert {*shown} == {*options_of(LoRAOptions), "rows", "quiet", "recipe"}
    rank, loss = shown["rank"], shown["loss"]
    assert (rank.default, rank.annotation, rank.kind) == (8, int, rank.KEYWORD_ONLY)
    assert get_args(loss.annotation) == ("sft", "dpo", "orpo", "kto")


def test_what_a_run_says_names_keywords_and_on_the_command_line_flags(files, capsys):
    model, data = files / "base.gguf", files / "rows.jsonl"
    told = "{}: the model's context is 64 tokens"
    toynn.finetune(model, data, files / "long", seq=512, steps=1, holdout=1)
    out = capsys.readouterr().out
    assert told.format("seq=512") in out and "--" not in out.partition("run folder")[0]
    words = ["train", "lora", "--model", str(model), "--data", str(data), "--holdout", "1"]
    words += ["--seq", "512", "--steps", "1", "--out", str(files / "long-typed")]
    assert main(words) == 0
    assert told.format("--seq 512") in capsys.readouterr().out
