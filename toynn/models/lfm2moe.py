"""LFM2 with experts: the blocks of lfm2.py; most have a mixture in place of the MLP.

    w_j = s p[e_j] / (sum_i p[e_i] + 1e-6)          p = sigmoid(W_router n), chosen by p + b

The formulas are those of lfm2.py and mixture.py. For llama.cpp the weights w_j must add up to 1,
s must be 1 and routers must have b; folders may differ. Source: Liquid AI 2025, arXiv:2511.23404.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.models.checks import check_flags
from toynn.models.hyper import Hyper
from toynn.models.lfm2 import LFM2, LFM2Config
from toynn.models.mixture import (
    EXPERT_WIDTH,
    EXPERTS,
    SCALE,
    USED,
    Sparse,
    SparseConfig,
    with_experts,
)
from toynn.models.registry import register
from toynn.models.tables import Floats, Sizes
from toynn.options import RecipeOptions

_PARTS = {"router": "gate", "gate": "experts.{e}.w1", "up": "experts.{e}.w3"}
_BIAS = "expert_bias"  # only folders may lack it


@dataclass(frozen=True)
class LFM2MoEConfig(SparseConfig, LFM2Config):
    """Shape of an LFM2 with experts.

    Attributes
    ----------
    expert_bias
        Whether b is added to the scores before experts are chosen.
    """

    has: ClassVar[tuple[str, ...]] = ("dense_blocks", "normalized", "weights_scale")

    arch: str = "lfm2moe"
    expert_bias: bool = True

    def __post_init__(self) -> None:
        check_flags(self, "expert_bias")
        super().__post_init__()


class LFM2MoE(Sparse, LFM2):
    """The architecture."""

    config_type = LFM2MoEConfig
    score, eps = "sigmoid", 1e-6
    dense_key, usually_dense = "num_dense_layers", 2
    table = with_experts(
        LFM2.table,
        "model.layers.{n}.feed_forward",
        _PARTS | {"down": "experts.{e}.w2"},
        dense=True,
        choice="expert_bias",
    )
    hf = replace(
        LFM2.hf,
        model_type="lfm2_moe",
        keys={
            **LFM2.hf.keys,
            EXPERTS: "num_experts",
            USED: "num_experts_per_tok",
            EXPERT_WIDTH: "moe_intermediate_size",
            SCALE: "routed_scaling_factor",
        },
        real=LFM2.hf.real | {SCALE},
        optional=LFM2.hf.optional | {SCALE},
    )

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        sizes = super().sizes(cfg, opts, n)
        return {**sizes, "chooses": sizes["mixes"] and cfg.expert_bias}

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        return replace(super().read(hyper), expert_bias=hyper.flag(_BIAS, True))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | ({} if cfg.expert_bias else {_BIAS: False})

    def check_gguf(self, cfg: Any) -> None:
        """Refuse weights that do not add up to 1 and routers without b. Raises ConfigError."""
        super().check_gguf(cfg)
        usual = {"normalized": True, "weights_scale": 1.0, "expert_bias": True}
        for name, value in usual.items():
            if (got := getattr(cfg, name)) != value:
                raise ConfigError(
                    f"export: llama.cpp reads {cfg.arch} with {name} {value}; got {got}"
                )

    def read_width(self, config: Config, hyper: dict[str, Any]) -> None:
        """Read whether routers have b; intermediate_size is the MLP's width, as it is."""
        hyper[_BIAS] = config.flag("use_expert_bias", True)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys of lfm2, and whether routers have b."""
        keys = super().folder(hyper, tensors)
        del keys["block_auto_adjust_ff_dim"]
        return keys | {"use_expert_bias": hyper.get(_BIAS, True)}


register(LFM2MoE("lfm2moe", "Lfm2Moe", head_norms=True))
