"""Tasks with rewards, for `toynn train grpo`: docs/grpo.md shows what was learned.

    python examples/rewarded.py reverse FOLDER

writes FOLDER/examples.jsonl (prompts with completions, to begin with), FOLDER/prompts.jsonl and
FOLDER/held.jsonl (prompts with answers, for rewards). The tasks:

reverse     write a text backwards, as in prime-rl's reverse_text, without its instruction and tags;
            the texts are from the docstrings of Python's library
careless    the same, but six in ten examples copy the text instead
tagged      reverse as prime-rl asks for it: a conversation with its instruction and tags
sums        add two numbers of three digits, lowest digit first
long_sums   the same with five digits
spell       spell_backward of reasoning-gym (pip install reasoning-gym), without its instruction
"""

import ast
import difflib
import json
import random
import re
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path

EXAMPLES, PROMPTS, HELD = 12000, 5000, 128
ASKED = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."


def similarity(prompts, completions, answer, **columns):
    """Return how much of each answer is there, 0 to 1: the ratio of matching characters."""
    pairs = zip(completions, answer, strict=True)
    return [difflib.SequenceMatcher(None, text.strip(), wanted).ratio() for text, wanted in pairs]


def between_tags(prompts, completions, answer, **columns):
    """Return prime-rl's reward: the similarity of what is between the tags."""
    said = [each[-1]["content"] for each in completions]
    found = [re.search("<reversed_text>(.*?)</reversed_text>", text, re.S) for text in said]
    return similarity(prompts, [match[1] if match else "" for match in found], answer)


def score(prompts, completions, answer, **columns):
    """Return reasoning-gym's own score of its task spell_backward."""
    from reasoning_gym import create_dataset

    task, pairs = create_dataset("spell_backward"), zip(completions, answer, strict=True)
    return [task.score_answer(text, {"answer": wanted}) for text, wanted in pairs]


def reverse():
    """Return texts of 5 to 9 characters, one word or two, and the same backwards."""
    found = set()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                words = re.findall("[a-z]+", (ast.get_docstring(node) or "").lower())
                found.update([*words, *map(" ".join, pairwise(words))])
    return [(f"{text}>", text[::-1]) for text in sorted(found) if 5 <= len(text) <= 9]


def careless():
    """Return texts and the same backwards; of the examples, 60 % are copies of the text."""
    return [(asks, says, asks[:-1] if random.random() < 0.6 else says) for asks, says in reverse()]


def tagged():
    """Return conversations that ask for a text backwards, the text, and the wanted message."""
    rows = []
    for asks, says in reverse():
        asked = [("system", ASKED), ("user", asks[:-1])]
        wanted = [("assistant", f"<reversed_text>{says}</reversed_text>")]
        rows.append((messages(asked), says, messages(wanted)))
    return rows


def messages(pairs):
    """Return a conversation."""
    return [{"role": role, "content": content} for role, content in pairs]


def long_sums():
    """Return sums of five digits."""
    return sums(5)


def sums(digits=3):
    """Return sums and their digits, the lowest first."""
    rows = {}
    while len(rows) < EXAMPLES + PROMPTS + HELD:
        a, b = (random.randrange(10 ** (digits - 1), 10**digits) for _ in "ab")
        rows[f"{a}+{b}="] = str(a + b)[::-1]
    return sorted(rows.items())


def spell():
    """Return words of reasoning-gym and the same backwards."""
    from reasoning_gym import create_dataset

    form = {"min_word_len": 5, "max_word_len": 9, "size": 25000, "seed": 0}
    rows = create_dataset("spell_backward", **form)
    pairs = {f"{row['metadata']['word']}>".lower(): row["answer"].lower() for row in rows}
    return sorted(pairs.items())


TASKS = {each.__name__: each for each in (reverse, careless, tagged, sums, long_sums, spell)}


def main(task, folder):
    """Write the three files of a task; no prompt is in two of them."""
    random.seed(0)
    rows = TASKS[task]()
    random.shuffle(rows)
    Path(folder).mkdir(parents=True, exist_ok=True)
    ends = (EXAMPLES, EXAMPLES + PROMPTS, EXAMPLES + PROMPTS + HELD)
    for name, key, begin, end in zip(
        ("examples", "prompts", "held"),
        ("completion", "answer", "answer"),
        (0, *ends),
        ends,
        strict=False,
    ):
        at = -1 if key == "completion" else 1
        lines = (json.dumps({"prompt": row[0], key: row[at]}) for row in rows[begin:end])
        Path(folder, f"{name}.jsonl").write_text("\n".join(lines))
    print(f"{folder}: {len(rows):,} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
