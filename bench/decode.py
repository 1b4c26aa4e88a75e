"""Generation, toynn against PyTorch in eager mode through transformers: shapes and contestants.

A call generates TOKENS tokens one by one, always the likeliest. Keys and values of a sequence of a
given length are in the cache already.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from smallest import smallest

from toynn.testing.race import Contestants

TOKENS = 4


class Decoding(NamedTuple):
    """A Llama model with a tied head, and the number of tokens in its cache."""

    d_model: int
    layers: int
    heads: int
    kv_heads: int
    d_ff: int
    vocab: int
    past: int


SHAPES = {
    "llama_d128_L4_past_100": Decoding(128, 4, 4, 2, 352, 256, 100),
    "smollm2_135m_past_100": Decoding(576, 30, 9, 3, 1536, 49152, 100),
    "smollm2_135m_past_2000": Decoding(576, 30, 9, 3, 1536, 49152, 2000),
}
SHAPES = {name: smallest(of, Decoding(64, 1, 2, 1, 96, 256, 9)) for name, of in SHAPES.items()}


def contestants(shape: Decoding, n_threads: int) -> Contestants:
    """Return a call of each contestant, after the same tokens."""
    ids = np.random.default_rng(0).integers(0, shape.vocab, shape.past).tolist()
    return {
        "toynn": toynn_decode(shape, ids, n_threads),
        "torch": torch_decode(shape, ids, n_threads),
    }


def toynn_decode(shape: Decoding, ids: list[int], n_threads: int) -> Callable[[], object]:
    """Return toynn's call, with random weights; the call returns the tokens."""
    import toynn

    toynn.set_num_threads(n_threads)
    C, L, H, KV, F, V, past = shape
    engine = toynn.LlamaSeqEngine()
    config = toynn.LlamaConfig(V, C, H, KV, F, L, past + TOKENS)
    engine.realize_for_random_init(config, toynn.RecipeOptions())
    decoder = engine.decoder()
    first = int(decoder.read(ids).argmax())

    def decode() -> list[int]:
        decoder.rewind(past)
        token, tokens = first, []
        for _ in range(TOKENS):
            token = int(decoder.read([token]).argmax())
            tokens.append(token)
        return tokens

    return decode


def torch_decode(shape: Decoding, ids: list[int], n_threads: int) -> Callable[[], object]:
    """Return PyTorch's call: transformers' random weights and default attention, float32."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(n_threads)
    torch.manual_seed(0)
    C, L, H, KV, F, V, past = shape
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=C,
        intermediate_size=F,
        num_hidden_layers=L,
        num_attention_heads=H,
        num_key_value_heads=KV,
        max_position_embeddings=past + TOKENS,
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM(config).eval()
    cache = DynamicCache()

    def read(tokens: list[int]) -> int:
        with torch.inference_mode():
            out = model(torch.tensor([tokens]), past_key_values=cache, logits_to_keep=1)
        return int(out.logits[0, -1].argmax())

    first = read(ids)

    def decode() -> list[int]:
        token, tokens = first, []
        for _ in range(TOKENS):
            token = read([token])
            tokens.append(token)
        cache.crop(-TOKENS)  # a negative number removes so many rows
        return tokens

    return decode
