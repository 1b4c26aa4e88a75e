"""Qwen3 with experts: attention as in qwen3; each block's MLP is a mixture with normalised weights.

Files give the width of an expert and also that of an MLP, though no block has an MLP. In the
library transformers, blocks may lack experts and weights need not be normalised. GGUF files have no
keys for either, so a config.json that asks for it is refused.
Source: Qwen Team 2025, arXiv:2505.09388.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from toynn.formats.hf.config import Config
from toynn.models.hyper import Hyper
from toynn.models.keys import WIDTH
from toynn.models.llama import Llama
from toynn.models.mixture import EXPERT_WIDTH, USED, Mixture, MixtureConfig, with_experts
from toynn.models.registry import register
from toynn.models.tables import Floats


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
        optional=Mixture.hf.optional | {WIDTH},
        fixed={**Mixture.hf.fixed, "decoder_sparse_step": (1,)},
    )

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        usual = max(1, cfg.d_ff // cfg.n_experts_used)  # llama.cpp's default
        return replace(cfg, d_ff=hyper.whole(EXPERT_WIDTH, usual))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file; d_ff is the width of all experts of a token."""
        widths = {WIDTH: cfg.d_ff * cfg.n_experts_used, EXPERT_WIDTH: cfg.d_ff}
        return super().write(cfg) | widths

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Refuse weights that are not normalised, the default of config.json."""
        if config.get("norm_topk_prob", False) is not True:
            config.refuse("norm_topk_prob must be true: GGUF files have no key for false")
        hyper.setdefault(WIDTH, hyper.get(EXPERT_WIDTH, 1) * hyper.get(USED, 1))
        return super().complete(config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return norm_topk_prob true, which is not transformers' default."""
        return super().folder(hyper, tensors) | {"norm_topk_prob": True}


register(Qwen3MoE("qwen3moe", "Qwen3Moe", head_norms=True))
