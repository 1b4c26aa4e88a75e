"""``toynn train lora --loss dpo``: a run that learns, its metrics, resuming, what is refused."""

import json
import shutil

import pytest
from lora_bases import write_base

from toynn.cli import main

RUN = ["--seq", "24", "--warmup", "1", "--lr", "0.02", "--log-every", "2", "--eval-every", "4"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_base(tmp_path / "base.gguf", vocab=256, context=64)
    pairs = [{"prompt": f"{n}: ", "chosen": "yes", "rejected": "not"} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
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
        (["--beta", "0.5"], "--beta: it is of --loss dpo, orpo, kto; the loss is sft"),
        (["--loss", "orpo", "--label-smoothing", "0.1"], "label_smoothing is of dpo"),
        (["--loss", "ipo"], "invalid choice: 'ipo'"),
    ):
        assert train(*more, "--out", "bad") == 2
        assert message in capsys.readouterr().err
    assert not (files / "bad").exists()
