"""Names at Hugging Face, and rows of tables, that Llama and its relatives share."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toynn.models.tables import Row, matrix, table

_STD = 0.02  # of embeddings and head
LAYER = "model.layers.{n}"

#: config.json's names of a model's sizes, by GGUF's keys.
SIZES = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
}
#: The table of embeddings; a donor's table has an input projection after it.
EMBEDDING: tuple[Row, ...] = (
    table("token_embd", "V E", "model.embed_tokens", std=_STD, frozen="donor"),
    matrix("lens.proj", "C E", when="donor"),
)
QKV: tuple[Row, ...] = (
    matrix("blk.{n}.attn_q", "Q C", f"{LAYER}.self_attn.q_proj"),
    matrix("blk.{n}.attn_k", "KV C", f"{LAYER}.self_attn.k_proj"),
    matrix("blk.{n}.attn_v", "KV C", f"{LAYER}.self_attn.v_proj"),
)
ATTENDED = matrix("blk.{n}.attn_output", "C Q", f"{LAYER}.self_attn.o_proj")
MLP: tuple[Row, ...] = (
    matrix("blk.{n}.ffn_gate", "F C", f"{LAYER}.mlp.gate_proj"),
    matrix("blk.{n}.ffn_up", "F C", f"{LAYER}.mlp.up_proj"),
    matrix("blk.{n}.ffn_down", "C F", f"{LAYER}.mlp.down_proj"),
)
OUTPUT = matrix("output", "V C", "lm_head", std=_STD, when="untied")


def changed(rows: tuple[Row, ...], **changes: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return a table with changed fields; a keyword is a row's name without "blk.{n}."."""
    parts = [row.name.removeprefix("blk.{n}.") for row in rows]
    return tuple(replace(r, **changes.get(p, {})) for r, p in zip(rows, parts, strict=True))


def names(*rows: Row) -> tuple[str, ...]:
    """Return the names of rows."""
    return tuple(row.name for row in rows)
