"""What else a run is measured by while it trains, and what of it chooses the best weights."""

import json

import numpy as np
import pytest
from lora_bases import write_base

from toynn import engines
from toynn.cli import main
from toynn.formats import adapters, gguf

PAIRS = [{"prompt": f"{n}: ", "completion": "yes" * (n % 2 + 1)} for n in range(14)]
ASKED = [
    {"question": "3:", "choices": ["yesyes", "no at all", "x"], "answer": 0},
    {"question": "4:", "choices": ["xxxxxxxx", "yes"], "answer": "B"},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of an adapter that is measured by everything; its data and base are beside it."""
    folder = tmp_path_factory.mktemp("metrics")
    write_base(folder / "base.gguf", vocab=256, context=64)
    (folder / "data").mkdir()
    for name, rows in (("train", PAIRS[:9]), ("valid", PAIRS[9:])):
        (folder / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "asked.jsonl").write_text("\n".join(map(json.dumps, ASKED)))
    words = ["train", "lora", "--model", str(folder / "base.gguf"), "--data", str(folder / "data")]
    words += ["--metric", "loss,kl,accuracy,perplexity"]
    words += ["--questions", str(folder / "asked.jsonl")]
    words += ["--steps", "20", "--lr", "0.05", "--warmup", "0", "--eval-every", "10"]
    words += ["--precision", "highest", "--out", str(folder / "run"), "--report", "none"]
    assert main(words) == 0
    return folder / "run"


def reports(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "val_loss" in line]


def log_p(logits):
    wide = logits.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def test_the_divergence_is_that_of_both_models_by_numpy(run):
    first, *_, last = reports(run)
    assert first["val_base/kl"] == 0 and first["val_base/same_top"] == 1
    assert last["val_loss"] == min(report["val_loss"] for report in reports(run))  # it was kept
    with gguf.open(run.parent / "base.gguf") as file:
        base = engines.frozen(file)
        tuned = engines.frozen(file, adapters.load(run, file))
    total, same, rows = 0.0, 0, 0
    for row in PAIRS[9:]:
        prompt, answer = row["prompt"].encode(), row["completion"].encode()
        ids = np.frombuffer(prompt + answer, np.uint8).astype(np.int32)
        # Each row whose answer is of the completion; a model on bytes has no token that ends it.
        trained = slice(len(prompt) - 1, -1)
        q, p = (log_p(engine.logits(ids, batch=1))[trained] for engine in (tuned, base))
        total += (np.exp(p) * (p - q)).sum()
        same += (q.argmax(1) == p.argmax(1)).sum()
        rows += len(q)
    assert (
        last["val_base/kl"] == pytest.approx(total / rows, rel=1e-4) and last["val_base/kl"] > 0.1
    )
    assert last["val_base/same_top"] == pytest.approx(same / rows)


def test_accuracy_is_that_of_eval_and_perplexity_that_of_the_loss(run, capsys):
    first, *_, last = reports(run)
    words = ["eval", "--model", str(run.parent / "base.gguf"), "--json"]
    words += ["--data", str(run.parent / "asked.jsonl")]
    for report, more in ((first, []), (last, ["--adapter", str(run)])):
        assert main([*words, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        assert report["val_accuracy"] == found["accuracy"]
        assert report["val_accuracy/normalized"] == found["accuracy_normalized"]
        assert report["val_text/perplexity"] == pytest.approx(np.exp(report["val_loss"]))
    assert last["val_accuracy"] == 1 > first["val_accuracy"]


def test_a_measure_of_what_is_not_there_is_refused(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    base = ["train", "lora", "--model", "base.gguf", "--data", "data"]
    for words, message in (
        (["--metric", "accuracy"], "--metric accuracy: it needs --questions: name a"),
        (["--metric", "loss,margins"], "--metric margins: it needs --loss dpo, orpo, kto"),
        (["--metric", "loss,loss"], "once each; got 'loss,loss'"),
        (["--metric", "bleu"], "must be of loss, perplexity, accuracy,"),
        (["--questions", "data/train.jsonl"], "data/train.jsonl:1: expected an object with"),
    ):
        assert main([*base, *words]) == 2
        assert message in capsys.readouterr().err
    assert not (run.parent / "runs").exists()


@pytest.mark.parametrize(
    ("more", "continuations", "said"),
    [
        (
            [],
            [" yes", "no"],
            'with " " between, or nothing after a question that ends in whitespace (1)',
        ),
        (["--question-delimiter", ""], ["yes", "no"], 'with "" between'),
        (["--question-delimiter", " "], [" yes", " no"], 'with " " between'),
        (["--question-delimiter", "\\n"], ["\nyes", "\nno"], r'with "\n" between'),
    ],
)
def test_eval_and_train_join_alike(run, monkeypatch, capsys, tmp_path, more, continuations, said):
    asked = []

    def log_likelihoods(engine, tokenizer, pairs):
        asked.extend(pairs)
        return iter([(0.0, True)] * len(pairs))

    monkeypatch.setattr("toynn.evaluation.choices.log_likelihoods", log_likelihoods)
    monkeypatch.chdir(tmp_path)
    rows = [
        {"question": "a?", "choices": ["yes", "x"], "answer": 0},
        {"question": "b?\n", "choices": ["no", "x"], "answer": 0},
    ]
    (tmp_path / "quiz.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--model", str(run.parent / "base.gguf"), *more]
    assert main(["eval", *words, "--data", "quiz.jsonl"]) == 0
    expected = list(zip(("a?", "b?\n"), continuations, strict=True))
    assert asked[0::2] == expected
    printed = " ".join(capsys.readouterr().out.split())
    assert f"questions joined to their choices {said}" in printed
    asked.clear()
    words += ["--data", str(run.parent / "data"), "--questions", "quiz.jsonl", "--steps", "1"]
    assert main(["train", "lora", *words, "--warmup", "0", "--out", "run"]) == 0
    assert asked[0:4:2] == expected
    printed = " ".join(capsys.readouterr().out.split())
    assert f"questions 2 questions, joined to their choices {said}" in printed


def test_a_delimiter_without_questions_is_refused(run, capsys):
    words = ["--model", str(run.parent / "base.gguf"), "--question-delimiter", "x"]
    words += ["--data", str(run.parent / "data")]
    for command in (["eval"], ["train", "lora"]):
        assert main([*command, *words]) == 2
        assert "error: --question-delimiter: " in capsys.readouterr().err
