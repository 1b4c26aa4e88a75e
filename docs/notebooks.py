"""Run the notebooks, and write them with what they print and draw: ``python docs/notebooks.py``.

docs/notebooks/shown has a Markdown page for each, with SVG pictures, which GitHub shows. Names
behind the command run only these. It needs matplotlib and a C compiler.
"""

import ast
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"
SHOWN = FOLDER / "shown"
CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
#: What a cell printed and drew, behind its code in a shown page.
OUTPUT = re.compile(r"^(?:```text\n.*?^```\n\n|!\[\]\([\w-]+\.svg\)\n\n)", re.MULTILINE | re.DOTALL)


def page(name: str, output: Callable[[str], str] = lambda code: "") -> str:
    """Return a notebook as a page; ``output`` says what to write behind the code of a cell."""
    text = (FOLDER / f"{name}.md").read_text().split("---\n", 2)[2]
    text = re.sub(r"\]\(\.\./", "](../../", text)
    note = f"*Made by `python docs/notebooks.py {name}` from [{name}.md](../{name}.md).*\n"
    title, _, rest = text.partition("\n\n")
    cells = CELL.sub(lambda cell: f"```python\n{cell[1]}```\n\n{output(cell[1])}", rest)
    return re.sub(r"\n{3,}", "\n\n", f"{title}\n\n{note}\n{cells}")


def run(name: str) -> None:
    """Run a notebook from top to bottom; write its page and its pictures."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    scope: dict[str, Any] = {"__name__": "__main__"}
    pictures = 0

    def output(code: str) -> str:
        nonlocal pictures
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(tree, name, "exec"), scope)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
                if value is not None and not code.rstrip().endswith(";") and not plt.get_fignums():
                    print(value)
        said = out.getvalue().rstrip()
        parts = [f"```text\n{said}\n```\n\n"] if said else []
        for number in plt.get_fignums():
            pictures += 1
            file = SHOWN / f"{name}-{pictures}.svg"
            plt.figure(number).savefig(file, metadata={"Date": None})
            drawn = re.sub(r"(\.\d)\d+", r"\1", file.read_text())  # tenths of a point do
            drawn = re.sub(
                r" *<!--.*?-->\n| *<metadata>.*?</metadata>\n", "", drawn, flags=re.DOTALL
            )
            file.write_text(re.sub(r"^ +| +$|\n(?=[LMCQz\"])", "", drawn, flags=re.MULTILINE))
            parts.append(f"![]({file.name})\n\n")
        plt.close("all")
        return "".join(parts)

    for old in SHOWN.glob(f"{name}-*.svg"):
        old.unlink()
    (SHOWN / f"{name}.md").write_text(page(name, output))


def main() -> None:
    """Run the notebooks that the command names, or all."""
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.md"))
    SHOWN.mkdir(exist_ok=True)
    os.chdir(FOLDER)  # their imports are relative to it
    sys.path.insert(0, "")
    # plots.py asks for SVG where Jupyter draws; here savefig does.
    inline = SimpleNamespace(set_matplotlib_formats=lambda *formats: None)
    sys.modules["matplotlib_inline.backend_inline"] = inline  # type: ignore[assignment]
    for name in names:
        print(name, flush=True)
        run(name)


if __name__ == "__main__":
    main()
