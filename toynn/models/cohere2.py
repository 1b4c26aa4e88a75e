"""Cohere 2 (Command R7B, Command A): attention and MLP side by side behind one LayerNorm.

    n  = layernorm(x)                                               without a bias
    x += W_o attention(rotate(W_q n), rotate(W_k n), W_v n) + W_down (silu(W_gate n) * W_up n)
    logits = logit_scale W_e layernorm(x)

Blocks with a window rotate interleaved channels, in folders and in GGUF files. The other blocks,
usually every fourth, have no RoPE. The head is tied.
Source: Cohere 2025, arXiv:2504.00698, section 2.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toynn.errors import ConfigError
from toynn.graph.tape import Tensor
from toynn.models.checks import check_positive
from toynn.models.hyper import Hyper
from toynn.models.keys import EPS
from toynn.models.llama import LlamaConfig
from toynn.models.registry import register
from toynn.models.rows import ATTENDED, EMBEDDING, MLP, QKV, names
from toynn.models.tables import Floats, norm
from toynn.models.windows import WindowConfig, Windowed
from toynn.nn import Layers
from toynn.options import RecipeOptions

_LOGITS = "logit_scale"
#: Keys of old folders, and the only values with which this file's formulas hold.
_SAME: dict[str, tuple[object, ...]] = {
    "layer_switch": (4,), "order_of_interleaved_layers": ("local_attn_first",),
    "position_embedding_type": ("rope_gptj",), "rotary_pct": (1.0,), "use_qk_norm": (False,),
    "use_embedding_sharing": (True,), "use_gated_activation": (True,),
    "use_parallel_block": (True,), "use_parallel_embedding": (True, False),
}  # fmt: skip


@dataclass(frozen=True)
class Cohere2Config(WindowConfig):
    """Shape of a Cohere 2.

    Attributes
    ----------
    logit_scale
        Multiplies the logits.
    """

    arch: str = "cohere2"
    window: int = 4096
    logit_scale: float = 0.0625

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, _LOGITS)


class Cohere2(Windowed):
    """The architecture."""

    config_type = Cohere2Config
    fixed_heads = True
    centred = True
    table = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", "model.layers.{n}.input_layernorm"),
        *(replace(row, bias="qkv_bias") for row in QKV),
        replace(ATTENDED, bias="output_bias"),
        *MLP,
        norm("output_norm", "C", "model.norm"),
    )

    def __init__(self) -> None:
        super().__init__("cohere2", "Cohere2", interleaved=True)
        eps = self.eps_key
        self.hf = replace(
            self.hf,
            keys={k: v for k, v in self.hf.keys.items() if k != EPS}
            | {eps: "layer_norm_eps", _LOGITS: _LOGITS},
            real=self.hf.real | {eps, _LOGITS},
            optional=self.hf.optional | {_LOGITS},
            fixed={**self.hf.fixed, **_SAME},
            biases={"attention_bias": (False, names(*QKV, ATTENDED))},
            zero_biases=frozenset(names(*QKV, ATTENDED)),
            tied=True,
        )

    def check(self, cfg: LlamaConfig, opts: RecipeOptions) -> None:
        """Refuse an untied head, and what Llama refuses. Raises ConfigError."""
        super().check(cfg, opts)
        if opts.untied:
            raise ConfigError(
                "cohere2: the head is tied to token_embd.weight; got untied=True|--untied"
            )

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        scale = hyper.real(_LOGITS, Cohere2Config.logit_scale)
        return replace(cfg, logit_scale=scale)

    def check_gguf(self, cfg: Any) -> None:
        """Refuse no window, and what Llama refuses. Raises ConfigError."""
        super().check_gguf(cfg)
        if not cfg.window:
            raise ConfigError("export: llama.cpp reads cohere2 with a window only; got 0")

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | {_LOGITS: float(cfg.logit_scale)}

    # -- Forward -------------------------------------------------------------------------------

    def constants(self, cfg: LlamaConfig) -> dict[str, Floats]:
        """Return RoPE's frequencies, and zeros as the bias that the norms lack."""
        return super().constants(cfg) | {"no_bias": np.zeros(cfg.d_model, np.float32)}

    def rotates(self, cfg: Any, n: int) -> bool:
        """Say whether block n has RoPE: only blocks with a window do."""
        return bool(cfg.width(n))

    def block(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record block n for x (B T, C)."""
        normed = self.norm(block, cfg, x, "attn_norm")
        x = block.residual(x, self.mixed(block, cfg, n, normed, positions))
        return block.add(x, self.feed_forward(block, cfg, block.narrowed(normed)))

    def last(self, layers: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record the last norm times logit_scale: the head has no bias, so this scales logits."""
        return layers.scale(super().last(layers, cfg, x), cfg.logit_scale)


register(Cohere2())
