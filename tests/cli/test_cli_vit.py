"""``toynn train vit`` and ``toynn predict``: from pictures to a classifier and what it says."""

import csv
import itertools
import json
import re
import shlex
import signal
import tomllib

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow, of the images extra, is not installed")
from pictures import class_folders, noise, of_class, save, write_mnist
from safetensors.numpy import load_file
from test_cli import error_line
from vits import config

from toynn import RecipeOptions
from toynn.cli import main
from toynn.data.images import read_picture
from toynn.engines import ViTEngine
from toynn.jobs import vit
from toynn.recipes import VitTiny
from toynn.train import classify

COUNTS = {"dark": 15, "grey": 15, "white": 10}
SMALL = ("--d-model", "16", "--heads", "2", "--layers", "1", "--batch", "8", "--lr", "0.01")
PLAIN = ("--no-crop", "--mixup", "0")
SHORT = (*SMALL, *PLAIN, "--steps", "40", "--log-every", "10", "--eval-every", "20")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Class folders with grey pictures of 8x8."""
    return class_folders(tmp_path_factory.mktemp("data"), COUNTS)


def train(data, out, *more, code=0):
    assert main(["train", "vit", "--data", str(data), "--out", str(out), *SHORT, *more]) == code
    return out


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A run on the class folders."""
    return train(folder, tmp_path_factory.mktemp("runs") / "a", "--image-size", "8")


def reports(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_learns_and_fills_its_folder(run):
    names = {path.name for path in run.iterdir()}
    told = {"run.json", "report.html"}
    assert names == {
        "checkpoint-40",
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        *told,
    }
    first, *_, last = reports(run)
    assert [r["iteration"] for r in reports(run)] == [0, 10, 20, 30, 40]
    assert last["val_loss"] < 0.5 * first["val_loss"]
    assert last["val_accuracy"] == 1
    assert last["trained_images"] == 320
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["data"]["classes"] == ["dark", "grey", "white"]
    assert (config["data"]["train"], config["data"]["held_out"]) == (32, 8)
    assert (config["model"]["image"], config["model"]["patch"]) == (8, 2)
    assert (config["model"]["channels"], config["train"]["lr"]) == (3, 0.01)


def test_what_is_printed(folder, tmp_path, capsys):
    out = train(folder, tmp_path / "a", "--image-size", "8", "--eval-pictures", "3")
    printed = capsys.readouterr()
    for words in (
        f"pictures    {folder}: 40 of 3 classes",
        "32 to train on, 8 held out",
        "as 8 x 8 x 3, in 4 x 4 patches",
        "baseline    always the commonest class: accuracy 37.50%",
        "320 pictures trained",
        str(out),
    ):
        assert words in printed.out
    assert re.search(r"accuracy [\d.]+%, \d of 3 right", printed.out)
    assert re.search(r"val [\d.]+  accuracy [\d.]+%", printed.out)
    assert " images/s" in printed.out


def test_the_best_weights_are_a_model_with_names(run):
    model = ViTEngine.load(run / "model.safetensors")
    assert model.class_names == ("dark", "grey", "white")
    assert (model.config.n_heads, model.config.d_ff) == (2, 64)
    assert load_file(run / "model.safetensors")["patch_embed.proj.weight"].shape == (16, 3, 2, 2)


def test_the_last_figures_are_those_of_the_best_weights(folder, tmp_path, capsys, monkeypatch):
    measure, losses = classify.loss_and_accuracy, itertools.count(1)
    worse = lambda *a: measure(*a) | {"loss": float(next(losses))}  # noqa: E731
    monkeypatch.setattr(classify, "loss_and_accuracy", worse)
    out = train(folder, tmp_path / "a", "--image-size", "8")
    first, *_, last = reports(out)
    assert last["val_accuracy"] > first["val_accuracy"]
    said = f"(the best, at step 0); accuracy {first['val_accuracy']:.2%}, "
    assert said in capsys.readouterr().out


def test_the_confusion_is_printed(folder, tmp_path, capsys):
    train(folder, tmp_path / "a", "--image-size", "8")
    printed = capsys.readouterr().out
    table = printed.split("--- confusion: a row for each class ---\n")[1].split("\n---")[0]
    assert len(table.splitlines()) == 4
    assert sum(map(int, re.findall(r"\b\d+\b", table))) == 8


def test_a_run_goes_on_from_a_run_and_from_its_file(run, folder, tmp_path):
    best = min(r["val_loss"] for r in reports(run) if "val_loss" in r)
    for i, source in enumerate((run, run / "model.safetensors")):
        command = ["train", "vit", "--data", str(folder), "--out", str(tmp_path / str(i))]
        assert main([*command, "--init-from", str(source), "--steps", "1", "--lr", "1e-9"]) == 0
        assert reports(tmp_path / str(i))[0]["val_loss"] == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (("dark", "grey", "white"), "the head is kept: the model has classes of the same names"),
        (("red", "grey", "dark"), "the head keeps 2 of 3 classes, by their names; new: red"),
        (("x", "y", "z"), "the head is new: the model has no class of these names"),
    ],
)
def test_a_run_says_what_becomes_of_the_head(run, tmp_path, classes, said, capsys):
    data = class_folders(tmp_path / "data", dict.fromkeys(classes, 4))
    words = ["--data", str(data), "--init-from", str(run), "--batch", "2", "--warmup", "0"]
    assert main(["train", "vit", *words, "--steps", "1", "--out", str(tmp_path / "a")]) == 0
    assert f"            {said}\n" in capsys.readouterr().out
    assert ViTEngine.load(tmp_path / "a" / "model.safetensors").class_names == tuple(
        sorted(classes)
    )


def test_a_run_goes_on_with_other_classes_and_larger_pictures(run, tmp_path):
    data = class_folders(tmp_path / "data", {"x": 10, "y": 10}, side=16)
    words = ["--data", str(data), "--init-from", str(run), "--image-size", "16", "--batch", "8"]
    assert (
        main(
            ["train", "vit", *words, "--steps", "30", "--lr", "0.01", "--out", str(tmp_path / "a")]
        )
        == 0
    )
    model = ViTEngine.load(tmp_path / "a" / "model.safetensors")
    assert model.class_names == ("x", "y")
    assert (model.config.image, model.config.classes) == (16, 2)
    assert reports(tmp_path / "a")[-1]["val_accuracy"] == 1


VARIANTS = [
    ("--norm", "rmsnorm", "--act", "silu", "--no-bias"),
    ("--flip", "--crop", "--mixup", "0.2", "--label-smoothing", "0.1"),
    ("--grad-accum", "2", "--init-scale", "0", "--max-grad-norm", "0", "--threads", "1"),
    ("--image-size", "12", "--patch", "4"),
]


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: options[0])
def test_options_reach_the_run(options, tmp_path):
    data = write_mnist(tmp_path / "data", {"train": 30, "t10k": 9})
    out = train(data, tmp_path / "a", *options)
    config = tomllib.loads((out / "config.toml").read_text())
    if "rmsnorm" in options:
        model = config["model"]
        assert (model["norm"], model["act"], model["bias"]) == ("rmsnorm", "silu", False)
        assert "norm.bias" not in load_file(out / "model.safetensors")
    if "--patch" in options:
        assert (config["model"]["image"], config["model"]["patch"]) == (12, 4)
    if "--mixup" in options:  # dense labels: the tape that trains is not the session's first
        profile = json.loads((out / "run.json").read_text())["profile"]
        assert {row["op"]: row["calls"] for row in profile}["adamw.step"] == 40 * 20
    if "--grad-accum" in options:
        assert reports(out)[-1]["trained_images"] == 40 * 2 * 8
    losses = [r["val_loss"] for r in reports(out) if "val_loss" in r]
    assert losses[-1] < losses[0]


def test_augmentation_is_that_of_the_options(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(vit, "RandomImages", lambda *a: seen.append(a[-1]) or [].__iter__())
    data = write_mnist(tmp_path / "data", {"train": 9, "t10k": 9})
    words = ["train", "vit", "--data", str(data), *SMALL]
    own = ("--no-crop", "--flip", "--mixup", "0.3", "--label-smoothing", "0.1")
    for name, options in (("a", ()), ("b", own)):
        assert main([*words, *options, "--out", str(tmp_path / name)]) == 2
    assert "the data end before the first batch" in capsys.readouterr().err
    assert seen == [
        vit.Augment(crop=1, mixup=0.2),
        vit.Augment(flip=True, mixup=0.3, smoothing=0.1),
    ]


def test_same_seed_same_run(folder, tmp_path):
    options = ("--image-size", "8", "--mixup", "0.2", "--crop", "--flip", "--steps", "5")
    a, b = (train(folder, tmp_path / name, *options) for name in "ab")
    first, second = (load_file(out / "model.safetensors") for out in (a, b))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_digits_are_the_default(tmp_path, capsys):
    pytest.importorskip("sklearn", reason="scikit-learn, of the images extra, is not installed")
    out = tmp_path / "a"
    words = [*SMALL, *PLAIN, "--steps", "60", "--eval-every", "30", "--out", str(out)]
    assert main(["train", "vit", *words]) == 0
    assert "scikit-learn's digits: 1,797 of 10 classes" in capsys.readouterr().out
    assert reports(out)[-1]["val_accuracy"] > 0.5


@pytest.mark.parametrize("size", [8, 28, 32, 64, 96, 128, 224, 256, 33])
def test_default_patches_are_about_an_eighth(size):
    patch = {8: 2, 28: 4, 32: 4, 64: 8, 96: 12, 128: 16, 224: 16, 256: 16, 33: 11}[size]
    assert vit._default_patch(size) == patch


def test_a_signal_saves_and_exits_130(folder, tmp_path, monkeypatch, capfd):
    count = 0

    def next_batch(self, draw=vit.RandomImages.__next__):
        nonlocal count
        count += 1
        if count == 13:  # one is drawn ahead
            signal.raise_signal(signal.SIGINT)
        return draw(self)

    monkeypatch.setattr(vit.RandomImages, "__next__", next_batch)
    out = train(folder, tmp_path / "a", "--image-size", "8", code=130)
    assert "stopped     after 12 steps; the best weights are saved" in capfd.readouterr().out
    names = {path.name for path in out.iterdir()}
    told = {"run.json", "report.html"}
    kept = {"config.toml", "metrics.jsonl", "model.safetensors"}
    assert names - {"checkpoint-12"} - told == kept
    ViTEngine.load(out / "model.safetensors")


def test_unreadable_files(folder, tmp_path, capsys):
    data = class_folders(tmp_path / "data", COUNTS)
    (data / "dark" / "notes.txt").write_text("no picture")
    path = save(noise(40, 40), data / "dark" / "00.png")
    path.write_bytes(path.read_bytes()[:200])
    train(data, tmp_path / "a", code=2)
    assert f"{data}/dark/notes.txt: not a picture in a format" in error_line(capsys)
    assert not (tmp_path / "a").exists()
    train(data, tmp_path / "a", "--image-size", "8", "--skip-unreadable")
    printed = capsys.readouterr().out
    said = f"skipped 2 unreadable files; first: {data}/dark/notes.txt: not a p"
    assert said in " ".join(printed.split())  # a long path has a line of its own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--patch", "3"], "--patch must divide --image-size; got --patch 3, --image-size 8"),
        (["--image-size", "37"], "pictures of 37 x 37 cannot be cut into patches of 5 or more"),
        (["--heads", "3"], "--heads must divide --d-model; got 3 and 64"),
        (
            ["--norm", "batchnorm"],
            "--norm: must be one of layernorm, rmsnorm; got 'batchnorm'",
        ),
        (["--mixup=-1"], "argument --mixup: must be a number of at least 0; got '-1'"),
        (["--label-smoothing", "1"], "must be a number of at least 0 and at most 0.99; got '1'"),
        (["--seq", "8"], "unrecognized arguments: --seq 8"),
        (["--warmup", "10", "--steps", "9"], "--warmup 10 is more than --steps 9"),
        (["--init-from", "none"], "none: cannot read: No such file"),
        (["--init-from", "RUN", "--d-model", "8"], "--d-model: the model that --init-from names"),
        (["--init-from", "RUN", "--heads", "4"], "its n_heads is 2; got 4: leave it out"),
        (["--data", "none"], "none: cannot read: No such file"),
        (["--data", "config.toml"], "config.toml: expected pictures: a folder with"),
        (["--data", "."], "1 folders with pictures; expected one for each of 2 or more classes"),
    ],
)
def test_bad_options(words, message, run, tmp_path, capsys, monkeypatch):
    data = write_mnist(tmp_path / "data", {"train": 9, "t10k": 9})
    monkeypatch.chdir(run)
    words = [str(run) if word == "RUN" else word for word in words]
    given = [] if "--data" in words else ["--data", str(data)]
    assert main(["train", "vit", *given, *words, "--out", str(tmp_path / "a")]) == 2
    assert message in error_line(capsys)
    assert not (tmp_path / "a").exists()


def test_digits_without_scikit_learn(tmp_path, capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["train", "vit", "--out", str(tmp_path / "a")]) == 2
    assert "pip install scikit-learn, or name other pictures (--data)" in error_line(capsys)


def said(output):
    """What predict printed: lines of probability and class, by path."""
    found, path = {}, None
    for line in output.splitlines():
        if line.startswith("  "):
            share, name = line.split()
            found[path].append((float(share.rstrip("%")), name))
        else:
            path = line
            found[path] = []
    return found


def test_predict(run, tmp_path, capsys):
    paths = [save(of_class(i % 3), tmp_path / f"{i}.png") for i in range(20)]
    assert main(["predict", "--model", str(run), *map(str, paths)]) == 0
    found = said(capsys.readouterr().out)
    assert list(found) == [str(path) for path in paths]
    right = [found[str(path)][0][1] == list(COUNTS)[i % 3] for i, path in enumerate(paths)]
    assert sum(right) >= 19
    for lines in found.values():
        shares = [share for share, _ in lines]
        assert len(lines) == 3
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(100, abs=0.05)
    model = str(run / "model.safetensors")
    assert main(["predict", "--model", model, "--top", "1", str(paths[0])]) == 0
    assert said(capsys.readouterr().out)[str(paths[0])] == found[str(paths[0])][:1]


def test_names_that_turn_the_line_are_shown_as_they_are(tmp_path, capsys):
    """U+202E lets a name read backwards, U+2066 and others move parts of it."""
    names = [f"a{chr(code)}b" for code in (0x1B, 0x202A, 0x202E, 0x2066, 0x2069)]
    recipe = VitTiny()
    recipe.realize(config(channels=3), RecipeOptions())
    engine = recipe.engine
    engine.class_names = tuple(names)
    engine.save(tmp_path / "turned.safetensors")
    save(np.zeros((12, 12, 3), np.uint8), tmp_path / "p.png")
    words = ["predict", "--model", str(tmp_path / "turned.safetensors"), "--top", "5"]
    words.append(str(tmp_path / "p.png"))
    assert main(words) == 0
    assert main(["info", words[2]]) == 0
    said = capsys.readouterr().out
    assert "a\ufffdb" in said and not {name[1] for name in names} & set(said)


def test_predict_goes_on_after_a_bad_picture(run, tmp_path, capsys):
    good = str(save(of_class(0), tmp_path / "good.png"))
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    assert main(["predict", "--model", str(run), str(bad), good, "none.png"]) == 2
    printed = capsys.readouterr()
    assert list(said(printed.out)) == [good]
    assert printed.err.splitlines() == [
        f"toynn: error: {bad}: not a picture in a format that toynn reads",
        "toynn: error: none.png: cannot read the picture: No such file or directory",
    ]


def test_predict_on_folders_as_json_and_csv(run, folder, tmp_path, capsys):
    some = class_folders(tmp_path / "some", {"dark": 2, "white": 20})
    (some / "README.md").write_text("no picture")
    (some / ".hidden").mkdir()
    save(of_class(0), some / ".hidden" / "a.png")
    assert main(["predict", "-m", str(run), str(some), "--top", "2"]) == 0
    printed = capsys.readouterr()
    expected = said(printed.out)
    assert list(expected) == [str(path) for path in sorted(some.glob("[!.]*/*.png"))]
    assert printed.err.startswith("toynn: 1 other file skipped; the first: ")
    assert main(["predict", "-m", str(run), str(some), "--top", "2", "--json"]) == 0
    objects = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [each["path"] for each in objects] == list(expected)
    for each in objects:
        shares = [found["probability"] for found in each["classes"]]
        assert len(shares) == 2 and shares == sorted(shares, reverse=True)
        assert each["classes"][0]["class"] == expected[each["path"]][0][1]
    assert main(["predict", "-m", str(run), str(some), "--top", "2", "--csv"]) == 0
    head, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert head == ["path", "class_1", "probability_1", "class_2", "probability_2"]
    assert [row[:2] for row in rows] == [[k, v[0][1]] for k, v in expected.items()]
    assert float(rows[0][2]) == pytest.approx(objects[0]["classes"][0]["probability"], abs=1e-6)
    (tmp_path / "empty").mkdir()
    assert main(["predict", "-m", str(run), str(tmp_path / "empty")]) == 2
    assert "expected pictures in it; it is empty" in error_line(capsys)


def test_predict_with_weights_that_overflow(run, tmp_path, capsys):
    model = ViTEngine.load(run / "model.safetensors")
    model.load_weights({name: np.full(w.shape, 3e38) for name, w in model.weights().items()})
    model.save(tmp_path / "b.safetensors")
    picture = str(save(of_class(2), tmp_path / "a.png"))
    assert main(["predict", "--model", str(tmp_path / "b.safetensors"), picture]) == 2
    assert "not finite: the model's weights may be bad" in error_line(capsys)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nothing", "--model nothing: no such file or folder exists"),
        (".", "expected a run folder of `toynn train vit` or classify, or a"),
    ],
)
def test_predict_without_a_model(model, message, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "--model", model, "a.png"]) == 2
    assert message in error_line(capsys)
    assert main(["predict", "--model", str(run)]) == 2
    assert "predict: name files, or texts by --text" in error_line(capsys)


def test_predict_with_a_model_that_has_no_names(run, tmp_path, capsys):
    model = ViTEngine.load(run / "model.safetensors")
    model.class_names = ()
    model.save(tmp_path / "b.safetensors")
    picture = str(save(of_class(2), tmp_path / "a.png"))
    assert main(["predict", "--model", str(tmp_path / "b.safetensors"), picture]) == 0
    assert said(capsys.readouterr().out)[picture][0][1] == "2"


def test_predicted_classes_are_the_model_s(run, folder, capsys):
    model = ViTEngine.load(run / "model.safetensors")
    paths = sorted(folder.glob("*/*.png"))[:3]
    expected = model.probabilities(np.stack([read_picture(path, 8, 3) for path in paths]))
    assert main(["predict", "--model", str(run), *map(str, paths)]) == 0
    for lines, row in zip(said(capsys.readouterr().out).values(), expected, strict=True):
        for share, name in lines:
            index = model.class_names.index(name)
            assert share == pytest.approx(100 * float(row[index]), abs=0.006)


# -- toynn eval --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """Class folders with a held-out part of their own, of six classes; and a run on them."""
    root = tmp_path_factory.mktemp("apart")
    for part, label, i in itertools.product(("train", "valid"), range(6), range(4)):
        pixels = noise(8, 8) // 8 + np.uint8(40 * label)
        save(pixels, root / "data" / part / "abcdef"[label] / f"{i:02}.png")
    return root / "data", train(root / "data", root / "run", "--image-size", "8")


def measured(capsys, *words):
    assert main(["eval", "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_eval_measures_what_training_measures(apart, capsys):
    data, run = apart
    best = min((r for r in reports(run) if "val_loss" in r), key=lambda r: r["val_loss"])
    found = measured(capsys, "--model", run, "--data", data)
    assert found["loss"] == pytest.approx(best["val_loss"], rel=1e-6)
    assert found["accuracy"] == pytest.approx(best["val_accuracy"], rel=1e-6)
    assert (found["pictures"], found["classes"], found["part"]) == (24, 6, "held out")
    assert main(["eval", "--model", str(run / "model.safetensors"), "--data", str(data)]) == 0
    printed = capsys.readouterr().out
    assert "pictures    24 of 6 classes, its held-out part\n" in printed
    right = round(24 * found["accuracy"])
    said = f"accuracy    {found['accuracy']:.2%}, {right} of 24 right; in the top 5 "
    assert f"{said}{found['top_accuracy']:.2%}\n" in printed


@pytest.mark.parametrize("top", [1, 2, 4])
def test_the_top_is_that_of_numpy(apart, capsys, top):
    """Of pictures that are a part by themselves, of which all are measured."""
    data, run = apart
    found = measured(capsys, "--model", run, "--data", data / "valid", "--top", top)
    engine = ViTEngine.load(run / "model.safetensors")
    paths = sorted((data / "valid").rglob("*.png"))
    logits = engine.logits(np.stack([read_picture(path, 8, 3) for path in paths]))
    labels = np.array(["abcdef".index(path.parent.name) for path in paths])
    places = [
        np.argsort(-row).tolist().index(label) for row, label in zip(logits, labels, strict=True)
    ]
    assert found["top_accuracy"] == pytest.approx(np.mean(np.array(places) < top))
    wide = logits.astype(np.float64)
    losses = np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(24), labels]
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert (found["part"], found["top"]) == ("all", top)


def test_classes_are_known_by_their_names(apart, capsys, tmp_path):
    data, run = apart
    (tmp_path / "some").mkdir()
    for name in "eb":
        (tmp_path / "some" / name).symlink_to(data / "valid" / name)
    found = measured(capsys, "--model", run, "--data", tmp_path / "some")
    assert found["pictures"] == 8 and found["classes"] == 2
    engine, losses = ViTEngine.load(run / "model.safetensors"), []
    for name in "eb":
        for path in (tmp_path / "some" / name).glob("*.png"):
            shares = engine.probabilities(read_picture(path, 8, 3))[0]
            losses.append(-np.log(shares[engine.class_names.index(name)]))
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_pictures_that_are_skipped(apart, capsys, tmp_path):
    run = apart[1]
    for name in "ab":
        save(noise(8, 8), tmp_path / "some" / name / "0.png")
    (tmp_path / "some" / "a" / "1.png").write_bytes(b"no picture")
    words = ["--model", run, "--data", tmp_path / "some"]
    assert main(["eval", *map(str, words)]) == 2
    assert "--skip-unreadable" in capsys.readouterr().err
    found = measured(capsys, *words, "--skip-unreadable")
    assert (found["pictures"], found["skipped"]) == (2, 1)
    assert main(["eval", *map(str, words), "--skip-unreadable"]) == 0
    assert "skipped     1 unreadable files\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "other"], "other: the model has no class 'x'; it has a, b, c, d, e, f"),
        (["--data", "none"], "none: cannot read"),
        (["--seq", "9"], "--seq: it is for models of text; "),
        (["--adapter", "x"], "--adapter: it is for models of text; "),
        (["--loss", "dpo"], "--loss: it is for models of text; "),
        (["--beta", "1"], "--beta: it is for models of text; "),
        (["--against", "x"], "--against: it is for models of text; "),
    ],
)
def test_what_eval_cannot_measure(apart, words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "other", {"a": 1, "x": 1})
    assert main(["eval", "--model", str(apart[1]), *words]) == 2
    assert message in error_line(capsys)


def test_weights_that_are_not_finite(apart, monkeypatch, capsys):
    nan = lambda self, images: np.full((len(images), 6), np.nan, np.float32)  # noqa: E731
    monkeypatch.setattr(ViTEngine, "logits", nan)
    assert main(["eval", "--model", str(apart[1]), "--data", str(apart[0])]) == 2
    assert "the model's loss is not finite" in error_line(capsys)


@pytest.mark.parametrize("form", ["files", "arrays", "digits"])
def test_the_last_line_is_a_command_that_works(form, apart, tmp_path, monkeypatch, capsys):
    """As typed in the folder where the run was started."""
    monkeypatch.chdir(tmp_path)
    words = ["train", "vit", *SMALL, "--steps", "1", "--warmup", "0", "--out", "a run"]
    if form == "digits":
        pytest.importorskip("sklearn", reason="scikit-learn, of the digits, is not installed")
    if form == "arrays":
        np.savez("some pictures.npz", images=noise(20, 8, 8), labels=np.arange(20) % 2)
        words += ["--data", "some pictures.npz"]
    if form == "files":
        (tmp_path / "my data").symlink_to(apart[0])
        words += ["--data", "my data", "--image-size", "8"]
    assert main(words) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("try it      toynn ")
    command = shlex.split(line.removeprefix("try it"))
    assert command[1] == ("predict" if form == "files" else "eval")
    assert main(command[1:]) == 0
    out = capsys.readouterr().out
    assert "%" in out and ("my data/valid/a/00.png" in out) == (form == "files")
