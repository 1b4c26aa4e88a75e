"""`toynn teach`: a teacher's probabilities in a file, and runs that learn from it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lora_bases import write_base

from toynn.cli import main
from toynn.data import taught
from toynn.data.jsonl import documents, long_text, read
from toynn.formats.tokenizer import ByteTokenizer
from toynn.jobs import teach as jobs_teach

TEXT = "the cat sat on the mat and the rat sat on the cat " * 12
ROWS = [{"prompt": f"say {n}: ", "completion": "abc" * (n % 3 + 1)} for n in range(24)]
RUN = ("--steps", "4", "--warmup", "1", "--lr", "0.01", "--batch", "2", "--log-every", "1")
RUN += ("--eval-every", "2", "--report", "none", "--precision", "highest")
SHAPE = ("--d-model", "16", "--heads", "2", "--layers", "1")
TEACH = ("teach", "--model", "teacher.gguf", "--precision", "highest", "--batch", "2")
READ = {
    "rows": ("--data", "rows.jsonl", "--seq", "16"),
    "text": ("--data", "text.txt", "--seq", "16"),
    "documents": ("--data", "text.txt", "--seq", "16", "--document-separator", " rat "),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    (folder / "text.txt").write_text(TEXT)
    (folder / "other.txt").write_text(TEXT[::-1])
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    write_base(folder / "teacher.gguf", vocab=256, context=64)
    write_base(folder / "other.gguf", vocab=256, context=64, d_model=48)
    write_base(folder / "base.gguf", vocab=256, context=64, n_layers=1)
    with pytest.MonkeyPatch.context() as context:
        context.chdir(folder)
        for name, how in READ.items():
            assert main([*TEACH, *how, "--top-k", "8", "--out", f"{name}.taught"]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(files, monkeypatch):
    monkeypatch.chdir(files)


def reports(folder):
    return [*map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.parametrize("more", [(), ("--no-packing",)])
def test_examples_from_the_file_are_those_computed_on_the_way(more, tmp_path):
    """An example's context is the example, so the file says the same in any batch."""
    run = ["train", "lora", *RUN, "--model", "base.gguf", *READ["rows"], *more]
    run += ["--teacher-top-k", "8", "--teacher-weight", "0.8", "--teacher-beta", "0.4"]
    for name in ("teacher.gguf", "rows.taught"):
        assert main([*run, "--teacher", name, "--out", str(tmp_path / name)]) == 0
    first, second = (reports(tmp_path / name) for name in ("teacher.gguf", "rows.taught"))
    for one, other in zip(first, second, strict=True):
        for name in {"train_loss", "val_loss"} & one.keys():
            assert one[name] == pytest.approx(other[name], rel=1e-5)


def test_each_token_with_loss_has_its_record():
    """A record's likeliest tokens are those of the teacher over the text before the token."""
    data = long_text("text.txt", ByteTokenizer(), 16, vocab_size=256)
    file = taught.TaughtFile.opened("text.taught", data.train, ByteTokenizer().tokens, 1.0)
    assert file.facts["records"] == len(data.train) - 1
    seen = np.concatenate([b.origin[b.labels >= 0] for b in taught.in_order(data.train, 2, 16)])
    assert seen.tolist() == list(range(1, len(data.train)))
    total = np.exp(file._records["log_p"]).sum(1) + np.exp(file._records["log_rest"])
    np.testing.assert_allclose(total, 1, rtol=1e-5)
    batch = next(data.batches(2, 0))
    said = file(batch)
    assert np.array_equal(said.ids, file._records["ids"][batch.origin - 1])


@pytest.mark.parametrize("name", ["text", "documents"])
def test_a_text_is_learned_from_the_file(name, tmp_path):
    run = ["train", "gpt2", *RUN, *SHAPE, *READ[name], "--teacher", f"{name}.taught"]
    assert main([*run, "--out", str(tmp_path / "run")]) == 0
    assert "train_loss" in reports(tmp_path / "run")[-1]


@pytest.mark.parametrize("name", READ)
def test_the_order_has_every_label_once(name):
    readers = {"rows": (read, "rows.jsonl", {}), "text": (long_text, "text.txt", {})}
    readers["documents"] = documents, "text.txt", {"separator": " rat "}
    reader, path, more = readers[name]
    data = reader(path, ByteTokenizer(), 16, vocab_size=256, **more)
    batches = list(taught.in_order(data.train, 2, 16))
    seen = np.concatenate([each.origin[each.labels >= 0] for each in batches])
    assert np.array_equal(seen, np.flatnonzero(taught.learned(data.train)))
    assert max(each.tokens for each in batches) <= 32


def test_a_killed_call_is_continued(tmp_path):
    """kill -9 after a few batches: the next call has the same bytes, and computes only the rest."""
    out = tmp_path / "text.taught"
    code = (
        "import os, signal, sys\n"
        "from toynn.cli import main\n"
        "from toynn.engines.teacher import Teacher\n"
        "call, count = Teacher.__call__, []\n"
        "def counted(self, batch):\n"
        "    count.append(1)\n"
        "    if len(count) == 9: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return call(self, batch)\n"
        "Teacher.__call__ = counted\n"
        "main(sys.argv[1:])\n"
    )
    words = [*TEACH, *READ["text"], "--top-k", "8", "--out", str(out)]
    done = subprocess.run([sys.executable, "-c", code, *words], check=False)
    assert done.returncode == -signal.SIGKILL and not out.exists()
    partial = tmp_path / "text.taught.partial"
    with open(partial, "ab") as file:
        file.write(b"half a record")
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        call = jobs_teach.opened
        patch.setattr(jobs_teach, "opened", lambda *a: counting(call(*a), calls))
        assert main(words) == 0
    assert len(calls) == 34 - 8 and not partial.exists()
    assert out.read_bytes() == Path("text.taught").read_bytes()


def counting(teacher, calls):
    def counted(batch):
        calls.append(batch.rows)
        return teacher(batch)

    return counted


def with_more(words, more):
    """Return the words; --data of ``more`` replaces theirs."""
    if more[0] == "--data":
        at = words.index("--data")
        words = words[:at] + words[at + 2 :]
    return [*words, *more]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--data", "other.txt"), "text.taught: it was written for other data"),
        (("--holdout", "0.3"), "text.taught: it was written for other data"),
        (("--teacher-temperature", "2"), "text.taught was written at 1: run `toynn teach"),
        (("--teacher-top-k", "9"), "text.taught has 8"),
        (("--lmbda", "0.5"), "--lmbda 0.5: a file of `toynn teach` has no words"),
        (("--data", "text.txt", "other.txt"), "belongs to one source of data"),
        (("--teacher", "text.taught.cut"), "expected "),
        (("--teacher", "damaged"), "damaged: the header of `toynn teach` is damaged"),
    ],
)
def test_what_a_run_refuses(more, said, tmp_path, capsys):
    with open("text.taught", "rb") as file:
        whole = file.read()
    for name, content in (("text.taught.cut", whole[:-5]), ("damaged", whole[:60])):
        with open(name, "wb") as file:
            file.write(content)
    run = with_more(["train", "gpt2", *RUN, *SHAPE, *READ["text"]], more)
    run += [] if "--teacher" in more else ["--teacher", "text.taught"]
    assert main([*run, "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--out", "text.taught"), "--out text.taught: it exists"),
        (("--data", "text.txt", "other.txt"), "--data: expected one source"),
        (("--model", "none.gguf"), "none.gguf"),
        (("--data", "none.txt"), "none.txt"),
        (("--top-k", "0"), "from 1"),
        (("--temperature", "0"), "above 0"),
        (("--out", "none/file"), "none/file"),
    ],
)
def test_what_teach_refuses(more, said, tmp_path, capsys):
    words = with_more([*TEACH, *READ["text"], "--top-k", "8"], more)
    words += [] if "--out" in more else ["--out", str(tmp_path / "new")]
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_an_unfinished_file_of_another_model_is_refused(tmp_path, capsys):
    partial = tmp_path / "new.partial"
    with open("text.taught", "rb") as file:
        partial.write_bytes(file.read()[:5000])
    words = [*TEACH, *READ["text"], "--model", "other.gguf", "--out", str(tmp_path / "new")]
    assert main([*words, "--top-k", "8"]) == 2
    assert "new.partial: it was begun with another model" in capsys.readouterr().err
    assert os.path.getsize(partial) == 5000
