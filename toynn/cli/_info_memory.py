"""The lines of ``toynn info`` about memory: steps are recorded for them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from toynn import engines
from toynn.engines import ViTConfig, ViTEngine
from toynn.engines.plans import LEVELS, Plan, every_plan
from toynn.errors import ToynnError
from toynn.formats.gguf import GGUFFile
from toynn.jobs.memory import (
    ADAPTER_RANK,
    SHORT,
    memory_if_shorter,
    new_model_over,
    plans_of_adapters,
    plans_of_all_weights,
    read_by_step,
)
from toynn.models import ARCHITECTURES, ENCODERS, Source
from toynn.options import RecipeOptions
from toynn.system.machine import free_memory
from toynn.system.printing import size

Lines = list[tuple[str, str]]


def of_pictures(config: ViTConfig, batch: int) -> Lines:
    """Return the memory of a training step of a vision transformer."""
    engine = ViTEngine()
    engine.declare(config, RecipeOptions(t_batch=batch))
    plans = every_plan(lambda level: engine.step_costs(["never"], level))
    return memory(plans, f"{batch} pictures")


def memory(plans: Sequence[Plan], what: str) -> Lines:
    """Return the memory of a training step by each plan; ``what`` is the size of its batch."""
    parts = ("weights", "moments", "gradients", "activations", "peak")
    return [
        ("training all weights", f"{what} a step"),
        *((f"  {part}", size(getattr(plans[0].memory, part))) for part in parts),
        *table(plans)[1:],
    ]


def table(plans: Sequence[Plan]) -> Lines:
    """Return the peak memory of each plan, and how much slower it is than the first."""
    return [
        (
            f"  {each.name or 'peak beside the file'}",
            size(each.memory.peak) + each.slower(plans[0]),
        )
        for each in plans
    ]


def training(file: Source, seq: int | None, batch: int) -> Iterator[tuple[str, str]]:
    """Yield the memory of a training step, or why the model cannot be trained."""
    try:
        engines.check_model(file, [*ARCHITECTURES, *ENCODERS], "info")  # raises first if unknown
        length = seq or min(512, file.require(f"{file.architecture}.context_length", int))
        options = RecipeOptions(t_seq=length, t_batch=batch)
        plans = plans_of_all_weights(file, options)
    except ToynnError as error:
        yield "training", f"not possible: {error}"
        return
    yield from memory(plans, f"{batch} x {length} tokens")
    yield from _adapters(file, replace(options, precision="auto"))  # as a run's default is
    if isinstance(file, GGUFFile) and file.architecture not in ENCODERS:
        yield from _new_model(file, length, batch)


def _adapters(file: Source, opts: RecipeOptions) -> Lines:
    """Return the memory of training adapters over the file."""
    try:
        plans = plans_of_adapters(file, opts)
    except ToynnError as error:
        return [("training adapters", f"not possible: {error}")]
    copied = sum(info.nbytes for name, info in file.tensors.items() if file.is_copied(name))
    mapped = sum(info.nbytes for info in file.tensors.values()) - copied
    experts, touched = engines.expert_bytes(file, opts.t_batch * opts.t_seq)
    _, alone = engines.expert_bytes(file, 1)
    step = f"{size(touched)} of {size(experts)} in a step, {size(alone)} for a token alone"
    form = f"{size(copied)} in another form; the peak includes them"
    return [
        (
            "training adapters",
            f"rank {ADAPTER_RANK}, all-linear, {opts.t_batch} x {opts.t_seq} tokens",
        ),
        ("  mapped, not in memory", f"{size(mapped)}, read as it is used"),
        *([("  experts that are read", f"{step}, if chosen evenly")] if experts else []),
        *([("  copied into memory", form)] if copied else []),
        *table(plans),
        *_shorter(file, opts, plans),
        *_room(read_by_step(file, opts.t_batch * opts.t_seq), plans),
    ]


def _shorter(file: Source, opts: RecipeOptions, plans: Sequence[Plan]) -> Lines:
    """Return the memory of a short step if weights are prepacked for it alone.

    It may be larger. A run's rows are as long as its longest example, so they are often short.
    """
    if any(each.memory.prepacked for each in plans):
        return []
    peak, prepacked = memory_if_shorter(file, opts)
    if not prepacked:
        return []
    said = f"{size(peak)}, {size(prepacked)} of it prepacked weights"
    return [(f"  at 1 x {min(SHORT, opts.t_seq)} tokens", said)]


def _room(read: int, plans: Sequence[Plan]) -> Lines:
    """Return whether free memory holds the file's parts that a step reads, and the step itself."""
    free = free_memory()
    if free is None:
        return []
    fitting = [p for p in plans if p.memory.peak + p.of_file(read) <= free]
    if fitting:
        saving = fitting[0].level != LEVELS[0]
        fits = f"enough {fitting[0].name}" if saving else "enough"
    elif plans[-1].memory.peak <= free:
        fits = "too little: parts of the file would be read again in every step"
    else:
        fits = f"too little, even {plans[-1].name}"
    return [("  free here", f"{size(free)}: {fits}")]


def _new_model(file: Source, length: int, batch: int) -> Lines:
    """Return the memory of ``toynn train warm-start`` with the file as donor."""
    config, peak = new_model_over(file, length, batch)
    shape = f"width {config.d_model}, {config.n_layers} layers"
    return [
        ("training a new model", f"with this file as donor, {shape}"),
        ("  its peak", size(peak)),
    ]
