"""The examples: a road from text to a chat, and the clock's text, measure and rule."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("jinja2", reason="jinja2 is not installed")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import clock
import speedrun

from toynn.cli import main
from toynn.engines import frozen
from toynn.formats import gguf
from toynn.formats.tokenizer import Tokenizer

FUNCTION = '''
def f{n}(x):
    """Return {n} times x, as the {n}th function does, or {m} for none."""
    return {n} * x if x is not None else {m}
'''


def source(k):
    """A Python file in which no window of 64 bytes is another file's."""
    random = np.random.default_rng(k)
    return "\n\n".join(
        FUNCTION.format(n=n, m=random.integers(1 << 60)) for n in random.integers(1 << 60, size=9)
    )


def test_every_window_has_its_hash():
    text = bytes(np.random.default_rng(0).integers(0, 256, 500, np.uint8))
    whole = clock.hashes(text)
    assert len(set(whole.tolist())) == len(whole) == 500 - clock.WINDOW + 1
    assert (clock.hashes(text[7:100]) == whole[7 : 101 - clock.WINDOW]).all()


def test_a_leak_is_an_error_and_the_parts_have_none():
    files = [(f"{k}.py", source(k)) for k in range(40)]
    files.append(("copy.py", "".join(text for _, text in files)))
    train, valid = clock.parted(files, held=100)
    assert len(valid) > 2000 and not set(train.split(b"\n\n")) & set(valid.split(b"\n\n"))
    clock.check_apart(valid, train)
    first, second = valid.split(b"\n\n")[:2]
    clock.check_apart(valid, train + first[-40:] + b"\n\n" + second[:40])  # neighbours by chance
    with pytest.raises(SystemExit, match=r"leaks: 1 of its paragraphs share a window of 64 bytes"):
        clock.check_apart(valid, train + first[-70:])


def test_a_record_runs_with_each_seed_and_may_import_another(tmp_path, capsys):
    (tmp_path / "text").mkdir()
    for name, k in (("train", 0), ("valid", 1)):
        (tmp_path / "text" / f"{name}.txt").write_text(source(k))
    words = "--holdout 0 --steps 2 --seq 16 --batch 1 --d-model 8 --layers 1 --heads 1"
    (tmp_path / "small.py").write_text(f"WORDS = {words.split()}\n")
    (tmp_path / "record.py").write_text(
        "from small import WORDS\nfrom toynn.cli import main\n\n\n"
        "def train(text, out, seed, budget):\n"
        "    words = ['--data', str(text), '--seed', str(seed), '--out', str(out), *WORDS]\n"
        "    assert main(['train', 'gpt2', *words]) == 0 and budget == 7\n"
    )
    clock.run(tmp_path / "record.py", tmp_path / "text", tmp_path / "out", [3, 4], 7, None)
    lines = capsys.readouterr().out.split("\n")
    assert [line[:8] for line in lines] == ["seed 3: ", "seed 4: ", "mean of ", ""]
    assert json.loads((tmp_path / "out" / "seed-3.json").read_text())["seconds"] > 0


@pytest.mark.parametrize(("t", "n", "p"), [(6.965, 3, 0.01), (3.365, 6, 0.01), (0, 4, 0.5)])
def test_a_record_is_tested_as_a_table_of_student_says(t, n, p):
    values = np.random.default_rng(0).standard_normal(n)
    target = values.mean() + t * values.std(ddof=1) / math.sqrt(n)
    assert clock.chance(values.tolist(), target) == pytest.approx(p, rel=1e-3)


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    """A whole road of a few steps over small texts."""
    folder = tmp_path_factory.mktemp("road")
    (folder / "data").mkdir()
    for k in range(60):
        (folder / "data" / f"{k}.py").write_text(source(k))
    old = speedrun.FORMS["minute"], speedrun.HELD, speedrun.ASKED
    shape = "--d-model 8 --layers 1 --heads 1 --seq 128"
    speedrun.FORMS["minute"] = (10**6, 300, shape, 0.01, 3, 2)
    speedrun.HELD, speedrun.ASKED = 40, ("What does it do?",)
    yield speedrun.Road(folder / "out", "minute", folder / "data")
    speedrun.FORMS["minute"], speedrun.HELD, speedrun.ASKED = old


def again(road):
    return speedrun.Road(road.out, "minute", road.data)


def test_a_road_leads_to_a_chat_and_is_walked_once(road, capsys, monkeypatch):
    road.go()
    said = capsys.readouterr().out
    assert "3 steps" in said and "bits per byte of the held-out text" in said
    page = (road.out / "index.html").read_text()
    assert 'href="pretrain/report.html"' in page and "What does it do?" in page
    assert (road.out / "pretrain" / "report.html").exists()
    assert "tokens read in" in (road.out / "log" / "samples.txt").read_text()
    assert "tokens read in" not in page and "tokens read in" not in said
    assert Tokenizer.of(road.out / "chat" / "model.gguf").vocab_size == 300
    monkeypatch.setattr(speedrun.subprocess, "Popen", None)  # nothing is run again
    again(road).go()
    notes = json.loads((road.out / "speedrun.json").read_text())
    with pytest.raises(SystemExit, match=r"it was begun with {'form': 'minute'"):
        speedrun.Road(road.out, "five", road.data)
    (road.out / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(SystemExit, match="stage tokens was made with another tokenizer than"):
        again(road).go()
    assert json.loads((road.out / "speedrun.json").read_text()) == notes


def test_texts_that_are_too_short_are_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(SystemExit, match="too short: 0 bytes of 1 files are held out"):
        speedrun.Road(tmp_path / "out", "minute", tmp_path / "a.txt").go()


def test_bits_count_every_token_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "train gpt2 --steps 2 --seq 16 --batch 1 --d-model 8 --layers 1 --heads 1 --out run"
    assert main([*words.split(), "--report", "none"]) == 0
    text = source(0).encode()
    with gguf.open("run/model.gguf") as file:
        engine = frozen(file)
    for length in (1, 2, 16, 17, 18, 24, 25, 26, 300):
        nats = math.log(256)
        for at in range(1, length):
            begin = 0 if at <= 16 else (at - 17) // 8 * 8 + 8  # of the first window that has it
            logits = engine.logits(np.frombuffer(text[begin:at], np.uint8).astype(np.int32))[-1]
            z = logits.astype(float)
            nats += math.log(np.exp(z - z.max()).sum()) + z.max() - z[text[at]]
        bits = clock.bits_per_byte("run/model.gguf", text[:length], batch=3)
        assert bits == pytest.approx(nats / math.log(2) / length, rel=1e-5)
