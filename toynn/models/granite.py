"""Granite: a Llama with four scales: of embeddings, of the blocks' sums, of scores and of logits.

    x = embedding_scale * W_e[token]
    x += residual_scale * W_o attention(...)            scores: attention_scale * q k^T
    x += residual_scale * W_down (silu(W_gate n) * W_up n)
    logits = W rmsnorm(x) / logit_scale

Source: IBM 2024, "Granite 3.0 Language Models"; the scales are those of Yang et al. 2022,
arXiv:2203.03466.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_flags, check_positive, set_defaults
from toynn.models.hyper import Hyper
from toynn.models.llama import IN_FILES, Llama, LlamaConfig
from toynn.models.registry import register
from toynn.models.tables import Floats
from toynn.nn import Layers

FINETUNED = "rope.scaling.finetuned"  # by this key llama.cpp decides whether there is RoPE
#: Fields of the configuration: GGUF's keys, and config.json's.
_SCALES = {
    "embedding_scale": ("embedding_scale", "embedding_multiplier"),
    "residual_scale": ("residual_scale", "residual_multiplier"),
    "attention_scale": ("attention.scale", "attention_multiplier"),
    "logit_scale": ("logit_scale", "logits_scaling"),
}


@dataclass(frozen=True)
class GraniteConfig(LlamaConfig):
    """Shape of a Granite: that of a Llama, and four scales above 0.

    Attributes
    ----------
    embedding_scale, residual_scale
        Factors of the embeddings, and of what attention and MLP add to x.
    attention_scale
        Factor of the scores; None means 1 / sqrt(d_head).
    logit_scale
        Divides the logits.
    rotated
        Whether attention has RoPE.
    """

    arch: str = "granite"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float | None = None
    logit_scale: float = 1.0
    rotated: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(self, "rotated")
        scale = float(str(np.float32(self.d_head**-0.5)))  # a GGUF file holds a float32
        set_defaults(self, attention_scale=scale)
        check_positive(self, *_SCALES)


class Granite(Llama):
    """The architecture."""

    config_type: ClassVar[type[Any]] = GraniteConfig
    hf = replace(
        Llama.hf,
        keys={**Llama.hf.keys, **dict(_SCALES.values())},
        real=Llama.hf.real | dict(_SCALES.values()).keys(),
        optional=Llama.hf.optional | dict(_SCALES.values()).keys(),
    )

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        scales = {name: hyper.real(key, getattr(cfg, name)) for name, (key, _) in _SCALES.items()}
        return replace(cfg, rotated=hyper.flag(FINETUNED, True), **scales)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        scales = {key: float(getattr(cfg, name)) for name, (key, _) in _SCALES.items()}
        return super().write(cfg) | scales | ({} if cfg.rotated else {FINETUNED: False})

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Set each scale that config.json leaves out to transformers' default, 1."""
        for key, _ in _SCALES.values():
            hyper.setdefault(key, 1.0)
        return super().complete(config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Refuse a model without RoPE: folders of one have another model_type.

        Raises ConfigError.
        """
        if not hyper.get(FINETUNED, True):
            raise ConfigError(
                f"export_hf: a folder of {self.architecture} has RoPE; got none. Without RoPE it "
                "is a Granite 4, of model_type granitemoehybrid. Load its original folder, not its "
                "GGUF file: toynn writes such a folder only if it has read one"
            )
        return super().folder(hyper, tensors)

    # -- Forward -------------------------------------------------------------------------------

    def rotates(self, cfg: Any, n: int) -> bool:
        """Say whether block n has RoPE."""
        return bool(cfg.rotated)

    def scale(self, cfg: GraniteConfig) -> float | None:
        """Return the factor of the scores."""
        return cfg.attention_scale

    def embed(self, layers: Layers, cfg: Any, tokens: Tensor) -> Tensor:
        """Record the embeddings."""
        return layers.scale(super().embed(layers, cfg, tokens), cfg.embedding_scale)

    def block(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record block n for x (B T, C)."""
        heads = self.mixed(block, cfg, n, self.norm(block, cfg, x, "attn_norm"), positions)
        x = block.residual(x, block.scale(heads, cfg.residual_scale))
        wide = self.feed_forward(block, cfg, self.norm(block, cfg, x, "ffn_norm"))
        return block.add(x, block.scale(wide, cfg.residual_scale))

    def last(self, layers: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record the last norm / logit_scale: the head has no bias, so this scales the logits."""
        return layers.scale(super().last(layers, cfg, x), 1 / cfg.logit_scale)


register(Granite("granite", "Granite", interleaved=True, in_files=IN_FILES))
