"""Puzzles: solutions pass, and wrong answers are told what is wrong in them."""

import json
import math
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import wrong_bugs
import wrong_engine
import wrong_gradients
import wrong_kernels
import wrong_speed

import toynn
from toynn import _kernels
from toynn.cli import main
from toynn.errors import DataError
from toynn_puzzles import PUZZLES, ROADS, find, folder
from toynn_puzzles.answer import Answer, Wrong
from toynn_puzzles.child import examine
from toynn_puzzles.compiled import load
from toynn_puzzles.folder import PROGRESS, Folder, checked
from toynn_puzzles.speed import measuring
from toynn_puzzles.speed.measuring import judge

PYTHON = {
    **wrong_gradients.WRONG,
    **wrong_engine.WRONG,
    **wrong_bugs.WRONG,
    **wrong_kernels.WRONG,
}
COMPILED = {"pyx": wrong_speed.CYTHON, "c": wrong_speed.C}
FUNCTIONS = re.compile(r"\b(product|tile|pack_a|pack_b|total|dot|least)\b")


def said(puzzle, text):
    return examine(puzzle, Path(puzzle.file), text, timed=False)


def changed(puzzle, old, new):
    """A solution with one part of it changed."""
    assert puzzle.solution.count(old) == 1, old
    return puzzle.solution.replace(old, new)


def test_each_puzzle_has_five_wrong_answers_and_all_else():
    wrong = PYTHON | COMPILED["pyx"] | COMPILED["c"]
    assert wrong.keys() == PUZZLES.keys() and len(PUZZLES) >= 20
    assert list(ROADS) == ["gradients", "engine", "speed", "bugs", "kernels"]
    ladders = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    for name, puzzle in PUZZLES.items():
        section, _, rung = puzzle.told.partition(", rung ")
        told = rf"^#+ (\d\. )?{section}\n((?!^#).)*^\*\*{rung}\. "
        assert not section or re.search(told, ladders, re.M | re.S), name
        assert len(wrong[name]) >= 5, name
        assert len(puzzle.wanted.splitlines()) <= 3, name
        assert max(map(len, puzzle.blank.splitlines())) <= 100, name
        assert len(puzzle.hints) >= 3 and puzzle.seconds <= 120, name
        assert all(puzzle.why) and puzzle.why[0].endswith("?"), name
        assert (Path(toynn.__file__).parent / puzzle.same).is_file(), name
        assert puzzle.blank != puzzle.solution and ">>>" not in puzzle.blank, name


@pytest.mark.parametrize("name", PYTHON)
def test_a_solution_passes_and_its_blank_does_not(name):
    puzzle = PUZZLES[name]
    assert said(puzzle, puzzle.solution) == ""
    hint = said(puzzle, puzzle.blank)
    assert hint and "the check cannot use" not in hint


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"), [(name, *row) for name in PYTHON for row in PYTHON[name]]
)
def test_a_wrong_answer_is_diagnosed(name, old, new, expected):
    hint = said(PUZZLES[name], changed(PUZZLES[name], old, new))
    assert re.search(expected, hint, re.DOTALL), hint


@pytest.mark.parametrize("language", COMPILED)
def test_compiled_answers(language):
    """All in one file, which is compiled once: the functions of each have a number."""
    if language == "pyx":
        pytest.importorskip("Cython", reason="Cython is not installed")
    levels = _kernels.supported_levels()
    rows = []
    for name, wrong in COMPILED[language].items():
        puzzle = PUZZLES[name]
        texts = [(puzzle.solution, "$"), (puzzle.blank, "" if language == "c" else "$")]
        if name == "simd_dot" and "avx2" not in levels:
            continue  # another CPU
        if name == "simd_dot":
            texts.append((puzzle.solution.replace("defined(__AVX512F__)", "0"), "$"))
        if name != "simd_dot" or "avx512" in levels:
            texts += [(changed(puzzle, old, new), expected) for old, new, expected in wrong]
        rows += [(puzzle, text, expected) for text, expected in texts]
    texts = [FUNCTIONS.sub(rf"\1_{i}", text) for i, (_, text, _) in enumerate(rows)]
    functions = load(language, Path(f"all.{language}"), "\n".join(texts))
    for i, (puzzle, text, expected) in enumerate(rows):
        end = f"_{i}"
        names = {n.removesuffix(end): f for n, f in functions.items() if n.endswith(end)}
        answer = Answer(Path(puzzle.file), text, names, timed=False)
        hint = ""
        try:
            puzzle.check(answer)
        except Wrong as wrong:
            hint = str(wrong)
        assert re.match(expected, hint) or re.search(expected, hint, re.DOTALL), (i, hint)


def test_a_program_that_does_not_compile():
    text = PUZZLES["simd_dot"].blank.replace("float sum = 0;", "float sum = 0")
    hint = said(PUZZLES["simd_dot"], text)
    assert re.match(r"it does not compile:\n24_simd_dot\.c:\d+:\d+: error: expected", hint), hint


def test_a_slow_answer_is_told_its_share():
    fast = judge(50e9, 100e9, 0.5, "GFLOP/s", str)
    assert fast.startswith("50 GFLOP/s, 50.0% of this machine's 100")
    told = r"right, but too slow: 4.9 GB/s, 4.9% .*Wanted: 5%, .* 5 GB/s.\nSuspicion: the cause$"
    with pytest.raises(Wrong, match=told):
        judge(4.9e9, 100e9, 0.05, "GB/s", lambda: "the cause")
    with pytest.raises(Wrong, match=r"120 GB/s, 120\.0% of .*no program can do that"):
        judge(120e9, 100e9, 0.05, "GB/s", str)


def test_a_program_that_remembers_its_result_is_wrong(monkeypatch):
    peak = SimpleNamespace(one=SimpleNamespace(float32=1.0))
    monkeypatch.setattr(measuring, "measure", lambda *_: peak)
    monkeypatch.setattr(measuring, "SHAPE", measuring.SMALL)
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    puzzle = PUZZLES["register_tile"]
    remember = """static float *last;
    if (c == last) return;
    last = c;
    for (size m = 0;"""
    head, product = puzzle.solution.split("void product")
    text = f"{head}void product{product.replace('for (size m = 0;', remember)}"
    hint = examine(puzzle, Path("22_register_tile.c"), text)
    assert hint.startswith("c[0, 0] is nan; it should be "), hint


def test_an_untouched_tile_is_not_told_of_registers(monkeypatch):
    peak = SimpleNamespace(one=SimpleNamespace(float32=math.inf))
    monkeypatch.setattr(measuring, "measure", lambda *_: peak)
    monkeypatch.setattr(measuring, "SECONDS", 0)
    monkeypatch.setattr(measuring, "SHAPE", measuring.SMALL)
    puzzle = PUZZLES["register_tile"]
    for text, expected in ((puzzle.blank, "one number at a time"), (puzzle.solution, "registers")):
        hint = examine(puzzle, Path(puzzle.file), text)
        assert re.search(rf"too slow.*Suspicion: [^.]*{expected}", hint, re.DOTALL), hint


def test_a_sum_that_is_remembered_is_wrong(monkeypatch):
    memory = {2**18: {"read": 1e15}}
    one = SimpleNamespace(one=SimpleNamespace(memory=memory))
    monkeypatch.setattr(measuring, "measure", lambda *_: one)
    monkeypatch.setattr(measuring, "SECONDS", 0)
    answer = Answer(Path("x"), "", {"total": lambda x, n: float(n)})
    with pytest.raises(Wrong, match=r"total is 65536 in a call that was timed; it should be \d+"):
        measuring.check_sum_rate(answer, "total", 1, 0.2)


PACK_A = "    for (size m = 0; m < M; m += MR) pack_a(panels + m * K, a + m * K, K);\n"
TILES = "for (size m = 0; m < M; m += MR) tile("


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, r"each panel is packed only once, so tile\(\) must be slow"),
        (
            {
                PACK_A: "",
                TILES: TILES.replace("tile(", "pack_a(panels + m * K, a + m * K, K), tile("),
            },
            r"a has (6|14) panels here, and pack_a runs (12|56) times\. Call it outside",
        ),
        (
            {TILES: TILES.replace("tile(", "pack_b(panel, b + n, N, K), tile(")},
            r"b has (2|4) panels here, and pack_b runs (14|60) times\. Call it outside",
        ),
    ],
    ids=["once", "a in each tile", "b in each tile"],
)
def test_a_slow_packed_product_is_told_why(changes, expected, monkeypatch):
    peak = SimpleNamespace(one=SimpleNamespace(float32=math.inf))
    monkeypatch.setattr(measuring, "measure", lambda *_: peak)
    monkeypatch.setattr(measuring, "SECONDS", 0)
    puzzle, text = PUZZLES["packed_panels"], PUZZLES["packed_panels"].solution
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    hint = examine(puzzle, Path("23_packed_panels.c"), text)
    assert re.search(rf"right, but too slow: .*Suspicion: {expected}", hint, re.DOTALL), hint


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("softmax", "return", "retrun", r"line 15: retrun y.*\ninvalid syntax"),
        ("softmax", "return y", "dy *= 2\n    return y", r"backward changed its argument dy"),
        ("softmax", "def backward", "def forward", r"no longer has the function backward"),
        ("softmax", "return y", "y", r"dx is None.*a return is missing"),
        ("softmax", "return y", "raise SystemExit(3)\n    y", r"line 15: raise SystemExit\(3\)"),
        (
            "linear",
            "return dx, dw, db",
            "return dx",
            r"3 values. It returned one ndarray",
        ),
        ("linear", "db = dy.sum(axis=0)", "db = ...", r"db is still `\.\.\.`"),
        ("linear", "db = dy.sum(axis=0)", "db = [[1], [1, 2]]", r"db is not an array"),
        ("packing", "return ids,", "return ids * 1.0,", r"ids has dtype float64; .* whole numbers"),
        ("linear", "dy.sum(axis=0)", "dy.sum(axis=0)[:, None]", r"keepdims"),
        (
            "softmax",
            "return y",
            "y, dy = y.astype('f'), dy.astype('f')\n    return y",
            r"in float32",
        ),
        (
            "attention",
            "sum(axis=1, keepdims=True)) * scale",
            "sum(axis=1)) * scale",
            r"shape \(T,\), and is taken from columns: keepdims=True",
        ),
        ("arena", "key=lambda i: -tensors[i][0]", "key=lambda i: i", r"holes: place large tensors"),
        ("arena", "-tensors[i][0]", "tensors[i][1]", r"holes: place large tensors first"),
        ("by_curve", "return losses", "return 'a'", r"cannot use what .*\nValueError: could"),
    ],
)
def test_what_any_puzzle_says(name, old, new, expected):
    hint = said(PUZZLES[name], changed(PUZZLES[name], old, new))
    assert re.search(expected, hint, re.DOTALL), hint


@pytest.mark.parametrize(
    ("line", "seconds", "expected"),
    [
        (
            "print('here')\n    while True: pass",
            1,
            r"ended after 1 seconds, in line 16: while True: pass\nAn endless",
        ),
        (
            "import ctypes; ctypes.string_at(0)",
            60,
            r"crashed \(SIGSEGV\), in line 15: import ctypes",
        ),
        ("import os; os._exit(0)", 60, r"crashed \(exit code 0\)"),
    ],
)
def test_a_check_outlives_its_program(tmp_path, monkeypatch, line, seconds, expected):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    path = tmp_path / "02_softmax.py"
    path.write_text(changed(PUZZLES["softmax"], "return y", f"{line}\n    return y"))
    verdict = checked(PUZZLES["softmax"], path, seconds)
    assert not verdict.solved and re.search(expected, verdict.said, re.DOTALL), verdict
    assert verdict.printed == ("here\n" if "print" in line else "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_program_that_forks_leaves_no_process(tmp_path):
    path, noted = tmp_path / "02_softmax.py", tmp_path / "pid"
    # Only the parent goes on to the verdict, so the file is whole when the check ends.
    line = (
        "import os, time; child = os.fork()"
        f"; child and open({str(noted)!r}, 'w').write(str(child)) or time.sleep(600)"
    )
    path.write_text(changed(PUZZLES["softmax"], "return y", f"{line}\n    return y"))
    checked(PUZZLES["softmax"], path)
    assert _ended(int(noted.read_text()))


def _ended(pid):
    """Whether a process has ended; one that no one waits for counts, too."""
    for _ in range(10**5):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX":
            return True
    return False


def test_a_program_that_raises_keyboard_interrupt_is_wrong(tmp_path):
    path = tmp_path / "02_softmax.py"
    text = changed(PUZZLES["softmax"], "return y", "raise KeyboardInterrupt\n    return y")
    path.write_text(text)
    verdict = checked(PUZZLES["softmax"], path)
    assert "KeyboardInterrupt" in verdict.said and not verdict.printed


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_output_is_closed_where_a_process_goes_on_printing(tmp_path, monkeypatch):
    """A process that the program started outlives the check, and may print for ever."""
    streams, keep = [], folder._keep
    monkeypatch.setattr(folder, "DRAIN", 0)
    monkeypatch.setattr(folder, "_keep", lambda *args: (streams.append(args[0]), keep(*args)))
    os.mkfifo(pipe := tmp_path / "pipe")
    path = tmp_path / "02_softmax.py"
    words = ["sh", "-c", f"read x < {pipe}"]
    line = f"import subprocess; subprocess.Popen({words}, start_new_session=True)"
    path.write_text(changed(PUZZLES["softmax"], "return y", f"{line}\n    return y"))
    before = set(threading.enumerate())
    checked(PUZZLES["softmax"], path)
    (reader,) = set(threading.enumerate()) - before
    assert not streams[0].closed
    pipe.write_text("end\n")
    reader.join()
    assert streams[0].closed


def test_a_folder_keeps_answers_and_progress(tmp_path):
    folder, puzzle = Folder(tmp_path / "mine"), PUZZLES["softmax"]
    assert len(folder.write()) == len(PUZZLES) and folder.write() == []
    path = folder.path / puzzle.file
    assert path.read_text() == puzzle.blank and folder.state(puzzle) == ""
    path.write_text(puzzle.solution)
    assert folder.state(puzzle) == "begun" and folder.write() == []
    assert path.read_text() == puzzle.solution
    path.write_text("mine")
    assert folder.reset(puzzle).read_text() == "mine" and path.read_text() == puzzle.blank
    path.write_text("mine, too")
    assert folder.reset(puzzle).name == "02_softmax.py.2"
    assert [folder.hint(puzzle)[0] for _ in range(4)] == [1, 2, 3, 3]
    (folder.path / PROGRESS).write_text("[]")
    with pytest.raises(DataError, match=r"progress\.json: expected what .*delete the file"):
        Folder(folder.path)


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["puzzles"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("toynn-puzzles: wrote 33 files") and "0 of 33 solved. Next: edit" in out
    assert main(["puzzles", "check", "1"]) == 1
    out = capsys.readouterr().out
    assert out == "Puzzle 1, a linear layer, backward: not yet\n" + (
        "dx is still `...`: fill in this blank.\n"
    )
    Path("toynn-puzzles/01_linear.py").write_text("print('a\x1b[2J')\n" + find("1").solution)
    assert main(["puzzles", "check", "linear"]) == 0
    out = capsys.readouterr().out
    assert (
        "linear layer, backward: solved\nThe same in toynn: toynn/_kernels/gemm/matmul.pyx" in out
    )
    assert re.search(
        r"until this\s+backward pass, .*`toynn\s+puzzles\s+why\s+1`\s+answers\.", out, re.DOTALL
    )
    assert re.search(r"Next: edit toynn-puzzles.02_softmax.py, then `toynn puzzles check 2`", out)
    assert main(["puzzles", "--dir", "mine"]) == 0
    assert capsys.readouterr().out.endswith(", then `toynn puzzles check 1 --dir mine`.\n")
    assert main(["puzzles", "why", "1"]) == 0
    assert "y is not needed" in capsys.readouterr().out
    assert json.loads(Path("toynn-puzzles", PROGRESS).read_text())["solved"].keys() == {"linear"}
    assert main(["puzzles"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"1  linear .* solved\n", out) and "1 of 33 solved. Next: edit" in out
    Path("toynn-puzzles/01_linear.py").write_text("another answer")
    assert main(["puzzles"]) == 0
    assert re.search(r"1  linear .* changed\n", capsys.readouterr().out)
    assert main(["puzzles", "hint", "7"]) == 0
    assert capsys.readouterr().out.startswith("Hint 1 of 3 to puzzle 7, RoPE, backward:\nA pair is")
    assert main(["puzzles", "solution", "7", "--spoil"]) == 0
    assert capsys.readouterr().out == find("rope").solution
    assert main(["puzzles", "reset", "1"]) == 0
    assert Path("toynn-puzzles/01_linear.py").read_text() == find("1").blank
    for words, expected in {
        "solution 7": r"it would spoil the puzzle; .* --spoil prints",
        "why 2": r"puzzle 2 is not solved yet",
        "check": r"puzzles check: name a puzzle",
        "check ropes": r"no puzzle 'ropes' \(did you mean rope\?\); expected a number from 1 to 33",
        "list 3": r"it takes no puzzle",
        "check 3 --dir other": r"03_cross_entropy\.py: no such file; `toynn puzzles` writes it",
    }.items():
        assert main(["puzzles", *words.split()]) == 2
        assert re.search(expected, capsys.readouterr().err), words


def test_the_page_shows_what_a_check_says():
    page = (Path(__file__).parents[2] / "docs" / "puzzles.md").read_text()
    puzzle = PUZZLES["rmsnorm"]
    tried = re.findall(r"^    (d[xw] = \w.*|dw = \(.*)$", page, re.MULTILINE)
    answer = puzzle.blank
    for line in tried:
        answer = answer.replace(f"{line[:2]} = ...", line)
    assert len(tried) == 2 and all(
        f"    {line}\n" in page for line in said(puzzle, answer).split("\n")
    )
    (mended,) = re.findall(r"`(dx = .*)`, and the check", page)
    assert said(puzzle, answer.replace(tried[0], mended)) == ""
    for line in puzzle.blank.split("toynn puzzles")[0].splitlines():
        assert f"{line}\n" in page
