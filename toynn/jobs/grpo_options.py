"""The options of ``toynn train grpo``."""

import os
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from toynn.engines.objectives import PolicyOptions
from toynn.jobs.lora_options import AdapterFields, BaseFields
from toynn.jobs.options import MODEL, OPTIMIZATION, PRECISION, SAVING, JobOptions, StrPath, best_by
from toynn.jobs.paths import data_name, local_data
from toynn.jobs.text_options import NAMED, RowOptions, WritingOptions
from toynn.options import Precision, option, real, whole
from toynn.rewards import READY
from toynn.train.options import LoopOptions


def reward_names(texts: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return the names of one reward or several, with full paths."""
    names = [_placed(each) for each in ([texts] if isinstance(texts, str) else texts)]
    return names[0] if len(names) == 1 else tuple(names)


def _placed(name: str) -> str:
    head, _, rest = name.partition(":")
    if head == "json" and rest:
        return f"{head}:{os.path.abspath(rest)}"
    return name if head in READY else os.path.abspath(name)


def numbers(text: str) -> str:
    """Return numbers between commas. Raises ArgumentTypeError."""
    try:
        finite = bool(np.isfinite([float(each) for each in text.split(",")]).all())
    except ValueError:
        finite = False
    if not finite:
        raise ArgumentTypeError(f"must be numbers, separated by commas; got {text!r}")
    return text


@dataclass(kw_only=True, repr=False, eq=False)
class GRPOOptions(JobOptions, RowOptions, WritingOptions, AdapterFields, BaseFields):
    """The options of ``toynn train grpo``; names are TRL's where it has the option."""

    GROUP: ClassVar[str] = OPTIMIZATION

    data: str = option(
        "prompts: .jsonl, .csv, .tsv, .parquet, .arrow, a folder with train.jsonl, or "
        "hf:OWNER/NAME[:SPLIT]; rewards get the other columns",
        group=MODEL,
        read=data_name,
        fetch=local_data,
        metavar="PATH",
        once="name one file, or a folder with train.jsonl and valid.jsonl",
    )
    reward: str | tuple[str, ...] | None = option(
        f"reward functions: FILE.py:FUNCTION, or {', '.join(READY.values())}; none are needed with "
        "--teacher",
        None,
        group=MODEL,
        read=reward_names,
        metavar="NAME",
        once="name several after one flag: --reward exact rewards.py:short",
        program=True,
    )
    reward_weights: str | None = option(
        "weight of each reward (default: 1 each)",
        None,
        group=MODEL,
        read=numbers,
        metavar="X,X,...",
    )
    reward_timeout: float = option(
        "seconds that a reward may take for the samples of a step",
        60.0,
        group=MODEL,
        read=real(0, above=True),
        compared=False,
    )
    reward_in_process: bool = option(
        "run rewards in this process, for a debugger: no time limit",
        False,
        group=MODEL,
        compared=False,
    )
    teacher: StrPath | None = option(
        "let a larger model with the same tokenizer score the tokens of samples: a GGUF file or "
        "Hugging Face folder",
        None,
        group=MODEL,
        **NAMED,
    )
    teacher_weight: float = option(
        "weight of log p_teacher - log p in the advantage of a token", 1.0, read=real(0)
    )
    batch: int = option("prompts per step; each has --num-generations samples", 4)
    num_generations: int = option(
        "samples of a prompt, its group; 2 work well on a CPU", 8, read=whole(1, 4096)
    )
    max_completion_length: int = option("most tokens of a sample", 256, of=PolicyOptions)
    temperature: float = option("temperature of samples", 1.0, of=PolicyOptions)
    top_p: float = option(
        "draw from the likeliest tokens that together have this probability",
        1.0,
        read=real(0, 1, above=True),
    )
    top_k: int = option("draw from the K likeliest tokens; 0: from all", 0, read=whole(0))
    loss_type: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = option(
        "what the losses of tokens are divided by: see docs/grpo.md", "dapo", of=PolicyOptions
    )
    scale_rewards: Literal["group", "batch", "none"] = option(
        "divide advantages by the standard deviation of rewards in the group or the batch", "group"
    )
    beta: float = option(
        "weight of the divergence from the model without adapters", 0.0, of=PolicyOptions
    )
    epsilon: float = option("clip the ratio at 1 - epsilon and 1 + epsilon", 0.2, of=PolicyOptions)
    epsilon_high: float | None = option(
        "clip the ratio at 1 + this (default: --epsilon)", None, of=PolicyOptions
    )
    delta: float | None = option(
        "the most that a ratio counts (default: no limit)", None, of=PolicyOptions
    )
    importance_sampling_level: Literal["token", "sequence"] = option(
        "a ratio for each token, or for the sequence (GSPO)", "token", of=PolicyOptions
    )
    importance_cap: float = option(
        "weigh tokens by p_trained / p_sampled, at most this; 0: off", 0.0, of=PolicyOptions
    )
    num_iterations: int = option("updates by the same samples", 1, read=whole(1))
    mask_truncated_completions: bool = option(
        "no loss for samples that --max-completion-length cuts", False
    )
    mini_batch: int = option(
        "train on N rows of the longest prompt and sample at a time; 0: all",
        4,
        read=whole(0),
        memory="smaller",
    )
    steps: int = 200
    lr: float = 1e-4
    weight_decay: float = 0.0
    log_every: int = 1
    eval_every: int = 20
    save_every: int = 20
    sample_every: int = option(
        "steps between greedy samples of held-out prompts, with rewards; 0: at the end only",
        20,
        group=SAVING,
        of=LoopOptions,
    )
    precision: Precision = option(PRECISION.help, "auto", words=get_args(Precision))
    metric: str | Sequence[str] = best_by("reward", "reverse-kl")
