"""``toynn train classify``, and predict, eval and info of what it trains: all kinds of labels."""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed")
from small_encoders import with_words

import toynn
from toynn.cli import main
from toynn.engines.encoder import Encoder, Task
from toynn.errors import ConfigError
from toynn.jobs.made import made
from toynn.jobs.run import carried_out
from toynn.recipes import Classifier

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "cat", "dog", "red", "blue"]
WORDS += ["is", "sees", "john", "ann", ".", "!", "##s"]
RUN = ("--steps", "60", "--lr", "0.01", "--batch", "8", "--warmup", "1", "--eval-every", "20")
RUN += ("--report", "none")
CATS = [f"the {colour} cat is {more}" for colour in ("red", "blue") for more in ("a", "the", "!")]
DOGS = [text.replace("cat", "dogs") for text in CATS]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model and data of every kind."""
    monkeypatch.chdir(tmp_path)
    with_words(tmp_path / "model", WORDS, n_layers=2, d_model=32)
    texts = CATS * 3 + DOGS * 3
    with open("kinds.csv", "w", newline="") as file:
        rows = [(text, "dog" if "dog" in text else "cat", "dog" in text) for text in texts]
        csv.writer(file).writerows(
            [("review", "kind", "number"), *((a, b, 2 * c) for a, b, c in rows)]
        )
    lines(
        "several.jsonl",
        ({"text": t, "labels": [w for w in ("dog", "red") if w in t]} for t in texts),
    )
    tags = {"john": "B-PER", "ann": "B-PER", "cat": "B-PET", "red": "I-PET"}
    sentences = [t.replace("is", who).split() for t in CATS for who in ("john", "sees ann", "is")]
    lines("words.jsonl", ({"words": s, "tags": [tags.get(w, "O") for w in s]} for s in sentences))
    pairs = [
        ("a cat", "the cat", "same"),
        ("a cat", "the dog", "other"),
        ("a dog", "a dogs", "same"),
    ]
    lines("pairs.jsonl", ({"text": a, "text_pair": b, "label": c} for a, b, c in pairs * 6))
    return tmp_path


def lines(path, rows):
    with open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def trained(*words, data="kinds.csv", out="run"):
    given = ["train", "classify", "--model", "model", "--data", data, "--out", out, *RUN, *words]
    return main(given)


def figures(capsys, *words):
    capsys.readouterr()
    assert main(["eval", "--model", "run", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def told(capsys, *words):
    capsys.readouterr()
    assert main(["predict", "--model", "run", "--json", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


COLUMNS = ("--columns", "text=review,label=kind")


@pytest.mark.parametrize("labels", ["cat,dog", "dog,cat"])
def test_a_teacher_is_a_share_of_the_labels(here, labels):
    """The loss is (1 - w) CE + w (KL from the teacher + its entropy), in float64."""
    assert trained(*COLUMNS, "--labels", labels) == 0
    assert trained(*COLUMNS, "--labels", "cat,dog", "--steps", "8", out="half") == 0
    more = ["--steps", "1", "--batch", "36", "--lr", "1e-12", "--holdout", "0", "--model", "half"]
    more += ["--log-every", "1", "--teacher-weight", "0.7", "--precision", "highest"]
    assert trained(*COLUMNS, *more, "--teacher", "run", out="taught") == 0
    texts = CATS * 3 + DOGS * 3
    student, teacher = Classifier.load("taught"), Classifier.load("run")
    q, p = (each.outputs(texts).astype(float) for each in (student, teacher))
    q, p = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (q, p))
    assert np.exp(p).max(1).min() > 0.8 and np.exp(q).max(1).min() > 0.55
    own = np.array([student.names.index("dog" if "dog" in text else "cat") for text in texts])
    p = p[:, [teacher.names.index(name) for name in student.names]]
    wanted = -0.3 * q[np.arange(36), own].mean() - 0.7 * (np.exp(p) * q).sum(1).mean()
    told = (here / "taught" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(told[-1])["train_loss"] == pytest.approx(wanted, rel=1e-4)


def test_a_teacher_of_other_classes_is_refused(here, capsys):
    assert trained(*COLUMNS) == 0
    for words, said in {
        "--columns text=review,label=number --teacher run": "expected the classes 0, 2; got cat, d",
        "--columns text=review,label=kind --teacher model": "got no classes of texts",
        "--columns text=review,label=kind --teacher run --label-smoothing 0.1": "not with --class-",
        "--columns text=review,label=kind --teacher-weight 0.1": "--teacher-weight: it needs",
    }.items():
        assert trained(*words.split(), out="other") == 2
        assert said in capsys.readouterr().err
    assert trained("--teacher", "run", data="several.jsonl", out="other") == 2
    assert "--teacher: it is for classes of texts; labels are several" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--method", "lora")])
def test_classes(more, here, capsys):
    assert trained(*COLUMNS, *more) == 0
    printed = capsys.readouterr().out
    assert re.search(r"classes     cat 1\d, dog 1\d\n", printed) and "head        new" in printed
    for name in ("macro-f1 1.000  accuracy", ", macro-f1 1.0000, ", "best by macro-f1"):
        assert name in printed  # as --metric takes it
    assert main(["eval", "--model", "run", "--data", "kinds.csv", *COLUMNS]) == 0
    assert "\nmacro-f1    1.0000\n" in capsys.readouterr().out
    found = figures(capsys, "--data", "kinds.csv", *COLUMNS)
    assert found["accuracy"] == found["macro_f1"] == found["matthews"] == 1
    assert found["confusion"] == [[18, 0], [0, 18]] and found["classes"] == ["cat", "dog"]
    config = json.loads((here / "run" / "config.json").read_text())
    assert config["id2label"] == {"0": "cat", "1": "dog"} and config["label2id"]["dog"] == 1
    assert config["problem_type"] == "single_label_classification"
    reports = [
        json.loads(line) for line in (here / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert reports[-1]["val_classes/macro_f1"] == 1 and reports[-1]["trained_texts"] == 480
    one, two = told(capsys, "--text", DOGS[3], "--text", CATS[1])
    assert one["classes"][0]["class"] == "dog" and two["classes"][0]["class"] == "cat"
    assert sum(each["probability"] for each in one["classes"]) == pytest.approx(1)
    (here / "folder").mkdir()
    assert main(["predict", "--model", "run", "folder"]) == 2
    assert "folder: expected a file of texts (.txt, " in capsys.readouterr().err
    engine = Classifier.load("run")
    assert engine.predict([DOGS[3], CATS[1]]) == ["dog", "cat"]
    assert engine.probabilities([DOGS[3]])[0, 1] == pytest.approx(one["classes"][0]["probability"])


def test_adapters_are_merged_into_the_folder(here):
    """The run's recipe, with adapters over a file, says what the folder that it wrote says."""
    given = {
        "model": "model",
        "data": "kinds.csv",
        "columns": COLUMNS[1],
        "steps": 12,
        "out": "run",
    }
    given |= {"method": "lora", "lr": 0.05, "targets": "all-linear", "report": "none"}
    recipe = carried_out(made("classify", given)).job.recipe
    merged = Classifier.load("run").outputs(CATS)
    assert np.abs(merged - recipe.outputs(CATS)).max() < 1e-5
    assert np.abs(merged - Encoder.load("model", Task("sequence", 2)).outputs(CATS)).max() > 1e-3


def test_adapters_over_an_encoder_are_no_adapter_of_a_decoder(here, capsys):
    assert trained(*COLUMNS, "--method", "lora", "--steps", "1") == 0
    for words in (["eval", "--data", "kinds.csv"], ["generate", "--prompt", "a"]):
        assert main([*words, "--adapter", "run"]) == 2
        assert "run: expected an adapter; got a whole model: use run" in capsys.readouterr().err
    assert main(["generate", "--prompt", "a", "--model", "run", "--adapter", "run"]) == 2
    assert "--adapter run: run is an encoder, whose runs are whole mod" in capsys.readouterr().err


def test_a_head_alone_is_trained(here):
    assert trained(*COLUMNS, "--method", "head", "--steps", "20", "--metric", "loss") == 0
    before, after = Encoder.load("model").weights(), Classifier.load("run").weights()
    assert all(after[name].tobytes() == values.tobytes() for name, values in before.items())
    reports = (here / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(reports[-1])["val_loss"] < json.loads(reports[0])["val_loss"]


def test_several_classes(here, capsys):
    assert trained(data="several.jsonl") == 0
    found = figures(capsys, "--data", "several.jsonl")
    assert min(found["micro_f1"], found["macro_f1"]) > 0.7 and found["accuracy"] > 0.4
    both, none = told(capsys, "--text", "the red dogs is a", "--text", "the blue cat is a")
    for each in (both, none):
        holds = [c["class"] for c in each["classes"] if c["probability"] > 0.5]
        assert sorted(each["labels"]) == sorted(holds)
    assert "dog" in both["labels"] and "dog" not in none["labels"]
    engine = Classifier.load("run")
    assert engine.problem == "several" and engine.predict([none["text"]]) == [none["labels"]]


def test_numbers(here, capsys):
    words = ("--columns", "text=review,label=number", "--problem", "number")
    assert trained(*words) == 0
    assert "labels      numbers" in capsys.readouterr().out
    found = figures(capsys, "--data", "kinds.csv", *words[:2])
    assert found["loss"] < 0.05 and found["spearman"] > 0.8
    (one,) = told(capsys, "--text", "the red dogs is a")
    assert one["number"] == pytest.approx(2, abs=0.5)
    assert json.loads((here / "run" / "config.json").read_text())["problem_type"] == "regression"


def test_words(here, capsys):
    assert trained(data="words.jsonl") == 0
    found = figures(capsys, "--data", "words.jsonl")
    assert found["f1"] == found["precision"] == found["recall"] == 1
    (one,) = told(capsys, "--text", "the blue cats sees ann!")
    spans = [(each["begin"], each["end"], each["class"]) for each in one["spans"]]
    assert (19, 22, "PER") in spans and len(one["tags"]) == len(one["words"]) == 6
    (listed, *_) = told(capsys, "words.jsonl")
    assert listed["tags"][2] == "B-PET" and [2, 3] in [
        [s["begin"], s["end"]] for s in listed["spans"]
    ]
    reports = (here / "run" / "metrics.jsonl").read_text().splitlines()
    assert "trained_words" in json.loads(reports[-1])


def test_two_texts(here, capsys):
    assert trained(data="pairs.jsonl") == 0
    (one, *_) = told(capsys, "pairs.jsonl")
    assert one["text"] == ["a cat", "the cat"] and one["classes"][0]["class"] in ("same", "other")


def test_a_head_is_kept_where_its_classes_are_the_same(here, capsys):
    assert trained(*COLUMNS) == 0
    again = ["train", "classify", "--model", "run", "--data", "kinds.csv", *COLUMNS, *RUN]
    capsys.readouterr()
    assert main([*again, "--out", "b", "--steps", "1"]) == 0
    printed = capsys.readouterr().out
    assert "head  " not in printed and "accuracy 100.0%" in printed.partition("step 1/1")[0]
    assert main([*again, "--out", "c", "--steps", "1", "--labels", "dog,cat"]) == 0
    assert "head        new" in capsys.readouterr().out


def test_texts_lines_and_tables_are_predicted(here, capsys):
    assert trained(*COLUMNS) == 0
    (here / "texts.txt").write_text(f"{CATS[1]}\n{DOGS[1]}\n")
    assert main(["predict", "-m", "run", "texts.txt", "--top", "1"]) == 0
    out = capsys.readouterr().out.splitlines()[-4:]
    assert out[0] == CATS[1] and out[1].endswith("cat") and out[3].endswith("dog")
    assert main(["predict", "-m", "run", "kinds.csv", "--columns", "text=review", "--csv"]) == 0
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 36 and rows[0][:2] == [CATS[0], "cat"] and len(rows[0]) == 5
    assert main(["info", "run"]) == 0
    printed = capsys.readouterr().out
    assert "bert" in printed and "2 rows" not in printed and "not possible" not in printed
    assert main(["convert", "run", "--out", "run.gguf"]) == 0
    assert main(["predict", "-m", "run.gguf", "--text", DOGS[0], "--top", "1"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("dog")


SMOOTH = ("--label-smoothing", "0.1")
REFUSED = {
    "one class": (("--columns", "text=review,label=one"), "at least 2 classes; got x in 36 rows"),
    "a new label": (
        (*COLUMNS, "--valid", "new.csv"),
        "new.csv:2 (row 1): label: expected one of 'cat', 'dog'; got 'bird'",
    ),
    "another label": ((*COLUMNS, "--labels", "cat,bird"), "kinds.csv:20 (row 19): label: expected"),
    "too long": (
        (*COLUMNS, "--seq", "4", "--too-long", "refuse"),
        "kinds.csv:2 (row 1): the text has 7 tokens; the most are 4",
    ),
    "a weight": ((*COLUMNS, "--class-weights", "bird=2"), "--class-weights: 'bird' is none of the"),
    "weights": ((*COLUMNS, "--class-weights", "cat"), "must be balanced, or NAME=WEIGHT"),
    "names": ((*COLUMNS, "--labels", "a,a"), "must be names with commas between them, each once"),
    "a rank": ((*COLUMNS, "--rank", "4"), "--rank: it needs --method lora; the method is full"),
    "both": (
        (
            "--columns",
            "text=review,labels=kind",
            "--separator",
            ";",
            "--class-weights",
            "cat=2",
            *SMOOTH,
        ),
        "--label-smoothing: not with --class-weights, if labels are several",
    ),
    "numbers": (
        (*COLUMNS, "--problem", "number"),
        "kinds.csv:2 (row 1): label: expected a number; got 'cat'",
    ),
    "smoothed": (
        (
            "--columns",
            "text=review,label=number",
            "--problem",
            "number",
            "--label-smoothing",
            "0.1",
        ),
        "--label-smoothing: it is for classes of texts; labels are number",
    ),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trained_is_refused(words, message, here, capsys):
    text = (here / "kinds.csv").read_text().replace("kind,", "kind,one,", 1).replace("\n", ",x\n")
    (here / "kinds.csv").write_text(
        text.replace("review,kind,one,number,x", "review,kind,number,one")
    )
    (here / "new.csv").write_text("review,kind,number,one\na bird,bird,1,x\n")
    assert trained(*words) == 2
    assert message in capsys.readouterr().err
    assert not (here / "run").exists()


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_decoder_takes_a_head(method, here, capsys):
    """Its run is read by eval, predict, convert; not by what continues texts."""
    cfg = toynn.LlamaConfig(256, 32, 2, 2, 48, 2, 64)
    engine = toynn.LlamaSeqEngine()
    engine.realize_for_random_init(cfg, toynn.RecipeOptions(t_seq=64))
    engine.export_gguf("base.gguf", "f32" if method == "full" else "q8_0")
    words = ("--model", "base.gguf", "--method", method, *COLUMNS)
    assert trained(*words) == 0
    assert figures(capsys, "--data", "kinds.csv", *COLUMNS)["accuracy"] == 1
    (row,) = told(capsys, "--text", CATS[0])
    assert row["classes"][0]["class"] == "cat"
    assert main(["convert", "run", "--out", "run.gguf", "--outtype", "f32"]) == 0
    assert "llama.cpp has such a head for qwen3 alone" in capsys.readouterr().out
    one, other = (Classifier.load(path) for path in ("run", "run.gguf"))
    assert one.names == other.names == ("cat", "dog")
    assert one.outputs(CATS).tobytes() == other.outputs(CATS).tobytes()
    for path in ("run", "run.gguf"):
        capsys.readouterr()
        assert main(["generate", "--model", path, "--prompt", "a"]) == 2
        assert "it is a classifier of texts" in capsys.readouterr().err
    assert main(["info", "run.gguf"]) == 0
    assert "not possible" not in capsys.readouterr().out
    assert trained("--model", "base.gguf", data="words.jsonl", out="tags") == 2
    assert "llama is a decoder, whose rows do not see what comes after" in capsys.readouterr().err


def test_a_run_that_would_lack_its_tokenizer_does_not_begin(here, monkeypatch, capsys):
    engine = toynn.LlamaSeqEngine()
    options = toynn.RecipeOptions(t_seq=64)
    engine.realize_for_random_init(toynn.LlamaConfig(256, 32, 2, 2, 48, 2, 64), options)
    engine.export_gguf("base.gguf")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert trained("--model", "base.gguf", *COLUMNS) == 2
    said = "base.gguf: the run's folder would have no tokenizer: this needs the tokenizers library"
    assert said in capsys.readouterr().err
    assert not Path("run").exists()


def test_numbers_as_classes_are_pointed_out(here, capsys):
    for number, labels in enumerate((("4.5", "-3"), ("4", "3"), ("4.5", "x"))):
        lines("numbers.jsonl", [{"text": "a cat", "label": label} for label in labels * 4])
        assert trained("--steps", "1", data="numbers.jsonl", out=f"run{number}") == 0
        told = "they are numbers; to learn numbers: --problem number" in capsys.readouterr().out
        assert told == (number == 0)


def test_what_is_cut_is_counted(here, capsys):
    assert trained(*COLUMNS, "--seq", "6", "--steps", "1") == 0
    assert "36 texts of more than 6 tokens cut" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["generate", "-m", "model", "--prompt", "a"],
            "encoder, which writes no text: `toynn train cl",
        ),
        (
            ["predict", "-m", "model", "--text", "a"],
            "no head of classes: `toynn train classify` trains",
        ),
        (["predict", "-m", "model"], "predict: name files, or texts by --text"),
        (["eval", "-m", "run"], "--data: name texts with labels"),
        (
            ["eval", "-m", "run", "--data", "new.csv"],
            "new.csv:2 (row 1): label: expected one of 'cat', 'dog'",
        ),
        (
            ["eval", "-m", "run", "--data", "kinds.csv", "--no-mask-prompt"],
            "it is not for encoders; run is one",
        ),
    ],
)
def test_other_commands_say_what_a_model_is_for(words, message, here, capsys):
    (here / "new.csv").write_text("text,label\na bird,bird\n")
    assert trained(*COLUMNS, "--steps", "1") == 0
    capsys.readouterr()
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_finetune_takes_the_recipe(here):
    given = {"columns": COLUMNS[1], "steps": 40, "lr": 0.01, "warmup": 1, "quiet": True}
    run = toynn.finetune("model", "kinds.csv", "run", recipe="classify", **given)
    assert run.predict([CATS[1], DOGS[2]]) == ["cat", "dog"]
    assert run.evaluate("kinds.csv")["accuracy"] > 0.9 and run.evaluate()["iteration"] > 0
    assert Classifier.load(run.path).predict([CATS[1]]) == ["cat"]
    rows = [{"text": text, "label": text.split()[2]} for text in CATS + DOGS]
    again = toynn.finetune("model", rows=rows, out="b", recipe="classify", steps=1, quiet=True)
    assert again.engine.class_names == ("cat", "dogs")
    for call, message in ((run.generate, "predict()"), (again.generate, "writes no text")):
        with pytest.raises(ConfigError, match=re.escape(message)):
            call("a")
    with pytest.raises(ConfigError, match=r"recipe must be one of lora, grpo, classify.*got 'vit'"):
        toynn.finetune("model", "kinds.csv", "c", recipe="vit")


def test_check_counts_labels_repeats_and_leaks(here, capsys):
    words = ["check", "--recipe", "classify", *COLUMNS, "--data"]
    assert main([*words, "kinds.csv", "-m", "model", "--seq", "6"]) == 0
    out = re.sub(" +", " ", capsys.readouterr().out)
    assert "rows 36\nlabels cat 18, dog 18\n" in out
    assert "longest 8 tokens; 36 texts of more than 6 cut" in out
    assert "repeats 24 texts, apart from case and spaces, 0 with another label" in out
    (here / "valid.csv").write_text(
        f"review,kind\nTHE  {CATS[0][4:]},dog\nnew,bird\nnew,cat\n,cat\n"
    )
    assert main([*words, "kinds.csv", "valid.csv", "--json"]) == 2
    train, valid = json.loads(capsys.readouterr().out)["sources"]
    assert train["refused"] == 0 and valid["refused"] == 1 and valid["rows"] == 3
    assert "valid.csv:5 (row 4): text: expected a text; got an empty one" in valid["errors"][0]
    assert valid["leaks"] == 1 and valid["new labels"] == ["bird"]
    assert (valid["repeats"], valid["with another label"]) == (1, 1)
    assert main([*words, "kinds.csv", "--strict"]) == 1
    text = "the red cat is a cat ann sees and john is a dog that sees the blue cat ! . red"
    lines("near.jsonl", [{"text": text, "label": "a"}, {"text": text + " red", "label": "a"}])
    lines("far.jsonl", [{"text": f"a {text}", "label": "a"}, {"text": CATS[0], "label": "a"}])
    files = ["near.jsonl", "far.jsonl"]
    assert main(["check", "--recipe", "classify", "--strict", "--data", *files]) == 1
    out = re.sub(" +", " ", capsys.readouterr().out)
    assert "spaces\n 1 more nearly; the first: near.jsonl:2 is nearly near.jsonl:1\n" in out
    assert "too\n 1 more nearly; the first: far.jsonl:1 is nearly near.jsonl:1\n" in out
    assert main([*words, "several.jsonl"]) == 2  # it has no column "review"
    assert main(["check", "--data", "several.jsonl", "--separator", ";"]) == 2
    assert "--separator: it needs --recipe classify" in capsys.readouterr().err
    assert main(["check", "--recipe", "classify", "--data", "words.jsonl", "-m", "model"]) == 0
    assert "B-PER" in capsys.readouterr().out


def test_a_batch_of_more_texts_than_there_are_fits_into_the_step(here):
    options = {"model": "model", "data": "pairs.jsonl", "batch": 50, "steps": 3, "holdout": 6}
    job = made("classify", options)
    job.read()
    given, batches = job.all_options(), job.batches()
    assert len(job.train) == 12
    for _ in range(5):
        batch = next(batches)
        assert batch.examples == 50 and batch.tokens <= given.t_batch * given.t_seq
