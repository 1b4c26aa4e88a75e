"""Resuming: the same bits as a run that was never stopped, and what is not the same refused."""

import json
import os
import shutil
import signal

import pytest
import runs
from killing import go_on, killed_at_moments, killed_in_writing

import toynn
from toynn.errors import CheckpointError
from toynn.train import checkpoint

ALL = sorted(runs.RECIPES)
VARYING = ("time", "tokens_per_second", "peak_memory")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A straight run of every recipe."""
    work = tmp_path_factory.mktemp("runs")
    for name in ALL:
        runs.trainer(name, work, folder=work / name).fit()
    return work


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    return [{k: v for k, v in line.items() if k not in VARYING} for line in lines]


def assert_same(folder, straight):
    ours, theirs = runs.learned(folder), runs.learned(straight)
    assert ours.keys() == theirs.keys()
    differing = [name for name in ours if ours[name] != theirs[name]]
    assert not differing
    assert metrics(folder) == metrics(straight)


class Stop(Exception):
    """A run ends, as by a kill: nothing more is written."""


def stop_at(step):
    def on_step(result):
        if result.iterations == step:
            raise Stop

    return on_step


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_killed_run_goes_on_with_the_same_bits(name, threads, work, tmp_path, monkeypatch):
    """After step 7: the checkpoint of step 6 is the newest, and the best model is of step 6."""
    monkeypatch.setattr("toynn.threads._chosen", threads)
    out = tmp_path / "out"
    with pytest.raises(Stop):
        runs.trainer(name, work, folder=out, on_step=stop_at(7)).fit()
    again = runs.trainer(name, work, resume=out)
    result = again.fit()
    assert (result.iterations, again.loop.recipe.step_index) == (12, 36 // 3)
    assert_same(out, work / name)


@pytest.mark.parametrize("name", ["gpt2", "lora"])
@pytest.mark.parametrize("step", [5, 6, 11])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(name, step, work, tmp_path):
    """Its additional evaluation, and the best model of that, are undone."""
    out = tmp_path / "out"

    def interrupt(result):
        if result.iterations == step:
            signal.raise_signal(signal.SIGTERM)

    result = runs.trainer(name, work, folder=out, on_step=interrupt).fit()
    assert (result.interrupted, result.signal, result.iterations) == (True, signal.SIGTERM, step)
    assert metrics(out)[-1]["iteration"] == step and "val_loss" in metrics(out)[-1]
    assert runs.trainer(name, work, resume=out).fit().iterations == 12
    assert_same(out, work / name)


def test_a_step_that_takes_too_long_is_saved_between_its_micro_batches(work, tmp_path, monkeypatch):
    out = tmp_path / "out"
    trainer = runs.trainer("lora", work, folder=out)
    accumulate, calls = trainer.recipe.accumulate, []

    def counted(*batch):
        calls.append(batch)
        if len(calls) == 2 * 3 + 1:  # the first of the fourth step
            signal.raise_signal(signal.SIGINT)
            monkeypatch.setattr("toynn.train.loop.PATIENCE", -1.0)
        return accumulate(*batch)

    trainer.recipe.accumulate = counted
    result = trainer.fit()
    monkeypatch.undo()
    assert result.part.batches == 1 and result.iterations == 3
    state = json.loads((out / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["recipe"]["waiting"] > 0 and state["loop"]["part"]["batches"] == 1
    assert runs.trainer("lora", work, resume=out).fit().iterations == 12
    assert_same(out, work / "lora")


def test_a_sample_that_a_signal_cuts_short_is_made_again(work, tmp_path):
    """The second one, after step 6: nothing is written of it; the run that goes on writes it."""
    calls = []

    def sample(cut=False):
        calls.append(cut)
        yield "once "
        if cut and len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
        yield "upon \x1b"

    every = {"sample_every": 3}
    straight, out = tmp_path / "straight", tmp_path / "out"
    runs.trainer("gpt2", work, folder=straight, sample=sample, **every).fit()
    calls.clear()
    cut = runs.trainer("gpt2", work, folder=out, sample=lambda: sample(True), **every).fit()
    assert cut.interrupted and cut.iterations == 6 and cut.sample_due
    assert len((out / "samples.jsonl").read_text().splitlines()) == 1
    runs.trainer("gpt2", work, resume=out, sample=sample, **every).fit()
    samples = (out / "samples.jsonl").read_text()
    assert samples == (straight / "samples.jsonl").read_text()
    assert json.loads(samples.splitlines()[3]) == {"iteration": 12, "text": "once upon \x1b"}
    assert_same(out, straight)


def test_kills_at_random_moments(work, tmp_path):
    """The long form: python -m tests.kills."""
    killed_at_moments("gpt2", work, tmp_path / "out", 4, seed=1)
    assert_same(tmp_path / "out", work / "gpt2")


def test_kills_within_the_writing(work, tmp_path):
    out, kills = tmp_path / "out", 0
    for call in (5, 40, 61, 66):
        kills += killed_in_writing("lora", work, out, call)
    assert kills == 4
    go_on("lora", work, out)
    assert_same(out, work / "lora")


def test_a_checkpoint_can_be_named_and_what_came_after_it_goes(work, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-10", "checkpoint-12"}
    runs.trainer("gpt2", work, resume=out / "checkpoint-10", save_total_limit=1).fit()
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-12"]
    assert_same(out, work / "gpt2")


def test_a_run_that_is_complete_stays_as_it_is(work, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    assert runs.trainer("gpt2", work, resume=out).fit().iterations == 12
    assert_same(out, work / "gpt2")


def test_differences_are_listed_and_refused_unless_forced(work, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    with pytest.raises(CheckpointError) as caught:
        runs.trainer("gpt2", work, resume=out, lr=0.02, max_grad_norm=None).fit()
    assert "training.max_grad_norm: 0.5 then, none now; " in str(caught.value)
    assert "training.schedule.lr_max: 0.01 then, 0.02 now" in str(caught.value)
    assert "force" in str(caught.value)
    assert_same(out, work / "gpt2")
    result = runs.trainer("gpt2", work, resume=out, steps=14, force=True).fit()
    assert result.iterations == 14 and (out / "checkpoint-14").is_dir()


def test_identity_is_compared_table_by_table(work, tmp_path):
    first = {"data": {"sha256": "a" * 64}, "config": {"lr": 0.1, "targets": ("q", "v")}}
    out = tmp_path / "out"
    runs.trainer("gpt2", work, folder=out, identity=first).fit()
    runs.trainer("gpt2", work, resume=out, identity=json.loads(json.dumps(first))).fit()
    other = {"data": {"sha256": "b" * 64}, "config": {"lr": 0.1, "new": True}}
    with pytest.raises(CheckpointError) as caught:
        runs.trainer("gpt2", work, resume=out, identity=other).fit()
    for said in ("data.sha256: 'aaaa", "config.new: none then, True now", "config.targets: ["):
        assert said in str(caught.value)


def test_another_recipe_does_not_take_the_weights(work, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    with pytest.raises(CheckpointError, match=r"weights: blk\.0\.attn_k\.weight: expected \("):
        runs.trainer("from_scratch", work, resume=out, force=True).fit()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda path: (path / "complete.json").unlink(), "not a complete checkpoint"),
        (lambda path: os.truncate(path / "optimizer.safetensors", 100), "bytes; got 100"),
        (lambda path: flip(path / "model.safetensors"), "damaged: its checksum"),
        (lambda path: (path / "trainer_state.json").unlink(), "cannot read: No such file"),
        (lambda path: (path / "complete.json").write_text("[]"), "expected an object"),
        (lambda path: (path / "complete.json").write_text("{}"), "expected a table of files"),
        (lambda path: (path / "complete.json").write_text("{"), "cannot read"),
        (lambda path: marked(path, "../base.gguf", {"bytes": 1}), "not a file of a checkpoint"),
        (lambda path: marked(path, "/etc/passwd", {"bytes": 1}), "not a file of a checkpoint"),
        (lambda path: marked(path, "best/../../x", {"bytes": 1}), "not a file of a checkpoint"),
        (lambda path: marked(path, "model.safetensors", {"bytes": 1}), "expected bytes and crc32"),
        (lambda path: marked(path, "best/x", 3), "best/x: expected bytes"),
        (lambda path: shutil.rmtree(path / "best"), "cannot read: No such file"),
    ],
)
def test_a_broken_newest_checkpoint_is_passed_over_with_a_word(harm, why, work, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    harm(out / "checkpoint-12")
    (out / ".checkpoint-12.toynn-tmp-0123456789abcdef").mkdir()
    runs.trainer("gpt2", work, resume=out).fit()
    said = capsys.readouterr().err
    assert f"{out / 'checkpoint-12'}" in said and why in said and "the one before it" in said
    assert not list(out.glob(".*")), "strays, and the lock"
    assert_same(out, work / "gpt2")


def marked(path, name, entry):
    """Put a file into the table of a checkpoint's marker."""
    marker = json.loads((path / "complete.json").read_text())
    marker["files"][name] = entry
    (path / "complete.json").write_text(json.dumps(marker))


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def test_nothing_to_go_on_from(work, tmp_path):
    with pytest.raises(CheckpointError, match="no complete checkpoint in it"):
        runs.trainer("gpt2", work, resume=tmp_path).fit()
    with pytest.raises(CheckpointError, match="expected the folder of a run"):
        runs.trainer("gpt2", work, resume=tmp_path / "none").fit()
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        runs.trainer("gpt2", work, resume=tmp_path / "checkpoint-3").fit()


def test_data_without_a_state_cannot_be_resumed(work, tmp_path):
    recipe, data, _ = runs.gpt2(None)
    batches = [next(data) for _ in range(40)]
    out, kept = tmp_path / "out", {"steps": 4, "save_every": 2, "progress": False}
    toynn.train.Trainer(recipe, iter(batches), folder=out, **kept).fit()
    with pytest.raises(CheckpointError, match="a batch source needs a `state`"):
        toynn.train.Trainer(runs.gpt2(None)[0], iter(batches), resume=out, **kept).fit()
    checkpoint.prune(out, 2, 0)
    lists = {"resume": out, **kept}
    with pytest.raises(CheckpointError, match="a batch source needs a `state`"):
        toynn.train.Trainer(runs.gpt2(None)[0], batches, **lists).fit()
