"""What an adapter changes, on held-out prompts: expected, before and after, greedy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from toynn import engines
from toynn.data.batch import IGNORED
from toynn.data.examples import Examples
from toynn.formats import gguf
from toynn.formats.tokenizer import Tokenizer
from toynn.generate import sample

__all__ = ["before_and_after"]

PROMPTS = 3


def before_and_after(
    model: Path, engine: Any, tokenizer: Tokenizer, valid: Examples, count: int
) -> Iterator[str]:
    """Yield lines on the first prompts that are held out, if they have prompts.

    ``count`` is how many tokens are written at most. The model without adapters is the file itself,
    mapped once more.
    """
    shown = [valid[k] for k in range(min(PROMPTS, len(valid)))]
    if not shown or any(labels[0] != IGNORED for _, labels in shown):
        return
    with gguf.open(model, check=False) as file:
        base = engines.frozen(file)
    for ids, labels in shown:
        learned = np.flatnonzero(labels != IGNORED)
        prompt = [int(id) for id in ids[: learned[0] + 1]]
        answer = [int(id) for id in labels[learned] if int(id) not in tokenizer.eog]
        yield f"prompt    {_line(tokenizer, prompt)}"
        yield f"expected  {_line(tokenizer, answer)}"
        for name, by in (("before", base), ("after", engine)):
            said = sample(by, prompt, count, temperature=0, stop=tokenizer.eog)
            yield f"{name:9} {_line(tokenizer, said)}"


def _line(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, special=True).replace("\n", "\\n")
