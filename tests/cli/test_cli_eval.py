"""``toynn eval``: its figures, those of the Python functions, and one line for each bad input."""

import json

import numpy as np
import pytest
from lora_bases import write_base
from some_adapters import draw

from toynn import evaluation
from toynn.cli import main
from toynn.engines import frozen
from toynn.formats import adapters, gguf, hub
from toynn.formats.tokenizer import Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog, and over it again. " * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval")
    write_base(folder / "model.gguf", vocab=256, context=48)
    with gguf.open(folder / "model.gguf") as base:
        adapters.write_gguf(folder / "adapter.gguf", draw(base))
    (folder / "text.txt").write_text(f"{TEXT}\n")
    rows = [{"prompt": "a b ", "completion": "c d e"}, {"prompt": "f", "completion": "ghi"}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quiz = {"question": "What?", "choices": ["this", "that"], "answer": "this"}
    (folder / "quiz.jsonl").write_text(json.dumps(quiz))
    return folder


def run(folder, *more, data="text.txt"):
    data = ["--data", str(folder / data)] if data else []
    return main(["eval", "--model", str(folder / "model.gguf"), *data, *more])


def figures(folder, capsys, *more, data="text.txt"):
    assert run(folder, "--json", *more, data=data) == 0
    return json.loads(capsys.readouterr().out)


def test_a_text(folder, capsys):
    found = figures(folder, capsys, "--seq", "32")
    with gguf.open(folder / "model.gguf") as file:
        engine, ids = frozen(file), Tokenizer.from_gguf(file).encode_array(TEXT)
    scores = evaluation.perplexity(engine, ids, 32)
    assert found["loss"] == pytest.approx(scores.second_halves.loss, rel=1e-9)
    assert found["perplexity_every"] == pytest.approx(scores.every.perplexity, rel=1e-9)
    assert found["windows"] == len(TEXT) // 32 and found["tokens_per_second"] > 0
    assert run(folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("perplexity  ") and lines[2].endswith("26 windows of 48")


def test_an_adapter_against_its_base(folder, capsys):
    adapter = ["--adapter", str(folder / "adapter.gguf")]
    alone = figures(folder, capsys)
    with_it = figures(folder, capsys, *adapter)
    beside = figures(folder, capsys, *adapter, "--against", str(folder / "model.gguf"))
    assert alone["loss"] != with_it["loss"]
    assert (beside["loss"], beside["loss_base"]) == (with_it["loss"], alone["loss"])
    assert beside["kl_mean"] > 0 and 0 < beside["same_top"] < 1
    assert run(folder, *adapter, "--against", str(folder / "model.gguf")) == 0
    assert "\ndivergence  " in capsys.readouterr().out


def test_examples_and_questions(folder, capsys):
    rows = figures(folder, capsys, data="rows.jsonl")
    assert (rows["examples"], rows["counted"]) == (2, 8)
    assert figures(folder, capsys, "--no-mask-prompt", data="rows.jsonl")["counted"] == 11
    quiz = figures(folder, capsys, data="quiz.jsonl")
    assert quiz["questions"] == 1 and quiz["accuracy"] in (0, 1)
    assert run(folder, data="quiz.jsonl") == 0
    assert "of 1 questions" in capsys.readouterr().out


def test_columns_of_other_names(folder, capsys):
    renamed = folder / "renamed.jsonl"
    text = (folder / "rows.jsonl").read_text().replace("prompt", "question")
    renamed.write_text(text.replace("completion", "answer"))
    names = ("--columns", "prompt=question,completion=answer")
    found = figures(folder, capsys, *names, data="renamed.jsonl")
    known = figures(folder, capsys, data="rows.jsonl")
    assert [found[name] for name in ("examples", "loss")] == [2, known["loss"]]
    (folder / "prefer.jsonl").write_text('{"prompt": "a b", "good": "c d", "rejected": "e f"}\n')
    names = ("--columns", "chosen=good")
    more = ("--adapter", str(folder / "adapter.gguf"), "--loss", "dpo")
    assert figures(folder, capsys, *more, *names, data="prefer.jsonl")["pairs"] == 1


def test_examples_against_a_base(folder, capsys):
    """Beside float64: over the tokens with loss alone, each example by itself."""
    adapter = ["--adapter", str(folder / "adapter.gguf")]
    base = str(folder / "model.gguf")
    found = figures(folder, capsys, *adapter, "--against", base, data="rows.jsonl")
    with gguf.open(folder / "model.gguf") as file:
        engines = [frozen(file, adapters.load(folder / "adapter.gguf", file)), frozen(file)]
    kl, losses = [], []
    for prompt, completion in (("a b ", "c d e"), ("f", "ghi")):
        ids = np.frombuffer((prompt + completion).encode(), np.uint8).astype(np.int32)
        rows = slice(len(prompt) - 1, len(ids) - 1)
        z = [engine.logits(ids, batch=1)[rows].astype(np.float64) for engine in engines]
        log_q, log_p = (each - np.log(np.exp(each).sum(axis=1, keepdims=True)) for each in z)
        kl += (np.exp(log_p) * (log_p - log_q)).sum(axis=1).tolist()
        losses += [-row[id] for row, id in zip(log_q, ids[len(prompt) :], strict=True)]
    assert found["counted"] == len(kl) == 8
    assert found["kl_mean"] == pytest.approx(np.mean(kl), rel=1e-5)
    assert found["kl_largest"] == pytest.approx(max(kl), rel=1e-5)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert found["loss"] == figures(folder, capsys, *adapter, data="rows.jsonl")["loss"]


def test_preferences_of_one_token(folder, capsys):
    """Beside float64: a prompt of one token, which sees no other."""
    (folder / "one.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    more = ("--adapter", str(folder / "adapter.gguf"), "--loss", "dpo")
    found = figures(folder, capsys, *more, data="one.jsonl")
    with gguf.open(folder / "model.gguf") as file:
        engines = [frozen(file, adapters.load(folder / "adapter.gguf", file)), frozen(file)]
    (own,), (base,) = (each.logits(np.array([97]), batch=1).astype(float) for each in engines)
    margin = (own[98] - own[99]) - (base[98] - base[99])
    assert found["loss"] == pytest.approx(np.log1p(np.exp(-0.1 * margin)), rel=1e-6)


def test_a_folder_is_measured_by_its_test_part(folder, capsys):
    data = folder / "parts"
    data.mkdir()
    rows = (folder / "rows.jsonl").read_text().splitlines()
    for name, text in (("train", "{}"), ("valid", rows[0]), ("test", rows[1])):
        (data / f"{name}.jsonl").write_text(text)
    assert figures(folder, capsys, data="parts")["counted"] == len("ghi")
    (data / "test.jsonl").unlink()
    assert figures(folder, capsys, data="parts")["counted"] == len("c d e")
    (data / "texts").mkdir()
    (data / "texts" / "a.md").write_text("some words")
    assert figures(folder, capsys, data="parts/texts")["counted"] == len("some words") - 1
    (data / "rows.csv").write_text("prompt,completion\na,bc\n")
    assert figures(folder, capsys, data="parts/rows.csv")["counted"] == 2


def test_without_data_the_embedded_text(folder, capsys, monkeypatch):
    score = evaluation.Score(1.0, 0.1, 2)
    lengths = []

    def perplexity(engine, ids, *_, **__):
        lengths.append(len(ids))
        return evaluation.TextScore(score, score)

    monkeypatch.setattr(evaluation, "perplexity", perplexity)
    assert figures(folder, capsys, data=None)["loss"] == 1.0
    assert lengths[0] > 100_000


@pytest.mark.parametrize(
    ("more", "data", "said"),
    [
        (["--seq", "49"], "text.txt", "--seq 49: the model sees at most 48 tokens"),
        (["--seq", "3"], "text.txt", "whole number from 4"),
        (["--against", "x.gguf"], "quiz.jsonl", "--against: expected a text or examples as --data"),
        (["--against", "x.gguf"], "rows.jsonl", "x.gguf: cannot read"),
        (["--columns", "text=a"], "text.txt", "--columns: it needs rows as --data: .jsonl, .csv"),
        (["--separator", "a"], "text.txt", "--separator: it is for classifiers and vectors"),
        ([], "only", "only: expected test.jsonl or valid.jsonl in it, or texts"),
        ([], "x.bin", "x.bin: expected a text or rows; got a file of tokens"),
        (["--data", "again"], "text.txt", "--data: given twice"),
        (["--against", "x.gguf"], "text.txt", "x.gguf: cannot read"),
        ([], "none.jsonl", "none.jsonl: cannot read"),
        ([], "none.txt", "none.txt"),
        ([], "bad.jsonl", "bad.jsonl:2: expected an object"),
        ([], "torn.jsonl", "torn.jsonl:1: "),
        ([], "short.txt", "the text has 5 tokens"),
    ],
)
def test_bad_input_is_one_line(folder, capsys, more, data, said):
    (folder / "bad.jsonl").write_text('{"question": "a", "choices": ["b", "c"], "answer": 0}\n{}')
    (folder / "torn.jsonl").write_text('{"text": ')
    (folder / "short.txt").write_text("short")
    (folder / "only").mkdir(exist_ok=True)
    (folder / "only" / "train.jsonl").write_text('{"text": "a"}')
    assert run(folder, *more, data=data) == 2
    captured = capsys.readouterr()
    (error,) = captured.err.splitlines()
    assert said in error and not captured.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--loss", "orpo"], "--loss: name preferences by --data"),
        (["--loss", "dpo", "--data", "DATA"], "--loss dpo: it compares an adapter's model"),
        (["--loss", "orpo", "--data", "DATA", "--label-smoothing", "0.1"], "only dpo has it"),
        (["--loss", "orpo", "--data", "DATA", "--against", "MODEL"], "--against: it is not for"),
        (["--beta", "0.3", "--against", "MODEL"], "--beta: it needs --loss"),
        (["--question-delimiter", " "], "--question-delimiter: it needs multiple-choice questions"),
        (["--top", "3", "--seq", "16"], "--top: it is for models of pictures"),
    ],
)
@pytest.mark.parametrize("model", ["hf:o/model", "model.gguf", None])
def test_what_contradicts_itself_is_refused_before_anything_is_fetched(
    folder, capsys, monkeypatch, more, said, model
):
    fetched = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(hub, "fetched", fetched.append)
    monkeypatch.setattr(hub, "fetched_data", lambda *given: fetched.append(given))
    words = [{"DATA": "hf:o/data", "MODEL": "hf:o/base"}.get(each, each) for each in more]
    named = (
        ["--model", model, *words] if model else ["--data", "hf:o/data", "--tokenizer", "hf:o/t"]
    )
    assert main(["eval", *named]) == 2 and not fetched
    assert (said if model else "--model: name the model") in capsys.readouterr().err


def test_flags_of_text_are_refused_before_data_are_fetched_for_a_model_of_pictures(
    capsys, monkeypatch, tmp_path
):
    fetched = []
    (tmp_path / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(hub, "fetched", lambda _: tmp_path)
    monkeypatch.setattr(hub, "fetched_data", lambda *given: fetched.append(given))
    for model in ("hf:o/pictures", str(tmp_path)):
        assert main(["eval", "--model", model, "--data", "hf:o/data", "--seq", "16"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "--seq: it is for models of text" in said and not fetched


def test_weights_that_are_not_finite(folder, capsys, monkeypatch):
    monkeypatch.setattr(
        "toynn.engines.SequenceEngine.logits",
        lambda self, ids, batch=None: np.full((len(ids), 256), np.nan, np.float32),
    )
    for data in ("text.txt", "rows.jsonl"):
        assert run(folder, data=data) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert "logits are not finite" in error
