"""The memory that a run will need, computed before it allocates any; plans that need less."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from toynn import engines
from toynn.engines import AdapterOptions, LlamaConfig, SequenceEngine
from toynn.engines.encoder import Encoder, Task
from toynn.engines.plans import LEVELS, OPTIONS, PREPACK, Level, Plan, every_plan, plans
from toynn.errors import ConfigError, said
from toynn.formats.hf.config import CLASSES
from toynn.jobs.job import Job
from toynn.jobs.llama_options import WarmStartOptions
from toynn.jobs.models import default_d_ff
from toynn.models import ENCODERS, Source
from toynn.options import RecipeOptions
from toynn.recipes import WarmStart
from toynn.system.machine import free_memory
from toynn.system.printing import size

ADAPTER_RANK = 8  # rank of the adapters whose memory `toynn info` tells
ALL_LINEAR = AdapterOptions(ADAPTER_RANK, targets="all-linear")
SHORT = 64  # tokens of a step that is short enough to gain by prepacking in every precision


def plans_of_all_weights(file: Source, options: RecipeOptions) -> list[Plan]:
    """Return every plan of training all weights of a file's model."""
    engine = _declared(file, options)
    return every_plan(lambda level: engine.step_costs(["never"], level))


def _declared(file: Source, options: RecipeOptions, lora: AdapterOptions | None = None) -> Any:
    """Return an engine of a file's model, declared only; one of texts has two classes."""
    if file.architecture in ENCODERS or CLASSES in file.tensors:
        encoder = Encoder()
        if lora is None:
            encoder.declare_from(file, options, Task("sequence", 2))
        else:
            encoder.enable_lora(lora)
            encoder.declare_over(file, options, Task("sequence", 2))
        return encoder
    engine = SequenceEngine[Any]()
    if lora is None:
        engine.declare_from(file, options)
    else:
        engine.enable_lora(lora)
        engine.declare_for_mmap(file, None, options)
    return engine


def plans_of_adapters(file: Source, options: RecipeOptions) -> list[Plan]:
    """Return every plan of training adapters of all linear layers."""
    engine = _declared(file, options, ALL_LINEAR)
    return every_plan(lambda level: engine.step_costs(PREPACK, level))


def memory_if_shorter(file: Source, options: RecipeOptions) -> tuple[int, int]:
    """Return (peak, prepacked): bytes of training such adapters on up to ``SHORT`` tokens a step.

    As a run does by default, weights are prepacked if that saves time and fits.
    """
    short = replace(options, t_batch=1, t_seq=min(SHORT, options.t_seq), prepack="auto")
    memory = _declared(file, short, ALL_LINEAR).step_memory()
    return memory.peak, memory.prepacked


def new_model_over(donor: Source, length: int, batch: int) -> tuple[LlamaConfig, int]:
    """Return the model that ``toynn train warm-start`` makes, and its peak bytes in training."""
    vocab, width = donor.tensors["token_embd.weight"].shape
    defaults, heads = WarmStartOptions, WarmStartOptions.heads
    shape = defaults.d_model, heads, heads, default_d_ff(defaults.d_model), defaults.layers
    config = LlamaConfig(vocab, *shape, length, donor_d_in=width)
    options = RecipeOptions(t_batch=batch, untied=True)
    return config, WarmStart.memory_for(config, options).peak


def read_by_step(file: Source, tokens: int) -> int:
    """Return the bytes of a mapped file that a step reads; of experts, the expected number.

    Raises GGUFError for a file that is not a model toynn knows.
    """
    mapped = sum(info.nbytes for name, info in file.tensors.items() if not file.is_copied(name))
    experts, touched = engines.expert_bytes(file, tokens)
    return max(0, mapped - experts + touched)


# -- A run -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Room:
    """The memory that all ranks on this machine may take together; None if unknown."""

    nbytes: int | None
    ranks: int
    asked: bool = False  # whether --memory sets the bound, and not the free memory

    @classmethod
    def of(cls, memory: int | str | None, ranks: int) -> "_Room":
        """Return the memory that --memory allows, or the free memory if it is less.

        Raises ConfigError for "auto" if the free memory is unknown.
        """
        free = free_memory()
        if isinstance(memory, int) and (free is None or memory < free):
            return cls(memory, ranks, asked=True)
        if memory is not None and free is None:
            raise ConfigError(
                "--memory auto: this system does not tell how much memory is free; give a size, "
                "such as --memory 8G"
            )
        return cls(free, ranks)

    def __str__(self) -> str:
        each = f" for each of {self.ranks} ranks here" if self.ranks > 1 else ""
        amount = size((self.nbytes or 0) // self.ranks)
        return f"--memory allows {amount}{each}" if self.asked else f"{amount} are free{each}"

    def holds(self, nbytes: int, file: int = 0) -> bool:
        """Whether every rank can have ``nbytes``, beside the file that they share."""
        return self.nbytes is None or self.ranks * nbytes + file <= self.nbytes

    def engine(self, job: Job) -> Any:
        """Return an engine of the job, declared only.

        Recording a step of millions of rows takes minutes. So this raises MemoryError at once if
        one vector per row does not fit, for each block from the lowest trained one.
        """
        engine, rows = job.declared()
        vectors = [w.size for w in engine.tensors.values() if len(w.shape) == 1]  # as norms' gains
        blocks = engine.config.n_layers
        words = (word for name in engine.parameters for word in name.split(".")[:2])
        lowest = min((int(word) for word in words if word.isdigit()), default=blocks)
        least = 4 * rows * min(vectors, default=1) * (blocks - lowest)
        if not self.holds(least):
            raise MemoryError(f"a step needs more than {size(least)}; {self}")
        return engine


def check_fits(job: Job, ranks: int = 1) -> None:
    """Raise MemoryError if a training step of the job needs more than is free.

    Each of ``ranks`` processes on this machine needs as much.
    """
    room = _Room.of(None, ranks)
    if room.nbytes is None:
        return
    needed = room.engine(job).step_memory().peak
    if not room.holds(needed):
        raise MemoryError(f"a step needs {size(needed)}; {room}")


def choose_plan(job: Job, ranks: int = 1) -> None:
    """Give the job the fastest plan that fits into --memory and free memory; say its cost.

    Given options that save memory stay. If no plan fits beside the part of a mapped file that a
    step reads, the smallest plan is chosen. A resumed run keeps its plan if the free memory is
    unknown. Raises MemoryError if the smallest plan does not fit even without the file. Raises
    ConfigError for "auto" in a new run if the free memory is unknown.
    """
    options = vars(job.options)
    if options["memory"] == "auto" and options["resume"] and free_memory() is None:
        return
    room = _Room.of(options["memory"], ranks)
    chosen: dict[str, Any] = {name: options[name] for name in OPTIONS if name in options}
    prepack = dict.fromkeys((chosen.get("prepack", "never"), "never"))
    given = Level.of(chosen)
    levels = [each.with_more(given) for each in LEVELS]
    levels += [each._replace(keep_attention=False) for each in levels]  # takes less memory
    levels = list(dict.fromkeys(levels))

    # Whether to checkpoint, a plan says.
    keep = given.keep_attention and given.checkpointing
    chosen["keep_attention"] = options["keep_attention"] = keep
    engine = room.engine(job)

    @cache
    def costs(level: Level) -> Any:
        return engine.step_costs(prepack, level)

    read, sorted_plans = job.read_by_step(), list[Plan]()
    for n in range(1, len(levels) + 1):
        sorted_plans = plans(costs, levels[:n])
        fitting = [p for p in sorted_plans if room.holds(p.memory.peak, p.of_file(read))]
        if fitting[:1] == sorted_plans[:1]:
            break
    fastest, plan = sorted_plans[0], (fitting or sorted_plans[-1:])[0]
    told = {each: _flags(each, chosen) or "the fastest" for each in sorted_plans}
    if not room.holds(plan.memory.peak):
        needed = size(plan.memory.peak)
        rounded = ""
        if given.activations == "float32":
            less = costs(plan.level._replace(activations="bfloat16"))[plan.prepack].memory.peak
            rounded = f" ({size(less)} with --activations bfloat16)"
        options.update(chosen)
        raise MemoryError(f"the smallest plan, {told[plan]}, needs {needed}{rounded}; {room}")
    options.update({name: plan.options[name] for name in chosen})
    file = plan.of_file(read)
    beside = f" and {size(file)} of the file" if file else ""
    job.say("plan", f"{told[plan]}: {size(plan.memory.peak)}{beside}{plan.slower(fastest)}; {room}")
    larger = sorted_plans[: sorted_plans.index(plan)]
    if larger:
        each = (f"{told[p]} {size(p.memory.peak)}{p.slower(fastest)}" for p in larger)
        job.say("", f"too large: {'; '.join(each)}")
    if not fitting:
        job.say("", "parts of the file are read again in every step")


def _flags(plan: Plan, options: Mapping[str, Any]) -> str:
    """Return the flags that change given options into a plan."""
    words = []
    for name, before in options.items():
        flag, value = f"--{name.replace('_', '-')}", plan.options[name]
        if isinstance(value, bool) and value != before:
            words.append(f"{name}=True|{flag}" if value else f"without {name}|{flag}")
        elif value != before:
            words.append(f"{flag} {value}")
    return said(" ".join(words))
