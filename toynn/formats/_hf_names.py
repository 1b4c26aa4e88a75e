"""How Hugging Face spells the models that toynn has: keys of config.json, weights, their order.

Everything is given by its GGUF name or key, and the name or key at Hugging Face beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CONFIG",
    "FAMILIES",
    "IGNORED_KEYS",
    "WEIGHTS",
    "Family",
    "heads_of",
    "pairs_apart",
    "pairs_together",
]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_DIGITS = 10  # of the number of a block


@dataclass(frozen=True)
class Family:
    """Models that are spelled alike."""

    keys: Mapping[str, str]  # hyper-parameters
    modules: Mapping[str, str]  # outside the blocks
    block: str  # what the names of the blocks' modules begin with, before the number
    parts: Mapping[str, str]  # modules of a block
    fixed: Mapping[str, tuple[object, ...]]  # keys of config.json: what toynn computes
    tied: bool  # whether the head is tied where config.json does not say
    transposed: bool = False  # matrices of the blocks are (in, out)
    shown: Mapping[str, object] = field(default_factory=dict)  # keys of config.json to write

    def name(self, gguf_name: str) -> str:
        """Return a weight's name at Hugging Face."""
        *block, part, kind = gguf_name.split(".")
        if not block:
            return f"{self.modules[part]}.{kind}"
        return f"{self.block}.{block[1]}.{self.parts[part]}.{kind}"

    def gguf_name(self, name: str) -> str | None:
        """Return the GGUF name of a weight; None if there is none.

        Models without a head leave out the first part of the others' names.
        """
        prefix = self.block.partition(".")[0]
        if not name.startswith((f"{prefix}.", "lm_head.")):
            name = f"{prefix}.{name}"
        module, _, kind = name.rpartition(".")
        for part, spelled in self.modules.items():
            if module == spelled:
                return f"{part}.{kind}"
        number, _, module = module.removeprefix(f"{self.block}.").partition(".")
        for part, spelled in self.parts.items():
            if module == spelled and number.isdecimal() and len(number) < MAX_DIGITS:
                return f"blk.{int(number)}.{part}.{kind}"
        return None


_LLAMA_KEYS = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_LLAMA_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _llama(name: str) -> Family:
    return Family(
        keys=_LLAMA_KEYS,
        modules={
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
        },
        block="model.layers",
        parts=_LLAMA_PARTS,
        fixed={"hidden_act": ("silu", "swish"), "use_sliding_window": (False,)},
        tied=False,
        shown={"architectures": [f"{name}ForCausalLM"], "hidden_act": "silu"},
    )


#: By general.architecture, which is Hugging Face's model_type too.
FAMILIES = {
    "llama": _llama("Llama"),
    "qwen2": _llama("Qwen2"),
    "qwen3": _llama("Qwen3"),
    "gpt2": Family(
        keys={
            "vocab_size": "vocab_size",
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "feed_forward_length": "n_inner",
            "block_count": "n_layer",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        modules={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        block="transformer.h",
        parts={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        fixed={
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
        },
        tied=True,
        transposed=True,
        shown={"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"},
    ),
}

#: Keys of config.json that change no number of a model that is evaluated or trained here.
IGNORED_KEYS = frozenset(
    (
        "_name_or_path",
        "architectures",
        "attention_bias",
        "attention_dropout",
        "attn_pdrop",
        "bos_token_id",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "initializer_range",
        "is_llama_config",
        "max_window_layers",
        "mlp_bias",
        "model_type",
        "n_ctx",
        "pad_token_id",
        "pretraining_tp",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "sliding_window",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    )
)


def pairs_together(w: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return rows of q or k in GGUF's order for arch llama: the pairs that RoPE turns are together.

    At Hugging Face they are half a head apart.
    """
    return w.reshape(heads, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def pairs_apart(w: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return rows of q or k in Hugging Face's order: the inverse of ``pairs_together``."""
    return w.reshape(heads, -1, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def heads_of(architecture: str, metadata: Mapping[str, Any], name: str) -> int:
    """Return the number of heads of a weight whose rows are in another order, else 0."""
    part = name.split(".")[-2]
    if architecture != "llama" or part not in ("attn_q", "attn_k"):
        return 0
    heads: int = metadata["llama.attention.head_count"]
    return heads if part == "attn_q" else metadata.get("llama.attention.head_count_kv", heads)
