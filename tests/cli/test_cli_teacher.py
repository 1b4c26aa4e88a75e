"""`--teacher`: a run that learns from a larger model, and what it refuses."""

import json

import numpy as np
import pytest
from lora_bases import write_base
from vocabs import bpe_file

from toynn import RecipeOptions, engines
from toynn.cli import main
from toynn.errors import ConfigError
from toynn.formats import gguf
from toynn.formats.tokenizer import ByteTokenizer
from toynn.jobs import teacher as teacher_job
from toynn.jobs.teacher import opened

TEXT = "the cat sat on the mat and the rat sat on the cat " * 12
ROWS = [{"prompt": f"say {n}: ", "completion": "abc" * (n % 3 + 1)} for n in range(24)]
RUN = ("--steps", "4", "--warmup", "1", "--lr", "0.01", "--batch", "2", "--log-every", "1")
RUN += ("--eval-every", "2", "--report", "none", "--precision", "highest")
SHAPE = ("--d-model", "16", "--heads", "2", "--layers", "1", "--seq", "8")
K = ("--teacher-top-k", "256")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    (folder / "text.txt").write_text(TEXT)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    texts = [json.dumps({"text": each["prompt"]}) for each in ROWS]
    (folder / "texts.jsonl").write_text("\n".join(texts))
    write_base(folder / "teacher.gguf", vocab=256, context=64)
    write_base(folder / "base.gguf", vocab=256, context=64, n_layers=1)
    write_base(folder / "untied.gguf", vocab=256, context=64, untied=True)
    bpe_file(folder / "words.gguf")
    return folder


@pytest.fixture(autouse=True)
def here(files, monkeypatch):
    monkeypatch.chdir(files)


def commands():
    return {
        "gpt2": ("gpt2", *RUN, *SHAPE, "--data", "text.txt"),
        "from-scratch": ("from-scratch", *RUN, *SHAPE, "--data", "rows.jsonl"),
        "lora": ("lora", *RUN, "--model", "base.gguf", "--data", "rows.jsonl", "--seq", "16"),
    }


def reports(folder):
    return [*map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.parametrize("recipe", commands())
def test_labels_are_what_is_evaluated(recipe, tmp_path):
    """The teacher moves the weights; the loss of held-out data is that of labels alone."""
    alone, taught = tmp_path / "alone", tmp_path / "taught"
    run = ("train", *commands()[recipe])
    assert main([*run, "--out", str(alone)]) == 0
    assert main([*run, "--out", str(taught), "--teacher", "teacher.gguf"]) == 0
    first, second = reports(alone), reports(taught)
    assert first[0]["val_loss"] == pytest.approx(second[0]["val_loss"], rel=1e-6)
    assert first[1]["train_loss"] != pytest.approx(second[1]["train_loss"], rel=1e-3)
    assert first[-1]["val_loss"] != second[-1]["val_loss"]


ON_POLICY = ("--holdout", "0", "--max-completion-length", "6")
ON_POLICY += ("--teacher", "teacher.gguf", "--eval-every", "0")


def weights(folder):
    return {each.name: each.read_bytes() for each in folder.glob("*.gguf")}


def learned(recipe, out, lmbda, *more):
    """The reports of a run's steps, with a share of completions by the student."""
    run = ["train", *commands()[recipe], *ON_POLICY, "--lmbda", lmbda, "--out", str(out)]
    assert main([*run, *more]) == 0
    return reports(out)[1:]


def test_a_share_of_batches_is_written_by_the_student(tmp_path, capsys):
    """A share so small that no batch is written changes no bit."""
    for name, lmbda in (("none", "0"), ("tiny", "1e-12"), ("half", "0.5"), ("all", "1")):
        more = {
            "none": ("--max-completion-length", "128"),
            "all": ("--seq", "24", "--max-completion-length", "12"),  # rows of several examples
        }.get(name, ())
        found = learned("lora", tmp_path / name, lmbda, *more)
        shares = [each.get("teacher/on_policy") for each in found]
        wanted = {"none": {None}, "tiny": {0}, "half": {0, 1}, "all": {1}}[name]
        assert set(shares) == wanted
        lengths = [each.get("samples/length", 0) for each in found]
        assert all((0 < n <= 12) == (share == 1) for n, share in zip(lengths, shares, strict=True))
        assert all(each["filled"] <= 1 for each in found)
        assert all(each["samples/cut"] == 1 for each in found if "samples/cut" in each)
    assert "0.5 of the batches have the student's own completions" in capsys.readouterr().out
    assert weights(tmp_path / "none") == weights(tmp_path / "tiny") != weights(tmp_path / "half")


@pytest.mark.parametrize("recipe", ["from-scratch", "lora"])
def test_a_stopped_run_writes_the_same_completions(recipe, tmp_path):
    """Which batches are written, and what, depends on the seed and their number alone."""
    more = ("--steps", "6", "--save-every", "1", "--grad-accum", "2", "--lr-schedule", "constant")
    whole = learned(recipe, tmp_path / "whole", "0.5", *more)
    learned(recipe, tmp_path / "half", "0.5", *more, "--steps", "3")
    assert main(["train", "--resume", str(tmp_path / "half"), "--steps", "6"]) == 0
    same = ("iteration", "train_loss", "grad_norm", "teacher/on_policy", "samples/length")
    found = reports(tmp_path / "half")[1:]
    one, two = ([[each.get(name) for name in same] for each in run] for run in (whole, found))
    assert one == two and {each[3] for each in one} >= {0, 0.5}
    assert weights(tmp_path / "whole") == weights(tmp_path / "half")


def test_the_loss_of_what_the_student_writes_is_that_of_the_formula(tmp_path, monkeypatch):
    """The whole loss is the divergence: what the student writes is no label."""
    seen, rollouts = [], teacher_job.rollouts

    def noted(*arguments, **options):
        seen.extend(zip(arguments[1], found := list(rollouts(*arguments, **options)), strict=True))
        return found

    monkeypatch.setattr(teacher_job, "rollouts", noted)
    more = ("--teacher-weight", "0.3", "--teacher-beta", "0.5", "--teacher-temperature", "0.9", *K)
    more += ("--steps", "1", "--batch", "8", "--no-packing", "--max-completion-length", "12")
    (told,) = learned("lora", tmp_path / "run", "1", *more)
    assert len(seen) == 8 and {"say ", "say"} >= {bytes(ids[:4]).decode() for ids, _ in seen}
    with gguf.open("base.gguf") as base, gguf.open("teacher.gguf") as teacher:
        student, teacher = engines.frozen(base), engines.frozen(teacher)
    total, rows = 0.0, 0
    for prompt, each in seen:
        tokens = each.tokens[: 17 - len(prompt)]  # a row has 16 tokens
        ids, own = np.array([*prompt, *tokens]), slice(len(prompt) - 1, None)
        q, p = (log_p(x.logits(ids[:-1], batch=1)[own] / 0.9) for x in (student, teacher))
        m = np.log((np.exp(p) + np.exp(q)) / 2)
        total += (np.exp(p) * (p - m) + np.exp(q) * (q - m)).sum() / 2
        rows += len(tokens)
    assert told["train_loss"] == pytest.approx(total / rows, rel=1e-5)
    assert told["trained_tokens"] == rows


def log_p(logits):
    wide = logits.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def test_the_first_loss_is_that_of_the_formula(tmp_path):
    """All data are one batch; with B = 0, the student is its base."""
    run = ["train", "lora", "--model", "base.gguf", "--data", "rows.jsonl", "--holdout", "0"]
    run += ["--steps", "1", "--batch", "24", "--seq", "16", "--precision", "highest", *K]
    run += ["--teacher", "teacher.gguf", "--teacher-weight", "0.7", "--teacher-beta", "0.5"]
    run += ["--teacher-temperature", "0.9", "--out", str(tmp_path / "run"), "--report", "none"]
    assert main([*run, "--log-every", "1", "--no-packing"]) == 0
    total, rows = 0.0, 0
    with gguf.open("base.gguf") as base, gguf.open("teacher.gguf") as teacher:
        student, teacher = engines.frozen(base), engines.frozen(teacher)
    for row in ROWS:
        ids = np.frombuffer((row["prompt"] + row["completion"]).encode(), np.uint8).astype(int)
        ids, own = ids[:17], slice(len(row["prompt"]) - 1, 16)
        plain = student.logits(ids[:-1], batch=1)[own]
        labels = ids[1:][own]
        total -= 0.3 * log_p(plain)[np.arange(len(labels)), labels].sum()
        q, p = log_p(plain / 0.9), log_p(teacher.logits(ids[:-1], batch=1)[own] / 0.9)
        m = np.log((np.exp(p) + np.exp(q)) / 2)
        total += 0.7 * (np.exp(p) * (p - m) + np.exp(q) * (q - m)).sum() / 2
        rows += len(labels)
    assert reports(tmp_path / "run")[1]["train_loss"] == pytest.approx(total / rows, rel=1e-5)


def test_the_divergence_from_the_teacher_is_measured(tmp_path):
    """On the first 16 texts held out, over all tokens; with B = 0, the student is its base."""
    run = ["train", "lora", "--model", "base.gguf", "--data", "rows.jsonl", "--seq", "16"]
    run += ["--valid", "rows.jsonl", "--steps", "1", "--precision", "highest"]
    assert main([*run, "--teacher", "teacher.gguf", "--out", str(tmp_path / "run")]) == 0
    total, same, rows = 0.0, 0, 0
    with gguf.open("base.gguf") as base, gguf.open("teacher.gguf") as teacher:
        student, teacher = engines.frozen(base), engines.frozen(teacher)
    for row in ROWS[:16]:
        ids = np.frombuffer((row["prompt"] + row["completion"]).encode(), np.uint8).astype(int)
        ids, own = ids[:17], slice(len(row["prompt"]) - 1, 16)
        q, p = (log_p(each.logits(ids[:-1], batch=1)[own]) for each in (student, teacher))
        total += (np.exp(p) * (p - q)).sum()
        same, rows = same + (p.argmax(1) == q.argmax(1)).sum(), rows + len(p)
    first = reports(tmp_path / "run")[0]
    assert first["val_teacher/forward_kl"] == pytest.approx(total / rows, rel=1e-4)
    assert first["val_teacher/agreement"] == pytest.approx(same / rows)
    assert "KL divergence from the teacher" in (tmp_path / "run" / "report.html").read_text()


def test_a_resumed_run_continues_with_its_teacher(tmp_path):
    run = ("train", *commands()["gpt2"], "--teacher", "teacher.gguf", "--save-every", "2")
    weights = []
    for steps, folder in (("4", "whole"), ("2", "half")):
        assert main([*run, "--steps", steps, "--out", str(tmp_path / folder)]) == 0
    assert main([*run, "--resume", str(tmp_path / "half"), "--force-resume"]) == 0
    for folder in ("whole", "half"):
        weights.append(reports(tmp_path / folder)[-1]["train_loss"])
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ("--teacher", "teacher.gguf", "--tokenizer", "words.gguf"),
            "--teacher teacher.gguf: it has 256 tokens, the model to train has ",
        ),
        (("--teacher-beta", "0.5"), "--teacher-beta: it needs --teacher"),
        (("--teacher", "none.gguf"), "none.gguf"),
        (("--teacher", "text.txt"), "text.txt"),
        (("--teacher", "teacher.gguf", "--teacher-beta", "2"), "at most 1"),
        (("--teacher", "teacher.gguf", "--teacher-top-k", "0"), "from 1"),
        (("--teacher", "teacher.gguf", "--seq", "80"), "tokens of a row; its context is 64 tokens"),
        (("--lmbda", "0.5"), "--lmbda: it needs --teacher"),
        (("--teacher", "teacher.gguf", "--lmbda", "2"), "at most 1"),
        (
            ("--teacher", "teacher.gguf", "--max-completion-length", "9"),
            "--max-completion-length: it needs --lmbda above 0",
        ),
        (("--teacher", "teacher.gguf", "--lmbda", "1"), "--lmbda 1: expected rows of prompt and"),
        (
            ("--teacher", "teacher.gguf", "--lmbda", "1", "--data", "texts.jsonl"),
            "without --no-mask-prompt; got a text, or examples without",
        ),
        (
            ("--teacher", "teacher.gguf", "--lmbda", "1", "--data", "rows.jsonl", "texts.jsonl"),
            "without a prompt, from texts",
        ),
    ],
)
def test_what_is_refused(more, said, tmp_path, capsys):
    run = commands()["gpt2"][: -2 if "--data" in more else None]
    words = ["train", *run, *more, "--out", str(tmp_path / "run")]
    try:
        code = main(words)
    except SystemExit as exit:
        code = exit.code
    assert code not in (0, None)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_other_tokens_are_refused():
    swapped = ByteTokenizer()
    swapped.tokens = [*swapped.tokens[:40], "x", *swapped.tokens[41:]]
    with pytest.raises(ConfigError, match=r"token 40 is '<0x28>'.*'x': a teacher needs"):
        opened("teacher.gguf", swapped, RecipeOptions(), 1, 1.0)


def test_dora_of_the_head_is_refused(tmp_path, capsys):
    words = ["train", *commands()["lora"], "--model", "untied.gguf", "--targets", "q,head"]
    words += ["--teacher", "teacher.gguf", "--out", str(tmp_path / "run")]
    assert main([*words, "--dora"]) == 2
    assert "output: DoRA does not adapt the head where a teacher is" in capsys.readouterr().err
    assert main(words) == 0


def test_a_preference_loss_has_no_teacher(tmp_path, capsys):
    words = ["train", *commands()["lora"], "--loss", "dpo", "--teacher", "teacher.gguf"]
    assert main([*words, "--out", str(tmp_path / "run")]) != 0
    assert "--teacher: it is for --loss sft" in capsys.readouterr().err
