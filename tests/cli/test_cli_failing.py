"""Runs that fail: what they say, what they leave, and what they take along."""

import math
import signal

import numpy as np
import pytest
from fake_recipe import FakeRecipe
from lora_bases import write_base
from safetensors.numpy import load_file
from some_adapters import draw

from toynn.backends.cpu import CPU
from toynn.cli import main
from toynn.formats import adapters, gguf
from toynn.optim import AdamW

FAKE = ("--steps", "30", "--batch", "2", "--seq", "8", "--log-every", "10", "--eval-every", "10")


@pytest.fixture
def recipe(monkeypatch):
    """A fake recipe for ``toynn train gpt2``, so that a run takes no time."""
    recipe = FakeRecipe(context=8)
    built = recipe, AdamW.for_lora(), lambda k: 0.1
    monkeypatch.setattr("toynn.jobs.run.build", lambda arguments: built)
    return recipe


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and the rat sat on the cat " * 20)
    return str(path)


def run(text, out):
    return main(["train", "gpt2", "--data", text, "--out", str(out), *FAKE])


def poisoned_from(step):
    def poison(recipe):
        if recipe.steps >= step:
            recipe.gradient[:] = math.inf

    return poison


def test_a_run_that_fails_says_where_its_weights_are(recipe, text, tmp_path, capsys):
    recipe.on_step = poisoned_from(12)
    out = tmp_path / "a"
    assert run(text, out) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("toynn: error: step 12: the gradient")
    assert line.endswith(f"(the run folder {out} has the best weights until then)")
    assert load_file(out / "model.safetensors")


def test_a_run_whose_folder_is_gone_does_not_name_it(recipe, text, tmp_path, capsys):
    def poison(recipe):
        poisoned_from(12)(recipe)
        if recipe.steps >= 12:
            (tmp_path / "a").rename(tmp_path / "moved")

    recipe.on_step = poison
    assert run(text, tmp_path / "a") == 2
    assert "has the best weights" not in capsys.readouterr().err


@pytest.mark.parametrize("there_before", [False, True])
def test_a_run_that_fails_before_its_first_step_leaves_nothing(
    recipe, text, tmp_path, capsys, there_before
):
    recipe.on_step = poisoned_from(1)
    out = tmp_path / "runs" / "mine" / "a"
    if there_before:
        out.parent.mkdir(parents=True)
    assert run(text, out) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "toynn: error: step 1: the gradient" in line
    assert "folder" not in line
    left = [path for path in tmp_path.rglob("*") if path.name != "text.txt"]
    assert left == ([out.parent.parent, out.parent] if there_before else [])


def test_a_failed_run_takes_nothing_along_that_is_not_its_own(recipe, text, tmp_path):
    out = tmp_path / "runs" / "a"

    def visitor(recipe):
        (out / "notes.txt").write_text("mine")
        recipe.gradient[:] = math.inf

    recipe.on_step = visitor
    for _ in range(2):  # the second time it is in the way
        assert run(text, out) == 2
        assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_a_run_that_is_stopped_before_its_first_step_leaves_nothing(recipe, text, tmp_path, capfd):
    def evaluate(*batch):
        signal.raise_signal(signal.SIGINT)
        return 1.0

    recipe.evaluate = evaluate
    assert run(text, tmp_path / "runs" / "a") == 130
    assert capfd.readouterr().err.endswith("toynn: stopped\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("above", ["a file", "read-only"])
def test_what_is_in_the_way_is_said_before_anything_takes_time(
    text, tmp_path, capsys, monkeypatch, above
):
    (tmp_path / above).touch() if above == "a file" else (tmp_path / above).mkdir()
    if above == "read-only":
        monkeypatch.setattr("os.access", lambda path, mode: False)  # root may do anything
    assert run(text, tmp_path / above / "new" / "a") == 2
    printed = capsys.readouterr()
    why = "Not a directory" if above == "a file" else "Permission denied"
    assert f"cannot make the run folder: {why}: {tmp_path / above}" in printed.err
    assert not printed.out


def test_a_run_folder_that_cannot_be_made_is_not_half_made(recipe, text, tmp_path, capsys):
    assert run(text, tmp_path / "runs" / ("a" * 300)) == 2
    assert "cannot make the run folder: File name too long" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


MEMORY = "; try a smaller {}, or --checkpointing"
LORA = ("train", "lora", "--model", "BASE", "--data", "TEXT")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("train", "gpt2"), MEMORY.format("--batch, --seq or --d-model")),
        (("train", "gpt2", "--checkpointing"), "; try a smaller --batch, --seq or --d-model"),
        (
            ("train", "gpt2", "--seq", "16", "--init-from", "BASE"),
            MEMORY.format("--batch or --seq"),
        ),
        (LORA, MEMORY.format("--batch, --seq or --rank")),
        ((*LORA, "--adapter", "ADAPTER"), MEMORY.format("--batch or --seq")),
        (
            ("train", "vit", "--data", "PICTURES"),
            MEMORY.format("--batch or --d-model"),
        ),
        (("generate", "--model", "BASE", "--prompt", "a"), "bytes are too many"),
    ],
)
def test_too_large(words, hint, text, tmp_path, capsys, monkeypatch):
    paths = {"BASE": tmp_path / "base.gguf", "ADAPTER": tmp_path / "adapter.gguf", "TEXT": text}
    paths["PICTURES"] = tmp_path / "pictures.npz"
    np.savez(paths["PICTURES"], images=np.zeros((40, 8, 8), np.uint8), labels=np.arange(40) % 2)
    write_base(paths["BASE"], "gpt2" if "gpt2" in words else "llama", vocab=256)
    with gguf.open(paths["BASE"]) as file:
        adapters.write_gguf(paths["ADAPTER"], draw(file))

    def allocate(self, nbytes):
        raise MemoryError(f"{nbytes} bytes are too many")

    monkeypatch.setattr(CPU, "allocate", allocate)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main([str(paths.get(word, word)) for word in words]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("toynn: error: not enough memory: ")
    assert hint in line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "words",
    ["train gpt2 --steps 1 --out r", "info x", "runs .", "check --data a.jsonl", "plot r"],
)
def test_a_working_directory_that_was_deleted_is_said(words, tmp_path, monkeypatch, capsys):
    """Every relative path is missing then, however often one looks for it."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.endswith("; the working directory was deleted: cd into an existing folder\n")
