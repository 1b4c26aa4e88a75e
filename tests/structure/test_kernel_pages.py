"""Each op has a page of the site, whose questions are tests. docs/kernel_pages.py makes it."""

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
    assert "entry(" in page.split("forward beside backward")[1]
    assert "cdef struct " in page.split("Written from the signatures")[1]
    assert (ROOT / "docs" / "pictures" / f"{MADE['kind'](op)}.svg").exists()
