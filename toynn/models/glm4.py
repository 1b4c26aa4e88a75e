"""GLM-4: norms before and after attention and MLP, gate and up in one matrix, RoPE on half a head.

    x += rmsnorm(W_o attention(rotate(W_q n), rotate(W_k n), W_v n))        n = rmsnorm(x)
    x += rmsnorm(W_down (silu(g) * u))              g, u = W_gu n           n = rmsnorm(x)

The first rope_channels channels of a head rotate, interleaved, in folders and in GGUF files. Two
names are easily confused. In a folder, post_attention_layernorm is the norm before the MLP. In a
GGUF file, post_attention_norm is the norm after attention. q, k and v usually have biases.
Source: GLM Team 2024, arXiv:2406.12793; glm4 of transformers and of llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.llama import Llama, LlamaConfig
from toynn.models.registry import register
from toynn.models.rope import check_channels, part_of, part_written
from toynn.models.rows import ATTENDED, EMBEDDING, LAYER, OUTPUT, QKV, names
from toynn.models.tables import Floats, Sizes, matrix, norm
from toynn.nn import Layers
from toynn.options import RecipeOptions


@dataclass(frozen=True)
class Glm4Config(LlamaConfig):
    """Shape of a GLM-4.

    Attributes
    ----------
    rope_channels
        Channels of a head that rotate, an even number; None means all.
    """

    scalings: ClassVar[tuple[str, ...]] = ("none", "linear", "yarn")

    arch: str = "glm4"
    rope_channels: int | None = None

    def __post_init__(self) -> None:
        check_channels(self)
        super().__post_init__()


class PartlyRotated(Llama):
    """What GLM-4 and its mixture share: RoPE on half of each head, biases of q, k and v."""

    config_type: ClassVar[type[Any]] = Glm4Config
    partial = True

    # -- Files ---------------------------------------------------------------------------------

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for RoPE, and which part of a head rotates."""
        told = config.get("rope_parameters") or {}
        rope = dict(told) if isinstance(told, dict) else {}
        part_of(config, hyper, rope, 0.5)
        return super().complete(config.over(rope_parameters=rope) if rope else config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for RoPE, and which part of a head rotates."""
        return super().folder(hyper, tensors) | part_written(hyper) | {"pad_token_id": None}


class Glm4(PartlyRotated):
    """The architecture."""

    table = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.input_layernorm"),
        *(replace(row, bias="qkv_bias") for row in QKV),
        ATTENDED,
        norm("blk.{n}.post_attention_norm", "C", f"{LAYER}.post_self_attn_layernorm"),
        norm("blk.{n}.ffn_norm", "C", f"{LAYER}.post_attention_layernorm"),
        matrix("blk.{n}.ffn_up", "2F C", f"{LAYER}.mlp.gate_up_proj"),
        matrix("blk.{n}.ffn_down", "C F", f"{LAYER}.mlp.down_proj"),
        norm("blk.{n}.post_ffw_norm", "C", f"{LAYER}.post_mlp_layernorm"),
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )
    hf = replace(
        Llama.hf,
        biases={"attention_bias": (True, names(*QKV))},
        zero_biases=frozenset(),
    )

    def sizes(self, cfg: LlamaConfig, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        return {**super().sizes(cfg, opts, n), "2F": 2 * cfg.d_ff}

    # -- Forward -------------------------------------------------------------------------------

    def block(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record block n for x (B T, C)."""
        heads = self.mixed(block, cfg, n, self.norm(block, cfg, x, "attn_norm"), positions)
        x = block.residual(x, self.norm(block, cfg, heads, "post_attention_norm"))
        normed = self.norm(block, cfg, x, "ffn_norm")
        wide = block.swiglu_of(normed, "ffn_up", "ffn_down")
        return block.add(x, self.norm(block, cfg, wide, "post_ffw_norm"))


register(Glm4("glm4", "Glm4", interleaved=True))
