"""Make a page for each op: ``python docs/kernel_pages.py`` writes docs/kernels.

The formula is the docstring of the kernel, the derivation a section of the tour or of the pages
that follow it. Cost and shapes are those of the op table and of the case. The questions and answers
are the docstrings of tests/kernels/test_questions_*.py. The site adds the code of the kernel.

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
FOLDER = ROOT / "docs" / "kernels"
#: The pages that derive ops, and their titles.
TOLD = {
    "kernels.md": "The tour",
    "beyond-gpt2.md": "What GPT-2 has not",
    "fewer-bits.md": "Products in fewer bits",
}
ROOFLINE = ROOT / "docs" / "roofline.json"
OPS = sorted({kernel.partition(".")[0] for kernel in ops.TABLE})

#: What a function is called that serves the backward alone.
BACKWARD = r"backward|_columns_d|_sum_over|slope|_gradient"
#: The ops in the order in which to read them, and the sections that derive each: several with |
#: between them.
SECTIONS = {
    # On GPT-2's way, in the order of a byte
    "embedding": "Gather and scatter-add: embedding",
    "valid_rows": "Labelled rows: valid_rows",
    "elementwise": "elementwise.add, elementwise.scale",
    "layernorm": "LayerNorm",
    "matmul": "Three products | The tile: why a product can be fast | Packing | Five loops"
    " | The epilogue",
    "softmax": "Softmax",
    "attention": "Online softmax | Backward | Rows of scores | Packed once | Causal, packed, fused"
    " | Windows, caps, sinks, groups",
    "gelu": "GELU",
    "cross_entropy": "6. The loss",
    "chunked_cross_entropy": "6. The loss",
    "grad_norm": "Norm and clipping: grad_norm",
    "adamw": "AdamW",
    # Norms, positions, inputs
    "rmsnorm": "RMSNorm",
    "gatednorm": "Gated RMSNorm",
    "rope": "RoPE",
    "class_token": "Pictures: class_token",
    # Activations
    "silu": "SiLU and SwiGLU",
    "swiglu": "SiLU and SwiGLU",
    "geglu": "SiLU and SwiGLU",
    "relu2": "SiLU and SwiGLU",
    "sigmoid": "The slope without cancellation",
    "softcap": "A soft cap",
    "gaussian_topk": "Gaussian top-k",
    "dropout": "Dropout, with a mask that is never stored",
    # Attention and states
    "cached_attention": "Over a cache: generation",
    "latent": "Over latents",
    "gated": "A gated delta rule",
    "shortconv": "A short convolution",
    "delta": "A gated delta rule",
    "decay": "A gated delta rule",
    "ssd": "A selective state space",
    # Rows and experts
    "columns": "A selective state space",
    "routing": "A mixture of experts",
    "expert_rows": "A mixture of experts",
    "dispatch": "A mixture of experts",
    "experts": "A mixture of experts",
    "altup": "Streams: AltUp",
    # Adapters, rounding, updates, preferences
    "pointwise": "Arithmetic, and sums over axes",
    "sums": "Arithmetic, and sums over axes",
    "transpose": "Arithmetic, and sums over axes",
    "dora": "Magnitudes: DoRA",
    "rounding": "Weights of 16 bits",
    "muon": "Muon: an update without small directions",
    "pooling": "Vectors of texts: pooling",
    "token_sums": "Preferences: losses of whole completions",
    "dpo": "Preferences: losses of whole completions",
    "orpo": "Preferences: losses of whole completions",
    "kto": "Preferences: losses of whole completions",
    "distillation": "A teacher: all tokens instead of one",
}
#: The first op of each part of the index.
PARTS = {
    "embedding": "On GPT-2's way, in the order of a byte",
    "rmsnorm": "Norms, positions, inputs",
    "silu": "Activations",
    "cached_attention": "Attention and states",
    "columns": "Rows and experts",
    "pointwise": "Losses of your own",
    "dora": "Adapters, rounding, updates, preferences",
}
#: The drawing of an op's loops, in docs/pictures, where the signatures do not tell: see kind.
DRAWN = {
    **dict.fromkeys(("class_token", "gatednorm", "decay"), "loops_columns"),
    **dict.fromkeys(("cross_entropy", "chunked_cross_entropy", "grad_norm"), "loops_sums"),
    **dict.fromkeys(("matmul", "experts"), "loops"),
    **dict.fromkeys(("attention", "cached_attention"), "loops_attention"),
    **{"delta": "loops_scan", "ssd": "loops_chunks"},
}

#: The ladder of docs/performance.md to climb before a kernel is read.
ROWS = "rows-softmax-layernorm-cross-entropy"
LADDERS = {
    "matmul": ("the ladder of the product", "2-the-ladder-of-the-product"),
    "attention": ("the ladder of attention", "the-ladder-of-attention"),
    **dict.fromkeys(("softmax", "layernorm", "cross_entropy"), ("plain C, then fast", ROWS)),
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
            parts.append("```text\n" + one_a_line(dedent("\n\n".join(lines))) + "\n```")
        else:
            parts += map(_text, lines)
    return "\n\n".join(parts)


def one_a_line(shown: str) -> str:
    """Return formulas with one on each line: a second one beside the first goes below it."""
    lines = []
    for line in shown.split("\n"):
        margin = " " * len(re.match(r" *(\w+: +)?", line)[0])  # type: ignore[index]
        first, *others = re.split(r" {4,}(?=\S+ += )", line[len(margin) :])
        both = others and "=" in first
        lines += (
            [line[: len(margin)] + first, *(margin + each for each in others)] if both else [line]
        )
    return "\n".join(lines)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield parts that are indented, or are not; an indented line may follow another directly."""
    for part in text.strip("\n").split("\n\n"):
        for _, lines in groupby(part.split("\n"), lambda line: line.startswith("    ")):
            yield "\n".join(lines)


def _text(part: str) -> str:
    return re.sub(r"([*_<>`|\[\]])", r"\\\1", part)


def section(heading: str) -> tuple[str, str]:
    """Return the page that has a section, and the section without its heading, up to the next."""
    for page in TOLD:
        text = (ROOT / "docs" / page).read_text()
        match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|^---$|\Z)", text, re.M | re.S)
        if match is not None:
            return page, re.sub(r"\]\(#", f"]({page}#", match[1].strip("\n"))
    raise ValueError(f"{', '.join(TOLD)}: no section {heading!r}, which an op's page shows")


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
    source = source_of(op).relative_to(ROOT)
    derived = [section(heading) for heading in SECTIONS[op].split(" | ")]
    shapes = "; ".join(
        ", ".join(f"{name} {size}" for name, size in sizes.items()) for sizes in CASES[op].shapes
    )
    said = [
        f"### {each.asked}\n\n{each.answer}\n\n    python -m pytest {each.file} -k {each.test}"
        for each in asked
    ]
    first = "Read [{}](performance.md#{}) first.".format(*LADDERS[op]) if op in LADDERS else ""
    place = "[the machine that was measured](measured.md#roofline-of-each-kernel)"
    case = f"[The case](../toynn/testing/cases/{op}.py)"
    return "\n\n".join(
        [
            f"# {op}",
            formula(op),
            *([first] if first else []),
            f"The code: [{source.name}](../{source}). `python -m toynn._kernels.base.loops {op}` "
            "prints the loops that are written from its signatures.",
            "## Derivation",
            *(
                f"From [{TOLD[name]}]({name}).\n\n" + "\n\n".join(text for _, text in those)
                for name, those in groupby(derived, lambda found: found[0])
            ),
            f"## Loops and blocks\n\n![The loops of {op}](pictures/{drawing}.svg)",
            f"## Cost, and its place on the roofline\n\n![{op}](kernels/{op}.svg)",
            "A dark dot is an entry of this op at a shape of the table, a pale dot any other "
            "kernel. A dot above memory's slope had its data in a cache; none can be above the "
            f"level line, the rate of arithmetic. Times are of one thread of {place}.",
            cost_table(op),
            f"Results may be off by {CASES[op].tolerance:g} ({_text(CASES[op].reason)}). "
            f"{case} has the inputs.",
            f"<details><summary>The {len(CASES[op].shapes)} sizes of its tests</summary>",
            f"{shapes}.\n\n</details>",
            "## Questions",
            *said,
        ]
    )


def code_of(op: str) -> str:
    """Return what the site adds to the page of an op: the code, forward above backward."""
    forward, backward = code(op)
    both = [f"```cython\n{part}\n```" for part in (forward, backward) if part]
    return "\n\n".join(
        [
            "## The code: forward, then backward",
            *both,
            "<details><summary>Written from the signatures: structs and loops</summary>",
            f"```cython\n{written(op)}```",
            "</details>\n",
        ]
    )


def files() -> dict[str, str]:
    """Return the text of each file of docs/kernels by its name."""
    asked = questions()
    index = [
        "# Each kernel\n",
        "A page for each op: formula, derivation, loops, cost, and three questions with the tests",
        "that answer them. Read the first part from the top: it is the way of a byte through",
        "[the tour](../kernels.md).",
    ]
    for op in SECTIONS:
        if op in PARTS:
            index.append(f"\n## {PARTS[op]}\n")
        title = formula(op).partition("\n")[0]
        index.append(f"- [{op}]({op}.md): {title}")
    index.append("\n```{toctree}\n:hidden:\n")
    made = {"index.md": "\n".join([*index, *SECTIONS, "```\n"])}
    Drawing = runpy.run_path(str(ROOT / "docs" / "pictures.py"))["Drawing"]
    for op in SECTIONS:
        text = re.sub(r"\]\((?!https?:)", "](../", page(op, asked[op]))
        made[f"{op}.md"] = text.replace("](../kernels/", "](") + "\n"
        made[f"{op}.svg"] = roofline(op, Drawing).svg()
    return made


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
    for rate in (memory, cache):
        (x1, y1), (x2, y2) = at(0.05, 0.05 * rate), at(peak / rate, peak)
        d.parts.append(f'<path d="M{x1} {y1} L{x2} {y2} L580 {y2}"/>')
    d.text(580, at(1, peak)[1] - 6, f"float32, {peak / 1e9:.0f} GFLOP/s", "end", small=True)
    dots: dict[bool, list[str]] = {True: ["M312 176"], False: ["M312 194"]}
    for row in rows:
        if row["flops"]:
            x, y = at(max(0.05, row["flops"] / row["nbytes"]), row["flops"] / row["seconds"])
            dots[row["kernel"].partition(".")[0] == op].append(f"M{x} {y}")
    for own, width in ((False, 5), (True, 8)):  # a line of no length with round ends is a dot
        style = f'stroke-width="{width}" stroke-linecap="round" opacity="{1 if own else 0.35}"'
        d.parts.append(f'<path {style} d="{"h0".join(dots[own])}h0"/>')
    slopes = f"slopes: cache, {cache / 1e9:.0f} GB/s, and memory, {memory / 1e9:.0f} GB/s"
    for k, words in enumerate((op, "other kernels", slopes)):
        d.text(322, 180 + 18 * k, words, small=True)
    if not any(row["flops"] and row["kernel"].startswith(f"{op}.") for row in rows):
        d.text(320, 130, "no flops: it moves bytes, or counts", "middle")
    return d


if __name__ == "__main__":
    if sys.argv[1:]:
        keep(Path(sys.argv[1]))
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text)
