"""GLM-4.5 and its successors: GLM-4's RoPE in a Llama with experts, the first blocks dense.

    w_j = s p[e_j] / (sum_i p[e_i] + 1e-20)         p = sigmoid(W_router n), chosen by p + b

The formulas are those of llama.py and mixture.py. RoPE rotates R channels, half of a head; the
channels of a pair are R/2 apart. Heads of q and k may be normalised. One expert is shared by all
tokens; it is as wide as n_shared_experts experts. The extra blocks at the end, which predict tokens
after the next one, are left out.
Source: GLM-4.5 Team 2025, arXiv:2508.06471; glm4_moe of transformers and glm4moe of llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from toynn.formats.hf.config import Config
from toynn.models.checks import check_flags
from toynn.models.glm4 import Glm4Config, PartlyRotated
from toynn.models.hyper import Hyper
from toynn.models.llama import Llama
from toynn.models.mixture import (
    GROUPS,
    GROUPS_USED,
    PLAIN,
    ROUTED,
    SCALE,
    Sparse,
    SparseConfig,
    with_experts,
)
from toynn.models.registry import register
from toynn.models.rows import QKV, changed, names
from toynn.models.tables import Floats, Sizes
from toynn.options import RecipeOptions

_NORMS = "use_qk_norm"
_MLP_NORM = "post_attention_norm"


@dataclass(frozen=True)
class Glm4MoEConfig(SparseConfig, Glm4Config):
    """Shape of a GLM-4.5.

    Attributes
    ----------
    head_norms
        Whether heads of q and k are normalised before they are rotated.
    """

    has: ClassVar[tuple[str, ...]] = tuple(PLAIN)

    counts_shared: ClassVar[bool] = True

    arch: str = "glm4moe"
    head_norms: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(self, "head_norms")


class Glm4MoE(Sparse, PartlyRotated):
    """The architecture."""

    config_type = Glm4MoEConfig
    mlp_norm = _MLP_NORM
    score, eps, chooses = "sigmoid", 1e-20, True
    usually_normalized, names_no_width = False, True
    dense_key = "first_k_dense_replace"
    table = with_experts(
        changed(Llama.table, ffn_norm={"name": f"blk.{{n}}.{_MLP_NORM}"}),
        dense=True,
        choice="gate.e_score_correction_bias",
        shared="shared_experts",
    )
    hf = replace(
        Llama.hf,
        model_type="glm4_moe",
        keys={
            **Llama.hf.keys,
            **ROUTED,
        },
        real=Llama.hf.real | {SCALE},
        optional=Llama.hf.optional | {SCALE, GROUPS, GROUPS_USED},
        biases={"attention_bias": (False, names(*QKV))},
        zero_biases=frozenset(),
    )

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        return {**super().sizes(cfg, opts, n), "head_norms": cfg.head_norms}

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        norms = hyper.flag(_NORMS, "blk.0.attn_q_norm.weight" in hyper.tensors)
        return replace(cfg, head_norms=norms)

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for RoPE, and whether heads are normalised."""
        hyper[_NORMS] = config.flag(_NORMS, False)
        return super().complete(config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for RoPE, and whether heads are normalised."""
        return super().folder(hyper, tensors) | {_NORMS: "blk.0.attn_q_norm.weight" in tensors}


register(Glm4MoE("glm4moe", "Glm4Moe"))
