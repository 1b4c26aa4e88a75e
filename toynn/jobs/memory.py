"""The memory that a run will need, computed before any is allocated."""

from dataclasses import replace
from typing import Any

from toynn.engines import LlamaConfig
from toynn.jobs.models import WarmStartJob, default_d_ff
from toynn.models import Source
from toynn.options import RecipeOptions
from toynn.recipes import LoRA, WarmStart
from toynn.system.machine import free_memory
from toynn.system.printing import size

__all__ = ["ADAPTER_RANK", "adapters_over", "check_fits", "new_model_over"]

ADAPTER_RANK = 8  # rank of the adapters whose memory `toynn info` tells


def adapters_over(file: Source, options: RecipeOptions) -> tuple[int, int]:
    """Return the peak bytes of training adapters of all linear layers: plain, checkpointed."""
    plain, checkpointed = (
        LoRA.memory_for(file, ADAPTER_RANK, each, "all-linear").peak
        for each in (options, replace(options, checkpointing=True))
    )
    return plain, checkpointed


def new_model_over(donor: Source, length: int, batch: int) -> tuple[LlamaConfig, int]:
    """Return the model that ``toynn train warm-start`` makes, and its peak bytes in training."""
    vocab, width = donor.tensors["token_embd.weight"].shape
    d_model, heads, layers = map(WarmStartJob.default, ("d_model", "heads", "layers"))
    d_ff = default_d_ff(d_model)
    config = LlamaConfig(vocab, d_model, heads, heads, d_ff, layers, length, donor_d_in=width)
    options = RecipeOptions(t_batch=batch, untied=True)
    return config, WarmStart.memory_for(config, options).peak


def check_fits(engine: Any, rows: int, ranks: int = 1) -> None:
    """Raise MemoryError if a training step of a declared engine needs more than is free.

    ``rows`` are those of a batch; each of ``ranks`` processes on this machine needs as much. A
    lower bound, one vector per row and block, is checked first: recording a step of millions of
    rows takes minutes.
    """
    free = free_memory()
    if free is None:
        return
    free //= ranks
    vectors = [w.size for w in engine.tensors.values() if len(w.shape) == 1]  # gains: a row's width
    least = 4 * rows * min(vectors, default=1) * engine.config.n_layers
    needed = least if least > free else engine.step_memory().peak
    if needed > free:
        more = "more than " if needed == least else ""
        each = f" for each of {ranks} ranks here" if ranks > 1 else ""
        raise MemoryError(f"a step needs {more}{size(needed)}; {size(free)} are free{each}")
