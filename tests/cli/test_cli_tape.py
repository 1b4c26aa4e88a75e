"""`toynn tape`: steps of recipes, files and runs, printed and on a page."""

import base64
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from lora_bases import write_base
from pages import data_of
from safetensors.numpy import load_file

from toynn._kernels import matmul
from toynn.cli import main
from toynn.cli.tape import STOPS
from toynn.testing import limits

SMALL = ["--layers", "2", "--d-model", "16", "--heads", "2", "--seq", "8"]


def test_xor_is_printed_and_opened(tmp_path, capsys):
    assert main(["tape", "xor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split()[:3] == ["11", "U", "adamw.step"]
    page = tmp_path / "step.html"
    assert main(["tape", "xor", "--html", str(page), "--follow", "w1[3,1]"]) == 0
    assert capsys.readouterr().out.startswith(f"{page}: 12 calls, ")
    data = data_of(page.read_text())
    assert data["title"] == "XOR" and len(data["values"]["nodes"]) == 12
    assert data["follow"]["index"] == [3, 1] and len(data["tapes"]) == 1


def test_a_recipe_is_compared_and_timed(tmp_path, monkeypatch):
    quick = partial(limits.measure, seconds=1e-4, sizes=(2**16,))
    monkeypatch.setattr(limits, "measure", quick)
    page = tmp_path / "step.html"
    assert main(["tape", "gpt2", *SMALL, "--values", "--time", "--html", str(page)]) == 0
    data = data_of(page.read_text())
    names = [each["name"] for each in data["tapes"]]
    assert names == ["as it is", "checkpointing", "packed examples", "--batch 2"]
    plain, checkpointed, _, double = (each["arena"]["bytes"] for each in data["tapes"])
    assert checkpointed < plain < double
    count = len(data["tapes"][0]["nodes"])
    assert len(data["seconds"]) == len(data["bounds"]) == count
    ran = [s for s, n in zip(data["seconds"], data["tapes"][0]["nodes"], strict=True)
           if n["phase"] != "E"]  # fmt: skip
    assert min(ran) > 0 and min(bound for bound, _ in data["bounds"]) >= 0


def test_pages_stay_small(tmp_path):
    """So a step of 2,050 calls without numbers is below 1 MB, and a followed one below 2 MB."""
    page, follow = tmp_path / "step.html", ["--values", "--follow", "blk.0.attn_qkv.weight[3,5]"]
    assert main(["tape", "gpt2", *SMALL, *follow, "--html", str(page)]) == 0
    assert page.stat().st_size < 1e6 and len(data_of(page.read_text())["tapes"][0]["nodes"]) == 100
    assert main(["tape", "gpt2", *SMALL, "--layers", "12", "--html", str(page)]) == 0
    calls = len(data_of(page.read_text())["tapes"][0]["nodes"])
    assert calls > 400 and page.stat().st_size < calls * 1e6 / 2050


def test_adapters_over_a_file_and_a_run_of_them(tmp_path, capsys):
    base, out, page = tmp_path / "base.gguf", tmp_path / "run", tmp_path / "step.html"
    write_base(base)
    words = ["--targets", "q,v", "--rank", "3", "--seq", "6"]
    assert main(["tape", str(base), *words, "--compare", "none", "--html", str(page)]) == 0
    shapes = {t["name"]: t["shape"] for t in data_of(page.read_text())["tapes"][0]["tensors"]}
    assert shapes["blk.0.attn_q.weight.lora_a"][0] == 3 and "blk.0.attn_k.weight" in shapes
    known = 0 if matmul.multiplies_quads() else 2
    assert main(["tape", str(base), "--precision", "int8"]) == known  # other recipes lack int8
    (tmp_path / "text.txt").write_bytes(bytes(np.random.default_rng(0).integers(97, 99, 400)))
    run = f"train gpt2 --data {tmp_path}/text.txt --steps 2 --batch 2 --report none --out {out}"
    assert main([*run.split(), *SMALL]) == 0
    capsys.readouterr()
    assert main(["tape", str(out), "--json", str(tmp_path / "step.json")]) == 0
    told = json.loads((tmp_path / "step.json").read_text())
    assert told["sections"][1:-1] == ["blk.0", "blk.1"] and not capsys.readouterr().out
    words = ["--checkpointing", "--compare", "checkpointing", "--html", str(page)]
    assert main(["tape", str(out), *words]) == 0
    other, plain = data_of(page.read_text())["tapes"][0], data_of(page.read_text())["tapes"][1]
    assert plain["name"] == "no checkpointing" and other["memory"]["peak"] < plain["memory"]["peak"]
    kept = ["--keep-attention", *words]
    assert main(["tape", str(out), *kept]) == 0  # keeping needs checkpointing
    kept, plain = data_of(page.read_text())["tapes"]
    assert plain["name"] == "no checkpointing" and kept["memory"]["peak"] > other["memory"]["peak"]
    values = ["--values", "--compare", "none", "--batch", "1", "--html", str(page)]
    assert main(["tape", str(out), *values]) == 0
    data = data_of(page.read_text())
    assert data["title"] == "run"
    tensors, weights = data["tapes"][0]["tensors"], load_file(out / "model.safetensors")
    first = {}  # contents of each tensor
    for number, content in data["values"]["versions"]:
        first.setdefault(tensors[number]["name"], content)
    for name, values in weights.items():
        assert base64.b64decode(first[name]) == values.tobytes(), name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nothing", "nothing: expected one of xor, gpt2, from-scratch, vit, a model's file or"),
        ("lora", "a model's file or folder (to train adapters over), or a run's folder"),
        ("xor --values", "are shown on a page: add --html FILE"),
        ("xor --html a.html --compare batch", "XOR is recorded in one way only"),
        ("xor --html a.html --follow w3[0]", "there is no tensor 'w3'; weights are w1, w2"),
        ("gpt2 --rank 3", "gpt2: there is no option 'rank'"),
        ("gpt2 --precision int8", "must be one of highest, high, medium, auto; got 'int8'"),
        (
            "gpt2 --d-model 512 --layers 1 --seq 8 --html a.html --values",
            "take a smaller model, fewer tokens",
        ),
    ],
)
def test_what_cannot_be_shown_says_so(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tape", *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_call_names_its_stop_of_the_tour(tmp_path, monkeypatch, capsys):
    """And its puzzles; the stop's part of the tour has the kernel's name. A site is linked to."""
    monkeypatch.chdir(tmp_path)
    assert main(["tape", "xor", "--html", "step.html", "--docs", "https://a.b/c/"]) == 0
    data = data_of(Path("step.html").read_text())
    stop, puzzle = data["lessons"]["toynn/_kernels/gemm/matmul.pyx"]
    assert stop == "docs/kernels.md#3-the-matrix-product"
    assert puzzle == "docs/puzzles.md: toynn puzzles 1" and data["docs"] == "https://a.b/c"
    parts = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text().split("\n## ")[1:]
    by_anchor = {re.sub(r"[^a-z0-9 ]", "", p.splitlines()[0].lower()): p for p in parts}
    for stop, names in STOPS.items():
        assert all(name.split("/")[1] in by_anchor[stop.replace("-", " ")] for name in names)
    Path("index.html").touch()
    assert main(["tape", "xor", "--html", "step.html", "--docs", "."]) == 0
    assert data_of(Path("step.html").read_text())["docs"] == tmp_path.as_uri()
    Path("index.html").unlink()
    assert main(["tape", "xor", "--html", "step.html", "--docs", "."]) == 2
    assert "--docs .: expected a folder with index.html" in capsys.readouterr().err
