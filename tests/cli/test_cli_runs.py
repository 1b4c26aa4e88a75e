"""``toynn runs`` and ``toynn plot``: what runs came to, in a table and in charts."""

import json
import re
import sys
from importlib.util import find_spec

import pytest

from toynn.cli import main
from toynn.cli._info import _reached
from toynn.cli.runs import NAMES
from toynn.runs import Record, write_report
from toynn.runs.series import PLAIN, series
from toynn.train.options import METRICS

needs_plotext = pytest.mark.skipif(
    find_spec("plotext") is None, reason="plotext, of the plot extra, is not installed"
)


def legend(chart):
    """The names of a chart's curves, each with its mark."""
    return re.findall(r"\u2502 ([*o+x#@%&] [^\u2502]*[^\u2502 ]) +\u2502", chart)


def write(folder, losses, vals=(), recipe="gpt2", steps=40, unit="tokens"):
    """Write the folder of a run with these losses, every 10 steps."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'[run]\nrecipe = "{recipe}"\n[train]\nsteps = {steps}\n')
    lines = []
    for k, loss in enumerate(losses):
        report = {"iteration": 10 * k, "time": 5.0 * k, "train_loss": loss}
        report |= {"learning_rate": 1e-3, f"{unit}_per_second": 100.0 + k}
        if k < len(vals):
            report["val_loss"] = vals[k]
        lines.append(json.dumps(report))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"iteration": 9')  # killed
    return folder


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs" / "one", [4.0, 3.0, 2.5, 2.0, 1.5], [4.1, 3.5, 2.75])
    write(tmp_path / "runs" / "two", [5.0, 1.0, None], recipe="lora", unit="pairs")
    (tmp_path / "runs" / "none").mkdir()
    return tmp_path / "runs"


def test_a_table(runs, capsys):
    assert main(["runs"]) == 0
    head, one, two = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "run",
        "recipe",
        "steps",
        "train",
        "loss",
        "val",
        "loss",
        "best",
        "at",
        "time",
    ]
    assert one.split() == ["runs/one", "gpt2", "40/40", "1.5000", "2.7500", "20", "0:20"]
    assert two.split() == ["runs/two", "lora", "20/40", "1.0000", "-", "-", "0:10"]
    assert main(["runs", "--sort", "train", "--json", str(runs)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["train"] for row in rows] == [1.0, 1.5]
    assert main(["runs", "--sort", "val", str(runs / "two"), str(runs / "one")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(str(runs / "one"))


@pytest.mark.parametrize(
    ("room", "head"),
    [
        (0, "run recipe steps train loss val loss best at time"),
        (75, "run recipe steps train loss val loss best at time"),
        (74, "run steps train loss val loss best at time"),
        (61, "run steps train loss val loss best at"),
        (60, "run steps train loss val loss"),
        (50, "run steps val loss"),
        (30, "run steps val loss"),
    ],
)
def test_a_table_is_as_wide_as_the_terminal(runs, capsys, monkeypatch, room, head):
    (runs / "one").rename(runs / "one-of-a-long-name")
    monkeypatch.setattr("toynn.cli.runs.columns", lambda stream: room)
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == head.split()
    assert lines[1].split()[0] == "runs/one-of-a-long-name"
    assert room in (0, 30) or max(map(len, lines)) <= room


def test_a_long_name_keeps_its_end(runs, capsys, monkeypatch):
    (runs / "one").rename(runs / "a-name-that-is-longer-than-all-others-20261123-070550")
    monkeypatch.setattr("toynn.cli.runs.columns", lambda stream: 80)
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("...") and lines[1].split()[0].endswith("-others-20261123-070550")


def test_the_best_is_told_by_what_chose_the_weights(runs, capsys):
    folder = runs / "one"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[:-1]]
    for report, accuracy in zip(lines, (0.5, 0.75, 0.75), strict=False):
        report["val_accuracy"] = accuracy
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    by = {"metric": "accuracy", "figure": "val_accuracy", "more": True}
    for noted, step, loss in ((by, 20, 2.75), (by | {"step": 0}, 0, 4.1)):
        (folder / "run.json").write_text(json.dumps({"best_by": noted}))
        assert Record.read(folder).best() == (step, loss)
        assert main(["runs", str(folder)]) == 0
        assert f"{loss:.4f}  {step} by accuracy  0:20" in capsys.readouterr().out
        page = write_report(folder).read_text()
        assert f"validation loss, best by accuracy, at step {step}" in page
    assert ("  validation loss", "4.1000 at step 0, the best by accuracy") in _reached(folder, 40)


@needs_plotext
def test_a_chart_in_the_terminal(runs, capsys):
    assert main(["plot", "runs/one", "runs/two"]) == 0
    chart = capsys.readouterr().out
    lines = chart.splitlines()
    assert max(map(len, lines)) <= 80 and "\x1b" not in chart
    assert legend(chart) == ["* one loss", "o one val", "+ two loss"]
    top, bottom = lines[1], lines[-3]
    assert top.startswith("5")  # where the second run begins
    assert bottom.startswith("1") and "+" in bottom
    steps = [float(each) for each in lines[-1].split()]
    assert (steps[0], steps[-1]) == (0, 40)
    assert main(["plot", "runs/two", "--what", "speed"]) == 0
    assert legend(capsys.readouterr().out) == ["* two speed"]


@needs_plotext
def test_a_chart_in_a_narrow_terminal(runs, capsys, monkeypatch):
    monkeypatch.setattr("toynn.cli.runs.columns", lambda stream: 40)
    assert main(["plot", "runs/one"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) == 40


def test_a_chart_without_plotext_says_what_to_install(runs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotext", None)
    assert main(["plot", "runs/one"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert 'pip install "plotext>=6"; report.html in a run\'s folder shows' in printed.err


def test_a_number_that_no_float_is_near_is_none(runs):
    path = runs / "one" / "metrics.jsonl"
    lines = path.read_text() + f'\n{{"iteration": 99, "train_loss": 1{"0" * 400}}}\n'
    path.write_text(lines + f'{{"iteration": 1{"0" * 400}, "train_loss": 1}}')
    points = Record.read(runs / "one").numbers("train_loss")
    assert points and 99 not in dict(points) and max(points)[0] < 99


@needs_plotext
@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324])
def test_numbers_that_no_chart_can_scale_to_are_left_out(runs, value, capsys):
    report = {"iteration": 99, "train_loss": value, "tokens_per_second": value}
    with (runs / "one" / "metrics.jsonl").open("a") as file:
        file.write(f"\n{json.dumps(report)}\n{json.dumps(report | {'train_loss': -value})}\n")
    assert main(["report", "runs/one"]) == 0
    for name in ("loss", "speed"):
        assert main(["plot", "runs/one", "--what", name]) == 0


def test_what_cannot_be_shown(runs, capsys):
    (runs / "bad").mkdir()
    (runs / "bad" / "metrics.jsonl").write_text("no JSON\n")
    for words, message in (
        (["runs", "nowhere"], "nowhere: expected a folder of runs; no such folder exists"),
        (
            ["runs", "runs/none"],
            "runs/none: expected run folders, which have metrics.jsonl; got none",
        ),
        (["plot", "runs/none"], "runs/none: expected the folder of a run, with metrics.jsonl\n"),
        (["plot", "runs"], "runs: expected the folder of a run, with metrics.jsonl, such as runs/"),
        (["report", "runs"], "the folder of a run, with metrics.jsonl, such as runs/"),
        (["plot", "runs/bad"], "expected reports of a run, one on each line"),
        (["plot", "runs/one", "--what", "accuracy"], "no run here has accuracy"),
        (["plot", "runs/one", "--out", "a.png"], "unrecognized arguments: --out"),
        (
            ["plot", "runs/one", "--what", "foo"],
            "no run here has foo in its metrics.jsonl; there are time, loss, lr, speed, val",
        ),
        (["plot", "runs/one", "--what", "loss", "spede"], "has spede in its metrics.jsonl (did "),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


@needs_plotext
def test_each_quantity_has_a_chart_of_its_own(runs, capsys):
    assert main(["plot", "runs/one", "--what", "loss", "val", "lr"]) == 0
    losses, rates = capsys.readouterr().out.split("\n\n")
    assert legend(losses) == ["* one loss", "o one val"] and legend(rates) == ["* one lr"]


FIGURES = {
    "val_base/kl": "kl",
    "val_base/same_top": "same_top",
    "rewards/margins": "margins",
    "val_rewards/margins": "margins",
    "logps/chosen": "chosen",
    "val_accuracy": "accuracy",
    "val_accuracy/normalized": "accuracy-normalized",
    "val_text/perplexity": "perplexity",
    "val_stop/loss": "stop",
    "val_rest/loss": "rest",
    "val_loss/poems": "poems",
    "peak_memory": "memory",
    "grad_norm": "norm",
    "filled": "filled",
    "a script's own": "a script's own",
}


@pytest.fixture
def figures(runs):
    """The runs, of which one logs a figure of each kind."""
    path = runs / "one" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()[:-1]]
    for k, line in enumerate(lines):
        line |= {name: 1.0 + k for name in FIGURES}
    path.write_text("\n".join(map(json.dumps, lines)))
    return runs


@needs_plotext
@pytest.mark.parametrize("name", sorted({*FIGURES, *FIGURES.values(), "rewards/margins"}))
def test_whatever_is_logged_can_be_plotted(figures, name, capsys):
    assert main(["plot", "runs/one", "--what", name]) == 0
    assert legend(capsys.readouterr().out)[0] == f"* one {name}"


@pytest.mark.parametrize("name", sorted(set(METRICS) - {"loss", "perplexity"}))
def test_a_metric_has_the_name_that_chooses_by_it(name):
    assert series(f"val_{METRICS[name][0]}").short == name


@needs_plotext
def test_a_name_means_the_curves_of_both_parts(figures, capsys):
    assert main(["plot", "runs/one", "--what", "margins"]) == 0
    assert legend(capsys.readouterr().out) == ["* one margins", "o one margins val"]


def test_every_name_of_a_run_is_offered(capsys):
    with pytest.raises(SystemExit):
        main(["plot", "--help"])
    said = capsys.readouterr().out
    for name in ("loss", "val", "lr", "norm", "speed", "accuracy", "margins", "kl", "perplexity"):
        assert name in NAMES and name in said
    known = map(series, ("train_loss", "learning_rate", "accuracy", *PLAIN))
    shorts = list({each.family: each.short for each in known}.values())
    assert {each for each in shorts if shorts.count(each) > 1} == {"chosen", "rejected"}
    assert {series(f"val_{figure}").short for figure, _ in METRICS.values()} <= set(NAMES)


def test_a_report_calls_figures_by_plain_names(figures):
    page = write_report(figures / "one").read_text()
    for title in ("KL divergence from the base", "margin of rewards, chosen over rejected",
                  "accuracy, by length-normalized scores", "perplexity", "loss of poems",
                  "log-probability of chosen completions", "speed, tokens a second"):  # fmt: skip
        assert f"<figcaption>{title}</figcaption>" in page
    for head in ("loss", "loss, validation", "perplexity, validation", "peak memory"):
        assert f'<th class="figure">{head}</th>' in page
    drawn = page[page.index("<section") : page.index('id="what-was-run"')]
    assert not [name for name in FIGURES if "/" in name and name in drawn]


@needs_plotext
def test_a_terminal_gets_colours(runs, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    (runs / "one").rename(runs / "o\x1b[31mne")
    assert main(["plot", "runs/o\x1b[31mne", "--what", "loss"]) == 0
    out = capsys.readouterr().out
    assert "o\ufffd[31mne loss" in out and "\x1b[38;5;" in out and "* o" not in out
