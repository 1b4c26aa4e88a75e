"""The effect of an adapter on held-out prompts: greedy texts before and after."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from toynn.data.batch import IGNORED
from toynn.data.examples import Examples
from toynn.formats.tokenizer import Tokenizer
from toynn.generation.drawing import sample

PROMPTS = 3
LONGEST = 512  # most tokens shown: the last ones of a prompt, the first ones of an answer


def before_and_after(
    frozen: Callable[[], Any],
    engine: Any,
    tokenizer: Tokenizer,
    valid: Sequence[Examples],
    count: int,
    late: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, str]]:
    """Yield the first held-out prompts, with the expected answers and what both models write.

    Several sources take turns, and each has at least one prompt. A model writes at most ``count``
    tokens; once ``late`` is true, no further prompt is begun. Long prompts and answers are cut to
    LONGEST tokens. ``frozen`` makes the model without adapters.
    """
    first = [part[k] for k in range(PROMPTS) for part in valid if k < len(part)]
    asked = [(ids, labels) for ids, labels in first if labels[0] == IGNORED]
    shown = asked[: max(PROMPTS, len(valid))]
    if not shown:
        return
    base = frozen()
    for ids, labels in shown:
        if late():
            return
        trained = np.flatnonzero(labels != IGNORED)
        prompt = [int(id) for id in ids[: trained[0] + 1]]
        answer = [int(id) for id in labels[trained] if int(id) not in tokenizer.eog]
        texts = {"prompt": prompt[-LONGEST:], "expected": answer[:LONGEST]}
        for name, by in (("before", base), ("after", engine)):
            texts[name] = sample(by, prompt, count, temperature=0, stop=tokenizer.eog)
        decoded = {name: tokenizer.decode(ids, special=True) for name, ids in texts.items()}
        decoded["prompt"] = "..." * (len(prompt) > LONGEST) + decoded["prompt"]
        decoded["expected"] += "..." * (len(answer) > LONGEST)
        yield decoded
