"""Make a page of the site for each op, from what is said elsewhere.

The formula is the docstring of the kernel, the derivation a section of docs/kernels.md, cost and
shapes are those of the op table and of the case, the code is the kernel's. The questions and
answers are the docstrings of tests/kernels/test_questions_*.py. docs/conf.py writes the pages.

    toynn bench --threads 1 --json figures.json && python docs/kernel_pages.py figures.json

measures each kernel's place on the roofline again; docs/measured.md says on which machine. What the
pages need of the figures is kept in docs/roofline.json.
"""

import ast
import json
import re
import runpy
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import numpy as np

from toynn import _kernels, ops
from toynn._kernels.base.loops import written
from toynn.testing.cases import CASES

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "docs" / "kernels.md"
#: Where the site has these pages, in docs.
FOLDER = "_pages/kernels"
ROOFLINE = ROOT / "docs" / "roofline.json"
OPS = sorted({kernel.partition(".")[0] for kernel in ops.TABLE})

#: What a function is called that serves the backward alone.
BACKWARD = r"backward|_columns_d|_sum_over|slope|_gradient"
#: The sections of the tour that derive an op: several with | between them.
SECTIONS = {
    "embedding": "Gather and scatter-add: embedding",
    "class_token": "Pictures: class_token",
    "layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "gatednorm": "RMSNorm",
    "dora": "Magnitudes: DoRA",
    "shortconv": "A short convolution",
    "decay": "A gated delta rule",
    "softmax": "Softmax",
    "rope": "RoPE",
    "routing": "A mixture of experts",
    "dispatch": "A mixture of experts",
    "gated": "A gated delta rule",
    "columns": "A selective state space",
    "latent": "Over latents",
    "gaussian_topk": "Gaussian top-k",
    "altup": "Streams: AltUp",
    "elementwise": "elementwise.add, elementwise.scale",
    "pointwise": "Arithmetic, and sums over axes",
    "sums": "Arithmetic, and sums over axes",
    "transpose": "Arithmetic, and sums over axes",
    "rounding": "Weights of 16 bits",
    "dropout": "Dropout, with a mask that is never stored",
    "gelu": "GELU",
    "silu": "SiLU and SwiGLU",
    "relu2": "SiLU and SwiGLU",
    "swiglu": "SiLU and SwiGLU",
    "geglu": "SiLU and SwiGLU",
    "sigmoid": "The slope without cancellation",
    "softcap": "A soft cap",
    "adamw": "AdamW",
    "cross_entropy": "6. The loss",
    "chunked_cross_entropy": "6. The loss",
    "grad_norm": "Norm and clipping: grad_norm",
    "matmul": "Three products | The tile: why a product can be fast",
    "experts": "A mixture of experts",
    "attention": "Online softmax | Backward | Causal, grouped, fused",
    "cached_attention": "Over a cache: generation",
    "delta": "A gated delta rule",
    "ssd": "A selective state space",
    "valid_rows": "Valid rows: valid_rows",
    "expert_rows": "A mixture of experts",
    "token_sums": "Preferences: losses of whole completions",
    "dpo": "Preferences: losses of whole completions",
    "kto": "Preferences: losses of whole completions",
    "orpo": "Preferences: losses of whole completions",
}
#: The drawing of an op's loops, in docs/pictures, where the signatures do not tell: see kind.
DRAWN = {
    **dict.fromkeys(("class_token", "gatednorm", "decay"), "loops_columns"),
    **dict.fromkeys(("cross_entropy", "chunked_cross_entropy", "grad_norm"), "loops_sums"),
    **dict.fromkeys(("matmul", "experts"), "loops"),
    **dict.fromkeys(("attention", "cached_attention"), "loops_attention"),
    **{"delta": "loops_scan", "ssd": "loops_chunks"},
}


class Question(NamedTuple):
    """A question about an op, its answer, and the test of it."""

    asked: str
    answer: str
    file: str
    test: str
    code: str


def questions() -> dict[str, list[Question]]:
    """Return the questions of each op, in the order of their tests."""
    found: dict[str, list[Question]] = {op: [] for op in OPS}
    for file in sorted(ROOT.glob("tests/kernels/test_questions_*.py")):
        text = file.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                own = [op for op in OPS if node.name.startswith(f"test_{op}_")]
                if not own:
                    raise ValueError(f"{file.name}: {node.name} names no op: expected test_OP_...")
                asked, _, answer = (ast.get_docstring(node) or "").partition("\n\n")
                lines = text.splitlines()
                body = lines[(node.body[0].end_lineno or 0) : node.end_lineno]
                code = "\n".join([lines[node.lineno - 1], *body])  # without the docstring
                path = str(file.relative_to(ROOT))
                found[max(own, key=len)].append(Question(asked, answer, path, node.name, code))
    return found


def source_of(op: str) -> Path:
    """Return the file of a kernel."""
    (path,) = (ROOT / "toynn" / "_kernels").rglob(f"{op}.pyx")
    return path


def formula(op: str) -> str:
    """Return the docstring of a kernel as Markdown: indented lines are shown as they are."""
    match = re.match(r'"""(.*?)"""', source_of(op).read_text(), re.DOTALL)
    assert match is not None, f"{op} has no docstring"
    title, _, rest = match[1].partition("\n\n")
    parts = [_text(title)]
    for shown, lines in groupby(_paragraphs(rest), lambda part: part.startswith("    ")):
        if shown:
            parts.append("```text\n" + dedent("\n\n".join(lines)) + "\n```")
        else:
            parts += map(_text, lines)
    return "\n\n".join(parts)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield parts that are indented, or are not; an indented line may follow another directly."""
    for part in text.strip("\n").split("\n\n"):
        for _, lines in groupby(part.split("\n"), lambda line: line.startswith("    ")):
            yield "\n".join(lines)


def _text(part: str) -> str:
    return re.sub(r"([*_<>`|\[\]])", r"\\\1", part)


def section(heading: str) -> str:
    """Return a section of the tour without its heading, up to the next one."""
    text = TOUR.read_text()
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|^---$)", text, re.M | re.S)
    if match is None:
        raise ValueError(f"docs/kernels.md has no section {heading!r}, which an op's page shows")
    return re.sub(r"\]\(#", "](kernels.md#", match[1].strip())


def measured() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the limits of the machine that was measured, and its rows."""
    report = json.loads(ROOFLINE.read_text())
    return report["limits"], report["kernels"]


def keep(figures: Path) -> None:
    """Keep of a report of ``toynn bench`` what the pages need, with four digits, a row a line."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: short(each) for name, each in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    report = json.loads(figures.read_text())
    rows = [row for row in report["kernels"] if row["kernel"].partition(".")[0] in OPS]
    lines = ",\n".join(json.dumps(short(row)) for row in rows)
    limits = json.dumps(short(report["limits"]["one"]))
    ROOFLINE.write_text(f'{{"limits": {limits},\n"kernels": [\n{lines}\n]}}\n')


def cost_table(op: str) -> str:
    """Return the table of work and time, from the figures that were measured."""
    lines = ["| entry | shape | MFLOP | MB | flops a byte | ms | of its limit | the limit |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in measured()[1]:
        if row["kernel"].startswith(f"{op}."):
            flops, nbytes = row["flops"], row["nbytes"]
            cells = [f"`{row['kernel']}`", row["shape"].replace("_", r"\_"), f"{flops / 1e6:.3g}"]
            cells += [f"{nbytes / 1e6:.3g}", f"{flops / max(1, nbytes):.2g}"]
            cells += [f"{1e3 * row['seconds']:.3g}", f"{row['share']:.0%}", row["limit"]]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def code(op: str) -> tuple[str, str]:
    """Return the forward functions of a kernel, and the backward ones, without imports."""
    sides: tuple[list[str], list[str]] = ([], [])
    for block in _blocks(source_of(op).read_text()):
        name = re.split(r"[(=]", block)[0]
        sides[bool(re.search(BACKWARD, name))].append(block)
    return "\n\n".join(sides[0]), "\n\n".join(sides[1])


def _blocks(text: str) -> Iterator[str]:
    """Yield the functions and signatures of a kernel's file."""
    block: list[str] = []
    for line in [*text.splitlines(), "end"]:
        if line and line[0] not in " )":
            if block and re.match(r"(cdef |def |@|\w+ = entry\()", block[0]) and "(" in block[0]:
                yield "\n".join(block).strip("\n")
            block = []
        block.append(line)


def kind(op: str) -> str:
    """Return the name of the drawing of an op's loops."""
    entries = getattr(_kernels, op).entries.values()
    cuts = {cut.what for entry in entries for cut in entry.signature.cuts}
    if op in DRAWN:
        return DRAWN[op]
    if cuts & {"elements", "once"} and "rows" not in cuts:
        return "loops_elements" if "elements" in cuts else "loops_once"
    return "loops_columns" if cuts & {"columns", "sums"} else "loops_rows"


def page(op: str, asked: list[Question]) -> str:
    """Return the page of an op, with links as a page in docs has them."""
    drawing = kind(op)
    headings = SECTIONS[op].split(" | ")
    source = source_of(op).relative_to(ROOT)
    forward, backward = code(op)
    both = [f"```{{code-block}} cython\n{part}\n```" for part in (forward, backward) if part]
    shapes = "; ".join(
        ", ".join(f"{name} {size}" for name, size in sizes.items()) for sizes in CASES[op].shapes
    )
    said = [
        f"### {each.asked}\n\n{each.answer}\n\n"
        f"    python -m pytest {each.file} -k {each.test}\n\n"
        f"```{{code-block}} python\n{each.code}\n```"
        for each in asked
    ]
    place = "[the machine that was measured](measured.md#roofline-of-each-kernel)"
    case = f"[The case](../toynn/testing/cases/{op}.py)"
    return "\n\n".join(
        [
            f"# {op}",
            formula(op),
            f"## Derivation\n\nFrom [the tour](kernels.md): {', '.join(headings)}.",
            *map(section, headings),
            f"## Loops and blocks\n\n![The loops of {op}](pictures/{drawing}.svg)",
            f"## Cost, and its place on the roofline\n\n![{op}](/{FOLDER}/{op}.svg)",
            f"Times are of one thread of {place}. The limit is what sets the least possible time: "
            "multiply-adds, or memory.",
            cost_table(op),
            f"Tests call the kernel with these sizes: {shapes}. Results may be off by "
            f"{CASES[op].tolerance:g} ({_text(CASES[op].reason)}). {case} has the inputs.",
            f"## The code: forward beside backward\n\n[All of the file](../{source}).",
            "````{container} beside\n" + "\n\n".join(both) + "\n````",
            "Written from the signatures, structs and loops, as `python -m "
            f"toynn._kernels.base.loops {op}` prints them:",
            f"```{{code-block}} cython\n{written(op)}```",
            "## Questions",
            *said,
        ]
    )


def pages() -> dict[str, str]:
    """Return the text of each page by its name; "index" lists the others."""
    asked = questions()
    listed = "\n".join(OPS)
    index = (
        "# Each kernel\n\n"
        "A page for each op: formula, derivation, loops, cost, code, and three questions with the "
        "tests that answer them. [The tour](kernels.md) tells how they work together.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```"
    )
    return {op: page(op, asked[op]) for op in OPS} | {"index": index}


def pictures() -> dict[str, str]:
    """Return for each op the drawing of its place on the roofline."""
    Drawing = runpy.run_path(str(ROOT / "docs" / "pictures.py"))["Drawing"]
    return {op: roofline(op, Drawing).svg() for op in OPS}


def roofline(op: str, Drawing: Any) -> Any:
    """Draw flops a second over flops a byte, both logarithmic: all kernels, and those of an op."""
    limits, rows = measured()
    peak = limits["float32"]
    cache, *_, memory = (max(rates.values()) for rates in limits["memory"].values())
    d = Drawing(620, 300, f"{op} on the roofline")

    def at(flops_a_byte: float, rate: float) -> tuple[float, float]:
        x = 60 + 520 * (np.log10(flops_a_byte) + 1.3) / 4.3
        return round(float(x), 1), round(float(250 - 220 * (np.log10(rate) - 8) / 4), 1)

    for power in range(8, 13):
        _, y = at(1, 10.0**power)
        d.text(54, y + 4, f"{10.0 ** (power - 9):g}", "end", small=True)
    for power in (-1, 0, 1, 2, 3):
        x, _ = at(10.0**power, 1e8)
        d.text(x, 266, f"{10.0**power:g}", "middle", small=True)
    d.text(320, 288, "flops a byte", "middle", small=True)
    d.text(60, 14, "GFLOP/s on one thread", small=True)
    for rate, name in ((memory, "memory"), (cache, "cache")):
        (x1, y1), (x2, y2) = at(0.05, 0.05 * rate), at(peak / rate, peak)
        d.parts.append(f'<path d="M{x1} {y1} L{x2} {y2} L580 {y2}"/>')
        middle = at(0.3, 0.3 * rate)
        d.text(middle[0] - 4, middle[1] - 6, f"{name}, {rate / 1e9:.0f} GB/s", "end", small=True)
    d.text(580, at(1, peak)[1] - 6, f"float32, {peak / 1e9:.0f} GFLOP/s", "end", small=True)
    for own in (False, True):
        for row in rows:
            if row["flops"] and (row["kernel"].partition(".")[0] == op) == own:
                x, y = at(max(0.05, row["flops"] / row["nbytes"]), row["flops"] / row["seconds"])
                style = 'class="tip" r="4"' if own else 'class="e" stroke="#8b949e" r="2.5"'
                d.parts.append(f'<circle {style} cx="{x}" cy="{y}"/>')
    if not any(row["flops"] and row["kernel"].startswith(f"{op}.") for row in rows):
        d.text(320, 130, "no flops: it moves bytes, or counts", "middle")
    return d


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
