"""The loop on a fake recipe: what it calls, counts, reports, keeps; signals; the run folder."""

import errno
import io
import itertools
import json
import math
import os
import re
import select
import signal
import struct
import sys
import threading
import tomllib
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from itertools import count

import numpy as np
import pytest
from fake_recipe import FakeRecipe

from toynn.data.batch import IGNORED, Batch
from toynn.data.text import RandomWindows, spaced_windows
from toynn.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from toynn.system.printing import duration
from toynn.train.feed import Feed
from toynn.train.folder import RunFolder, to_toml, write_atomically
from toynn.train.interrupt import Interrupt
from toynn.train.loop import Best, Learner, Reported, Save, Stepped, train
from toynn.train.metrics import MetricsFile, Report
from toynn.train.options import LoopOptions
from toynn.train.progress import Progress, Reading
from toynn.train.state import Result

TOKENS = np.frombuffer(b"the cat sat on the mat and the rat sat on the cat " * 20, np.uint8)


class Adam:
    """Bias-corrected, as the real one; keeps the k it was asked for."""

    def __init__(self):
        self.asked = []

    def hp_for_step(self, k):
        self.asked.append(k)
        c1, c2 = (1 / (1 - beta ** (k + 1)) for beta in (0.9, 0.999))
        return np.array([1e-3, 0.9, 0.999, 1e-8, 0, c1, c2], np.float32)


class Loop:
    """A loop with all that it needs; ``run`` iterates it, and calls a sink with each event."""

    def __init__(self, recipe, batches, schedule, valid, measure, options, sinks):
        self.recipe, self.optimizer, self.sinks = recipe, Adam(), sinks
        self.valid, self.options, self.result = valid, LoopOptions(**options), Result()
        measure = measure or (lambda batch: {"loss": recipe.evaluate(batch)})
        self.model = Learner(recipe, self.optimizer, schedule, measure)
        self.feed = Feed(batches, per_update=self.options.grad_accum, valid=valid)

    def run(self):
        for event in train(self.model, self.feed, self.options, self.result):
            for kind, act in self.sinks:
                if isinstance(event, kind):
                    act(event)
        return self.result


def make_loop(
    recipe=None, batches=None, schedule=lambda k: 0.1, valid=True, measure=None, **options
):
    options = {"steps": 20, "log_every": 5, "eval_every": 10} | options
    recipe, kept = recipe or FakeRecipe(), options.pop("kept", [])
    return Loop(
        recipe,
        batches or RandomWindows(TOKENS, batch=2, seq=8, seed=0),
        schedule,
        spaced_windows(TOKENS, 2, 8, 3) if valid else (),
        measure,
        options,
        [(Best, lambda _: kept.append(recipe.engine.weights())), *options.pop("sinks", ())],
    )


def ignoring(batch):
    return Batch(batch.inputs, batch.positions, np.full_like(batch.labels, IGNORED))


def test_learns_and_reports():
    seen = []
    loop = make_loop(steps=23, sinks=[(Reported, lambda event: seen.append(event.report))])
    result = loop.run()
    reports = result.reports
    assert seen == reports
    assert [r.iteration for r in reports] == [0, 5, 10, 15, 20, 23]
    assert [r.iteration for r in reports if r.val_loss is not None] == [0, 10, 20, 23]
    assert reports[0].val_loss == pytest.approx(math.log(256), abs=1e-4)
    assert reports[0].train_loss is None
    assert reports[-1].val_loss == result.val_loss < 0.8 * reports[0].val_loss
    assert reports[-1].train_loss == result.train_loss < reports[1].train_loss
    assert [r.trained_tokens for r in reports] == [16 * r.iteration for r in reports]
    assert all(r.tokens_per_second > 0 and r.grad_norm > 0 for r in reports[1:])
    assert (result.iterations, result.best_iteration, result.interrupted) == (23, 23, False)
    assert 0 < reports[-1].time <= result.seconds


def test_schedule_and_bias_correction_reach_the_recipe():
    recipe = FakeRecipe()
    loop = make_loop(recipe, steps=3, schedule=lambda k: 0.5 / (k + 1))
    result = loop.run()
    assert loop.optimizer.asked == [0, 1, 2]
    assert [float(hp[0]) for hp in recipe.hps] == [0.5, 0.25, np.float32(0.5 / 3)]
    assert result.reports[-1].learning_rate == 0.5 / 3


def test_a_measure_adds_the_accuracy_and_its_loss_chooses_the_best(tmp_path):
    recipe, kept = FakeRecipe(), []
    losses = iter([4.0, 1.0, 3.0])

    def measure(batch):
        if batch is loop.valid[0]:
            measure.loss = next(losses)
        return {"loss": measure.loss, "accuracy": batch is loop.valid[0]}

    stream = io.StringIO()
    loop = make_loop(recipe, measure=measure, kept=kept)
    loop.valid[1].labels[3:] = IGNORED  # 16, 3 and 16 rows
    with (
        Progress(20, stream, unit="images") as progress,
        MetricsFile(tmp_path / "m", "images") as m,
    ):
        loop.sinks += [(Reported, lambda event: (progress(event.report), m.write(event.report)))]
        result = loop.run()
    assert [r.val_loss for r in result.reports if r.val_loss] == pytest.approx([4, 1, 3])
    assert result.reports[0].val_accuracy == pytest.approx(16 / 35)
    assert (result.best_iteration, len(kept)) == (10, 2)
    assert stream.getvalue().startswith("step  0/20  val 4.0000  accuracy 45.7%")
    assert " images/s" in stream.getvalue()
    line = json.loads((tmp_path / "m").read_text().splitlines()[-1])
    assert (line["trained_images"], line["val_accuracy"]) == (320, pytest.approx(16 / 35))
    assert line["images_per_second"] > 0


def test_clipping_is_handed_on_and_can_be_off():
    recipe = FakeRecipe()
    make_loop(recipe, steps=1, max_grad_norm=0.25).run()
    assert recipe.engine.session.max_grad_norm == 0.25
    make_loop(recipe, steps=1, max_grad_norm=None).run()
    assert recipe.engine.session.max_grad_norm is None


def test_accumulation_equals_one_large_batch():
    batches = list(itertools.islice(RandomWindows(TOKENS, 2, 8, seed=3), 12))
    for batch in batches[::3]:
        batch.labels[5:] = IGNORED  # so that a mean of means would differ
    groups = [batches[i : i + 3] for i in range(0, 12, 3)]
    joined = [
        Batch(*(np.concatenate(arrays) for arrays in zip(*group, strict=True))) for group in groups
    ]
    small, large = FakeRecipe(), FakeRecipe()
    result = make_loop(small, iter(batches), steps=4, grad_accum=3).run()
    expected = make_loop(large, iter(joined), steps=4).run()
    np.testing.assert_allclose(small.engine.table, large.engine.table, atol=1e-6)
    assert small.steps == 4
    assert result.train_loss == pytest.approx(expected.train_loss, rel=1e-6)
    assert result.trained_tokens == sum(batch.rows for batch in batches)


def test_same_seed_same_run():
    def tables():
        loop = make_loop()
        loop.run()
        return loop.recipe.engine.table.tobytes()

    assert tables() == tables()


def test_best_weights_are_kept_not_the_last():
    kept = []

    def spoil(recipe):
        if recipe.steps > 12:
            recipe.engine.table += np.random.default_rng(0).normal(0, 3, (256, 256))

    recipe = FakeRecipe()
    recipe.on_step = spoil
    result = make_loop(recipe, kept=kept).run()
    assert result.best_iteration == 10
    assert result.reports[-1].val_loss > result.val_loss
    assert len(kept) == 2
    assert not np.array_equal(kept[-1]["table.weight"], recipe.engine.table)


def test_without_validation_the_last_weights_are_kept():
    kept = []
    loop = make_loop(valid=False, kept=kept)
    result = loop.run()
    assert np.array_equal(kept[-1]["table.weight"], loop.recipe.engine.table)
    assert all(report.val_loss is None for report in result.reports)


def test_batches_without_labels_are_skipped_and_counted():
    source = list(itertools.islice(RandomWindows(TOKENS, 2, 8, seed=0), 4))
    batches = [ignoring(source[0]), source[0], source[1], ignoring(source[2]), source[3]]
    result = make_loop(batches=iter(batches), steps=3).run()
    assert (result.iterations, result.empty_batches, result.trained_tokens) == (3, 2, 48)


def test_data_without_any_label_is_refused():
    one = ignoring(next(RandomWindows(TOKENS, 2, 8, seed=0)))
    recipe = FakeRecipe()
    with pytest.raises(DataError, match="1000 batches without loss"):
        make_loop(recipe, itertools.repeat(one)).run()
    assert recipe.steps == 0


def poison(*steps):
    def act(recipe):
        if recipe.steps in steps:
            recipe.gradient[0, 0] = np.nan

    return act


def test_non_finite_gradient_stops_with_the_step():
    recipe, kept = FakeRecipe(), []
    recipe.on_step = poison(12)
    with pytest.raises(NonFiniteError, match=r"step 12: .*table\.weight.*lower learning rate"):
        make_loop(recipe, kept=kept).run()
    assert np.isfinite(recipe.engine.table).all()
    assert len(kept) == 2


def test_non_finite_gradients_can_be_skipped_up_to_a_count():
    recipe = FakeRecipe()
    recipe.on_step = poison(1, 7)
    loop = make_loop(recipe, on_nonfinite="skip", max_nonfinite=2)
    result = loop.run()
    assert (result.iterations, result.skipped_updates) == (20, 2)
    assert loop.optimizer.asked[:9] == [0, 0, 1, 2, 3, 4, 5, 5, 6]  # t counts updates
    assert result.trained_tokens == 18 * 16
    assert [r.skipped_updates for r in result.reports] == [None, 1, 2, 2, 2]

    recipe = FakeRecipe()
    recipe.on_step = poison(1, 7, 8)
    with pytest.raises(NonFiniteError, match=r"step 8: .*; 2 updates were skipped before"):
        make_loop(recipe, on_nonfinite="skip", max_nonfinite=2).run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number from 1 to 2147483647; got 0"),
        ({"grad_accum": 0}, "grad_accum must be a whole number from 1"),
        ({"log_every": -1}, "log_every must be a whole number from 1"),
        ({"eval_every": -1}, "eval_every must be a whole number from 0"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be .*, or None; got -1.0"),
        ({"max_grad_norm": math.nan}, "max_grad_norm must be a number of at least 0, or None"),
        ({"steps": "3"}, "steps must be a whole number from 1 to 2147483647; got '3'"),
        ({"steps": True}, "steps must be a whole number"),
        ({"log_every": None}, "log_every must be a whole number"),
        ({"best_by": "loss,speed"}, "best_by must be of loss, perplexity, .*once each; got"),
        ({"on_nonfinite": "ignore"}, "on_nonfinite must be one of stop, skip; got 'ignore'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        make_loop(**options)


def test_a_norm_of_0_is_none():
    assert LoopOptions(steps=1, max_grad_norm=0).max_grad_norm is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_finishes_the_step_and_saves(number, capfd):
    recipe, kept = FakeRecipe(), []
    recipe.on_step = lambda recipe: recipe.steps == 7 and signal.raise_signal(number)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    result = make_loop(recipe, kept=kept).run()
    assert (result.iterations, recipe.steps, result.interrupted) == (7, 7, True)
    assert result.reports[-1].iteration == result.best_iteration == 7
    assert np.array_equal(kept[-1]["table.weight"], recipe.engine.table)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert "finishing the step" in capfd.readouterr().err


@pytest.mark.parametrize("better", [True, False])
def test_a_long_evaluation_is_cut_short_after_a_signal(better, monkeypatch):
    monkeypatch.setattr("toynn.train.loop.PATIENCE", 0.0)
    recipe, kept, measured = FakeRecipe(), [], []

    def measure(batch):
        """The later the batch, the larger its loss: a mean over some compares with no other."""
        if recipe.steps == 7 and not measured:
            signal.raise_signal(signal.SIGINT)
        place = len(measured) % 3
        measured.append(place)
        return {"loss": 10.0**place + (recipe.steps == 7) * (-0.5 if better else 0.5)}

    recipe.on_step = lambda recipe: recipe.steps == 7 and measured.clear()
    result = make_loop(recipe, kept=kept, measure=measure, eval_every=7).run()
    assert measured == [0]  # one batch: the first, within which the signal came
    assert (recipe.steps, result.iterations, result.interrupted) == (7, 7, True)
    assert len(kept) == 1 + better
    assert result.best_iteration == (7 if better else 0)
    assert result.val_loss == pytest.approx(0.5 if better else (1 + 10 + 100) / 3, rel=0.1)


def test_an_evaluation_has_a_batch_however_late_it_begins(monkeypatch):
    """As on a machine that is so busy that its patience is over at once."""
    recipe = FakeRecipe()

    def stop(recipe):
        if recipe.steps == 7:
            signal.raise_signal(signal.SIGINT)
            monkeypatch.setattr("toynn.train.loop.PATIENCE", -1.0)

    recipe.on_step = stop
    result = make_loop(recipe, eval_every=7).run()
    assert (result.iterations, result.interrupted) == (7, True)
    assert result.reports[-1].val_loss == pytest.approx(result.val_loss)
    assert len(result.best_losses) == 1 and result.best_iteration == 7


def test_a_signal_within_a_short_evaluation_lets_it_end_and_takes_no_further_step():
    recipe, kept = FakeRecipe(), []

    def measure(batch):
        if recipe.steps == 10:
            signal.raise_signal(signal.SIGINT)
            recipe.steps = -1
        return {"loss": recipe.evaluate(batch)}

    result = make_loop(recipe, kept=kept, measure=measure).run()
    assert (recipe.steps, result.iterations, result.interrupted) == (-1, 10, True)
    whole = make_loop(steps=10).run()
    assert result.val_loss == whole.val_loss and result.best_iteration == 10


def signalled_at(line, **options):
    """Run a loop whose ``train`` gets a SIGINT before its line number ``line`` is carried out.

    Return the result, the iterations of the saved states, and the number of lines.
    """
    saved, loop, lines = [], make_loop(**options), 0
    loop.sinks.append((Save, lambda event: saved.append(event.state["loop"]["iterations"])))

    def local(frame, event, argument):
        nonlocal lines
        if event == "line" and loop.model.ranks.interrupt._entered:
            lines += 1
            if lines == line:
                signal.raise_signal(signal.SIGINT)
        return local

    sys.settrace(lambda frame, *_: local if frame.f_code is train.__code__ else None)
    try:
        return loop.run(), saved, lines
    finally:
        sys.settrace(None)


def test_a_signal_between_any_lines_is_followed_by_a_save(capfd):
    options = {"steps": 4, "log_every": 1, "eval_every": 2, "save_every": 3}
    whole, _, lines = signalled_at(0, **options)
    assert whole.iterations == 4 and lines > 60
    stopped = set()
    for line in range(1, lines + 1):
        result, saved, _ = signalled_at(line, **options)
        if result.interrupted and result.iterations:
            assert saved[-1] == result.iterations, f"line {line} of {lines}"
            stopped.add(result.iterations)
    assert stopped == {1, 2, 3, 4}


def test_a_sink_that_fails_or_a_closed_loop_gives_the_signals_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def fail(event):
        raise OSError("a full disk")

    with pytest.raises(OSError, match="a full disk"):
        make_loop(sinks=[(Stepped, fail)]).run()
    loop = make_loop()
    events = train(loop.model, loop.feed, loop.options, loop.result)
    assert any(isinstance(event, Stepped) for event in events)
    assert signal.getsignal(signal.SIGINT) != before[0]
    events.close()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert loop.result.iterations == 1


def test_a_sink_cannot_change_what_the_loop_carries_on():
    def spoil(event):
        assert event.state["loop"]["best_losses"]
        for name in ("best_losses", "window", "part"):
            event.state["loop"][name].clear()
        event.state["feed"].clear()

    options = {"save_every": 5, "best_by": "loss,perplexity"}
    plain, spoiled = make_loop(**options), make_loop(sinks=[(Save, spoil)], **options)
    assert spoiled.run().state() | {"seconds": 0} == plain.run().state() | {"seconds": 0}
    assert np.array_equal(plain.recipe.table, spoiled.recipe.table)
    with pytest.raises(FrozenInstanceError):
        Stepped(1.0).seconds = 2.0


@pytest.mark.parametrize("at", [3, 5, 10])
def test_a_saved_state_continues_in_another_loop(at):
    """Through JSON, as a checkpoint has it; the recipe stays as it is."""
    kept, options = [], {"save_every": at, "log_every": 4, "eval_every": 5, "valid": True}
    whole = make_loop(**options).run()
    stop = (Stepped, lambda _: first.result.iterations == at and signal.raise_signal(signal.SIGINT))
    first = make_loop(sinks=[stop, (Save, lambda event: kept.append(event.state))], **options)
    first.run()
    state = json.loads(json.dumps(kept[-1]))
    second = make_loop(first.recipe, **options)
    second.feed.state, second.result = state["feed"], Result.of(state["loop"])
    resumed = second.run()
    assert resumed.val_loss == whole.val_loss and resumed.train_loss == whole.train_loss
    assert resumed.best_losses == whole.best_losses
    assert [r.train_loss for r in resumed.reports] == [
        r.train_loss for r in whole.reports if r.iteration >= at and r.train_loss is not None
    ]


def test_second_signal_is_left_to_the_system(capfd):
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_ignored_signal_stays_ignored():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert not interrupt.requested
    finally:
        signal.signal(signal.SIGINT, previous)


def test_loop_runs_in_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(make_loop(steps=2).run()))
    thread.start()
    thread.join()
    assert results[0].iterations == 2


def test_metrics_file_has_one_object_per_report(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.write(Report(iteration=0, trained_tokens=0, time=0.5, val_loss=5.5))
        metrics.write(Report(iteration=1, trained_tokens=8, time=1.0, train_loss=math.nan))
        first, second = path.read_text().splitlines()  # flushed, though still open
    assert json.loads(first) == {"iteration": 0, "trained_tokens": 0, "time": 0.5, "val_loss": 5.5}
    assert json.loads(second)["train_loss"] is None


def test_plain_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    with Progress(20, stream) as progress:
        shown = (Reported, lambda event: progress(event.report))
        make_loop(sinks=[shown, (Stepped, lambda event: progress.step())]).run()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0] == "step  0/20  val 5.5452"
    assert lines[1].startswith("step  5/20  loss ")
    assert "tokens/s  ETA 0:0" in lines[1]
    assert "val" in lines[2]
    assert "ETA" not in lines[4]


def test_what_does_not_fit_is_left_out():
    """A line has 80 columns; the time that is left is of steps, and of evaluations to come."""
    stream = io.StringIO()
    times = iter([0, 5, 11, 13, 14, 15, *[25] * 9])  # begin; evaluate, report; 3 steps; report
    full = {"train_loss": 2.0, "val_loss": 2.5, "learning_rate": 1e-3, "grad_norm": 1.5}
    others = {"val_base/kl": 0.25, "val_base/same_top": 0.5, "val_text/perplexity": 12.5}
    full |= {"tokens_per_second": 12345.0, "examples": 1234, "filled": 0.9, "skipped_updates": 2}
    with Progress(1500, stream, "tokens", 0, 8.0, 500, times.__next__) as progress:
        progress.evaluating(0, 16)
        progress(Report(0, 0, 11.0, val_loss=5.5))
        for _ in range(3):
            progress.step()
        progress.evaluating(0, 16)
        progress(Report(500, 9, 15.0, **full))
        progress(Report(501, 9, 16.0, **full, figures=others))
        progress(Report(1500, 9, 17.0, val_loss=2.5, figures=others))
    first, second, third, fourth = stream.getvalue().splitlines()
    assert first == "step    0/1500  val 5.5000"
    # 1000 steps of 4/3 seconds, and two evaluations of (6 + 0) / 2
    assert second == ("step  500/1500  loss 2.0000  val 2.5000  lr 1.0e-03  skipped 2  ETA 22:19")
    assert "kl 0.2500" in third and "lr" not in third and len(third) <= 80
    assert fourth == "step 1500/1500  val 2.5000  perplexity 12.50  kl 0.2500  same top 50.0%"


def test_the_speed_says_that_it_counts_tokens_with_loss():
    stream = io.StringIO()
    with Progress(20, stream) as progress:
        progress(Report(1, 9, 1.0, tokens_per_second=34.0, tokens=90, learned_tokens=9))
        progress(Report(2, 9, 1.0, tokens_per_second=34.0))
    assert stream.getvalue().splitlines() == [
        "step  1/20  34 tokens/s with loss",
        "step  2/20  34 tokens/s",
    ]


def test_a_report_without_figures_prints_no_line():
    stream = io.StringIO()
    with Progress(20, stream) as progress:
        progress(Report(iteration=0, trained_tokens=0, time=0.0))
    assert stream.getvalue() == ""


def test_a_sample_is_shown_without_what_a_terminal_would_obey():
    stream = io.StringIO()
    with Progress(20, stream) as progress:
        progress.sample(5, "once\x1b[2J upon\u202e\na time")
    assert stream.getvalue() == "--- sample, step 5 ---\nonce\ufffd[2J upon\ufffd\na time\n---\n"


def test_reading_of_much_data_is_shown_by_tenths():
    stream, little = io.StringIO(), io.StringIO()
    size = 2**24
    with Reading(stream) as reading:
        for _ in range(2):  # of two files
            for part in range(1, 21):
                reading(part * size // 20, size)
    with Reading(little) as reading:
        reading(1000, 1000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 20 and lines[0] == "tokens      10 % of 16.8 MB are read"
    assert little.getvalue() == ""


@contextmanager
def terminal(columns):
    """A pseudo-terminal; yield its stream, and a function that reads what was written to it."""
    fcntl, pty, termios = map(pytest.importorskip, ("fcntl", "pty", "termios"))
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def read():
        shown = b""
        while select.select([main], [], [], 0.1)[0]:
            shown += os.read(main, 65536)
        return shown.decode()

    with open(other, "w") as stream:
        yield stream, read
    os.close(main)


def reported(stream, below, warn=lambda progress: None):
    given = {"per_epoch": 8, "eval_every": 5, "clock": count(0, 0.25).__next__, "below": below}
    with Progress(20, stream, **given) as progress:
        progress.step()
        progress(Report(5, 40, 1.0, train_loss=3.5, val_loss=2.25, tokens_per_second=99.5))
        progress.evaluating(2, 16)
        warn(progress)
        progress(Report(10, 80, 2.0, train_loss=2.5, tokens_per_second=1234.5))


def lines(shown):
    """What a terminal shows of lines that have ended: behind the last return to their begin."""
    return [line.rstrip("\r").rpartition("\r")[2] for line in shown.split("\n")]


FIRST = "step  5/20  loss 3.5000  val 2.2500  100 tokens/s  epoch 0.62  ETA 0:04"
SECOND = "step 10/20  loss 2.5000  1,234 tokens/s  epoch 1.25  ETA 0:03"
NARROW = "step 10/20  loss 2.5000  ETA 0:03"
BAR = "loss 2.5000  val 2.2500  1,234 tokens/s  epoch 1.25  ETA 0:03]"


def test_on_a_terminal_losses_stay_above_the_bar():
    with terminal(100) as (stream, read):

        def warn(progress):
            with progress.above():
                print("toynn: a warning", file=stream, flush=True)

        reported(stream, stream, warn)
        shown = read()
    assert lines(shown)[:3] == [FIRST, "toynn: a warning", SECOND]
    assert BAR in shown.split("\n")[-2]
    assert "5%|" in shown and "evaluating 3/16" in shown
    assert max(map(len, re.split(r"[\r\n]+", shown))) <= 100


def test_lines_are_as_wide_as_the_terminal():
    with terminal(40) as (stream, read):
        reported(stream, io.StringIO())
        assert lines(read()) == ["step  5/20  loss 3.5000  val 2.2500", NARROW, ""]


def test_a_bar_beside_losses_that_go_to_a_file():
    stream = io.StringIO()
    with terminal(100) as (below, read):
        reported(stream, below)
        shown = read()
    assert stream.getvalue().splitlines() == [FIRST, SECOND]
    assert BAR in shown and "step" not in shown


def test_no_bar_on_a_terminal_that_does_not_know_its_width():
    with terminal(0) as (stream, read):
        reported(stream, stream)
        assert lines(read()) == [FIRST, SECOND, ""]


def test_each_line_can_be_read_at_once():
    class Kept(io.StringIO):
        read_so_far = ""

        def flush(self):
            self.read_so_far = self.getvalue()

    stream = Kept()
    with Progress(20, stream) as progress:
        for step, text in ((5, "loss 2.0000"), (10, "loss 1.0000")):
            progress(Report(step, step, 1.0, train_loss=10.0 / step))
            assert stream.read_so_far.endswith(f"{text}\n")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_toml_round_trip():
    tables = {
        "run": {"recipe": "gpt2", "path": 'a "b"\\\n\x7f\x01é\U0001f600', "on": True},
        "train": {"steps": 10, "lr": 1e-05, "large": 1e22, "none": None},
    }
    again = tomllib.loads(to_toml(tables))
    del tables["train"]["none"]
    assert again == tables
    tomllib.loads(to_toml({"data": {"path": os.fsdecode(b"\xff.txt")}}))


def test_folder_refuses_to_be_shared(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b")
    folder.model.write_bytes(b"weights")
    assert folder.best_files() == [folder.model]
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "model.safetensors"]
    with pytest.raises(ConfigError, match="already exists"):
        RunFolder(folder.path)
    with pytest.raises(ConfigError, match="cannot make the run folder: Not a directory"):
        RunFolder(folder.model / "run")


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"a: cannot write 3 bytes \(\d+ bytes free\): No sp"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("best_by", "best"), [("loss", 10), ("accuracy", 20), ("loss,kl", 10)])
def test_the_best_is_chosen_by_the_first_measure(best_by, best):
    figures = iter([(3.0, 0.1, 1.0), (1.0, 0.2, 2.0), (2.0, 0.9, 3.0)])

    def measure(batch):
        if batch is loop.valid[0]:
            measure.now = next(figures)
        return dict(zip(("loss", "accuracy", "base/kl"), measure.now, strict=True))

    loop = make_loop(measure=measure, best_by=best_by, early_stopping=2)
    result = loop.run()
    assert result.best_iteration == best
    assert result.val_loss == pytest.approx({10: 1.0, 20: 2.0}[best])
    assert result.reports[0].figures == {"val_base/kl": 1.0}


@pytest.mark.parametrize(
    ("losses", "best", "steps"),
    [
        ((3.0, 2.0, 1.0), 20, 20),  # the lower loss is better: the run goes on
        ((3.0, 1.0, 2.0), 10, 20),
        ((2.0, 3.0, 1.0), 0, 10),
        ((2.0, 2.0, 1.0), 10, 10),  # equal: the later one is kept, but the run is not better
    ],
)
def test_of_equal_metrics_the_lower_loss_is_better_and_then_the_later_step(losses, best, steps):
    figures = iter(losses)

    def measure(batch):
        if batch is loop.valid[0]:
            measure.now, measure.shares = next(figures), [0.1, 0.2, 0.3]
        # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in their last bit
        return {"loss": measure.now, "accuracy": measure.shares.pop(-(measure.now == 2))}

    kept = []
    loop = make_loop(measure=measure, best_by="accuracy", early_stopping=1, kept=kept)
    result = loop.run()
    assert (result.best_iteration, result.iterations) == (best, steps)
    assert result.val_loss == losses[best // 10]
    assert np.array_equal(kept[-1]["table.weight"], loop.recipe.engine.table) == (best == steps)


def test_a_measure_that_an_evaluation_lacks_is_named():
    with pytest.raises(
        ConfigError, match="best_by loss,kl: an evaluation has no base/kl; it has l"
    ):
        make_loop(best_by="loss,kl").run()
    with pytest.raises(ConfigError, match=r"best_by must be of loss, perplexity, .*; got 'bleu'"):
        LoopOptions(1, best_by="bleu")
    with pytest.raises(ConfigError, match=r"kl,loss: kl .* least before training.* put kl second"):
        LoopOptions(1, best_by="kl,loss")
