"""Each op has a page in docs/kernels, whose questions are tests. docs/kernel_pages.py makes it."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = runpy.run_path(str(ROOT / "docs" / "kernel_pages.py"))
ASKED = MADE["questions"]()


def test_each_question_is_asked_of_an_op():
    assert set(ASKED) == set(MADE["OPS"]) and len(ASKED) > 30
    tests = [each.test for those in ASKED.values() for each in those]
    assert len(tests) == len(set(tests))


@pytest.mark.parametrize("op", MADE["OPS"])
def test_an_op_has_a_page_with_three_questions(op):
    assert len(ASKED[op]) >= 3, f"tests/kernels/test_questions_*.py: test_{op}_..."
    for each in ASKED[op]:
        assert each.asked.endswith("?") and "\n" not in each.asked, each.test
        assert len(each.answer.split()) > 15, f"{each.test}: the docstring answers the question"
    page = MADE["page"](op, ASKED[op])
    assert all(f"-k {each.test}" in page for each in ASKED[op])
    assert f"| `{op}." in page, "docs/roofline.json lacks the op: see docs/kernel_pages.py"
    shown, written = MADE["code_of"](op).split("Written from the signatures")
    assert "entry(" in shown and "cdef struct " in written
    assert (ROOT / "docs" / "pictures" / f"{MADE['kind'](op)}.svg").exists()


def test_the_pages_are_made_anew_where_a_kernel_or_a_derivation_changes():
    """Docstrings, the tour, questions, cases and figures: ``python docs/kernel_pages.py``."""
    made = MADE["files"]()
    folder = MADE["FOLDER"]
    assert {path.name for path in folder.iterdir()} == {*made}
    stale = [name for name, text in made.items() if (folder / name).read_text() != text]
    assert not stale, f"python docs/kernel_pages.py writes {', '.join(stale)} again"


@pytest.mark.parametrize("page", [*MADE["TOLD"], "kernel-rules.md", "tutorial-kernel.md"])
def test_a_formula_has_its_own_line_on_a_page(page):
    """Beside each other, two do not fit on a phone."""
    blocks = re.findall(r"^    +\S.*$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert [line for line in blocks if MADE["one_a_line"](line) != line] == []


def test_a_section_that_begins_with_a_formula_shows_it_as_one():
    assert MADE["section"]("Softmax")[1].startswith("    y[c] = ")


def test_a_formula_has_its_own_line():
    beside = "y = a b        z = a + b\n  dy = 1      da = b"
    assert MADE["one_a_line"](beside).split("\n") == [
        "y = a b",
        "z = a + b",
        "  dy = 1",
        "  da = b",
    ]
    assert MADE["one_a_line"]("y = a b      the product") == "y = a b      the product"
