"""Granite with experts: the four scales of granite.py, and a mixture in each block.

    x += residual_scale * (mixture(n) + W_down (silu(W_gate n) * W_up n))       n = rmsnorm(x)

The second term is an expert that all tokens share; only files that name its width have it. The
weights of the chosen experts add up to 1. Source: IBM 2024, "Granite 3.0 Language Models".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from toynn.errors import ConfigError
from toynn.models.checks import check_sizes
from toynn.models.granite import Granite, GraniteConfig
from toynn.models.hyper import Hyper
from toynn.models.llama import IN_FILES, Llama
from toynn.models.mixture import EXPERTS, SHARED, USED, Mixture, MixtureConfig, with_experts
from toynn.models.registry import register
from toynn.models.rows import changed
from toynn.models.tables import Floats

#: Names at Hugging Face: of a mixture's parts; of the shared expert's, in Granite 4's folders.
PARTS = {"gate": "input_linear[0/2]", "up": "input_linear[1/2]", "down": "output_linear"}
SHARED_MLP = {part: f"model.layers.{{n}}.shared_mlp.{name}" for part, name in PARTS.items()}


@dataclass(frozen=True)
class GraniteMoEConfig(GraniteConfig, MixtureConfig):
    """Shape of a Granite with experts.

    Attributes
    ----------
    shared_d_ff
        Width of the expert that all tokens share; 0: there is none.
    """

    arch: str = "granitemoe"
    shared_d_ff: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "shared_d_ff", least=0)
        super().__post_init__()


class GraniteMoE(Granite, Mixture):
    """The architecture."""

    config_type: ClassVar[type[Any]] = GraniteMoEConfig
    table = changed(
        with_experts(
            Llama.table,
            "model.layers.{n}.block_sparse_moe",
            {"router": "router.layer", **PARTS},
        ),
        **{f"ffn_{part}_shexp": {"elsewhere": name} for part, name in SHARED_MLP.items()},
    )
    hf = replace(
        Granite.hf,
        keys={**Granite.hf.keys, EXPERTS: "num_local_experts", USED: "num_experts_per_tok"},
    )

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        shared = "blk.0.ffn_gate_shexp.weight" in hyper.tensors
        return replace(cfg, shared_d_ff=hyper.whole(SHARED) if shared else 0)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        shared = {SHARED: cfg.shared_d_ff} if cfg.shared_d_ff else {}
        return super().write(cfg) | shared

    def check_gguf(self, cfg: Any) -> None:
        """Refuse a model without RoPE: llama.cpp rotates all of them. Raises ConfigError."""
        super().check_gguf(cfg)
        if not cfg.rotated and self.architecture == "granitemoe":
            raise ConfigError(
                "export: llama.cpp reads granitemoe with RoPE; got none (as in a Granite 4 without "
                "a state space): keep the model as a Hugging Face folder"
            )

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Refuse a shared expert: folders with one have another model_type.

        Raises ConfigError.
        """
        if SHARED in hyper:
            raise ConfigError("export_hf: a folder of granitemoe cannot hold a shared expert")
        return super().folder(hyper, tensors)


register(GraniteMoE("granitemoe", "GraniteMoe", interleaved=True, in_files=IN_FILES[:2]))
