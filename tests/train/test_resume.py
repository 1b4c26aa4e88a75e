"""Resuming: the same bits as a run that was never stopped, and what is not the same refused."""

import json
import math
import os
import shutil
import signal
import zlib
from dataclasses import dataclass

import pytest
import runs
from killing import go_on, killed_at_moments, killed_in_writing

import toynn
from toynn.data.batch import IGNORED
from toynn.errors import CheckpointError, ConfigError
from toynn.optim import AdamW, Schedule
from toynn.options import absent, option
from toynn.train import checkpoint
from toynn.train.options import LoopOptions
from toynn.train.trainer import find

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
    monkeypatch.setattr("toynn.backends.threads._chosen", threads)
    out = tmp_path / "out"
    with pytest.raises(Stop):
        runs.trainer(name, work, folder=out, on_step=stop_at(7)).fit()
    again = runs.trainer(name, work, resume=out)
    result = again.fit()
    assert (result.iterations, again.recipe.step_index) == (12, 36 // 3)
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


def state_of(folder):
    """Each file and folder below one: its bytes, and when it was last written."""
    paths = [folder, *folder.rglob("*")]
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in paths
    }


def test_differences_are_listed_and_refused_unless_forced(work, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    before = state_of(out)
    with pytest.raises(CheckpointError) as caught:
        runs.trainer("gpt2", work, resume=out, lr=0.02, max_grad_norm=None).fit()
    assert "training.max_grad_norm: 0.5 then, none now; " in str(caught.value)
    assert "training.schedule.lr_max: 0.01 then, 0.02 now" in str(caught.value)
    assert "force" in str(caught.value)
    assert state_of(out) == before
    result = runs.trainer("gpt2", work, resume=out, steps=14, lr=0.02, force=True).fit()
    assert result.iterations == 14 and (out / "checkpoint-14").is_dir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 11}, r"has taken 12 steps \(batches: 36\): .* got steps: 11; give more"),
        ({"steps": 11, "force": True}, "has taken 12 steps"),
        ({"steps": None, "epochs": 1}, r"has taken 12 steps .* got batches: 17; give more"),
        (
            {"steps": 13, "early_stopping": 2},
            "has ended early, after 2 evaluations without a better one",
        ),
        ({"grad_accum": 1}, "training.grad_accum: 3 then, 1 now"),
        ({"schedule": "linear"}, "training.schedule.name: 'cosine' then, 'linear' now"),
        ({"warmup": 2}, "training.schedule.warmup_steps: 1 then, 2 now"),
        ({"best_by": "perplexity"}, "training.best_by: 'loss' then, 'perplexity' now"),
        ({"schedule": lambda step: 0.01}, "training.schedule.name: 'cosine' then, 'a function'"),
    ],
)
def test_what_is_refused_changes_no_file(options, message, work, tmp_path):
    """Not even the folder's own time: it is refused before the folder is locked."""
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    before = state_of(out)
    with pytest.raises(CheckpointError, match=message):
        runs.trainer("gpt2", work, resume=out, **options).fit()
    assert state_of(out) == before


@pytest.mark.parametrize(
    "harm",
    [
        lambda state: state["plan"].update(steps="many"),
        lambda state: state["plan"].pop("schedule"),
        lambda state: state["plan"]["schedule"].update(name="up"),
        lambda state: state["feed"].pop("drawn"),
        lambda state: state.update(ranks=0),
        lambda state: state["loop"]["window"].pop("filling"),
    ],
)
def test_a_state_that_makes_no_sense_changes_no_file(harm, work, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    changed(out / "checkpoint-12", harm)
    before = {path: kept for path, kept in state_of(out).items() if path != str(out)}
    with pytest.raises((CheckpointError, ConfigError)):
        runs.trainer("gpt2", work, resume=out, force=True).fit()
    after = state_of(out)
    del after[str(out)]  # the lock was there, and went
    assert after == before


def test_a_state_that_was_saved_before_parts_had_a_filling_is_resumed(work, tmp_path):
    """And in which null stood for a loss that is not there yet."""
    out, options = tmp_path / "out", {"eval_every": 0, "save_every": 1}
    runs.trainer("gpt2", work, folder=tmp_path / "straight", **options).fit()
    with pytest.raises(Stop):
        runs.trainer("gpt2", work, folder=out, on_step=stop_at(2), **options).fit()

    def as_before(state):
        del state["loop"]["part"]["filling"], state["loop"]["tie_losses"]
        state["loop"] |= {"val_loss": None, "train_loss": None}

    changed(out / "checkpoint-1", as_before)
    result = runs.trainer("gpt2", work, resume=out, **options).fit()
    assert (result.iterations, result.val_loss) == (12, math.inf)
    assert_same(out, tmp_path / "straight")


def changed(path, change):
    """Change the state of a checkpoint, with its checksum."""
    file = path / "trainer_state.json"
    state = json.loads(file.read_text())
    change(state)
    file.write_text(json.dumps(state))
    entry = {"bytes": file.stat().st_size, "crc32": zlib.crc32(file.read_bytes())}
    marked(path, file.name, entry)


def test_other_weights_are_refused_and_no_file_changes(work, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    (out / ".stray.toynn-tmp-0123456789abcdef").write_text("of a kill")
    before = {path: kept for path, kept in state_of(out).items() if path != str(out)}
    with pytest.raises(CheckpointError, match="realize the recipe with the run's options"):
        runs.trainer("from_scratch", work, resume=out, force=True).fit()
    after = state_of(out)
    del after[str(out)]  # the lock was there, and went
    assert after == before


def test_another_level_is_a_difference(work, tmp_path, monkeypatch):
    out = tmp_path / "out"
    shutil.copytree(work / "gpt2", out)
    monkeypatch.setattr("toynn._kernels.level", "another")
    monkeypatch.setattr("toynn.backends.cpu.multiplies_in", dict)
    with pytest.raises(CheckpointError, match=r"ISA level: '\w+' then, 'another' now"):
        runs.trainer("gpt2", work, resume=out)
    runs.trainer("gpt2", work, resume=out, force=True)


@pytest.mark.parametrize("name", ["gpt2", "lora", "vit"])
def test_another_precision_is_a_difference(name, work, tmp_path, monkeypatch):
    """Of the products of the recipe that goes on, not of those to come."""
    out = tmp_path / "out"
    shutil.copytree(work / name, out)
    recipe, data, valid = runs.RECIPES[name](work / "base.gguf")
    monkeypatch.setattr("toynn.numerics.precision._chosen", "medium")
    options = {"valid": valid, "resume": out, **runs.OPTIONS}
    assert toynn.train.Trainer(recipe, data, **options).fit().iterations == 12
    before = state_of(out)
    with pytest.raises(CheckpointError, match=r"'highest.*' then, 'medium.*' now"):
        runs.trainer(name, work, resume=out).fit()
    assert state_of(out) == before
    runs.trainer(name, work, resume=out, steps=14, force=True).fit()
    runs.trainer(name, work, resume=out, steps=14).fit()  # and is what it now is


def test_what_a_cpu_multiplies_in_is_a_difference(work, tmp_path, monkeypatch):
    """Of the precision that the run has, alone."""
    out, lines = tmp_path / "out", {"highest": "float32", "medium": "bfloat16 (AMX)"}
    monkeypatch.setattr("toynn.backends.cpu.multiplies_in", lambda: lines)
    runs.trainer("gpt2", work, folder=out).fit()
    lines["medium"] = "float32"
    runs.trainer("gpt2", work, resume=out)
    lines["highest"] = "three parts"
    with pytest.raises(CheckpointError, match=r"'highest \(float32\)' then, 'highest \(three p"):
        runs.trainer("gpt2", work, resume=out)


@pytest.mark.parametrize("name", ALL)
def test_a_run_that_is_extended_can_itself_be_resumed(name, work, tmp_path):
    """From the first plan's end to another; both extended by the same."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for out in (whole, cut):
        shutil.copytree(work / name, out)
    assert runs.trainer(name, work, resume=whole, steps=19).fit().iterations == 19
    with pytest.raises(Stop):
        runs.trainer(name, work, resume=cut, steps=19, on_step=stop_at(17)).fit()
    assert (cut / "checkpoint-16").is_dir()
    assert runs.trainer(name, work, resume=cut, steps=19).fit().iterations == 19
    assert_same(cut, whole)
    assert runs.trainer(name, work, resume=cut, steps=24).fit().iterations == 24


def rates_of(folder):
    lines = metrics(folder)
    return {line["iteration"]: line["learning_rate"] for line in lines if "learning_rate" in line}


@pytest.mark.parametrize(
    ("schedule", "lines"),
    [
        ("cosine", ["cosine over all 20 steps: 0.0044 in step 13, where 12 steps had 0.001"]),
        ("linear", ["linear over all 20 steps: 0.00479 in step 13, where 12 steps had 0.001"]),
        ("wsd", ["wsd over all 20 steps: 0.01 in step 13, where 12 steps had 0.001"]),
        ("constant", ["constant: 0.01 as before in step 13", "and 0.01 in the last step"]),
        (lambda step: 0.01 / (step + 1), ["as the given function says"]),
    ],
)
def test_the_schedule_of_an_extended_run_is_that_of_all_steps(
    schedule, lines, work, tmp_path, capsys
):
    """The warm-up stays as it was, 1 step; a run of 20 steps has 2."""
    out, given = tmp_path / "out", {"schedule": schedule, "log_every": 1}
    runs.trainer("gpt2", work, folder=out, **given).fit()
    before = rates_of(out)
    capsys.readouterr()
    given["progress"] = True
    runs.trainer("gpt2", work, resume=out, steps=20, **given).fit()
    said, name = capsys.readouterr().err, schedule
    assert "extended    from 12 steps to 20; 12 are done\nrates       " in said
    for line in lines:
        assert line in said
    after = rates_of(out)
    assert {step: after[step] for step in before} == before and len(after) == 20
    if isinstance(name, str):
        schedule = Schedule(name, 0.01, 20, 1, 0.1)
    assert [after[step] for step in range(13, 21)] == [schedule(step) for step in range(12, 20)]


def test_a_run_that_was_stopped_is_extended_or_shortened_by_force(work, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(Stop):
        runs.trainer("gpt2", work, folder=out, on_step=stop_at(7)).fit()
    with pytest.raises(CheckpointError, match="steps: 12 then, 8 now; change"):
        runs.trainer("gpt2", work, resume=out, steps=8).fit()
    shutil.copytree(out, tmp_path / "short")
    assert runs.trainer("gpt2", work, resume=out, steps=14).fit().iterations == 14
    short = runs.trainer("gpt2", work, resume=tmp_path / "short", steps=8, force=True)
    assert short.fit().iterations == 8


def test_epochs_extend_a_run(work, tmp_path):
    """9 examples in batches of 2, by 3: an epoch has 4.5 batches, and the last update what is left.

    2 epochs are 9 batches, 3 updates; 3 are 14, and 5; 4 are 18, of which 4 are left: 7 updates.
    """
    whole, cut, once = (tmp_path / name for name in ("whole", "cut", "once"))
    options = {"steps": None, "save_every": 1}
    runs.trainer("lora", work, folder=whole, epochs=2, **options).fit()
    shutil.copytree(whole, cut)
    with pytest.raises(Stop):
        runs.trainer("lora", work, resume=cut, epochs=3, on_step=stop_at(5), **options).fit()
    for out in (whole, cut):
        assert runs.trainer("lora", work, resume=out, epochs=3, **options).fit().iterations == 5
    assert_same(cut, whole)
    with pytest.raises(CheckpointError, match=r"has taken 5 steps .*got batches: 9; give more"):
        runs.trainer("lora", work, resume=cut, epochs=2, **options)
    assert runs.trainer("lora", work, resume=cut, epochs=4, **options).fit().iterations == 7
    runs.trainer("lora", work, folder=once, epochs=4, **options).fit()
    drawn = [
        json.loads((max(out.glob("checkpoint-*")) / "trainer_state.json").read_text())["feed"]
        for out in (cut, once)
    ]
    assert drawn[0] == drawn[1] and drawn[0]["drawn"] == 18
    assert runs.trainer("lora", work, resume=cut, **options | {"steps": 9}).fit().iterations == 9


def test_epochs_with_batches_that_teach_nothing_keep_their_schedule(work, tmp_path):
    """They are drawn, and no step has them: fewer steps are taken than were planned."""
    _, data, _ = runs.gpt2(None)
    batches = [next(data) for _ in range(8)]
    for batch in batches[:3]:
        batch.labels[:] = IGNORED
    options = runs.OPTIONS | {"epochs": 2, "steps": None, "save_every": 1, "log_every": 1}

    def trainer(**more):
        return toynn.train.Trainer(runs.gpt2(None)[0], batches, **options, **more)

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert trainer(folder=whole).fit().iterations == 4
    with pytest.raises(Stop):
        trainer(folder=cut, on_step=stop_at(3)).fit()
    again = trainer(resume=cut)
    assert (again.fit().iterations, again.options.steps) == (4, 6)
    assert_same(cut, whole)


@pytest.mark.parametrize("save_every", [0, 5, 100])
def test_the_last_step_is_saved_where_any_is(save_every, work, tmp_path):
    out, options = tmp_path / "out", {"save_every": save_every, "steps": 7}
    runs.trainer("gpt2", work, folder=out, **options).fit()
    found = sorted(path.name for path in out.glob("checkpoint-*"))
    assert found == {0: [], 5: ["checkpoint-5", "checkpoint-7"], 100: ["checkpoint-7"]}[save_every]


def test_a_run_that_ended_early_is_saved_and_goes_on_with_more_patience(work, tmp_path):
    out, options = tmp_path / "out", {"eval_every": 1, "save_every": 100, "lr": 1.0}
    early = runs.trainer("gpt2", work, folder=out, early_stopping=1, **options).fit()
    assert early.stopped_early and early.iterations < 12
    assert runs.trainer("gpt2", work, resume=out, **options).fit().iterations == 12


@pytest.mark.parametrize("part", ["", "schedule", "optimizer"])
def test_a_checkpoint_from_before_there_was_a_field_means_its_default(part, work, tmp_path):
    """Of the loop, its schedule, its optimizer: each field that has its default may be missing."""
    out = tmp_path / "out"
    runs.trainer("gpt2", work, folder=out).fit()
    found = find(out)
    training = found.state["identity"]["training"]
    known = absent({"": LoopOptions, "schedule": Schedule, "optimizer": AdamW}[part])
    table = training[part] if part else training
    gone = {name for name, value in known.items() if name in table and table[name] == value}
    assert gone
    for name in gone:
        del table[name]
    resumed = runs.trainer("gpt2", work, resume=found, steps=13)
    assert resumed.fit().iterations == 13
    name = min(gone)
    table |= {each: known[each] for each in gone} | {name: "another"}
    with pytest.raises(CheckpointError, match=f"{name}: 'another' then, "):
        runs.trainer("gpt2", work, resume=found, steps=13)
    del table[name]  # what is not the default is a difference still
    other = {"schedule": {"schedule": "linear"}, "": {"grad_accum": 1}}.get(part)
    if other:
        with pytest.raises(CheckpointError, match=" then, "):
            runs.trainer("gpt2", work, resume=found, steps=13, **other)


def test_what_held_before_an_option_is_its_default():
    @dataclass
    class Bundle:
        GROUP = "x"
        needed: int = option("needed")
        old: int = 1
        new: int = option("new", 2)
        from_source: int = option("of the source", 3, source="may")

    assert absent(Bundle) == {"old": 1, "new": 2}


@pytest.mark.parametrize("name", ALL)
def test_what_changes_no_weight_may_differ(name, work, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(Stop):
        runs.trainer(name, work, folder=out, on_step=stop_at(7)).fit()
    options = {"log_every": 1, "eval_every": 4, "save_every": 5, "save_total_limit": 0}
    options |= {"early_stopping": 9, "on_nonfinite": "skip", "max_nonfinite": 1, "report": ()}
    runs.trainer(name, work, resume=out, **options).fit()
    kept = sorted(path.name for path in out.glob("checkpoint-*"))
    assert kept == ["checkpoint-10", "checkpoint-12", "checkpoint-4", "checkpoint-6"]
    ours, straight = runs.learned(out), runs.learned(work / name)
    weights = [path for path in straight if "best" not in path and "/" in path]
    assert len(weights) == 2 and all(ours[path] == straight[path] for path in weights)


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
    assert f"{out / 'checkpoint-12'}" in said and why in said and "the one before" in said
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
