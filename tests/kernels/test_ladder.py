"""The rungs of bench/ladder.py compute what toynn's kernels do, and the page quotes their C."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
SOURCES = sorted((BENCH / "rungs").glob("*.[ch]"))
PAGE = ROOT / "docs" / "performance.md"


needs_compiler = pytest.mark.skipif(
    not shutil.which("cc") or (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="needs a C compiler that knows the ladder's flags: Linux on x86-64",
)


def climbed(monkeypatch, *words):
    monkeypatch.setenv("BENCH_SMALLEST", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(BENCH)]))
    words = [str(BENCH / "ladder.py"), *words, "--threads", "1", "--seconds", "1e-4"]
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


@needs_compiler
@pytest.mark.parametrize(
    ("ladder", "rungs"),
    [("product", 9), ("attention", 10), ("softmax", 6), ("layernorm", 4), ("cross_entropy", 4)],
)
def test_each_rung_is_right(ladder, rungs, tmp_path, monkeypatch):
    """``check`` of a rung ends the program; the drawing has a bar for each that has run."""
    done = climbed(monkeypatch, ladder, "--svg", str(tmp_path / "bars.svg"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bars.svg").read_text().count("<rect") >= rungs, done.stdout


@needs_compiler
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("blocks_backward", "blocks_backward", ""),
        ("j == i ? r + 1 : keys; /*", "keys; /*", r"blocks, forward, T 130: \w+ is off by "),
        ("scale * p[r][n] * (ds", "p[r][n] * (ds", r"blocks, backward, T 130: d[qk] is off by "),
        ("lse", "l2", r"no parameter is called l2"),
    ],
)
def test_rungs_of_a_reader_are_checked(old, new, expected, tmp_path, monkeypatch):
    text = (BENCH / "rungs" / "attention.c").read_text()
    head, mine = text.split("/* 1. Plain")[0], text[text.index("/* Three products") :]
    mine = mine.split("/* 4. Packed")[0]
    assert old in mine
    (tmp_path / "mine.c").write_text(head + mine.replace(old, new))
    done = climbed(monkeypatch, "attention", "--file", str(tmp_path / "mine.c"))
    assert (done.returncode == 0) == (not expected), done.stderr
    assert re.search(expected, done.stderr), done.stderr
    if not expected:
        rungs = [line.split(",")[0] for line in done.stdout.splitlines()[2:-1]]
        assert rungs == ["blocks", "blocks", *["toynn"] * 4], done.stdout


EDGED = """
#include <stddef.h>
void cache_blocks(float* c, const float* a, const float* b, ptrdiff_t M, ptrdiff_t N, ptrdiff_t K) {
    for (ptrdiff_t i = 0; i < M * N; i++) {
        float sum = 0;
        for (ptrdiff_t k = 0; k < K; k++) sum += a[i / N * K + k] * b[k * N + i % N];
        c[i] = sum;
    }
}
"""


@needs_compiler
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EDGED, "cache blocks, (29, 75, 515) with edges: right"),
        (EDGED.replace("k < K", "k < K / 4 * 4"), "515) with edges: c is off by "),
        (EDGED.replace("cache_blocks", "product"), "expected `void NAME(...) {` with one of"),
        (EDGED.replace("sum;", "sum"), "mine.c: does not compile"),
        (None, "mine.c: no such file"),
    ],
)
def test_a_product_of_a_reader_is_tried_at_edges(text, expected, tmp_path, monkeypatch):
    if text is not None:
        (tmp_path / "mine.c").write_text(text)
    done = climbed(monkeypatch, "product", "--file", str(tmp_path / "mine.c"))
    assert expected in done.stdout + done.stderr, done.stderr
    assert (done.returncode == 0) == expected.endswith("right") and "Traceback" not in done.stderr


@needs_compiler
def test_a_pass_that_is_missing_is_named(tmp_path, monkeypatch):
    text = (BENCH / "rungs" / "attention.c").read_text().replace("blocks_backward", "back")
    (tmp_path / "mine.c").write_text(text)
    done = climbed(monkeypatch, "attention", "--file", str(tmp_path / "mine.c"))
    assert done.returncode == 0, done.stderr
    assert "mine.c: blocks_backward: not found, so it is not checked" in done.stdout


def lines(text):
    """Return the lines of code, whatever their indentation."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def test_the_page_shows_the_code_of_the_rungs():
    blocks = re.findall(r"^```c\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    sources = {path.name: lines(path.read_text()) for path in SOURCES}
    for block in blocks:
        assert 2 <= len(block.splitlines()) <= 15, block
        assert any(lines(block) in text for text in sources.values()), block
    quoted = "".join(map(lines, blocks))
    for path in SOURCES:
        for name, body in re.findall(
            r"^void (\w+)\(.*?\) {\n(.*?)^}", path.read_text(), re.M | re.S
        ):
            own = [line.strip() for line in body.splitlines() if "=" in line]
            assert any(line in quoted for line in own), f"{name} of {path.name}: {PAGE.name}"
