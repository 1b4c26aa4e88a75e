"""The list of what an op has, found by its name: whatever of it is there says what is missing.

What must run is five files: the kernel, its case, its shader, and in modules of others its rule and
its reference. What explains it is in four more: docs/kernels.md or docs/beyond-gpt2.md,
docs/kernel_pages.py, its figures, its questions.
"""

import re
from collections import defaultdict
from pathlib import Path

import toynn

PACKAGE = Path(toynn.__file__).parent
ROOT = Path(__file__).parents[2]

#: What is no op of a tape, and so has no more than it has.
NO_OPS = {
    "prepacked": "packs weights for products of the CPU",
    "quants": "its functions dequantize files",
    "random": "its functions draw weights",
}


#: Where ops are derived.
PAGES = ("kernels", "beyond-gpt2", "fewer-bits")


def entries_of(pattern, folder, suffix):
    """Return the entries that the files of a folder name, by op."""
    entries = defaultdict(set)
    for path in sorted((PACKAGE / folder).rglob(f"*.{suffix}")):
        for match in re.finditer(pattern, path.read_text(encoding="utf-8"), re.MULTILINE):
            groups = match.groups()
            op, entry = groups if len(groups) == 2 else (path.stem, groups[0])
            entries[op].add(entry)
    return entries


def entry_of(op, function, entries):
    """Return the entry of which a function is a pass: forward_dense, of forward_dense_rows."""
    return max((e for e in entries if f"{function}_".startswith(f"{op}_{e}_")), key=len, default="")


def missing():
    """Return a line for each op of which something is missing."""
    kernels = entries_of(r"^(\w+) = entry\(", "_kernels", "pyx")
    rules = entries_of(r'\bOp\(\s*"(\w+)\.(\w+)"', "ops", "py")
    references = entries_of(r'^@kernel\("(\w+)\.(\w+)"\)', "backends/reference", "py")
    shaders = entries_of(r"^kernel void (\w+)\(", "backends/metal/kernels", "metal")
    cases = {path.stem for path in (PACKAGE / "testing/cases").glob("[!_]*.py")}
    shaders.pop("program")  # what a program does between kernels
    lines = []
    for op in sorted({*kernels, *rules, *references, *shaders, *cases} - {*NO_OPS}):
        lacks = [] if kernels[op] else [f"the kernel, {op}.pyx in a folder of toynn/_kernels"]
        known = kernels[op] | rules[op] | references[op] or {"forward"}
        for what, names in (
            ('a rule, Op("{}", ...) in toynn/ops', rules[op]),
            ('a float64 reference, @kernel("{}") in toynn/backends/reference', references[op]),
            (
                f"a shader, in toynn/backends/metal/kernels/{op}.metal, of {{}}",
                {entry_of(op, function, known) for function in shaders[op]},
            ),
        ):
            lacks += [what.format(f"{op}.{entry}") for entry in sorted(known - names)]
        lacks += [] if op in cases else [f"the case, toynn/testing/cases/{op}.py"]
        lines += [f"{op} lacks {'; '.join(lacks)}"] if lacks else []
    return lines


def unexplained(root):
    """Return a line for each op of which an explanation is missing in a checkout."""
    pages = (root / "docs/kernel_pages.py").read_text(encoding="utf-8")
    told = "".join((root / f"docs/{page}.md").read_text("utf-8") for page in PAGES)
    tour = re.findall("^#+ (.*)", told, re.M)
    figures = (root / "docs/roofline.json").read_text(encoding="utf-8")
    files = [path.read_text() for path in root.glob("tests/kernels/test_questions_*.py")]
    lines = []
    for op in sorted({*entries_of(r"^(\w+) = entry\(", "_kernels", "pyx")} - {*NO_OPS}):
        named = re.search(rf'^    "{op}": "(.*(?:\n    " .*)*)",$', pages, re.MULTILINE)
        sections = re.sub(r'"\n    "', "", named[1]).split(" | ") if named else []
        asked = len(re.findall(rf"^def test_{op}_", "\n".join(files), re.MULTILINE))
        lacks = [] if named else [f'its sections, a line "{op}" of docs/kernel_pages.py']
        lacks += [
            f"a section {each!r} of docs/kernels.md or beyond-gpt2.md"
            for each in sections
            if each not in tour
        ]
        lacks += (
            [] if f'"{op}.' in figures else ["figures in docs/roofline.json: docs/kernel_pages.py"]
        )
        lacks += [] if asked > 2 else ["three questions in tests/kernels/test_questions_*.py"]
        lines += [f"{op} lacks {'; '.join(lacks)}"] if lacks else []
    return lines


def test_the_files_of_an_op():
    assert not missing(), "\n".join(missing())


def test_what_explains_an_op():
    assert not unexplained(ROOT), "\n".join(unexplained(ROOT))
