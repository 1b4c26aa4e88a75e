"""ERNIE 4.5 with experts: the blocks of ernie4_5.py; all but the first few have a mixture.

    w_j = p[e_j] / sum_i p[e_i]                     p = softmax(W_router n), chosen by p + b

The formulas are those of llama.py and mixture.py. The library transformers divides by the larger of
the sum and moe_norm_min = 1e-12. This file adds 1e-12 to the sum; in float32 that differs only for
sums near 1e-12. The shared experts, if any, are one MLP.
Source: Baidu 2025, "ERNIE 4.5 Technical Report"; ernie4_5_moe of transformers and of llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from toynn.formats.hf.config import Config
from toynn.models.ernie4_5 import Ernie45
from toynn.models.hyper import Hyper
from toynn.models.mixture import (
    EXPERT_WIDTH,
    EXPERTS,
    SHARED,
    SHARED_COUNT,
    USED,
    Sparse,
    SparseConfig,
    with_experts,
)
from toynn.models.registry import register
from toynn.models.tables import Floats

#: Keys of config.json that transformers does not read.
_UNUSED = ("moe_capacity", "moe_gate", "moe_use_aux_free")
_STEP, _LAST = "interleave_moe_layer_step", "moe_layer_end_index"


@dataclass(frozen=True)
class Ernie45MoEConfig(SparseConfig):
    """Shape of an ERNIE 4.5 with experts."""

    has: ClassVar[tuple[str, ...]] = ("shared_d_ff", "dense_blocks")
    may_share_none: ClassVar[bool] = True
    counts_shared: ClassVar[bool] = True

    arch: str = "ernie4_5-moe"


class Ernie45MoE(Sparse, Ernie45):
    """The architecture."""

    config_type = Ernie45MoEConfig
    eps, chooses = 1e-12, True
    dense_key = "moe_layer_start_index"
    table = with_experts(
        Ernie45.table,
        dense=True,
        choice="moe_statics.e_score_correction_bias",
        spread=True,
        shared="shared_experts",
    )
    hf = replace(
        Ernie45.hf,
        model_type="ernie4_5_moe",
        keys={
            **Ernie45.hf.keys,
            EXPERTS: "moe_num_experts",
            USED: "moe_k",
            EXPERT_WIDTH: "moe_intermediate_size",
        },
        fixed={**Ernie45.hf.fixed, "moe_layer_interval": (1,), "moe_norm_min": (1e-12,)},
    )

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        hyper.expect(_STEP, 1)
        hyper.count(SHARED_COUNT)  # not needed: the width of the shared MLP is in the file, too
        return super().read(hyper)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | {_STEP: 1}

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read how many experts all tokens share; refuse dense blocks after a mixture."""
        count = config.whole("moe_num_shared_experts", 2, least=0)
        hyper[SHARED] = count * hyper.get(EXPERT_WIDTH, 0)
        last, blocks = config.get(_LAST, -1), hyper.get("block_count", 0)
        if last not in (-1, blocks - 1):
            config.refuse(f"{_LAST} must be -1 or {blocks - 1}; got {last!r}")
        config.ignore(*_UNUSED)
        return super().complete(config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for shared experts and for the blocks with a mixture."""
        keys = super().folder(hyper, tensors)
        shared = {"moe_num_shared_experts": hyper[SHARED_COUNT], "pad_token_id": None}
        return keys | shared | {_LAST: hyper["block_count"] - 1}


register(Ernie45MoE("ernie4_5-moe", "Ernie4_5_Moe", interleaved=True, in_files=("output_bias",)))
