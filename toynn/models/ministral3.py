"""Ministral 3: a Llama with YaRN, whose queries grow with their position.

    q[t] = rotate(W_q n) (1 + query_growth ln(1 + floor(t / original_context)))

RoPE's magnitude is usually 1: YaRN's is divided by 1 + 0.1 mscale_all_dim ln(s), where s is
rope_factor. GGUF files call mscale_all_dim yarn_log_multiplier. Sources: Mistral AI 2025,
ministral3 of transformers and mistral3 of llama.cpp; the growth: Nakanishi 2025, arXiv:2501.19399.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from typing import Any

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.models.hyper import Hyper
from toynn.models.keys import FREQ_BASE, YARN_LOG
from toynn.models.llama import IN_FILES, Llama, LlamaConfig
from toynn.models.registry import register
from toynn.models.tables import Floats

_GROWTH = "attention.temperature_scale"
_BETA = "llama_4_scaling_beta"


@dataclass(frozen=True)
class Ministral3Config(LlamaConfig):
    """Shape of a Ministral 3. Raises ConfigError for numbers that make no model.

    Attributes
    ----------
    query_growth
        Factor of the logarithm above, at least 0. Above 0 it needs rope_scaling "yarn", for its
        original_context.
    """

    arch: str = "mistral3"
    query_growth: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        growth = self.query_growth
        if not (isinstance(growth, int | float) and 0 <= growth < 1e3):
            raise ConfigError(f"Ministral3Config: query_growth must be 0 to 1000; got {growth!r}")
        if growth and self.rope_scaling != "yarn":
            raise ConfigError(
                f"Ministral3Config: query_growth needs rope_scaling 'yarn'; got "
                f"{self.rope_scaling!r}"
            )


class Ministral3(Llama):
    """The architecture."""

    config_type = Ministral3Config
    reads_betas = True
    hf = replace(Llama.hf, model_type="ministral3", biases={}, zero_biases=frozenset())

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        fields: dict[str, Any] = {}
        if hyper.has(YARN_LOG):
            divisor = 1 + 0.1 * hyper.real(YARN_LOG) * log(cfg.rope_factor)
            fields["yarn_magnitude"] = cfg.yarn_magnitude / divisor
        if hyper.has(_GROWTH):
            fields["query_growth"] = hyper.real(_GROWTH)
        return replace(cfg, **fields)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        growth = {_GROWTH: float(cfg.query_growth)} if cfg.query_growth else {}
        return super().write(cfg) | growth

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for the growth of queries and for RoPE."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type")) != "yarn":
            config.refuse(f"rope_parameters must have rope_type yarn; got {rope!r}")
        rope = {**rope, "max_position_embeddings": None}  # transformers does not read it
        hyper[_GROWTH] = config.number(_BETA, rope.pop(_BETA, None), real=True)
        return super().complete(config.over(rope_parameters=rope, rope_scaling=None), hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for RoPE and query_growth; raises ConfigError if it is 0."""
        keys = super().folder(hyper, tensors)
        if _GROWTH not in hyper:
            raise ConfigError("export_hf: a folder of ministral3 needs query_growth above 0; got 0")
        rope = keys.pop("rope_scaling") | {
            _BETA: hyper[_GROWTH],
            "rope_theta": hyper[FREQ_BASE],
        }
        return keys | {"rope_parameters": rope, "pad_token_id": None}

    # -- Forward -------------------------------------------------------------------------------

    def growth(self, cfg: Any) -> dict[str, Any]:
        """Return the arguments of Layers.rope that hold for q alone."""
        return {"growth": float(cfg.query_growth), "span": max(cfg.original_context, 1)}


register(Ministral3("mistral3", "Ministral3", interleaved=True, in_files=IN_FILES))
