"""report.html: well-formed, of any run, with nothing in it that a browser would load or run."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_recipe import FakeRecipe
from hang import HANG

from toynn.cli import _parser, main
from toynn.data.png import png
from toynn.data.text import RandomWindows, spaced_windows
from toynn.errors import CheckpointError, DataError, NonFiniteError
from toynn.runs import Record, write_report
from toynn.runs.chart import chart, log_ticks, short, thinned, ticks
from toynn.runs.commands import commands
from toynn.runs.html import tag
from toynn.runs.style import STYLE
from toynn.train.folder import to_toml
from toynn.train.trainer import Trainer

TEXT = np.frombuffer(b"the cat sat on the mat and the rat sat on the hat " * 20, np.uint8)
EVIL = '</pre><script src="http://evil/x.js">alert(1)</script>\x1b[31m\u202e"\'&\x00\ud800'
EMPTY = {"meta", "img", "line", "rect", "circle", "polyline", "br"}


class Page(HTMLParser):
    """A page that is taken apart: its tags must close in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words, self.styles = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in EMPTY:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.tags.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert name == self.open.pop()

    def handle_data(self, data):
        (self.styles if self.open[-1:] == ["style"] else self.words).append(data)

    @property
    def text(self):
        return "".join(self.words)

    @property
    def sections(self):
        return [given["id"] for name, given in self.tags if name == "section"]

    def check_alone(self):
        """It loads nothing and runs nothing."""
        names = {name for name, _ in self.tags}
        assert not names & {"script", "link", "iframe", "object", "base", "form", "a"}
        for name, given in self.tags:
            assert not [key for key in given if key.startswith("on")], name
            assert "href" not in given
            if "src" in given:
                assert given["src"].startswith("data:image/png;base64,")
        assert "url(" not in "".join(self.styles) and "@import" not in "".join(self.styles)
        policy = next(g["content"] for _, g in self.tags if "http-equiv" in g)
        assert policy.startswith("default-src 'none';")


def read(folder):
    found = Page((folder / "report.html").read_text("utf-8"))
    found.check_alone()
    return found


@pytest.fixture
def hostile(tmp_path):
    """A folder of a run in which every name and text is hostile."""
    folder = tmp_path / "<b>&run"
    folder.mkdir()
    plain = EVIL.replace("\ud800", "")
    tables = {
        "run": {"recipe": "vit", "version": "1"},
        "data": {"name": plain, "sha256": "ab", "classes": (plain, "b")},
        "model": {"d_model": 8},
        "train": {"steps": 20, "mixup": 0.2, "label_smoothing": 0.0, "model": plain},
    }
    (folder / "config.toml").write_text(to_toml(tables), "utf-8")
    reports = [{"iteration": 10 * k, "train_loss": 3.0 - k, "val_loss": 3.1 - k} for k in range(3)]
    reports[1] |= {"val_accuracy": 0.5, "learning_rate": 1e-3, "grad_norm": 2.0, EVIL: 1.5}
    reports[2] |= {"images_per_second": 12.5, "peak_memory": 10**8, "time": 61.0}
    lines = [json.dumps(report) for report in reports]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"iterat')
    (folder / "samples.jsonl").write_text(json.dumps({"iteration": 10, "text": EVIL}) + "\n")
    (folder / "sample.txt").write_bytes(b"\xff<script>" + EVIL.encode("utf-8", "replace"))
    (folder / "adapter.gguf").write_bytes(b"")
    row = {"op": EVIL, "calls": 3, "ms": 1.5, "share": 1.0}
    notes = {
        "state": "failed",
        "why": EVIL,
        "sessions": [{"command": EVIL, "started": EVIL, "from": 0}],
        "machine": {EVIL: EVIL},
        "sources": {"model": EVIL},
        "memory": {"weights": 10**6, "mapped": 10**9},
        "profile": [row] * 30,
        "said": [EVIL],
        "baselines": {EVIL: 2.0},
        "commonest": 0.5,
        "confusion": {"classes": [EVIL, "b"], "counts": [[3, 1], [0, 4]]},
        "pictures": [{"png": EVIL, "class": EVIL, "taken_for": "b"}],
        "prompts": [{"prompt": EVIL, "expected": EVIL, "before": EVIL, "after": EVIL}],
    }
    (folder / "run.json").write_text(json.dumps(notes) + "\n")
    return folder


def test_hostile_texts_stay_texts(hostile):
    assert write_report(hostile) == hostile / "report.html"
    page = read(hostile)
    assert page.sections == [
        *("curves", "what-it-wrote", "pictures-held-out", "confusion-matrix"),
        *("next-steps", "what-was-run", "memory", "time-by-op", "all-reports"),
    ]
    assert page.text.count('<script src="http://evil/x.js">') > 20
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", page.text)
    for words in ("<b>&run", "failed: ", "1.1000", "50.0%", "1:01", "mixup", "6 others", "1.0 MB"):
        assert words in page.text
    assert {
        "loss",
        "accuracy",
        "learning rate",
        "norm of the gradient",
        "speed, images a second",
    } <= {given["aria-label"].partition(":")[0] for name, given in page.tags if name == "svg"}


def test_notes_that_no_run_has_written(hostile):
    (hostile / "run.json").write_text('{"profile": [3], "sessions": "x"}')
    with pytest.raises(DataError, match=r"run\.json: expected what a run writes there; got"):
        write_report(hostile)
    (hostile / "metrics.jsonl").write_text("")
    with pytest.raises(DataError, match="expected reports of a run, one on each line"):
        write_report(hostile)


def trainer(folder, **more):
    data, valid = RandomWindows(TEXT, 2, 8, seed=0), spaced_windows(TEXT, 2, 8, 3)
    recipe = more.pop("recipe", None) or FakeRecipe(128)
    given = {"steps": 6, "log_every": 2, "eval_every": 2, "save_every": 3, "progress": False}
    return Trainer(recipe, data, valid=valid, lr=0.1, folder=folder, **given | more)


def test_each_end_of_a_run_has_its_report(tmp_path, capsys):
    trainer(tmp_path / "done").fit()
    assert "done" in read(tmp_path / "done").text

    def act(result):
        if result.iterations == 3:
            signal.raise_signal(signal.SIGTERM)

    trainer(tmp_path / "stopped", on_step=act).fit()
    assert "stopped: by SIGTERM" in read(tmp_path / "stopped").text
    trainer(None, resume=tmp_path / "stopped", command="go on").fit()
    again = read(tmp_path / "stopped")
    assert "go on" in again.text and again.text.count("from step") == 2
    assert ", from step 0" in again.text and ", from step 3" in again.text
    recipe = FakeRecipe(128)

    def fail(recipe):
        if recipe.steps == 4:
            raise NonFiniteError("a <NaN>")

    recipe.on_step = fail
    with pytest.raises(NonFiniteError):
        trainer(tmp_path / "failed", recipe=recipe).fit()
    assert "failed: NonFiniteError: step 4: a <NaN>" in read(tmp_path / "failed").text
    for report in trainer(tmp_path / "left"):
        if report.iteration == 4:
            break
    assert "stopped: GeneratorExit" in read(tmp_path / "left").text

    def full(report):
        raise OSError("a full <disk>")

    with pytest.raises(OSError, match="full"):
        trainer(tmp_path / "sink", on_report=[full]).fit()
    assert not (tmp_path / "sink").exists()  # nothing was trained
    after = [lambda report: report.iteration == 4 and full(report)]
    with pytest.raises(OSError, match="full"):
        trainer(tmp_path / "sink", on_report=after).fit()
    assert "failed: OSError: a full <disk>" in read(tmp_path / "sink").text
    assert trainer(None, resume=tmp_path / "sink").fit().iterations == 6
    trainer(tmp_path / "none", report=()).fit()
    assert not (tmp_path / "none" / "report.html").exists()
    assert main(["report", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'none' / 'report.html'}\n"
    assert "done" in read(tmp_path / "none").text


def test_the_report_of_a_run_that_was_killed(hostile):
    (hostile / "run.json").unlink()
    (hostile / "config.toml").unlink()
    write_report(hostile)
    page = read(hostile)
    assert "a script's run" in page.text and "running, or stopped before its end" in page.text
    assert "memory" not in page.sections


@pytest.mark.parametrize("files", [("adapter.gguf",), ("model.gguf",), ("model.safetensors",)])
def test_commands_are_those_that_there_are(files, hostile):
    (hostile / "adapter.gguf").unlink()
    (hostile / "checkpoint-3").mkdir()
    for name in (*files, "checkpoint-3/complete.json"):
        (hostile / name).write_bytes(b"")
    tables = tomllib.loads((hostile / "config.toml").read_text())
    tables["train"] |= {"steps": 40, "model": "a base.gguf"}
    (hostile / "config.toml").write_text(to_toml({k: tables[k] for k in ("run", "train")}))
    found = [command for _, command in commands(Record.read(hostile))]
    assert found[0] == f"toynn train --resume {shlex.quote(str(hostile))}"
    for command in found:
        program, *words = shlex.split(command)
        if program == "toynn" and words[0] != "train":  # whose words a file is read for
            _parser().parse_args(words)
    assert len(found) == {"adapter.gguf": 8, "model.gguf": 6, "model.safetensors": 4}[files[0]]


def test_ticks_are_round_and_reach_both_ends():
    assert ticks(0, 6) == [0, 2, 4, 6]
    assert ticks(2.3, 5.4) == [2, 3, 4, 5, 6]
    assert ticks(0.0001, 0.0031) == [0, 0.001, 0.002, 0.003, 0.004]
    assert len(ticks(7.0, 7.0)) > 1 and ticks(0, 0)
    assert [short(x) for x in (0, 3e-5, 0.25, 12000, 2.5e6, 2.5e7)] == [
        *("0", "3e-05", "0.25", "12k", "2500k", "25M")
    ]


def test_a_curve_is_drawn_to_scale_and_keeps_its_peaks():
    drawn = str(chart("loss", {"a": [(0, 0.0), (50, 4.0), (100, 1.0)]}))
    (points,) = re.findall(r'points="([^"]*)"', drawn)
    at = [tuple(map(float, pair.split(","))) for pair in points.split()]
    (x0, y0), (x1, y1), (x2, y2) = at
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert (y0 - y2) / (y0 - y1) == pytest.approx(1 / 4, abs=0.01)
    curve = [(k, 1.0) for k in range(10_000)]
    curve[1234], curve[8765] = (1234, 9.0), (8765, -9.0)
    kept = thinned(curve)
    assert len(kept) <= 400 and {(1234, 9.0), (8765, -9.0)} <= set(kept) and kept == sorted(kept)


def test_a_click_shows_a_logarithmic_scale():
    curve = {"training": [(0, 100.0), (50, 10.0), (100, 0.1)]}
    drawn = str(chart("loss", curve, {"bigram": 1.0}))
    head = '<figure><figcaption>loss</figcaption><details class="scale">'
    whole, plain = re.fullmatch(f"{head}(.*)</details>(<svg.*)</figure>", drawn).groups()
    assert whole.startswith("<summary>logarithmic scale</summary><svg ")
    assert 'class="logarithmic"' in whole and 'class="linear"' in plain
    assert ".scale[open] + .linear { display: none; }" in STYLE
    ys = [
        [float(pair.split(",")[1]) for pair in re.search(r'points="([^"]*)"', part)[1].split()]
        for part in (whole, plain)
    ]
    (a, b, c), (d, e, f) = ys
    assert (b - a) / (c - a) == pytest.approx(1 / 3, abs=0.01)
    assert (e - d) / (f - d) == pytest.approx(90 / 99.9, abs=0.01)
    level = float(re.search(r'y1="([\d.]+)"[^>]*class="level"', whole)[1])
    assert (level - a) / (c - a) == pytest.approx(2 / 3, abs=0.01)
    for bad in ({"a": [(0, 1.0), (5, 0.0)]}, {"a": [(0, 1.0), (5, -2.0)]}):
        assert "details" not in str(chart("margins", bad))
    assert "details" not in str(chart("loss", {"a": [(0, 1.0)]}, {"none": 0.0}))


def test_ticks_of_a_logarithmic_scale():
    assert log_ticks(0.1, 100.0) == [0.1, 1.0, 10.0, 100.0]
    assert log_ticks(1.5, 9.0) == [1.0, 2.0, 5.0, 10.0]
    assert log_ticks(2.0, 5.0) == [2.0, 5.0]
    for low, high in ((3.0, 3.0), (1.0, 1.0), (1e-300, 1e300), (0.7, 0.7000001), (1e-7, 2e-4)):
        found = log_ticks(low, high)
        assert found[0] <= low and found[-1] >= high and 2 <= len(found) <= 8
        assert found == sorted(set(found))


def test_a_png_is_what_pillow_reads(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")
    for channels in (1, 3):
        pixels = np.arange(5 * 7 * channels, dtype=np.uint8).reshape(5, 7, channels)
        (tmp_path / "a.png").write_bytes(png(pixels))
        with image.open(tmp_path / "a.png") as picture:
            found = np.asarray(picture).reshape(pixels.shape)
        np.testing.assert_array_equal(found, pixels)


def test_attributes_cannot_be_left():
    assert tag("td", title='"><b>') == '<td title="&quot;&gt;&lt;b&gt;"></td>'


@pytest.mark.slow
def test_a_browser_shows_it_and_asks_nobody(hostile, tmp_path):
    """Its page is laid out, and the browser's log has no address but its own."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("chromium is not installed")
    write_report(hostile)
    log, picture = tmp_path / "net.json", tmp_path / "page.png"
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}"]
    words += ["--window-size=800,1200", f"--screenshot={picture}"]
    url = (hostile / "report.html").as_uri()
    ran = subprocess.run([browser, *words, url], capture_output=True, timeout=HANG, check=False)
    if ran.returncode or not picture.exists():
        pytest.skip(f"chromium does not run here: {ran.stderr[-200:]!r}")
    assert "evil" not in log.read_text("utf-8", "replace")
    image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")
    with image.open(picture) as shown:
        pixels = np.asarray(shown.convert("L"))
    assert pixels.shape == (1200, 800)
    assert 0.01 < (np.abs(pixels.astype(int) - np.median(pixels)) > 60).mean() < 0.5  # letters


def test_what_tensorboard_reads(tmp_path):
    """A run that is left behind its checkpoint, and goes on, has each step once."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard, of the extra of that name, is not installed",
    )
    for report in trainer(tmp_path / "a", report=("tensorboard",)):
        if report.iteration == 4:  # the checkpoint is that of step 3
            break
    trainer(None, resume=tmp_path / "a", report=("tensorboard",)).fit()
    assert not (tmp_path / "a" / "report.html").exists()
    events = accumulator.EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    record = Record.read(tmp_path / "a")
    names = [name for name in record.names() if name != "iteration"]
    assert sorted(events.Tags()["scalars"]) == sorted(names)
    for name in names:
        found = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(step, pytest.approx(value)) for step, value in record.numbers(name)]
        assert found == expected, name
    assert [step for step, _ in record.numbers("train_loss")] == [2, 4, 6]


def test_tensorboard_that_is_missing_is_said_before_the_data(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    assert main(["train", "gpt2", "--data", "none.txt", "--report", "html,tensorboard"]) == 2
    assert "not installed: pip install tensorboard" in capsys.readouterr().err
    assert main(["train", "gpt2", "--report", "htm"]) == 2
    assert "of html, tensorboard, wandb, or none, once each; got 'htm'" in capsys.readouterr().err


class Wandb:
    """wandb, as far as it is used: by its reference."""

    class Error(Exception):
        pass

    def __init__(self):
        self.begun, self.logged, self.ended, self.failing = [], [], [], ""

    def init(self, *, project, name, dir, config, mode):
        if self.failing == "init":
            raise self.Error("no key")
        self.begun.append({"project": project, "name": name, "dir": dir, "mode": mode})
        json.dumps(config)
        (Path(dir) / "wandb" / "offline-run-1").mkdir(parents=True, exist_ok=True)
        return self

    def log(self, data, *, step):
        if self.failing == "log":
            raise OSError("disk full")
        self.logged.append((step, data))

    def finish(self, *, exit_code):
        self.ended.append(exit_code)


@pytest.fixture
def wandb(monkeypatch):
    fake = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setitem(sys.modules, "wandb.errors", SimpleNamespace(Error=fake.Error))
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return fake


def test_what_wandb_is_told(wandb, tmp_path, monkeypatch):
    """The figures of metrics.jsonl, and nothing leaves the machine unless it is asked for."""
    trainer(tmp_path / "a", report=("wandb", "html")).fit()
    at = {"name": "a", "dir": str(tmp_path / "a")}
    assert wandb.begun == [{"project": "toynn", "mode": "offline", **at}] and wandb.ended == [0]
    record = Record.read(tmp_path / "a")
    lines = [dict(report) for report in record.reports]
    assert [(line.pop("iteration"), line) for line in lines] == wandb.logged
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    trainer(tmp_path / "b", report=("wandb",)).fit()
    assert (wandb.begun[1]["mode"], wandb.begun[1]["project"]) == (None, None)  # as they say
    assert not (tmp_path / "b" / "report.html").exists()


def test_a_run_that_fails_is_so_at_wandb(wandb, tmp_path):
    def fails(result):
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        trainer(tmp_path / "a", report=("wandb",), on_step=fails).fit()
    assert wandb.ended == [1]
    for failing, why in (("init", "no key"), ("log", "disk full")):
        wandb.failing = failing
        path = tmp_path / failing
        with pytest.raises(CheckpointError, match=rf"{failing}: wandb cannot take .*: {why}"):
            trainer(path, report=("wandb",)).fit()
        assert not path.exists()


def test_wandb_that_is_missing_is_said_before_the_data(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", "gpt2", "--data", "none.txt", "--report", "wandb"]) == 2
    assert "not installed: pip install wandb" in capsys.readouterr().err
    assert main(["train", "gpt2", "--data", "none.txt", "--wandb"]) == 2
    assert "--wandb (did you mean --report?)" in capsys.readouterr().err


def test_the_callback_of_the_docs(monkeypatch):
    """The block in docs/looking.md, on a small recipe and a fake of the library."""
    calls = []
    fake = SimpleNamespace(
        init=lambda **given: calls.append(("init", given)),
        log=lambda figures, step: calls.append((step, figures)),
        finish=lambda: calls.append(("finish", None)),
    )
    monkeypatch.setitem(sys.modules, "trackio", fake)
    page = (Path(__file__).parents[2] / "docs" / "looking.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = [block for block in blocks if "trackio" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names = {}
    exec(code, names)
    data = RandomWindows(TEXT, 2, 8, seed=0)
    names["logged"](FakeRecipe(128), data, steps=4, log_every=2, progress=False)
    assert [call[0] for call in calls] == ["init", 0, 2, 4, "finish"]
    assert calls[0][1]["config"]["steps"] == 4
    assert calls[2][1]["train_loss"] > calls[3][1]["train_loss"] > 0


def test_what_a_notebook_shows(tmp_path):
    ran = trainer(tmp_path / "<i>")
    assert repr(ran).startswith("Trainer(") and repr(ran).endswith(", 0 of 6 steps)")
    result = ran.fit()
    assert re.fullmatch(
        r"Result\(6 steps, training [\d.]+, validation [\d.]+, best at step 6\)", repr(result)
    )
    shown = Page(result._repr_html_())
    assert [name for name, _ in shown.tags].count("tr") == 5 and "val_loss" in shown.text
    report = result.reports[-1]
    assert repr(report).startswith("Report(iteration=6, trained_tokens=96, time=")
    assert "None" not in repr(report)
    assert "val_loss" in Page(report._repr_html_()).text
