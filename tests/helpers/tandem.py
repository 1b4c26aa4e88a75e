"""Tandem, a made-up architecture, all of it: nothing else in toynn knows that it exists.

    x += W_o attention(rotate(W_q n), rotate(W_k n), W_v n) + W_down gelu(W_up n)   n = layernorm(x)

Attention and the feed-forward layer stand side by side, behind one norm. Only every second block
rotates q and k, and the feed-forward layers of the others are twice as wide. The embeddings are
multiplied by the root of their width. The head is a matrix of its own.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from toynn.models import Folder, SequenceModel, check_sizes, matrix, norm, table

EPS = 1e-5


@dataclass(frozen=True)
class TandemConfig:
    """Shape of a tandem."""

    vocab: int
    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int
    context: int
    rope_base: float = 100.0
    arch = "tandem"

    def __post_init__(self):
        check_sizes(self, "vocab", "d_model", "n_heads", "d_ff", "n_layers", "context")


class Tandem(SequenceModel[TandemConfig]):
    """The architecture tandem."""

    architecture = "tandem"
    config_type = TandemConfig
    interleaved = True
    table = (
        table("token_embd", "V C", "net.tokens", std=0.02),
        norm("blk.{n}.attn_norm", "C", "net.stages.{n}.norm", bias=True),
        matrix("blk.{n}.attn_q", "C C", "net.stages.{n}.mix.q", std=0.1, pairs=("heads",)),
        matrix("blk.{n}.attn_k", "C C", "net.stages.{n}.mix.k", std=0.1, pairs=("heads",)),
        matrix("blk.{n}.attn_v", "C C", "net.stages.{n}.mix.v", std=0.1, bias=True),
        matrix("blk.{n}.attn_output", "C C", "net.stages.{n}.mix.out", std=0.1),
        matrix("blk.{n}.ffn_up", "F C", "net.stages.{n}.up", std=0.1, bias=True),
        matrix("blk.{n}.ffn_down", "C F", "net.stages.{n}.down", std=0.1, transposed=True),
        norm("output_norm", "C", "net.norm", bias=True),
        matrix("output", "V C", "lm_head", std=0.02),
    )
    hf = Folder(
        keys={
            "vocab_size": "vocab_size",
            "context_length": "n_seen",
            "embedding_length": "width",
            "feed_forward_length": "inner",
            "block_count": "n_stages",
            "heads": "n_heads",
            "rope.freq_base": "rope_base",
        },
        real=frozenset(("rope.freq_base",)),
        fixed={"activation": ("gelu",)},
        shown={"architectures": ["TandemForCausalLM"], "activation": "gelu"},
    )

    def sizes(self, cfg, opts, n):
        return {"V": cfg.vocab, "C": cfg.d_model, "F": cfg.d_ff * (1 if n is None else n % 2 + 1)}

    def read(self, hyper):
        return TandemConfig(
            vocab=hyper.vocabulary,
            d_model=hyper.whole("embedding_length"),
            n_heads=hyper.whole("heads"),
            d_ff=hyper.whole("feed_forward_length"),
            n_layers=hyper.layers,
            context=hyper.whole("context_length"),
            rope_base=hyper.real("rope.freq_base"),
        )

    def write(self, cfg):
        return {
            "context_length": cfg.context,
            "embedding_length": cfg.d_model,
            "feed_forward_length": cfg.d_ff,
            "block_count": cfg.n_layers,
            "heads": cfg.n_heads,
            "rope.freq_base": float(cfg.rope_base),
        }

    def constants(self, cfg):
        D = cfg.d_model // cfg.n_heads
        return {"angles": (cfg.rope_base ** -(np.arange(0, D, 2) / D)).astype(np.float32)}

    def forward(self, layers, cfg, tokens, positions):
        x = layers.scale(layers.embedding("token_embd", tokens), sqrt(cfg.d_model))
        for n, block in enumerate(layers.blocks(cfg.n_layers)):
            normed = block.layernorm(x, "attn_norm", EPS)
            q, k, v = (block.linear(normed, f"attn_{part}") for part in "qkv")
            if n % 2 == 0:
                q, k = (
                    block.rope(part, positions, cfg.n_heads, "angles", interleaved=True)
                    for part in (q, k)
                )
            heads = block.attention(q, k, v, n_heads=cfg.n_heads)
            mixed = block.linear(heads, "attn_output")
            x = block.add(x, block.add(mixed, block.mlp(normed, "ffn_up", "ffn_down", "gelu_tanh")))
        return x

    def last(self, layers, cfg, x):
        return layers.layernorm(x, "output_norm", EPS)

    def head(self, cfg, opts):
        return "output"
