"""``toynn train lora --loss dpo``: a run that learns, its metrics, resuming, what is refused."""

import json
import shutil

import numpy as np
import pytest
from lora_bases import write_base

import toynn
from toynn import engines
from toynn.cli import main
from toynn.formats import adapters, gguf

RUN = ["--seq", "24", "--warmup", "1", "--lr", "0.02", "--log-every", "2", "--eval-every", "4"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_base(tmp_path / "base.gguf", vocab=256, context=64)
    pairs = [{"prompt": f"{n}: ", "chosen": "yes", "rejected": "not"} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (tmp_path / "some.jsonl").write_text('{"prompt": "a", "completion": "b"}')
    return tmp_path


def train(*more, steps=8, data="pairs.jsonl"):
    words = ["train", "lora", "--model", "base.gguf", "--data", data, "--steps", str(steps)]
    return main([*words, *RUN, *more])


def reports(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("loss", ["dpo", "orpo", "kto"])
def test_a_run_learns_what_is_preferred(files, loss, capsys):
    assert train("--loss", loss, "--out", "run") == 0
    found = reports(files / "run")
    first, last = found[0], found[-1]
    assert loss == "kto" or last["val_loss"] < first["val_loss"]  # whose kl is of two examples
    unit = "completions" if loss == "kto" else "pairs"
    assert last[f"trained_{unit}"] > 0 and f"{unit}_per_second" in last
    assert last["rewards/chosen"] > last["rewards/rejected"]
    if loss != "kto":
        assert last["rewards/accuracies"] == 1 and last["rewards/margins"] > 0
        assert last["val_accuracy"] == last["val_rewards/accuracies"] == 1
    assert (files / "run" / "adapter.gguf").exists()
    assert f"{unit} trained" in capsys.readouterr().out


def test_it_goes_on_with_the_same_bits(files):
    assert train("--loss", "dpo", "--out", "whole", "--dropout", "0.2", "--grad-accum", "2") == 0
    words = ["--loss", "dpo", "--out", "part", "--dropout", "0.2", "--grad-accum", "2"]
    assert train(*words, "--save-every", "4", "--save-total-limit", "9") == 0
    for name in ("checkpoint-8", "adapter.gguf"):
        path = files / "part" / name
        if path.is_dir():
            shutil.rmtree(path)
    assert main(["train", "--resume", "part"]) == 0
    for name in ("adapter.gguf", "adapter_model.safetensors"):
        assert (files / "part" / name).read_bytes() == (files / "whole" / name).read_bytes()


@pytest.mark.parametrize("loss", ["dpo", "orpo", "kto"])
def test_a_run_that_is_extended_can_itself_be_resumed(files, loss):
    words = ["--loss", loss, "--dropout", "0.2", "--save-every", "4", "--save-total-limit", "0"]
    assert train(*words, "--out", "longer") == 0
    assert main(["train", "--resume", "longer", "--steps", "14"]) == 0
    first = {path.name: path.read_bytes() for path in (files / "longer").glob("adapter*")}
    shutil.rmtree(files / "longer" / "checkpoint-14")
    assert main(["train", "--resume", "longer"]) == 0  # from step 12, which was extended
    assert {path.name: path.read_bytes() for path in (files / "longer").glob("adapter*")} == first
    shutil.rmtree(files / "longer")


def test_what_does_not_go_together(files, capsys):
    for more, message in (
        (["--beta", "0.5"], "--beta: it needs --loss dpo, orpo, kto; the loss is sft"),
        (["--loss", "orpo", "--label-smoothing", "0.1"], "--label-smoothing: only dpo has it"),
        (["--loss", "ipo"], "must be one of sft, dpo, orpo, kto; got 'ipo'"),
    ):
        assert train(*more, "--out", "bad") == 2
        assert message in capsys.readouterr().err
    assert not (files / "bad").exists()


BATCHES = {"dpo": 2, "orpo": 2, "kto": 1}


def log_p(engine, prompt, completion):
    """log p of a completion behind a prompt, by NumPy in float64; a model on bytes."""
    ids = np.frombuffer((prompt + completion).encode(), np.uint8).astype(np.int32)
    z = engine.logits(ids, batch=1).astype(np.float64)[len(prompt) - 1 : -1]
    rows = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return rows[np.arange(len(rows)), ids[len(prompt) :]].sum()


@pytest.mark.parametrize("loss", BATCHES)
def test_eval_measures_what_training_measures(files, loss, capsys):
    """On the same rows: the test part is that which the run validates on, in two batches."""
    (files / "data").mkdir()
    pairs = [json.loads(line) for line in (files / "pairs.jsonl").read_text().splitlines()]
    pairs[19]["chosen"] = "maybe"
    for name, part in (("train", pairs[:12]), ("valid", pairs[12:])):
        (files / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    more = ["--loss", loss, "--beta", "0.3", "--batch", str(BATCHES[loss])]
    assert train(*more, "--precision", "highest", "--out", "run", data="data") == 0
    found = reports(files / "run")
    kept = min((each for each in found if "val_loss" in each), key=lambda each: each["val_loss"])
    capsys.readouterr()
    words = ["eval", "--adapter", "run", "--data", "data", "--seq", "24", *more]
    assert main([*words, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    expected = {name[4:]: value for name, value in kept.items() if name.startswith("val_")}
    expected.pop("accuracy", None)  # which rewards/accuracies is
    assert {name: measured[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert measured["pairs" if loss != "kto" else "completions"] == (8 if loss != "kto" else 16)
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert f"loss        {kept['val_loss']:.4f} ({loss}, beta 0.3), over " in printed
    assert ("margins     " in printed) == (loss != "kto")


def test_the_loss_of_pairs_is_that_of_numpy(files, capsys):
    assert train("--loss", "dpo", "--out", "run") == 0
    capsys.readouterr()
    words = ["eval", "--adapter", "run/adapter.gguf", "--data", "pairs.jsonl", "--loss", "dpo"]
    assert main([*words, "--beta", "0.5", "--label-smoothing", "0.2", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    with gguf.open("base.gguf") as file:
        tuned = engines.frozen(file, adapters.load("run", file))
        base = engines.frozen(file)
    margins = np.array(
        [
            sum(
                sign * 0.5 * (log_p(tuned, f"{n}: ", said) - log_p(base, f"{n}: ", said))
                for said, sign in (("yes", 1), ("not", -1))
            )
            for n in range(20)
        ]
    )
    loss = 0.8 * np.log1p(np.exp(-margins)) + 0.2 * np.log1p(np.exp(margins))
    assert measured["loss"] == pytest.approx(loss.mean(), rel=1e-4)
    assert measured["rewards/margins"] == pytest.approx(margins.mean(), rel=1e-4)
    assert measured["rewards/accuracies"] == (margins > 0).mean()


def test_finetune_measures_its_own_preferences(files):
    options = {"steps": 2, "warmup": 0, "seq": 24, "lr": 0.02, "quiet": True}
    run = toynn.finetune(
        "base.gguf", "pairs.jsonl", "run", loss="dpo", valid="pairs.jsonl", **options
    )
    found = run.evaluate("pairs.jsonl", seq=24)
    assert found["loss"] == pytest.approx(run.result.val_loss, rel=1e-6)
    assert "perplexity" in run.evaluate(str(files / "some.jsonl"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "pairs.jsonl: these are preferences: name a --loss (dpo, orpo, kto)"),
        (["--loss", "dpo"], "--loss dpo: it compares an adapter's model with the base"),
        (["--loss", "sft"], "invalid choice: 'sft'"),
        (["--loss", "orpo", "--label-smoothing", "0.1"], "label_smoothing: only dpo has it"),
        (["--loss", "orpo", "--seq", "99"], "--seq 99: the model sees at most 64 tokens"),
        (["--loss", "orpo", "--against", "x"], "--against: it is not for preferences"),
        (["--loss", "orpo", "--no-mask-prompt"], "--no-mask-prompt: it is not for preferences"),
        (["--beta", "0.3"], "--beta: it needs --loss dpo, orpo, kto"),
        (["--label-smoothing", "0"], "--label-smoothing: it needs --loss dpo, orpo, kto"),
        (["--batch", "3"], "--batch: it needs --loss dpo, orpo, kto"),
        (["--top", "3"], "--top: it is for models of pictures"),
        (["--loss", "orpo", "--data", "some.jsonl"], "some.jsonl:1: expected prompt, chosen and"),
    ],
)
def test_what_eval_cannot_measure(files, words, message, capsys):
    data = [] if "--data" in words else ["--data", "pairs.jsonl"]
    assert main(["eval", "--model", "base.gguf", *data, *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_without_data_there_are_no_preferences(files, capsys):
    assert main(["eval", "--model", "base.gguf", "--loss", "orpo"]) == 2
    assert "--loss: name preferences by --data" in capsys.readouterr().err
