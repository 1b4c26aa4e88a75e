"""Qwen3.5 with experts: the blocks of qwen35.py, each with a mixture in place of the MLP.

    w_j = p[e_j] / sum_i p[e_i]         p = softmax(W_router n)
    the shared expert's weight is sigmoid(W_s n)

The formulas are those of qwen35.py and mixture.py. Source: Qwen Team 2025, qwen3_5_moe of
transformers and qwen35moe of llama.cpp.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from toynn.formats.hf.config import Config
from toynn.models.keys import WIDTH
from toynn.models.mixture import (
    EXPERT_WIDTH,
    EXPERTS,
    SHARED,
    USED,
    Mixture,
    Sparse,
    SparseConfig,
    with_experts,
)
from toynn.models.qwen35 import Qwen35, Qwen35Config
from toynn.models.registry import register
from toynn.models.tables import Floats


@dataclass(frozen=True)
class Qwen35MoEConfig(SparseConfig, Qwen35Config):
    """Shape of a Qwen3.5 with experts."""

    has: ClassVar[tuple[str, ...]] = ("shared_d_ff",)

    rms_eps: float = 1e-6
    arch: str = "qwen35moe"


class Qwen35MoE(Sparse, Qwen35):
    """The architecture."""

    config_type: ClassVar[type[Any]] = Qwen35MoEConfig
    table = with_experts(Qwen35.table, shared="shared_expert", shared_gate="shared_expert_gate")
    hf = replace(
        Mixture.hf,
        keys={
            **Mixture.hf.keys,
            EXPERTS: "num_experts",
            USED: "num_experts_per_tok",
            EXPERT_WIDTH: "moe_intermediate_size",
            SHARED: "shared_expert_intermediate_size",
        },
        optional=Mixture.hf.optional | {WIDTH},
        bare=frozenset(("experts.gate_up_proj", "experts.down_proj")),
    )

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read qwen35's keys; the width of an MLP may be missing, since no block has an MLP."""
        hyper.setdefault(WIDTH, hyper.get(EXPERT_WIDTH, 1))
        return super().complete(config, hyper)


register(Qwen35MoE("qwen35moe", "Qwen3_5Moe", "qwen3_5_moe_text"))
