"""BERT and its relatives: learned positions, norms behind attention and MLP, GELU by erf.

    x  = norm(E[token] + P[position] + S[type])
    x  = norm(x + W_o attention(W_q x, W_k x, W_v x))
    x  = norm(x + W_down gelu(W_up x))

MiniLM, BGE, E5 and GTE are BERTs. RoBERTa and XLM-R count positions from 2 on; here, as in GGUF
files, the two rows before are left out. DistilBERT has no token types. GGUF files call all of them
bert. Sources: Devlin et al. 2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692; Conneau et
al. 2019, arXiv:1911.02116; Sanh et al. 2019, arXiv:1910.01108.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.formats.hf.name_mapping import Folder, Order
from toynn.graph.tape import Tensor
from toynn.models.encoder import STD, TYPES, Encoder, EncoderConfig, head_rows
from toynn.models.hyper import Hyper
from toynn.models.keys import LAYER_EPS
from toynn.models.registry import architecture, register
from toynn.models.rows import SIZES
from toynn.models.sequence import SequenceModel
from toynn.models.tables import Floats, Row, Sizes, matrix, norm, table
from toynn.nn import Layers
from toynn.options import RecipeOptions

_OFFSET = "position_offset"  # rows of the table of positions before the first


def _positions(hyper: Mapping[str, Any], rows: int) -> NDArray[np.intp]:
    return np.arange(min(hyper.get(_OFFSET, 0), rows), rows)


def _rows(begin: str, block: str, names: str, head: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the table, by Hugging Face's names: of a block's parts in the order of the rows."""
    q, k, v, out, out_norm, up, down, last = (f"{block}.{name}" for name in names.split())
    return (
        table("token_embd", "V C", f"{begin}.embeddings.word_embeddings", std=STD),
        table("token_types", "S C", f"{begin}.embeddings.token_type_embeddings", std=STD, when="S"),
        table(
            *("position_embd", "T C", f"{begin}.embeddings.position_embeddings"),
            std=STD,
            order=Order(0, _positions),
        ),
        norm("token_embd_norm", "C", f"{begin}.embeddings.LayerNorm", bias=True),
        matrix("blk.{n}.attn_q", "C C", q, std=STD, bias=True),
        matrix("blk.{n}.attn_k", "C C", k, std=STD, bias=True),
        matrix("blk.{n}.attn_v", "C C", v, std=STD, bias=True),
        matrix("blk.{n}.attn_output", "C C", out, std=STD, bias=True),
        norm("blk.{n}.attn_output_norm", "C", out_norm, bias=True),
        matrix("blk.{n}.ffn_up", "F C", up, std=STD, bias=True),
        matrix("blk.{n}.ffn_down", "C F", down, std=STD, bias=True),
        norm("blk.{n}.layer_output_norm", "C", last, bias=True),
        *head,
    )


_NAMES = (
    "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm"
)
_DISTILLED = (
    "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm ffn.lin1 "
    "ffn.lin2 output_layer_norm"
)


class Bert(Encoder):
    """An architecture of the family: its name, and its names at Hugging Face."""

    offset = 0
    hf = Folder(
        keys={
            **SIZES,
            LAYER_EPS: "layer_norm_eps",
            TYPES: "type_vocab_size",
        },
        real=frozenset((LAYER_EPS,)),
        optional=frozenset((LAYER_EPS, TYPES)),
        fixed={
            "hidden_act": ("gelu",),
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        },
        shown={"hidden_act": "gelu"},
        tied=True,
        without=("cls.", "lm_head.", "qa_outputs."),
    )

    def __init__(self, name: str, title: str, begin: str, offset: int = 0) -> None:
        self.architecture, self.title, self.prefix, self.offset = name, title, begin, offset
        dense = ("classifier.dense", "classifier.out_proj")
        head = dense if offset else (f"{begin}.pooler.dense", "classifier")
        self.table = _rows(begin, f"{begin}.encoder.layer.{{n}}", _NAMES, head_rows(*head))
        # A head of RoBERTa's tokens is called as BERT's.
        also = {"classifier.weight": "classifier.out_proj.weight"} if offset else {}
        also |= {"classifier.bias": "classifier.out_proj.bias"} if offset else {}
        # RoBERTa's own pooler is never read.
        unread = (f"{begin}.pooler.", "pooler.") if offset else ()
        self.hf = replace(
            self.hf, unheaded=f"{begin}.", aliases=also, without=(*self.hf.without, *unread)
        )

    def sized(self, hyper: Hyper) -> dict[str, Any]:
        """Return no further fields."""
        return {}

    def sizes(self, cfg: EncoderConfig, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        return {
            "V": cfg.vocab, "T": cfg.context, "C": cfg.d_model, "F": cfg.d_ff, "S": cfg.types,
            "K": cfg.labels, "pooler": cfg.pooler,
        }  # fmt: skip

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Take the rows before the first from the number of positions."""
        hyper.setdefault(LAYER_EPS, 1e-12)
        if self.offset:
            hyper[_OFFSET] = 1 + int(
                config.number("pad_token_id", config.get("pad_token_id", 1), real=False, least=0)
            )
            hyper["context_length"] = hyper.get("context_length", 0) - hyper[_OFFSET]
        return super().complete(config, hyper)

    def filed(self, cfg: EncoderConfig) -> tuple[SequenceModel[Any], Any]:
        """Return bert: GGUF files have this name for all of the family."""
        return architecture("bert"), replace(cfg, arch="bert")

    def filed_as(self, hyper: Mapping[str, Any]) -> str:
        """Return bert."""
        return "" if self.architecture == "bert" else "bert"

    def unlike(self, cfg: EncoderConfig) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        return ["gives all tokens the first token type"] if cfg.types > 1 else []

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for the head, and for the rows of tables in a folder."""
        keys = super().folder(hyper, tensors)
        if self.offset:
            rows = len(tensors["position_embd.weight"])
            keys["max_position_embeddings"] = rows + self.offset
            keys["pad_token_id"] = self.offset - 1
        if "token_types.weight" not in tensors and TYPES in self.hf.keys:
            keys["type_vocab_size"] = 1
        return keys

    def padded(self, tensors: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return positions with the rows before the first, and a missing table of types."""
        rows, tables = tensors["position_embd.weight"], dict[str, Floats]()
        if self.offset:
            before = np.zeros((self.offset, rows.shape[1]), np.float32)
            tables["position_embd.weight"] = np.concatenate([before, rows])
        if "token_types.weight" not in tensors and TYPES in self.hf.keys:
            tables["token_types.weight"] = np.zeros((1, rows.shape[1]), np.float32)
        return tables

    def forward(
        self, layers: Layers, cfg: EncoderConfig, tokens: Tensor, positions: Tensor
    ) -> Tensor:
        """Record the embeddings and the blocks."""
        x = layers.add(
            layers.embedding("token_embd", tokens), layers.embedding("position_embd", positions)
        )
        if layers.types is not None:
            x = layers.add(x, layers.embedding("token_types", layers.types))
        x = layers.layernorm(x, "token_embd_norm", cfg.norm_eps)
        for block in layers.blocks(cfg.n_layers):
            q, k, v = (block.linear(x, f"attn_{part}") for part in "qkv")
            heads = block.attention(q, k, v, n_heads=cfg.n_heads, causal=False)
            x = block.residual(x, block.linear(heads, "attn_output"))
            x = block.layernorm(x, "attn_output_norm", cfg.norm_eps)
            x = block.add(x, block.mlp(x, "ffn_up", "ffn_down", "gelu_exact"))
            x = block.layernorm(x, "layer_output_norm", cfg.norm_eps)
        return x

    narrows = True


class DistilBert(Bert):
    """DistilBERT, with other names at Hugging Face, and relu in its head."""

    def __init__(self) -> None:
        super().__init__("distilbert", "DistilBert", "distilbert")
        head = head_rows("pre_classifier", "classifier")
        rows = _rows("distilbert", "distilbert.transformer.layer.{n}", _DISTILLED, head)
        self.table = tuple(row for row in rows if row.name != "token_types")
        keys = {"embedding_length": "dim", "feed_forward_length": "hidden_dim"}
        keys |= {"block_count": "n_layers", "attention.head_count": "n_heads"}
        names = {key: name for key, name in self.hf.keys.items() if key not in (LAYER_EPS, TYPES)}
        self.hf = replace(
            self.hf,
            keys=names | keys,
            fixed={"activation": ("gelu",)},
            shown={"activation": "gelu"},
            without=("vocab_", "qa_outputs."),
        )

    def check_gguf(self, cfg: EncoderConfig) -> None:
        """Refuse a head: llama.cpp has tanh in it. Raises ConfigError."""
        super().check_gguf(cfg)
        if cfg.head:
            raise ConfigError(
                "export: llama.cpp has no relu in a head, which distilbert's has: write a folder"
            )

    def filed(self, cfg: EncoderConfig) -> tuple[SequenceModel[Any], Any]:
        """Return bert, and refuse a head."""
        self.check_gguf(cfg)
        return super().filed(cfg)

    def pooled(self, layers: Layers, cfg: EncoderConfig, x: Tensor) -> Tensor:
        """Record relu(W_cls x + b)."""
        return layers.relu(layers.linear(x, "cls"))


register(Bert("bert", "Bert", "bert"))
register(Bert("roberta", "Roberta", "roberta", offset=2))
register(Bert("xlm-roberta", "XLMRoberta", "roberta", offset=2))
register(DistilBert())
