"""Angles of RoPE far into a text: toynn's are exact, those of transformers rounded to float32.

An angle is a position times a frequency. In float32 it is off by up to 6e-5 radians at position
2047, so cosines differ from transformers' by as much, in every model: toynn takes the product in
float64.
"""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")

import torch
from llamas import config
from transformers import Gemma3TextConfig, GptOssConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding

from toynn import _kernels as kernels
from toynn.models import architecture

T, D = 2048, 64
SIZES = {"hidden_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": D}
SIZES |= {"vocab_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}


def gemma3():
    kinds = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in BASES.items()}
    rotary = Gemma3RotaryEmbedding(Gemma3TextConfig(**SIZES, rope_parameters=kinds))
    return rotary.sliding_attention_inv_freq, lambda x, at: rotary(x, at, "sliding_attention")


def gpt_oss():
    rope = {"rope_type": "default", "rope_theta": 150000.0}
    rotary = GptOssRotaryEmbedding(GptOssConfig(**SIZES, rope_parameters=rope))
    return rotary.inv_freq, rotary


BASES = {"sliding_attention": 1e4, "full_attention": 1e6}
KINDS = {"gemma3": (gemma3, "local_frequencies", 1e4), "gpt-oss": (gpt_oss, None, 150000.0)}


@pytest.mark.parametrize("kind", KINDS)
def test_angles_are_exact_where_transformers_rounds_them(kind):
    make, name, base = KINDS[kind]
    cfg = config(kind, d_model=64, n_heads=1, n_kv_heads=1, head_dim=D, rope_base=base)
    constants = architecture(kind).constants(cfg)
    ours = constants[name or "inverse_frequencies"]
    positions = np.arange(T, dtype=np.int32)
    x = np.zeros((T, 1, D), np.float32)
    x[..., : D // 2] = 1
    kernels.rope.forward(x, x, positions, ours)
    exact = np.cos(positions[:, None] * ours.astype(np.float64))
    assert np.abs(x[:, 0, : D // 2] - exact).max() < 3e-7
    assert np.allclose(ours, float(base) ** -(np.arange(0, D, 2) / D), rtol=6e-8, atol=0)
    frequencies, rotary = make()
    cosines, _ = rotary(torch.zeros(1), torch.arange(T)[None])
    theirs, frequencies = cosines[0, :, : D // 2].numpy(), frequencies.numpy()
    rounded = positions[:, None].astype(np.float32) * frequencies
    assert np.abs(theirs - np.cos(rounded.astype(np.float64))).max() < 3e-7
    unrounded = np.cos(positions[:, None] * frequencies.astype(np.float64))
    assert 1e-5 < np.abs(theirs - unrounded).max() < 2**-14 + 3e-7  # half an ulp
