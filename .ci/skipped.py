"""What a run of pytest skipped because something was not installed: the tests to run again.

    python .ci/skipped.py suite.log

It reads the lines ``SKIPPED [2] tests/a/test_b.py:9: X is not installed``. A line of a test stands
for that test; any other line, such as one of the module or of a helper in it, for the whole file.
"""

import ast
import re
import sys
from pathlib import Path

LINE = re.compile(r"^SKIPPED \[\d+\] (tests/[^:]*):(\d+): .*not installed", re.MULTILINE)


def named(path: str, line: int) -> str:
    """Return pytest's name of the test of a file in which a line is, or the file."""
    for node in ast.parse(Path(path).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first <= line <= (node.end_lineno or line):
                return f"{path}::{node.name}"
    return path


def again(log: str) -> list[str]:
    """Return the tests and files, a file without its tests."""
    found = {named(path, int(line)) for path, line in LINE.findall(log)}
    return sorted(each for each in found if each.partition("::")[0] not in found - {each})


if __name__ == "__main__":
    print(*again(Path(sys.argv[1]).read_text()))
