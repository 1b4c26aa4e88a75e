"""The flags that all recipes take."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from typing import Literal

from toynn.adamw import RANGES, AdamW
from toynn.cli._flags import Flag, with_defaults
from toynn.cli._numbers import real, whole
from toynn.distributed import ORDERS
from toynn.options import DECAYS, RecipeOptions
from toynn.precision import PRECISIONS
from toynn.schedule import SCHEDULES, Schedule
from toynn.train.options import LoopOptions
from toynn.train.plan import WARMUP

__all__ = ["BACKEND", "DECAY", "THREADS", "run_flags", "shape_flags"]

REPORTS, NO_REPORT = ("html", "tensorboard"), "none"
THREADS = Flag(
    "threads", "use at most so many threads (default: one per core)", read=whole(1, 1024)
)
BACKEND = Flag(
    "backend",
    "where to compute: cpu, metal (a Mac's GPU), or reference, in float64 and slowly (default "
    "{default})",
    "cpu",
    metavar="NAME",
    words=("cpu", "metal", "reference"),
)
DECAY = Flag(
    "decay",
    "what --weight-decay is for: all weights, or matrices and no gains, biases and other vectors "
    "(default {default})",
    "all",
    choices=DECAYS,
    to={RecipeOptions: "decay"},
)


def names_of(known: Sequence[str], none: str | None = None) -> Callable[[str], str]:
    """Return a parser of names between commas, of those known; or ``none`` alone."""

    def parse(text: str) -> str:
        names = text.split(",")
        if text != none and (set(names) - set(known) or len(set(names)) < len(names)):
            may = f", or {none}" if none else ""
            raise ArgumentTypeError(f"must be of {', '.join(known)}{may}, once each; got {text!r}")
        return text

    return parse


def run_flags(
    recipe: str, items: str, measures: tuple[str, ...], **own: float | str
) -> tuple[Flag, ...]:
    """Return what all recipes take; ``own`` are defaults that differ from those here.

    ``items`` is what a batch is made of; ``measures``, by what the best weights can be chosen.
    """
    of_first = "; kl of several sources is on the first alone" if "kl" in measures else ""
    flags = (
        Flag(
            "steps",
            "updates of the weights (default {default:g})",
            1500,
            whole(1),
            to={LoopOptions: "steps", Schedule: "steps"},
        ),
        Flag(
            "epochs",
            "passes through the data in place of so many steps; the last update takes what is left",
            read=real(0, above=True),
        ),
        Flag(
            "batch",
            f"{items} per step (default {{default:g}})",
            8,
            whole(1),
            to={RecipeOptions: "t_batch"},
        ),
        Flag(
            "lr",
            "largest learning rate (default {default:g})",
            3e-3,
            real(0, RANGES["lr"][1], above=True),
            to={Schedule: "lr_max"},
        ),
        Flag(
            "min_lr_ratio",
            "the last learning rate divided by the largest (default {default:g})",
            0.1,
            real(0, 1),
            to={Schedule: "min_lr_ratio"},
        ),
        Flag(
            "lr_schedule",
            "how the learning rate falls behind the warm-up: along a cosine or a line, not at all, "
            "or over the last fifth (default {default})",
            "cosine",
            choices=tuple(SCHEDULES),
            to={Schedule: "name"},
        ),
        Flag(
            "weight_decay",
            "of AdamW (default {default:g})",
            0.1,
            real(0),
            to={AdamW: "weight_decay"},
        ),
        Flag(
            "max_grad_norm",
            "clip the gradient to this norm; 0 does not (default {default:g})",
            1.0,
            real(0),
            to={LoopOptions: "max_grad_norm"},
        ),
        Flag(
            "grad_accum",
            "batches whose gradients make one update (default {default:g})",
            1,
            whole(1),
            to={LoopOptions: "grad_accum"},
        ),
        Flag(
            "seed",
            "of all that is random (default {default:g})",
            0,
            whole(0),
            to={RecipeOptions: "seed"},
        ),
        Flag(
            "log_every",
            "steps between reports (default {default:g})",
            25,
            whole(1),
            to={LoopOptions: "log_every"},
        ),
        Flag(
            "eval_every",
            "steps between evaluations; 0: none, and the newest weights are the best (default "
            "{default:g})",
            250,
            whole(0),
            to={LoopOptions: "eval_every"},
        ),
        Flag(
            "early_stopping",
            "end after so many evaluations in a row that are no better, by --measure; 0 does not "
            "(default {default:g})",
            0,
            whole(0),
            to={LoopOptions: "early_stopping"},
        ),
        Flag(
            "measure",
            "what the best weights are chosen by, on what is held out; others, behind commas, are "
            f"measured, too: {', '.join(measures)}{of_first} (default {{default}})",
            "loss",
            read=names_of(measures),
            metavar="NAMES",
            words=measures,
            to={LoopOptions: "best_by"},
        ),
        Flag(
            "on_nonfinite",
            "what to do with an update whose gradient is not finite (default {default})",
            "stop",
            choices=("stop", "skip"),
            to={LoopOptions: "on_nonfinite"},
        ),
        Flag(
            "save_every",
            "steps between checkpoints; the last step has one, too; 0: none but that of a signal "
            "(default {default:g})",
            250,
            whole(0),
            to={LoopOptions: "save_every"},
        ),
        Flag(
            "save_total_limit",
            "keep so many of the newest checkpoints; 0: all (default {default:g})",
            2,
            whole(0),
        ),
        Flag(
            "warmup",
            f"steps up to the largest learning rate (default {WARMUP}, or a tenth of fewer steps)",
            read=whole(0),
            to={Schedule: "warmup_steps"},
        ),
        THREADS,
        BACKEND,
        Flag(
            "allreduce",
            "how the gradients of several processes (mpiexec -n 4 toynn train ...) are added: in "
            "the order of the ranks, with the same bits on every run, or as MPI likes "
            "(default {default})",
            "ordered",
            choices=ORDERS,
        ),
        Flag(
            "precision",
            "of matrix products; auto is medium where --backend is known to multiply bfloat16 "
            "faster than float32 on this machine, else highest (default {default})",
            "highest",
            choices=(*PRECISIONS, "auto"),
        ),
        Flag(
            "checkpointing",
            "compute activations again in the backward pass: less memory, the same results, slower",
            False,
            action="store_true",
            to={RecipeOptions: "checkpointing"},
        ),
        Flag(
            "report",
            "what is written of the run beside metrics.jsonl, separated by commas: html, a page "
            "report.html; tensorboard, event files in tensorboard/; or none (default {default})",
            "html",
            read=names_of(REPORTS, NO_REPORT),
            metavar="NAMES",
            words=(*REPORTS, NO_REPORT),
        ),
        Flag(
            "out",
            f"a new folder for the run (default runs/{recipe}-<date>-<time>)",
            metavar="DIR",
        ),
        Flag(
            "config",
            "a TOML file with flags, such as a run's config.toml; those that are typed go before "
            "it, and the recipe need not be",
            metavar="FILE",
        ),
        Flag(
            "resume",
            "go on with the run in a folder, from its newest checkpoint, or from the one named; "
            "flags and recipe are those of its config.toml; more --steps or --epochs extend it",
            metavar="DIR",
        ),
        Flag(
            "force_resume",
            "go on although configuration, data, base, ISA level, backend or precision are not "
            "what they were",
            False,
            action="store_true",
        ),
    )
    return with_defaults(flags, **own)


def shape_flags(d_model: int, heads: Literal["own", "may"] = "own") -> tuple[Flag, ...]:
    """Return the flags for the shape of any transformer, of this width by default.

    ``heads`` "may" be given for a model that is started from: its weights do not say them.
    """
    number = "attention heads; they must divide the width (default {default})"
    return (
        Flag("d_model", "width of the model (default {default})", d_model, whole(1), source="own"),
        Flag("layers", "transformer blocks (default {default})", 4, whole(1, 1000), source="own"),
        Flag("heads", number, 4, whole(1), source=heads),
    )
