"""A run that does not fit into what is free is refused before its first step, with a way out."""

import json

import numpy as np
import pytest
from lora_bases import write_base

from toynn.cli import main
from toynn.engines.engine import Engine
from toynn.jobs.run import build as build_job

MIB = 2**20
SHAPE = ("--d-model", "32", "--heads", "2", "--layers", "2")
TEXTS = ("--data", "text.txt", "--seq", "16")
RUNS = {
    "gpt2": (*TEXTS, *SHAPE),
    "gpt2 fine": ("--init-from", "gpt2.gguf", *TEXTS),
    "from-scratch": (*TEXTS, *SHAPE),
    "from-scratch fine": ("--init-from", "base.gguf", "--data", "pairs.jsonl", "--seq", "16"),
    "gpt2 lines": ("--data", "pairs.jsonl", "--seq", "16", *SHAPE),
    "lora lines": ("--model", "base.gguf", "--data", "pairs.jsonl", "--dropout", "0.1"),
    "warm-start": (*TEXTS, *SHAPE, "--donor", "base.gguf"),
    "lora": ("--model", "base.gguf", *TEXTS),
    "lora packed": ("--model", "wide.gguf", "--prepack", "always", *TEXTS, "--batch", "4"),
    "lora on": ("--model", "base.gguf", "--adapter", "adapted", *TEXTS),
    "vit": ("--data", "pictures.npz", *SHAPE),
    "vit fine": ("--data", "pictures.npz", "--init-from", "pictured"),
    "vit other": ("--data", "pictures.npz", "--init-from", "pictured", "--image-size", "16"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text("the cat sat on the mat and the rat sat on the cat " * 12)
    pairs = [{"prompt": f"say {n}: ", "completion": "abc" * (n % 3 + 1)} for n in range(20)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    write_base(folder / "base.gguf", vocab=256, context=64)
    write_base(folder / "gpt2.gguf", "gpt2", vocab=256, context=64)
    wide = {"d_model": 256, "n_heads": 4, "n_kv_heads": 2, "d_ff": 512, "n_layers": 1}
    write_base(folder / "wide.gguf", vocab=256, context=64, **wide)
    images = np.random.default_rng(1).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(folder / "pictures.npz", images=images, labels=np.arange(40) % 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        short = ("--steps", "1")
        assert main(["train", "vit", *RUNS["vit"], *short, "--out", "pictured"]) == 0
        assert main(["train", "lora", *RUNS["lora"], *short, "--out", "adapted"]) == 0
    return folder


def words(name, *more):
    return ["train", name.split()[0], *RUNS[name], *more, "--steps", "1"]


@pytest.mark.parametrize("name", RUNS)
def test_what_a_step_needs_is_promised_and_refused(name, files, tmp_path, monkeypatch, capsys):
    """A byte less than what the realized step takes is too little; as much is enough."""
    monkeypatch.chdir(files)
    taken = []

    def build(run):
        built = build.before(run)
        taken.append(built[0].engine.session.memory().peak)
        return built

    build.before = build_job
    monkeypatch.setattr("toynn.jobs.run.build", build)
    assert main(words(name, "--out", str(tmp_path / "a"))) == 0
    (peak,) = taken
    monkeypatch.setattr("toynn.jobs.run.build", build.before)
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: peak)
    assert main(words(name, "--out", str(tmp_path / "b"))) == 0
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: peak - 1)
    capsys.readouterr()
    assert main(words(name, "--out", str(tmp_path / "c"))) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("toynn: error: not enough memory: a step needs ")
    assert " are free" in line and "--batch" in line and "--checkpointing" in line
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", RUNS)
def test_a_batch_of_millions_is_refused_before_anything_is_recorded(
    name, files, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(files)
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: 100 * MIB)
    monkeypatch.setattr(Engine, "step_memory", lambda self: pytest.fail("recorded"))
    assert main(words(name, "--batch", "100000000", "--out", str(tmp_path / "a"))) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "a step needs more than " in line and "--batch" in line


def test_where_nobody_knows_what_is_free_nothing_is_refused(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: None)
    assert main(words("gpt2", "--out", str(tmp_path / "a"))) == 0


def test_a_base_is_kept_packed_where_that_is_asked_for(files, tmp_path, monkeypatch, capsys):
    """It says so, and the adapter is the same."""
    monkeypatch.chdir(files)
    adapters, said = {}, {}
    for pack in ("never", "auto", "always"):
        run = words("lora packed", "--prepack", pack, "--out", str(tmp_path / pack))
        assert main(run) == 0
        adapters[pack] = (tmp_path / pack / "adapter.gguf").read_bytes()
        said[pack] = next(line for line in capsys.readouterr().out.splitlines() if "memory" in line)
    assert len(set(adapters.values())) == 1
    assert "prepacked" in said["always"] and "prepacked" in said["auto"]  # of 64 rows
    assert "prepacked" not in said["never"]
