"""ModernBERT: an encoder with RoPE, gated MLPs, and windows in all but every third block.

    x  = norm(E[token])
    x += W_o attention(rotate(q), rotate(k), v)        q, k, v = W_qkv norm(x); first block: W_qkv x
    x += W_down (gelu(g) u)                            g, u = W_up norm(x)

Blocks 0, 3, 6, ... see the whole text, and RoPE has a base of its own there. In others a row sees
half the window on each side. There are no biases. RoPE rotates channels half a head apart. GELU is
exact here; llama.cpp has its tanh form. Source: Warner et al. 2024, arXiv:2412.13663.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.formats.hf.name_mapping import Folder
from toynn.formats.sentences import POOLINGS
from toynn.graph.tape import Tensor
from toynn.models.checks import check_positive, check_sizes
from toynn.models.encoder import STD, TYPES, Encoder, EncoderConfig, head_rows
from toynn.models.hyper import Hyper, refuse
from toynn.models.keys import FREQ_BASE, LAYER_EPS, LOCAL_FREQ_BASE, PATTERN, SCALING, WINDOW
from toynn.models.registry import register
from toynn.models.rope import plain
from toynn.models.rows import LAYER, SIZES
from toynn.models.tables import Floats, Sizes, matrix, norm, table
from toynn.nn import Layers
from toynn.options import RecipeOptions

_POOLING = "classifier.pooling_type"  # llama.cpp reads a mean where it is missing
_FULL, _SLIDING = "full_attention", "sliding_attention"
_USUAL = {FREQ_BASE: 160000.0, LOCAL_FREQ_BASE: 10000.0}


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """Shape of a ModernBERT. Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    window
        Tokens that a row sees in a block with a window: half before it, half behind it, and itself.
    every
        Block 0 and every so many blocks see the whole text.
    rope_base, local_base
        RoPE's base in blocks that see the whole text, and in others.
    pooling
        What a head of sequences reads: "cls" or "mean".
    """

    arch: str = "modern-bert"
    types: int = 0
    norm_eps: float = 1e-5
    window: int = 128
    every: int = 3
    rope_base: float = 160000.0
    local_base: float = 10000.0
    pooling: str = "cls"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window", "every")
        check_positive(self, "rope_base", "local_base")
        if self.d_head % 2 or self.pooling not in ("cls", "mean"):
            raise ConfigError(
                "ModernBertConfig: heads must be even and pooling cls or mean; got "
                f"{self.d_head} and {self.pooling!r}"
            )


class ModernBert(Encoder):
    """The architecture."""

    architecture, title, prefix = "modern-bert", "ModernBert", "model"
    config_type = ModernBertConfig
    narrows = True
    table = (
        table("token_embd", "V C", "model.embeddings.tok_embeddings", std=STD),
        norm("token_embd_norm", "C", "model.embeddings.norm"),
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.attn_norm", when="attn_norm"),
        matrix("blk.{n}.attn_qkv", "3C C", f"{LAYER}.attn.Wqkv", std=STD),
        matrix("blk.{n}.attn_output", "C C", f"{LAYER}.attn.Wo", std=STD),
        norm("blk.{n}.ffn_norm", "C", f"{LAYER}.mlp_norm"),
        matrix("blk.{n}.ffn_up", "2F C", f"{LAYER}.mlp.Wi", std=STD),
        matrix("blk.{n}.ffn_down", "C F", f"{LAYER}.mlp.Wo", std=STD),
        norm("output_norm", "C", "model.final_norm"),
        *head_rows("head.dense", "classifier", bias=False),
        norm("cls.norm", "C", "head.norm", when="pooler"),
    )
    hf = Folder(
        keys={
            **SIZES,
            LAYER_EPS: "norm_eps",
            WINDOW: "local_attention",
        },
        real=frozenset((LAYER_EPS,)),
        fixed={
            "hidden_activation": ("gelu",),
            "classifier_activation": ("gelu",),
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "norm_bias": (False,),
            "classifier_bias": (False,),
        },
        shown={"hidden_activation": "gelu"},
        tied=True,
        model_type="modernbert",
        unheaded="model.",
        without=("decoder.",),
    )

    def sizes(self, cfg: EncoderConfig, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        C = cfg.d_model
        return {
            "V": cfg.vocab, "C": C, "3C": 3 * C, "F": cfg.d_ff, "2F": 2 * cfg.d_ff,
            "K": cfg.labels, "pooler": cfg.pooler, "attn_norm": n != 0,
        }  # fmt: skip

    # -- Files ---------------------------------------------------------------------------------

    def sized(self, hyper: Hyper) -> dict[str, Any]:
        """Return the window, the blocks that have none, and RoPE's bases."""
        hyper.expect(SCALING, "none")
        base, pooling = hyper.real(FREQ_BASE, _USUAL[FREQ_BASE]), hyper.whole(_POOLING, 1)
        if pooling > 2:
            refuse(hyper.file, f"{hyper.prefix}{_POOLING} must be 1 or 2; got {pooling}")
        return {
            "window": hyper.whole(WINDOW, 128),
            "every": hyper.whole(PATTERN, 3),
            "rope_base": base,
            "local_base": hyper.real(LOCAL_FREQ_BASE, base),
            "pooling": POOLINGS[pooling],
        }

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        written = {WINDOW: cfg.window, PATTERN: cfg.every, FREQ_BASE: float(cfg.rope_base)}
        written |= {LOCAL_FREQ_BASE: float(cfg.local_base), _POOLING: POOLINGS.index(cfg.pooling)}
        return {k: v for k, v in super().write(cfg).items() if k != TYPES} | written

    def unlike(self, cfg: EncoderConfig) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        return ["has GELU's tanh form, here it is exact"]

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read RoPE's bases and the kinds of blocks, in both spellings."""
        for key in (
            *("cls_token_id", "sep_token_id", "embedding_dropout", "mlp_dropout"),
            *("initializer_cutoff_factor", "decoder_bias", "deterministic_flash_attn"),
            *("sparse_prediction", "sparse_pred_ignore_index", "reference_compile"),
            *("position_embedding_type", "repad_logits_with_grad"),
        ):
            config.get(key)
        rope, kinds = config.get("rope_parameters") or {}, config.get("layer_types")
        for key, kind, old in ((FREQ_BASE, _FULL, "global"), (LOCAL_FREQ_BASE, _SLIDING, "local")):
            of_kind = rope.get(kind) if isinstance(rope, dict) else None
            of_kind = of_kind if isinstance(of_kind, dict) else {}
            if of_kind.get("rope_type", "default") != "default":
                config.refuse(f"rope_parameters.{kind}: rope_type must be default; got {of_kind!r}")
            base = of_kind.get("rope_theta", config.get(f"{old}_rope_theta"))
            base = _USUAL[key] if base is None else base
            hyper[key] = config.number(f"{old}_rope_theta", base, real=True)
        count = hyper.get("block_count", 0)
        every = config.get("global_attn_every_n_layers")
        if every is None and isinstance(kinds, list):
            full = [n for n, kind in enumerate(kinds) if kind == _FULL]
            every = full[1] if len(full) > 1 else max(count, 1)
        usual = 3 if every is None else every
        hyper[PATTERN] = int(config.number("global_attn_every_n_layers", usual, real=False))
        fits = isinstance(kinds, list) and len(kinds) == count
        if kinds is not None and (not fits or kinds != _kinds(len(kinds), hyper[PATTERN])):
            config.refuse(f"layer_types must have {_FULL} in every n-th block; got {kinds!r:.200}")
        pooling = config.get("classifier_pooling", "cls")
        if pooling not in ("mean", "cls"):
            config.refuse(f"classifier_pooling must be cls or mean; got {pooling!r}")
        hyper[_POOLING] = POOLINGS.index(pooling)
        return super().complete(config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for the head, RoPE and the kinds of blocks."""
        keys = super().folder(hyper, tensors)
        bases = {_FULL: hyper[FREQ_BASE], _SLIDING: hyper[LOCAL_FREQ_BASE]}
        return keys | {
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
            },
            "global_rope_theta": hyper[FREQ_BASE],
            "local_rope_theta": hyper[LOCAL_FREQ_BASE],
            "global_attn_every_n_layers": hyper[PATTERN],
            "layer_types": _kinds(hyper["block_count"], hyper[PATTERN]),
            "classifier_pooling": POOLINGS[hyper[_POOLING]],
        }

    # -- Forward -------------------------------------------------------------------------------

    def constants(self, cfg: Any) -> dict[str, Floats]:
        """Return RoPE's frequencies, and zeros as the bias that the norms lack."""
        full, local = (plain(base, cfg.d_head) for base in (cfg.rope_base, cfg.local_base))
        return {
            "inverse_frequencies": full.astype(np.float32),
            "local_frequencies": local.astype(np.float32),
            "no_bias": np.zeros(cfg.d_model, np.float32),
        }

    def forward(self, layers: Layers, cfg: Any, tokens: Tensor, positions: Tensor) -> Tensor:
        """Record the embeddings and the blocks."""
        H, eps = cfg.n_heads, cfg.norm_eps
        x = layers.layernorm(layers.embedding("token_embd", tokens), "token_embd_norm", eps)
        for n, block in enumerate(layers.blocks(cfg.n_layers)):
            full = n % cfg.every == 0
            qkv = block.linear(block.layernorm(x, "attn_norm", eps) if n else x, "attn_qkv")
            frequencies = "inverse_frequencies" if full else "local_frequencies"
            qkv = block.rope(qkv, positions, 3 * H, frequencies, rotated=2 * H)
            window = 0 if full else cfg.window // 2 + 1
            heads = block.attention(qkv, n_heads=H, causal=False, window=window)
            x = block.residual(x, block.linear(heads, "attn_output"))
            normed = block.layernorm(x, "ffn_norm", eps)
            x = block.add(x, block.geglu_of(normed, "ffn_up", "ffn_down"))
        return x

    def last(self, layers: Layers, cfg: EncoderConfig, x: Tensor) -> Tensor:
        """Record the last norm."""
        return layers.layernorm(x, "output_norm", cfg.norm_eps)

    def outputs(self, layers: Layers, cfg: EncoderConfig, x: Tensor) -> Tensor:
        """Record the head's logits of x (N, C): the first matrix is there for tokens, too."""
        return layers.linear(self.pooled(layers, cfg, x) if cfg.pooler else x, "cls.output")

    def pooled(self, layers: Layers, cfg: EncoderConfig, x: Tensor) -> Tensor:
        """Record norm(gelu(W_cls x))."""
        return layers.layernorm(layers.linear(x, "cls", "gelu_exact"), "cls.norm", cfg.norm_eps)

    def pooling(self, cfg: Any) -> str:
        """Return what a head of sequences reads: "cls" or "mean"."""
        return str(cfg.pooling)


def _kinds(count: int, every: int) -> list[str]:
    return [_SLIDING if n % every else _FULL for n in range(count)]


register(ModernBert())
