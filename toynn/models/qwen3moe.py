"""Qwen3 with experts: attention as in qwen3, and in each block a mixture whose weights add up to 1.

Files name the width of an expert, and also the width of an MLP, which no block has. transformers
can mix blocks with and without experts, or leave the weights as they are; GGUF files have no keys
for that, so a config.json that says so is refused. Source: Qwen Team 2025, arXiv:2505.09388.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.formats.hf.config import Config
from toynn.models.hyper import Hyper
from toynn.models.llama import Llama
from toynn.models.mixture import EXPERT_WIDTH, USED, Mixture, MixtureConfig, with_experts
from toynn.models.registry import register

__all__ = ["Qwen3MoE", "Qwen3MoEConfig"]

_WIDTH = "feed_forward_length"


@dataclass(frozen=True)
class Qwen3MoEConfig(MixtureConfig):
    """Shape of a Qwen3 with experts."""

    arch: str = "qwen3moe"


class Qwen3MoE(Mixture):
    """The architecture."""

    config_type = Qwen3MoEConfig
    table = with_experts(Llama.table)
    hf = replace(
        Mixture.hf,
        model_type="qwen3_moe",
        keys={**Mixture.hf.keys, EXPERT_WIDTH: "moe_intermediate_size"},
        optional=Mixture.hf.optional | {_WIDTH},
        fixed={**Mixture.hf.fixed, "decoder_sparse_step": (1,)},
    )

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> tuple[Any, dict[str, Any]]:
        """Return the configuration of a file's model, and the options that it calls for."""
        cfg, options = super().read(hyper)
        usual = max(1, cfg.d_ff // cfg.n_experts_used)  # as llama.cpp has it
        return replace(cfg, d_ff=hyper.whole(EXPERT_WIDTH, usual)), options

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file; as an MLP's width all that a token uses."""
        widths = {_WIDTH: cfg.d_ff * cfg.n_experts_used, EXPERT_WIDTH: cfg.d_ff}
        return super().write(cfg) | widths

    def complete(self, config: Config, found: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
        """Refuse weights that do not add up to 1, which is what config.json means by default."""
        if config.get("norm_topk_prob", False) is not True:
            config.refuse("norm_topk_prob must be true: GGUF files have no place for another")
        found.setdefault(_WIDTH, found.get(EXPERT_WIDTH, 1) * found.get(USED, 1))
        return super().complete(config, found)

    def folder(
        self, hyper: Any, tensors: Any
    ) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """Return that the weights add up to 1, which is not the default."""
        keys, more = super().folder(hyper, tensors)
        return keys | {"norm_topk_prob": True}, more


register(Qwen3MoE("qwen3moe", "Qwen3Moe", head_norms=True))
