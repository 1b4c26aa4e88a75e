"""A small model of each kind, and models with one thing wrong behind a header that can be read."""

from dataclasses import replace

import numpy as np

from toynn.engines import GPT2Config, GPT2SeqEngine, LlamaConfig, LlamaSeqEngine
from toynn.formats import gguf
from toynn.options import RecipeOptions

SMALL = dict(vocab=32, d_model=32, n_heads=4, d_ff=48, n_layers=2, context=8)
GQA = SMALL | dict(n_kv_heads=2)
FACTORS = dict(rope_scaling="llama3", rope_factors=(1.0, 1.5, 4.0, 8.0))
MODELS = {
    "gpt2": (GPT2SeqEngine, GPT2Config(**SMALL, norm_eps=1e-6), {}),
    "llama": (LlamaSeqEngine, LlamaConfig(**GQA, rope_base=5e5, rms_eps=1e-6), {}),
    "untied": (LlamaSeqEngine, LlamaConfig(**GQA), dict(untied=True, qkv_bias=True)),
    "llama3": (LlamaSeqEngine, LlamaConfig(**GQA, **FACTORS), {}),
    "qwen2": (LlamaSeqEngine, LlamaConfig(**GQA, arch="qwen2"), dict(qkv_bias=True)),
    "qwen3": (LlamaSeqEngine, LlamaConfig(**GQA, arch="qwen3", head_dim=16), {}),
}


def build(name, **changes):
    engine, config, options = MODELS[name]
    model = engine()
    model.realize_for_random_init(replace(config, **changes), RecipeOptions(**options))
    model.build_training_step()
    return model


def content(path):
    """Metadata with types and tensors with types of a file, as gguf.write takes them."""
    with gguf.open(path) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        metadata["general.architecture"] = file.architecture
        tensors = {name: (np.array(file[name]), info.type) for name, info in file.tensors.items()}
    return metadata, tensors


def without(key):
    return lambda metadata, tensors: (metadata.pop(key, None), tensors.pop(key, None))


def with_key(key, value):
    return lambda metadata, tensors: metadata.update({key: value})


def with_tensor(name, shape):
    return lambda metadata, tensors: tensors.update({name: (np.ones(shape, np.float32), "f32")})


def nan(metadata, tensors):
    tensors["blk.1.ffn_up.weight"][0][2, 3] = np.nan


REFUSED = {
    "missing tensor": ("llama", without("blk.1.ffn_up.weight"), "blk.1.ffn_up.weight is missing"),
    "missing bias": ("gpt2", without("blk.0.attn_qkv.bias"), "blk.0.attn_qkv.bias is missing"),
    "half of the biases": ("qwen2", without("blk.1.attn_k.bias"), "blk.1.attn_k.bias is missing"),
    "unknown tensor": (
        "llama",
        with_tensor("blk.0.ffn_gate_inp.weight", (4, 32)),
        "unknown tensors: blk.0.ffn_gate_inp.weight",
    ),
    "bias of no use": ("llama", with_tensor("blk.0.ffn_up.bias", (48,)), "blk.0.ffn_up.bias"),
    "wrong shape": (
        "llama",
        with_tensor("blk.1.attn_k.weight", (32, 32)),
        r"blk.1.attn_k.weight has the wrong shape: expected \(16, 32\); got \(32, 32\)",
    ),
    "transposed": (
        "gpt2",
        with_tensor("blk.1.ffn_up.weight", (32, 48)),
        r"blk.1.ffn_up.weight has the wrong shape: expected \(48, 32\); got \(32, 48\)",
    ),
    "another head": (
        "gpt2",
        with_tensor("output.weight", (32, 32)),
        "output.weight differs from token_embd.weight",
    ),
    "wrong factors": (
        "llama3",
        with_tensor("rope_freqs.weight", (3,)),
        "needs 4 rope_factors; got 3",
    ),
    "missing key": ("llama", without("llama.context_length"), "not found.*llama.context_length"),
    "missing eps": ("gpt2", without("gpt2.attention.layer_norm_epsilon"), "layer_norm_epsilon"),
    "key of the wrong type": ("llama", with_key("llama.block_count", 2.5), "block_count must be"),
    "too many blocks": ("llama", with_key("llama.block_count", 2**31), "block_count is 2147483648"),
    "no heads": ("llama", with_key("llama.attention.head_count", 0), "head_count must be"),
    "heads per layer": ("llama", with_key("llama.attention.head_count", [4, 4]), "head_count must"),
    "odd heads": ("gpt2", with_key("gpt2.attention.head_count", 5), "n_heads must divide d_model"),
    "kv heads": ("llama", with_key("llama.attention.head_count_kv", 3), "must divide n_heads"),
    "huge": ("llama", with_key("llama.feed_forward_length", 2**60), "blk.0.ffn_gate.weight"),
    "huge heads": (
        "llama",
        with_key("llama.attention.key_length", 2**40),
        "a head of 1099511627776 channels",
    ),
    "yarn": ("llama", with_key("llama.rope.scaling.type", "longrope"), "yarn here; got 'longrope'"),
    "linear": ("llama", with_key("llama.rope.scaling.factor", -4.0), "factor must be a number > 0"),
    "part of a head": ("llama", with_key("llama.rope.dimension_count", 4), "must be 8 here; got 4"),
    "values of another size": ("qwen3", with_key("qwen3.attention.value_length", 8), "must be 16"),
    "experts": ("llama", with_key("llama.expert_count", 8), "expert_count = 8"),
    "unknown key": ("llama", with_key("llama.logit_scale", 2.0), "llama.logit_scale = 2"),
    "array for a number": ("llama", with_key("llama.vocab_size", [1, 2]), "vocab_size counts"),
    "vocabulary": ("llama", with_key("llama.vocab_size", 31), "vocab_size counts 31 tokens"),
    "tokens": ("llama", with_key("tokenizer.ggml.tokens", ["a"]), "tokens counts 1 tokens"),
    "another architecture": ("llama", with_key("general.architecture", "mamba"), "'mamba'"),
    "NaN": ("llama", nan, r"blk\.1\.ffn_up\.weight"),
}
