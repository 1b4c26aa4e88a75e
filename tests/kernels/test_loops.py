"""Loops and structs that are written from a kernel's signatures: _kernels/base/loops.py."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

from toynn._kernels.base.loops import FOLDER, compiled, written
from toynn._kernels.base.signature import Cut, Signature

CHECKOUT = Path(__file__).parents[2]
KERNELS = sorted(path.stem for path in FOLDER.rglob("*.pyx") if " = entry(" in path.read_text())

FILE = """
cdef inline void forward_row(
    float* y, float* r, const float* x, const float* w, Py_ssize_t at, float eps,
) noexcept nogil:
    pass


forward = entry("{}: y[N C]; r[N] <- x[N C] w[C]? | eps=1e-5", checked)
"""


def made(text):
    return compiled(text, "some", Signature.parse)[1]


def test_rows_are_found_by_the_names_of_parameters():
    text = made(FILE.format("rows N"))
    assert "forward_row(a.y + i * a.C, a.r + i, a.x + i * a.C, a.w, i, eps)" in text
    assert "parallel_for(<part_fn>_forward_rows, a, a.N)" in text  # r is written for an empty row
    assert 'forward = entry(<kernel_fn>_forward,"y[N C]' not in text
    assert re.search(r'= entry\(<kernel_fn>_forward,"rows N: .*", NULL, checked\)', text)
    without = made(FILE.format("rows N").replace("float* r, ", ""))
    assert "parallel_for(<part_fn>_forward_rows, a, a.N if a.C else 0)" in without


def test_the_first_axis_is_never_split():
    """Of y (N K, C) N rows are no rows: each row has K copies anywhere in it."""
    text = made(FILE.format("rows N").replace("y[N C]", "y[N*K C]"))
    assert "forward_row(a.y, a.r + i, a.x + i * a.C, a.w, i, eps)" in text
    text = made(FILE.format("heads N*G").replace("_row", "_head").replace("[N C]", "[N G*C]"))
    assert "forward_head(a.y + i * a.C, a.r, a.x + i * a.C, a.w, i, eps)" in text


def test_ordered_sums_start_at_what_is_there_and_are_left_out_if_unwanted():
    text = made(
        "cdef void b_sums(float* dw, const float* dy, float r, Py_ssize_t width) noexcept nogil:\n"
        '    pass\nb = entry("sums C over N: dw[C]?+ <- dy[N C] r[N]")\n'
    )
    assert "    if a.dw != NULL:\n        parallel_columns(<part_fn>_b_sums, a, a.C)" in text
    start, loop, end = (text.index(each) for each in ("begin_sums(dw", "range(a.N)", "end_sums("))
    assert start < text.index("b_sums(dw, a.dy + n * a.C + c, a.r[n], width)") > loop
    assert loop < end and "NULL if a.dw == NULL else a.dw + c, dw, width)" in text[end:]


def test_inputs_of_the_next_rows_and_elements_are_fetched_ahead():
    """Not what may be None, what belongs to all rows, what the kernel only writes or updates."""
    text = made(FILE.format("rows N").replace("x[N C]", "x[N C] z[N C]? p[N]"))
    assert re.findall(r"ahead\(.*\)", text) == ["ahead(a.x + i * a.C, a.C)"]
    text = made(
        "cdef void f_elements(float* w, const float* g, Py_ssize_t count) noexcept nogil:\n"
        '    pass\nf = entry("elements n: w[n]! y[n] <- g[n] hp[7] i32 mask[n]")\n'
    )
    assert re.findall(r"ahead\(.*\)", text) == ["ahead(a.g + first, last - first)"]


def test_a_switch_is_written_out_for_elements():
    text = made(
        "cdef inline float f_element(float x, bint exact, float cap) noexcept nogil:\n    pass\n"
        'f = entry("elements n: y[n] <- x[n] | exact=0 float cap")\n'
    )
    assert "if a.exact:" in text and "cdef float cap = a.cap" in text
    assert all(f"a.y[i] = f_element(a.x[i], {value}, cap)" in text for value in ("True", "False"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("float eps", "float epsilon", "forward_row has a parameter epsilon; the signature has C,"),
        ("forward_row(", "forward_rows_(", "rows need a function forward_rows or forward_row"),
        ("const float* x", "float x", r"forward_row takes one number of x\[N C\]"),
        ("const float* w", "float w", r"forward_row takes one number of w\[C\]"),
    ],
)
def test_what_does_not_fit_the_signature_is_refused(old, new, said):
    with pytest.raises(ValueError, match=f"^some.forward: {said}"):
        made(FILE.format("rows N").replace(old, new))


def test_a_file_without_parts_stays_as_it_is():
    text = '"""No kernel."""\n\ncdef int x = 1\n'
    assert compiled(text, "some", Signature.parse) == ("", text)
    text += 'forward = entry(<kernel_fn>_multiply[Forward], "y[n] <- x[n]")\n'
    structs, whole = compiled(text, "some", Signature.parse)
    assert whole == text and "cdef struct Forward:\n    float *y\n    const float *x\n" in structs


def test_parts_are_no_part_of_what_a_signature_prints():
    signature = Signature.parse("rows N, sums C over N: dw[C] <- dy[N C]")
    assert signature.cuts == (Cut("rows", "N"), Cut("sums", "C", "N"))
    assert str(signature) == "dw[C] <- dy[N C]" and signature.sizes == ("C", "N")


@pytest.mark.parametrize("op", KERNELS)
def test_what_is_written_for_an_entry_is_short(op):
    """So it can be read at once: ``python -m toynn._kernels.base.loops OP`` prints it."""
    counts: dict[str, int] = {}
    for block in re.split(r"^cdef ", written(op), flags=re.MULTILINE)[1:]:
        name = re.match(r"struct (\w+)|void \w+\((\w+)\*", block)
        entry = name[1] or name[2]
        counts[entry] = counts.get(entry, 0) + sum(bool(line.strip()) for line in block.split("\n"))
    assert counts and max(counts.values()) <= 32, counts


def test_the_tutorial_shows_the_loops_of_rmsnorm_as_they_are():
    page = (CHECKOUT / "docs" / "tutorial-kernel.md").read_text()
    shown = re.search(r"^    cdef void _backward_rows(?:.*\n|\n)*?(?=^`Backward`)", page, re.M)[0]
    assert dedent(shown).rstrip() in written("rmsnorm")


def test_no_struct_of_arguments_is_taken_for_another():
    """Kernels get theirs from loops; a cast would hide that two signatures drift apart."""
    for path in FOLDER.rglob("*.p[yx][xd]"):
        if path.parent.name != "gemm":
            structs = re.findall(r"^cdef struct (\w+):", written_or_none(path), re.MULTILINE)
            cast = re.search(rf"<({'|'.join(structs)})\*>", path.read_text()) if structs else None
            assert not cast, f"{path.name}: {cast[0]}"


def written_or_none(path):
    return written(path.stem) if path.stem in KERNELS else ""
