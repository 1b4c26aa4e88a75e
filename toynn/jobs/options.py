"""The options of any job. lora_options.py and others add those of a job, and change defaults.

    class LoRAOptions(...):
        steps: int = 200

``checked`` checks what is typed, read from a file or given in Python.
"""

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, ClassVar, Literal

from toynn.backends import SHIPPED
from toynn.distributed import PATIENCE
from toynn.errors import ConfigError
from toynn.jobs.peers import hinted, option_hint
from toynn.numerics.precision import PRECISIONS
from toynn.optim import AdamW, Schedule
from toynn.optim.schedule import WARMUP
from toynn.options import (
    Activations,
    Decay,
    Optimizer,
    Option,
    Precision,
    RecipeOptions,
    names_of,
    nbytes_or,
    option,
    options_of,
    real,
    whole,
)
from toynn.train.boards import BOARDS
from toynn.train.options import LoopOptions

StrPath = str | PathLike[str]
REPORTS, NO_REPORT = ("html", *BOARDS), "none"
MODEL, ADAPTER, OPTIMIZATION = "model and data", "adapter", "optimization"
SAVING, MACHINE = "evaluation and saving", "machine"
#: The heading of the most used flags: the first SIX of FIRST that a recipe has.
MOST_USED, SIX = "most used", 6
FIRST = ("model", "donor", "data", "reward", "out", "steps", "batch", "lr", "seq", "seed")
#: The headings of --help in their order.
HEADINGS = (MOST_USED, MODEL, ADAPTER, OPTIMIZATION, SAVING, MACHINE)


@dataclass(kw_only=True, repr=False, eq=False)
class _Optimization:
    """The length of a run, and its updates."""

    GROUP: ClassVar[str] = OPTIMIZATION

    batch: int = option(
        "sequences or pictures per step",
        8,
        of=(RecipeOptions, "t_batch"),
        also="--batch-size",
        memory="smaller",
    )
    seed: int = option("seed of all random numbers", 0, of=RecipeOptions, read=whole(0))
    steps: int = option("number of weight updates", 1500, of=LoopOptions, also="--iters")
    grad_accum: int = option(
        "batches per weight update: gradient accumulation",
        1,
        of=LoopOptions,
        also="--grad-accumulation-steps",
    )
    max_grad_norm: float = option("clip gradients to this norm; 0 is off", 1.0, of=LoopOptions)
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop, or skip the update, if a gradient is not finite", "stop", of=LoopOptions
    )
    lr_schedule: Literal["cosine", "linear", "wsd", "constant"] = option(
        "how the learning rate falls after warmup; wsd: in the last fifth",
        "cosine",
        of=(Schedule, "name"),
    )
    lr: float = option("peak learning rate", 3e-3, of=(Schedule, "lr_max"), also="--learning-rate")
    warmup: int | None = option(
        f"steps of linear warmup (default: {WARMUP}, or a tenth of fewer steps)",
        None,
        of=(Schedule, "warmup_steps"),
    )
    min_lr_ratio: float = option("final learning rate divided by the peak", 0.1, of=Schedule)
    weight_decay: float = option("AdamW's weight decay", 0.1, of=AdamW)
    epochs: float | None = option(
        "train for N passes through the data; with --steps, the smaller length holds",
        None,
        read=real(0, above=True),
        compared=False,
    )


def best_by(*metrics: str) -> Any:
    """Return the option of the metrics that choose the best weights, by default the first."""
    return option(
        "metric that selects the best weights; more metrics after commas are only reported: "
        + ", ".join(metrics),
        metrics[0],
        of=(LoopOptions, "best_by"),
        read=names_of(metrics),
        metavar="NAMES",
    )


@dataclass(kw_only=True, repr=False, eq=False)
class _Saving:
    """The run's folder, its evaluations, checkpoints and reports."""

    GROUP: ClassVar[str] = SAVING

    log_every: int = option("steps between reports", 25, of=LoopOptions, also="--steps-per-report")
    eval_every: int = option(
        "steps between evaluations; 0: none, and the last weights are kept",
        250,
        of=LoopOptions,
        also="--steps-per-eval",
    )
    save_every: int = option(
        "steps between checkpoints; 0: only when a signal stops the run", 250, of=LoopOptions
    )
    early_stopping: int = option(
        "stop after N evaluations in a row without a better --metric; 0 is off", 0, of=LoopOptions
    )
    metric: str | Sequence[str] = best_by("loss", "accuracy")
    save_total_limit: int = option(
        "keep the N newest checkpoints; 0 keeps all", 2, read=whole(0), compared=False
    )
    report: str | Sequence[str] = option(
        f"reports beside metrics.jsonl, comma-separated: {', '.join(REPORTS)}, or none",
        "html",
        read=names_of(REPORTS, NO_REPORT),
        metavar="NAMES",
        compared=False,
    )
    out: StrPath | None = option(
        "new folder for the run (default runs/RECIPE-<date>-<time>)",
        None,
        metavar="DIR",
        in_config=False,
    )
    config: StrPath | None = option(
        "read flags from a TOML file, such as a run's config.toml; typed flags take precedence",
        None,
        metavar="FILE",
        in_config=False,
    )
    resume: StrPath | None = option(
        "continue a run, or one of its checkpoints, in DIR; more --steps or --epochs extend it",
        None,
        metavar="DIR",
        in_config=False,
    )
    force_resume: bool = option(
        "resume although configuration, data, base, ISA level, backend or precision differ",
        False,
        in_config=False,
    )

    @property
    def reports(self) -> tuple[str, ...]:
        """The names of the requested reports."""
        return tuple(name for name in str(self.report).split(",") if name != NO_REPORT)


@dataclass(kw_only=True, repr=False, eq=False)
class _Machine:
    """What computes a run, and in how much memory."""

    GROUP: ClassVar[str] = MACHINE

    checkpointing: bool = option(
        "recompute activations in the backward pass: less memory, slower",
        False,
        of=RecipeOptions,
        memory=(False, True),
    )
    keep_attention: bool = option(
        "with --checkpointing: keep the outputs of attention, the slowest part of long rows",
        False,
        of=RecipeOptions,
        memory=(True, False),
    )
    recompute_cheap: bool = option(
        "recompute norms and activation functions in the backward pass: less memory, hardly slower",
        False,
        of=RecipeOptions,
        memory=(False, True),
    )
    activations: Activations = option(
        "keep activations for the backward pass in this type",
        "float32",
        of=RecipeOptions,
        memory=("float32", "bfloat16"),
    )
    precision: Precision = option(
        "precision of matrix products; auto: medium if bfloat16 is faster here, else highest",
        "highest",
        of=RecipeOptions,
        words=(*PRECISIONS, "auto"),
    )
    threads: int | None = option(
        "use at most N threads (default: one per core)",
        None,
        of=(RecipeOptions, "n_threads"),
        read=whole(1, 1024),
    )
    backend: str = option(
        "compute on cpu, metal (a Mac's GPU) or reference (float64, slow)",
        "cpu",
        read=str,
        metavar="NAME",
        words=SHIPPED,
        compared=False,  # the name of the backend is compared instead
    )
    memory: int | str | None = option(
        "choose the fastest recomputation and prepacking that fit into SIZE (8G, 500M), or into "
        "free memory (auto) (default: as the other flags say)",
        None,
        read=nbytes_or("auto"),
        metavar="SIZE",
        words=("auto",),
        compared=False,
        memory=(None, "auto"),
    )
    allreduce: Literal["ordered", "fast"] = option(
        "add the gradients of MPI ranks in rank order, reproducibly, or fast", "ordered"
    )
    rank_timeout: float = option(
        "end all MPI ranks if one keeps the others waiting so long; 0: never",
        PATIENCE,
        read=real(0),
        metavar="SECONDS",
        compared=False,
    )


@dataclass(kw_only=True, repr=False, eq=False)
class JobOptions(_Machine, _Saving, _Optimization):
    """The options of any job."""


@dataclass(kw_only=True, repr=False, eq=False)
class NewModelOptions(JobOptions):
    """The options of a job that makes a model: also its shape, and which weights decay."""

    GROUP: ClassVar[str] = MODEL

    d_model: int = option("width of the model", 128, read=whole(1), source="own", memory="smaller")
    layers: int = option("number of transformer blocks", 4, read=whole(1, 1000), source="own")
    heads: int = option(
        "number of attention heads; must divide --d-model", 4, read=whole(1), source="own"
    )
    decay: Decay = option(
        "apply --weight-decay to all weights or to matrices only",
        "all",
        group=OPTIMIZATION,
        of=RecipeOptions,
    )
    optimizer: Optimizer = option(
        "adamw, or muon: Muon for the matrices of blocks, AdamW for tables, head and vectors",
        "adamw",
        group=OPTIMIZATION,
        of=RecipeOptions,
    )
    momentum: float = option("Muon's momentum", 0.95, group=OPTIMIZATION, of=RecipeOptions)


BACKEND, THREADS, PRECISION = (
    options_of(JobOptions)[name] for name in ("backend", "threads", "precision")
)


def arranged(kind: type[JobOptions]) -> dict[str, Option]:
    """Return the options of a job by name, in the order of their headings."""
    options = options_of(kind)
    first = [name for name in FIRST if name in options][:SIX]
    grouped = {name: replace(options[name], group=MOST_USED) for name in first} | {
        name: each for name, each in options.items() if name not in first
    }
    return dict(sorted(grouped.items(), key=lambda pair: HEADINGS.index(pair[1].group)))


def checked(options: Mapping[str, Option], typed: Mapping[str, Any], recipe: str) -> dict[str, Any]:
    """Return the values that are given, as the fields have them, without None.

    Raises ConfigError for an unknown name, and for a value that an option cannot have.
    """
    values = {}
    for name, value in typed.items():
        if name not in options:
            hint = option_hint(name, options.values()) or f"it has {', '.join(options)}"
            raise ConfigError(f"{recipe}: there is no option {name!r}; {hint}")
        try:
            if value is not None:
                values[name] = options[name].check(value)
        except ArgumentTypeError as error:
            raise ConfigError(f"argument {options[name].flag}: {hinted(str(error))}") from None
    return values
