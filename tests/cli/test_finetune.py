"""toynn.finetune: the command in one call, with its defaults, its checks and its folder."""

import json

import numpy as np
import pytest
from lora_bases import write_base

import toynn
from toynn.cli import main
from toynn.errors import ConfigError, DataError
from toynn.formats import adapters

FLAGS = dict(steps=60, seq=24, warmup=1, rank=3, lr=0.02, eval_every=30, log_every=30)


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
    before = toynn.get_float32_matmul_precision()
    monkeypatch.chdir(files)
    for quiet in (True, False):
        flags = dict(quiet=quiet, precision="medium", checkpointing=True, save_every=0)
        run = toynn.finetune(
            "base.gguf", "rows.jsonl", **flags, **FLAGS | {"steps": 1, "warmup": 0}
        )
        assert ("memory " in capsys.readouterr().out) is not quiet
        assert run.path.parent.name == "runs"
    assert toynn.get_float32_matmul_precision() == before


def test_what_is_refused(files, tmp_path):
    model, data = files / "base.gguf", files / "rows.jsonl"
    for flags, message in (
        ({"rnk": 3}, "there is no 'rnk'; toynn train lora has .*rank"),
        ({"rank": 0}, "--rank: must be a whole number"),
        ({"targets": "nose"}, "nose"),
        ({"loss": "dpo"}, "chosen"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            toynn.finetune(model, data, tmp_path / "run", quiet=True, **flags)
    for rows in ([{"prompt": "a"}], {3: 0.5}, 7):
        with pytest.raises(ConfigError, match="data: expected a path, several in a list, or a m"):
            toynn.finetune(model, rows, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    assert "finetune" in dir(toynn) and toynn.Run
