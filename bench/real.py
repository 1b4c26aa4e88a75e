"""LoRA on examples of natural lengths, toynn against PEFT and bitsandbytes: an epoch of each.

Only the answers have loss. Lengths are log-normal, as in public instruction data, and the same in
every run. toynn packs examples into rows of T tokens. PEFT runs twice: on batches of examples in
random order, padded to the longest one; and on toynn's packed rows. There transformers separates
examples by positions that start again at 0. All steps have about as many tokens.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import growth
import lora
import numpy as np
from numpy.typing import NDArray
from smallest import smallest

from toynn._kernels import matmul
from toynn.data.examples import Examples
from toynn.data.packing import PackedExamples

SHAPE = smallest(
    lora.Shape(576, 5, 9, 3, 1536, 32000, True, 512), lora.Shape(64, 1, 2, 1, 96, 512, True, 512)
)
COUNT, BATCH = smallest(64, 8), 2  # examples; rows of T tokens in a step
AT_A_TIME = 4  # examples in a step with padding
SHORTEST, LONGEST, MEDIAN, SPREAD = 24, 448, 145, 0.6  # tokens of an example
FILLERS = SHAPE.vocab - 256  # tokens of the tokenizer that no text has
IGNORED = -100
STEPS = 3  # steps whose peak memory is measured


class Epoch(NamedTuple):
    """One pass through the examples, in steps; and the filled share of the batches."""

    steps: list[Callable[[], object]]
    filled: float


def lengths(count: int = COUNT, seed: int = 0) -> NDArray[np.int64]:
    """Return the tokens of each example's prompt and answer (count, 2)."""
    rng = np.random.default_rng(seed)
    whole = np.exp(rng.normal(np.log(MEDIAN), SPREAD, count)).clip(SHORTEST, LONGEST)
    answer = np.rint(whole * rng.uniform(0.2, 0.8, count)).clip(8)
    return np.stack([np.rint(whole) - answer, answer], axis=1).clip(1).astype(np.int64)


def examples(seed: int = 0) -> Examples:
    """Return examples of random tokens."""
    rng, found = np.random.default_rng(seed), Examples(SHAPE.T)
    for prompt, answer in lengths().tolist():
        ids = rng.integers(0, SHAPE.vocab, prompt + answer).tolist()
        found.append([(ids[:prompt], False), (ids[prompt:], True)])
    return found


def rows() -> Iterator[Any]:
    """Yield the packed batches of an epoch."""
    packed = PackedExamples(examples(), BATCH, 0)
    for _ in range(round(np.ceil(packed.per_epoch))):
        yield next(packed)


def padded() -> Iterator[dict[str, Any]]:
    """Yield batches of AT_A_TIME examples in random order, padded to the longest one."""
    found = examples()
    order = np.random.default_rng(0).permutation(len(found)).tolist()
    for start in range(0, len(order), AT_A_TIME):
        some = [found[index] for index in order[start : start + AT_A_TIME]]
        longest = max(len(each.ids) for each in some)
        ids, mask = np.zeros((2, len(some), longest), np.int64)
        labels = np.full((len(some), longest), IGNORED, np.int64)
        for row, each in enumerate(some):
            n = len(each.ids)
            ids[row, :n], labels[row, :n], mask[row, :n] = each.ids, each.labels, 1
        yield {"input_ids": ids, "attention_mask": mask, "labels": labels}


def flattened() -> Iterator[dict[str, Any]]:
    """Yield toynn's batches as one row each; positions start again at 0 in each example."""
    for batch in rows():
        names = "input_ids", "position_ids", "labels"
        arrays = dict(zip(names, batch, strict=False))
        yield {name: array[None].astype(np.int64) for name, array in arrays.items()}


# -- Contestants: each takes the file of the base, and the number of threads -----------------------


def of_toynn(precision: str) -> Callable[[Path, int], Epoch]:
    """Return a function that makes toynn's epoch at a precision."""

    def make(path: Path, n_threads: int) -> Epoch:
        import toynn

        toynn.set_num_threads(n_threads)
        recipe, adamw = toynn.recipes.LoRA(), toynn.AdamW.for_lora()
        size = {"t_seq": SHAPE.T, "t_batch": BATCH}
        options = toynn.RecipeOptions(**size, packed=True, precision=precision)
        recipe.realize(path, None, lora.RANK, options, lora.ALPHA, "all-linear", init="peft")

        def step(batch: Any) -> float:
            k = recipe.step_index
            hp, ids = adamw.hp_for_step(k), batch.inputs
            return recipe.step(ids, batch.positions, batch.labels, hp, k == 0, batch.segments)

        batches = list(rows())
        filled = sum(batch.tokens for batch in batches) / sum(batch.room for batch in batches)
        return Epoch([lambda batch=batch: step(batch) for batch in batches], filled)

    return make


def of_peft(
    dtype: str, batches: Callable[[], Iterator[dict[str, Any]]], nf4: bool = False
) -> Callable[[Path, int], Epoch]:
    """Return a function that makes PEFT's epoch: a model in a dtype, or with nf4 linear layers."""

    def make(_: Path, n_threads: int) -> Epoch:
        import torch

        model = lora.peft_model(SHAPE, dtype, n_threads, nf4=nf4)
        trained = [p for p in model.parameters() if p.requires_grad]
        adamw = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)

        def step(batch: dict[str, Any]) -> float:
            given = {name: tensor for name, tensor in batch.items() if name != "labels"}
            logits = model(**given, use_cache=False).logits.flatten(0, 1).float()
            loss = torch.nn.functional.cross_entropy(logits, batch["labels"].flatten())
            adamw.zero_grad(set_to_none=True)
            loss.backward()
            adamw.step()
            return loss.item()

        steps, tokens, room = [], 0, 0
        for batch in batches():
            tokens += int(batch.get("attention_mask", np.ones_like(batch["input_ids"])).sum())
            room += batch["input_ids"].size
            tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
            steps.append(lambda tensors=tensors: step(tensors))
        return Epoch(steps, tokens / room)

    return make


CONTESTANTS = {
    "toynn highest": of_toynn("highest"),
    "toynn medium": of_toynn("medium"),
    "toynn int8": of_toynn("int8"),
    "PEFT float32": of_peft("float32", padded),
    "PEFT bfloat16": of_peft("bfloat16", padded),
    "PEFT float32, packed": of_peft("float32", flattened),
    "PEFT bfloat16, packed": of_peft("bfloat16", flattened),
    "bitsandbytes nf4": of_peft("bfloat16", padded, nf4=True),
}


def missing(who: str) -> str | None:
    """Return why a contestant cannot take part; None if it can."""
    if who == "toynn int8" and not matmul.multiplies_quads():
        return "the ISA level in use has no products of 8-bit codes"
    needs = ["torch", "transformers", "peft"] if who.startswith("PEFT") else []
    needs = ["torch", "transformers", "peft", "bitsandbytes"] if who.startswith("bits") else needs
    absent = [name for name in needs if find_spec(name) is None]
    return f"{', '.join(absent)}: not installed" if absent else None


def learned(who: str) -> int:
    """Return the number of valid labels in an epoch."""
    if who.startswith("toynn") or "packed" in who:
        return sum(batch.rows for batch in rows())
    return examples().labels


def seconds(
    epochs: dict[str, Epoch], rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Let the contestants take their steps in turns; return the seconds of each one's epochs."""
    for epoch in epochs.values():
        epoch.steps[0]()
    times: dict[str, list[float]] = {who: [] for who in epochs}
    most = max(len(epoch.steps) for epoch in epochs.values())
    for _ in range(rounds):
        spent = dict.fromkeys(epochs, 0.0)
        for k in range(most):
            for who, epoch in epochs.items():
                for step in epoch.steps[k : k + 1]:
                    start = clock()
                    step()
                    spent[who] += clock() - start
        for who, time_of_epoch in spent.items():
            times[who].append(time_of_epoch)
    return times


def peak(path: Path, who: str, n_threads: int) -> int:
    """Return the peak bytes of STEPS steps in another process, without those of imports."""
    command = [sys.executable, __file__, str(path), who, str(n_threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    before, most = map(int, done.stdout.split()[-2:])
    return most - before


# -- Through the command line ----------------------------------------------------------------------


def tokenizer() -> dict[str, Any]:
    """Return metadata of a byte tokenizer with as many tokens as the model."""
    from toynn.formats.tokenizer import byte_letters

    tokens = [*byte_letters(), "ab", *(f"<unused {n}>" for n in range(FILLERS - 2)), "<end>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 257 + [3] * (FILLERS - 1),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 1,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def write_texts(folder: Path) -> None:
    """Write examples of letters, one token each, to train.jsonl and a few to valid.jsonl."""
    rng, letters = np.random.default_rng(0), np.array(list("cdefghijklmnopqrstuvwxyz "))
    for name, found in (("train", lengths()), ("valid", lengths(8, seed=1))):
        with (folder / f"{name}.jsonl").open("w") as file:
            for prompt, answer in found.tolist():
                texts = ("".join(rng.choice(letters, n)) for n in (prompt, answer - 1))
                keys = ("prompt", "completion")
                file.write(json.dumps(dict(zip(keys, texts, strict=True))) + "\n")


def through_the_command_line(path: Path, folder: Path, n_threads: int) -> dict[str, float]:
    """Return the seconds of one epoch, from start to adapter, and the figures of its report."""
    write_texts(folder)
    words = ["train", "lora", "--model", path, "--data", folder, "--out", folder / "run"]
    words += ["--epochs", 1, "--batch", BATCH, "--seq", SHAPE.T, "--targets", "all-linear"]
    words += ["--threads", n_threads]
    command = [sys.executable, "-P", "-m", "toynn", *map(str, words)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    taken = time.perf_counter() - start
    reports = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    found = {name: sum(r.get(name, 0) for r in reports) for name in ("tokens", "learned_tokens")}
    return reports[-1] | found | {"seconds": taken}


if __name__ == "__main__":  # see peak
    file, contestant, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if not contestant.startswith("toynn"):
        import peft  # noqa: F401  (its own memory)
    import toynn  # noqa: F401

    imported = growth.peak()
    for one in CONTESTANTS[contestant](file, threads).steps[:STEPS]:
        one()
    print(imported, growth.peak())
