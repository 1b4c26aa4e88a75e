"""StarCoder2: a Llama with LayerNorm, an MLP without gates (GELU), biases, a window in all blocks.

    x += W_o attention(rotate(W_q n), rotate(W_k n), W_v n)         n = layernorm(x)
    x += W_down gelu(W_up n)                                        n = layernorm(x)

RoPE rotates channels half a head apart. llama.cpp ignores the window, and does not read models
without biases. Source: Lozhkov et al. 2024, arXiv:2402.19173.
"""

from dataclasses import dataclass, replace
from typing import Any

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_sizes
from toynn.models.hyper import Hyper
from toynn.models.keys import EPS, WINDOW
from toynn.models.llama import IN_FILES, Llama, LlamaConfig
from toynn.models.registry import register
from toynn.models.rows import ATTENDED, EMBEDDING, LAYER, OUTPUT, QKV, names
from toynn.models.tables import Floats, matrix, norm
from toynn.nn import Layers

_GELU = "gelu_pytorch_tanh"


@dataclass(frozen=True)
class Starcoder2Config(LlamaConfig):
    """Shape of a StarCoder2.

    Attributes
    ----------
    window
        Keys that a query sees, its own included; 0: no window.
    """

    arch: str = "starcoder2"
    window: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window", least=0)


_MLP = (
    matrix("blk.{n}.ffn_up", "F C", f"{LAYER}.mlp.c_fc", bias="mlp_bias"),
    matrix("blk.{n}.ffn_down", "C F", f"{LAYER}.mlp.c_proj", bias="mlp_bias"),
)


class Starcoder2(Llama):
    """The architecture."""

    config_type = Starcoder2Config
    fixed_heads = True
    centred = True
    table = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.input_layernorm", bias=True),
        *(replace(row, bias="qkv_bias") for row in QKV),
        replace(ATTENDED, bias="output_bias"),
        norm("blk.{n}.ffn_norm", "C", f"{LAYER}.post_attention_layernorm", bias=True),
        *_MLP,
        norm("output_norm", "C", "model.norm", bias=True),
        OUTPUT,
    )

    def __init__(self) -> None:
        super().__init__("starcoder2", "Starcoder2", in_files=IN_FILES[1:])
        eps = self.eps_key
        self.hf = replace(
            self.hf,
            keys={k: v for k, v in self.hf.keys.items() if k != EPS}
            | {eps: "norm_epsilon", WINDOW: "sliding_window"},
            real=self.hf.real | {eps},
            optional=self.hf.optional | {WINDOW},
            fixed={
                "hidden_act": (_GELU,),
                "activation_function": (_GELU, "gelu"),  # transformers does not read it
                "mlp_type": ("default",),
                "norm_type": ("layer_norm",),
            },
            shown={**self.hf.shown, "hidden_act": _GELU},
            biases={"use_bias": (True, names(*QKV, ATTENDED, *_MLP))},
            zero_biases=frozenset(),
            tied=True,
        )

    def new_config(self, **shape: Any) -> LlamaConfig:
        """Return a configuration with the biases that llama.cpp needs."""
        return super().new_config(**dict.fromkeys(IN_FILES[1:], True) | shape)

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        return replace(super().read(hyper), window=hyper.count(WINDOW))

    def check_gguf(self, cfg: LlamaConfig) -> None:
        """Refuse missing biases, and what Llama refuses. Raises ConfigError."""
        super().check_gguf(cfg)
        if not cfg.output_bias or not cfg.mlp_bias:
            raise ConfigError(
                "export: llama.cpp reads starcoder2 with output_bias and mlp_bias True; got "
                f"{cfg.output_bias} and {cfg.mlp_bias}"
            )

    def unlike(self, cfg: Any) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        short = 0 < cfg.window < cfg.context
        return super().unlike(cfg) + [f"has no window of {cfg.window} tokens here"] * short

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | ({WINDOW: cfg.window} if cfg.window else {})

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for RoPE; dropout acts in training only."""
        config.ignore("residual_dropout", "embedding_dropout")
        return super().complete(config, hyper)

    # -- Forward -------------------------------------------------------------------------------

    def mixed(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record the attention of block n."""
        return self.attention(block, cfg, x, positions, window=cfg.window)

    def feed_forward(self, block: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record the MLP of x (B T, C)."""
        return block.mlp(x, "ffn_up", "ffn_down", "gelu_tanh")


register(Starcoder2())
