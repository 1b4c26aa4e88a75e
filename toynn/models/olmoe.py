"""OLMoE: a Llama with experts, with q and k normalised over their whole width.

    q = rotate(rmsnorm(W_q n)), k = rotate(rmsnorm(W_k n))      before they are cut into heads

The weights of the chosen experts are their probabilities among all experts, so they do not add up
to 1. RoPE rotates channels half a head apart. A config.json is refused if it clips q, k and v or
normalises the weights: GGUF files of this architecture have no key for either.
Source: Muennighoff et al. 2024, arXiv:2409.02060.
"""

from dataclasses import dataclass, replace
from typing import Any

from toynn.errors import ConfigError
from toynn.models.llama import Llama
from toynn.models.mixture import Mixture, MixtureConfig, with_experts
from toynn.models.registry import register


@dataclass(frozen=True)
class OLMoEConfig(MixtureConfig):
    """Shape of an OLMoE."""

    arch: str = "olmoe"


class OLMoE(Mixture):
    """The architecture."""

    config_type = OLMoEConfig
    needs_head = True
    normalized = False
    wide_norms = True
    table = with_experts(Llama.table)
    hf = replace(Mixture.hf, fixed={**Mixture.hf.fixed, "norm_topk_prob": (False,)})

    def check_gguf(self, cfg: Any) -> None:
        """Refuse fewer heads of k and v than of q. Raises ConfigError."""
        super().check_gguf(cfg)
        if cfg.n_kv_heads != cfg.n_heads:
            raise ConfigError(
                f"export: llama.cpp reads olmoe with as many heads of k and v as of q; got "
                f"{cfg.n_kv_heads} and {cfg.n_heads}"
            )


register(OLMoE("olmoe", "Olmoe", head_norms=True))
