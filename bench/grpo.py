"""A whole step of GRPO, toynn beside TRL's GRPOTrainer: ``python bench/grpo.py``.

A step draws samples, scores them and updates adapters of rank 8 on all linear layers. The model has
the shape of SmolLM2-135M and random weights: a quantized file for toynn, transformers and PEFT for
TRL. The reward is the length of the text. The steps take turns; the first of each is not counted.
One thread: seconds of CPU time, which other load changes little; more: of wall time.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from lora import ALPHA, RANK, SHAPES, peft_model, write_file
from rows import clock_of, lora_precisions
from smallest import smallest

import toynn
from toynn.engines import PolicyOptions
from toynn.formats.tokenizer import Tokenizer, byte_letters
from toynn.jobs.samples import Prompt, Prompts, Rounds, Sampler
from toynn.recipes import GRPO
from toynn.rewards import Rewards
from toynn.testing.race import REST

PROMPT, COMPLETION = smallest((32, 64), (4, 4))  # tokens
SHAPE = SHAPES["smollm2_135m_T256"]._replace(T=PROMPT + COMPLETION, vocab=smallest(49152, 512))
PRECISIONS = {f"toynn {precision}": precision for precision in lora_precisions()}
DTYPES = {"TRL float32": "float32", "TRL bfloat16": "bfloat16"}
REWARD = "def length(completions, **_):\n    return [float(len(each)) for each in completions]\n"


class Case(NamedTuple):
    """What a step has to do, and how its seconds are counted."""

    folder: Path
    prompts: list[str]
    group: int
    n_threads: int
    clock: Callable[[], float]


def write_files(folder: Path, type: str) -> None:
    """Write the model, its tokenizer as transformers reads it, and the reward."""
    size = SHAPE.vocab
    tokens = [*byte_letters(), "ab", *(f"word{n}" for n in range(size - 258)), "<end>"]
    vocabulary = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (size - 1) + [3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": size - 1,  # hardly any sample draws it
        "tokenizer.ggml.add_bos_token": False,
    }
    write_file(folder / "base.gguf", SHAPE, type, vocabulary)
    (folder / "tokenizer").mkdir()
    for name, content in Tokenizer.from_gguf(folder / "base.gguf").hf_files().items():
        (folder / "tokenizer" / name).write_bytes(content)
    (folder / "rewards.py").write_text(REWARD)


def toynn_step(case: Case, precision: str, ends: ExitStack) -> Callable[[], float]:
    """Return a step as ``toynn train grpo`` takes it; it returns its seconds."""
    base, group = case.folder / "base.gguf", case.group
    tokenizer, options = Tokenizer.from_gguf(base), PolicyOptions(max_completion_length=COMPLETION)
    recipe, rows = GRPO(options), min(4, group * len(case.prompts))
    opts = toynn.RecipeOptions(t_seq=SHAPE.T - 1, t_batch=rows, packed=True, precision=precision)
    recipe.realize(base, None, RANK, opts, ALPHA, "all-linear")
    rewards = ends.enter_context(Rewards([f"{case.folder / 'rewards.py'}:length"]))
    rounds = Rounds(
        Prompts([Prompt(tokenizer.encode(text), text, {}) for text in case.prompts]),
        Sampler(recipe, tokenizer, rewards, options, {}, ()),
        batch=len(case.prompts),
        group=group,
        updates=1,
        iterations=1,
        seed=0,
        scale="group",
        mask_truncated=False,
    )
    adamw = toynn.AdamW.for_lora(lr=1e-4)

    def step() -> float:
        start, k = case.clock(), recipe.step_index
        recipe.train(next(rounds), adamw.hp_for_step(k), k == 0)
        return case.clock() - start

    return step


def trl_step(case: Case, dtype: str) -> Callable[[], float]:
    """Return a step of TRL; it returns its seconds, without those of starting its loop."""
    from datasets import Dataset
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        begun = ended = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = case.clock()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ended = case.clock()

    model, clock, names = peft_model(SHAPE, dtype, case.n_threads), Clock(), dict[str, Any]()
    model.config.use_cache = model.generation_config.use_cache = True
    exec(REWARD, names)
    trainer = GRPOTrainer(
        model,
        names["length"],
        GRPOConfig(
            str(case.folder / "out"),
            max_steps=1,
            per_device_train_batch_size=case.group * len(case.prompts),
            num_generations=case.group,
            max_completion_length=COMPLETION,
            learning_rate=1e-4,
            bf16=dtype == "bfloat16",
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        ),
        Dataset.from_list([{"prompt": text} for text in case.prompts]),
        processing_class=AutoTokenizer.from_pretrained(case.folder / "tokenizer"),
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)

    def step() -> float:
        trainer.train()
        return clock.ended - clock.begun

    return step


def compare(case: Case, rounds: int, only: str) -> None:
    """Let the steps of all contestants take turns; print seconds, and ratios of medians."""
    with ExitStack() as ends:
        steps = {who: toynn_step(case, PRECISIONS[who], ends) for who in PRECISIONS if only in who}
        if find_spec("trl"):
            steps |= {who: trl_step(case, DTYPES[who]) for who in DTYPES if only in who}
        taken: dict[str, list[float]] = {who: [] for who in steps}
        for _ in range(rounds + 1):
            for who, step in steps.items():
                time.sleep(REST)
                taken[who].append(step())
                print(f"{who} {taken[who][-1]:.2f}", file=sys.stderr, flush=True)
    usual = {who: statistics.median(seconds[1:]) for who, seconds in taken.items()}
    ours = [who for who in usual if who in PRECISIONS]
    columns = "".join(f"{f'time / {who}':>22}" for who in ours)
    print(f"{f'{case.group} samples a prompt':20}{'s, best/median':>18}{columns}")
    for who, seconds in usual.items():
        ratios = "".join(f"{seconds / usual[one]:22.2f}" for one in ours)
        print(f"{who:20}{min(taken[who][1:]):9.2f}/{seconds:8.2f}{ratios}", flush=True)


def main() -> None:
    """Time steps for each number of samples a prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generations", nargs="+", type=int, default=[2, 8])
    parser.add_argument("--prompts", type=int, default=smallest(2, 1))
    parser.add_argument("--threads", type=int, default=toynn.get_num_threads())
    parser.add_argument("--rounds", type=int, default=smallest(2, 1))
    parser.add_argument("--only", default="", help="part of a contestant's name, e.g. float32")
    parser.add_argument("--type", choices=("Q8_0", "Q4_0"), default="Q8_0", help="of toynn's file")
    options = parser.parse_args()
    toynn.set_num_threads(options.threads)
    letters = np.random.default_rng(0).choice(list("cdefghijklmnop"), (options.prompts, PROMPT))
    prompts, clock = ["".join(row) for row in letters], clock_of(options.threads)  # letter: token
    if not find_spec("trl"):
        print("TRL is not installed, so only toynn's steps are timed: pip install --group trl")
    with TemporaryDirectory() as name:
        write_files(folder := Path(name), options.type)
        print(f"{options.prompts} prompts of {PROMPT} tokens, samples of {COMPLETION}", flush=True)
        for group in options.generations:
            compare(
                Case(folder, prompts, group, options.threads, clock), options.rounds, options.only
            )


if __name__ == "__main__":
    main()
