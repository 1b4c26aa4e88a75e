"""The options of ``toynn train lora``, and those of adapters that other recipes have, too."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from toynn.engines.objectives import PreferenceOptions
from toynn.engines.targets import AdapterOptions
from toynn.jobs.options import ADAPTER, MACHINE, OPTIMIZATION, PRECISION, StrPath, best_by
from toynn.jobs.paths import model_file, model_name
from toynn.jobs.text_options import DATA, METRICS, TextJobOptions
from toynn.jobs.weighted import STRICT
from toynn.options import Precision, Prepack, RecipeOptions, option


@dataclass(kw_only=True, repr=False, eq=False)
class AdapterFields:
    """The shape of adapters, and how they start."""

    GROUP: ClassVar[str] = ADAPTER

    rank: int = option("rank of the adapters", 8, of=AdapterOptions, source="own", memory="smaller")
    alpha: float = option(
        "scale the adapters by alpha / rank", 16.0, of=AdapterOptions, source="own"
    )
    targets: str | Sequence[str] = option(
        "adapted matrices, comma-separated: q, k, v, o, gate, up, down, embed, head, experts, "
        "attention, all-linear, or GGUF or PEFT names",
        "attention",
        of=AdapterOptions,
        read=str,
        metavar="NAMES",
        words=("attention", "all-linear", "experts", "q", "k", "v", "o", "gate", "up", "down"),
        source="own",
    )
    dropout: float = option("dropout probability of adapter inputs", 0.0, of=AdapterOptions)
    rslora: bool = option(
        "scale by alpha / sqrt(rank), not alpha / rank (rsLoRA)",
        False,
        of=(AdapterOptions, "use_rslora"),
        source="own",
    )
    num_layers: int | None = option(
        "adapt only the last N blocks (default all)", None, of=AdapterOptions, source="own"
    )
    loraplus_lr_ratio: float = option(
        "learning rate of B divided by that of A; LoRA+ uses 16", 1.0, of=AdapterOptions
    )
    dora: bool = option(
        "train magnitudes too (DoRA); PEFT loads such adapters, llama.cpp does not",
        False,
        of=(AdapterOptions, "use_dora"),
        source="own",
    )
    init: str = option(
        "initial weights: peft (uniform, as in PEFT), normal, pissa, or pissa_niter_N, which is "
        "faster",
        "peft",
        of=AdapterOptions,
        metavar="START",
        words=("peft", "normal", "pissa"),
        source="own",
    )
    lorafa: bool = option(
        "train only B, and keep A as it is initialized (LoRA-FA): less memory",
        False,
        of=(AdapterOptions, "use_lorafa"),
    )


@dataclass(kw_only=True, repr=False, eq=False)
class BaseFields:
    """The base model, or an adapter with its base."""

    GROUP: ClassVar[str] = ADAPTER

    model: StrPath = option(
        "base model: a GGUF file, Hugging Face folder or hf:OWNER/NAME (default: the base of "
        "--adapter)",
        also="-m",
        read=model_name,
        fetch=model_file,
        metavar="PATH",
        hashed=True,
    )
    adapter: StrPath | None = option(
        "continue training an adapter: a run folder, .gguf file or PEFT folder",
        None,
        metavar="PATH",
        once="a run continues one adapter (`toynn export` combines several)",
        hashed=True,
    )
    strict: bool = option(STRICT, False, compared=False)
    prepack: Prepack = option(
        "prepack base weights into GEMM panels; auto: if that saves time and fits",
        "auto",
        group=MACHINE,
        of=RecipeOptions,
        memory=("always", "never"),
    )


@dataclass(kw_only=True, repr=False, eq=False)
class LoRAOptions(TextJobOptions, AdapterFields, BaseFields):
    """The options of ``toynn train lora``."""

    GROUP: ClassVar[str] = OPTIMIZATION

    data: str | tuple[str, ...] | None = option(DATA)
    seq: int = option("tokens per row: the longest example, or a window of text", 512)
    batch: int = option("rows of --seq tokens per step", 1)
    steps: int = 200
    lr: float = 2e-4
    weight_decay: float = 0.0
    log_every: int = 10
    eval_every: int = 50
    save_every: int = 50
    metric: str | Sequence[str] = best_by(*METRICS, "kl", "margins")
    precision: Precision = option(PRECISION.help, "auto", words=get_args(Precision))
    loss: Literal["sft", "dpo", "orpo", "kto"] = option(
        "supervised (sft), or a preference loss: dpo or orpo for pairs, kto for labelled "
        "completions",
        "sft",
        of=PreferenceOptions,
    )
    beta: float = option("strength of the preference term", 0.1, of=PreferenceOptions)
    label_smoothing: float = option(
        "probability that the labels of a pair are swapped, for dpo", 0.0, of=PreferenceOptions
    )
    desirable_weight: float = option(
        "weight of completions labelled true, for kto", 1.0, of=PreferenceOptions
    )
    undesirable_weight: float = option(
        "weight of completions labelled false, for kto", 1.0, of=PreferenceOptions
    )
