"""A puzzle: its task, a program with a blank, a check, and hints.

The program is written once, with its solution. The solution stands between the marks >>> and <<<,
which the learner's file replaces by a blank: an assignment of ... to each name that the next line
returns. A third mark, ---, can end the solution; the text after it is then the learner's blank:

    # >>>
    return y * (dy - (y * dy).sum(axis=1, keepdims=True))
    # ---
    return y * dy
    # <<<
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from toynn_puzzles.answer import Answer

Language = Literal["py", "pyx", "c"]

_CUT = re.compile(
    r"^([ ]*)(?:#|//) >>>\n(.*?)(?:^[ ]*(?:#|//) ---\n(.*?))?^[ ]*(?:#|//) <<<\n"
    r"(?=(?:[ ]*return ([\w, ]+)$)?)",
    re.MULTILINE | re.DOTALL,
)
#: The usual blanks, by language.
_BLANKS: dict[str, str] = {
    "py": "raise NotImplementedError  # your code",
    "pyx": "pass  # your code",
    "c": "// your code",
}


@dataclass(frozen=True)
class Puzzle:
    """A puzzle. Its number, name and road come from its place in ROADS.

    Attributes
    ----------
    title
        A few words.
    wanted
        The task, in at most three lines.
    code
        The program with its solution, and marks around the solution.
    check
        Raises Wrong for a wrong answer; the message says what is wrong.
    hints
        The first one is a nudge, the last one nearly the solution.
    formula
        Lines that help, if any.
    told
        The section of docs/performance.md that explains it, if any.
    language
        The suffix of the learner's file.
    why
        A question to one who has solved it, and its answer.
    same
        The file of the package that does the same.
    seconds
        Time limit of a check; an endless loop is ended then.
    """

    title: str
    wanted: str
    code: str
    check: Callable[[Answer], None]
    hints: tuple[str, ...]
    why: tuple[str, str]
    same: str
    formula: str = ""
    told: str = ""
    language: Language = "py"
    seconds: int = 20
    number: int = 0
    name: str = ""
    road: str = ""

    @property
    def file(self) -> str:
        """The name of the learner's file."""
        return f"{self.number:02}_{self.name}.{self.language}"

    @property
    def blank(self) -> str:
        """The learner's file, as it is at first."""
        return self._text(self._blank)

    def _blank(self, cut: re.Match[str]) -> str:
        indent, _, blank, returned = cut.groups()
        lines = [f"{name} = ..." for name in (returned or "").split(", ") if name]
        return blank or "".join(f"{indent}{line}\n" for line in lines or [_BLANKS[self.language]])

    @property
    def solution(self) -> str:
        """The learner's file, solved."""
        return self._text(lambda cut: cut[2])

    def _text(self, chosen: Callable[[re.Match[str]], str]) -> str:
        told = [f"Puzzle {self.number} ({self.road}): {self.title}.", "", *self.wanted.splitlines()]
        if self.formula:
            told += ["", *(f"    {line}".rstrip() for line in self.formula.splitlines())]
        if self.told:
            told += ["", f'Explained in docs/performance.md, "{self.told}".']
        told += ["", f"toynn puzzles check {self.number}    says what is wrong"]
        told += [f"toynn puzzles hint {self.number}     gives a hint"]
        if self.language == "c":
            head = "".join(f"// {line}".rstrip() + "\n" for line in told)
        else:
            head = "\n".join(['"""' + told[0], *told[1:], '"""\n'])
        code = _CUT.sub(chosen, self.code.lstrip())
        return f"{head}\n{chr(10) if code.startswith('def') else ''}{code}"
