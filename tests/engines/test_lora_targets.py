"""Which matrices get an adapter, by every name that they have; what is no name, rank or alpha."""

import llamas
import numpy as np
import pytest
from lora_bases import ARCHS, config

from toynn.engines import AdapterOptions
from toynn.errors import AdapterError, ConfigError
from toynn.formats.adapters import Adapter

NAMES = {
    arch: list(config(arch).shapes(**({} if arch == "gpt2" else {"untied": arch == "qwen3"})))
    for arch in ARCHS
}
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
MLP = ("ffn_gate", "ffn_up", "ffn_down")

# The architecture, the targets, the parts of each block that they are.
TARGETS = [
    ("llama", ("q",), ("attn_q",)),
    ("llama", "q", ("attn_q",)),
    ("llama", ["v", "q"], ("attn_q", "attn_v")),
    ("llama", ("q_proj", "attn_q"), ("attn_q",)),
    ("llama", ("o", "gate", "up", "down"), ("attn_output", *MLP)),
    ("llama", ("k_proj", "self_attn.o_proj", "mlp.up_proj"), ("attn_k", "attn_output", "ffn_up")),
    ("llama", ("attn_v.weight", "ffn_down"), ("attn_v", "ffn_down")),
    ("llama", "attention", ATTENTION),
    ("llama", "all-linear", ATTENTION + MLP),
    ("qwen2", ("attention", "down"), (*ATTENTION, "ffn_down")),
    ("qwen3", "all-linear", ATTENTION + MLP),
    ("gpt2", "qkv", ("attn_qkv",)),
    ("gpt2", "c_attn", ("attn_qkv",)),
    ("gpt2", ("o", "up", "down"), ("attn_output", "ffn_up", "ffn_down")),
    ("gpt2", "c_proj", ("attn_output", "ffn_down")),
    ("gpt2", ("attn.c_proj", "mlp.c_fc"), ("attn_output", "ffn_up")),
    ("gpt2", "attention", ("attn_qkv", "attn_output")),
    ("gpt2", "all-linear", ("attn_qkv", "attn_output", "ffn_up", "ffn_down")),
]


@pytest.mark.parametrize(("arch", "targets", "parts"), TARGETS)
def test_targets_by_name(arch, targets, parts):
    expected = [f"blk.{n}.{part}.weight" for n in range(2) for part in parts]
    assert AdapterOptions(2, targets=targets).resolve(arch, NAMES[arch]) == expected


@pytest.mark.parametrize(
    ("arch", "target", "expected"),
    [
        ("llama", "blk.1.attn_q.weight", ["blk.1.attn_q.weight"]),
        ("llama", "model.layers.0.mlp.down_proj", ["blk.0.ffn_down.weight"]),
        ("gpt2", "transformer.h.1.attn.c_proj", ["blk.1.attn_output.weight"]),
        ("qwen3", "lm_head", ["output.weight"]),
        ("llama", "1.attn_q", ["blk.1.attn_q.weight"]),  # the end of a name, from a dot on
        ("qwen3", "output", ["output.weight"]),
        ("llama", "lm_head", ["output.weight"]),  # which is the table, and has its own adapter
        ("gpt2", ("head", "embed"), ["token_embd.weight", "output.weight"]),
        ("llama", "embed_tokens", ["token_embd.weight"]),
    ],
)
def test_single_matrices(arch, target, expected):
    assert AdapterOptions(2, targets=target).resolve(arch, NAMES[arch]) == expected


@pytest.mark.parametrize(
    ("arch", "target"),
    [
        *((arch, t) for arch in ARCHS for t in ("x", "proj", "attn_norm", "blk")),
        *(("gpt2", t) for t in ("q", "k", "v", "gate", "q_proj", "attn_q", "position_embd")),
        *(("llama", t) for t in ("qkv", "c_attn", "c_fc", "c_proj", "wte", "Q")),
        ("qwen3", "attn_q_norm"),
        ("llama", "blk.2.attn_q.weight"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(arch, target):
    there = "qkv = attn_qkv = c_attn" if arch == "gpt2" else "q = attn_q = q_proj"
    message = rf"targets: this {arch} has no '{target}'; it has {there}, .*attention, all-linear"
    with pytest.raises(ConfigError, match=message):
        AdapterOptions(2, targets=("all-linear", target)).resolve(arch, NAMES[arch])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 0}, "rank must be a whole number from 1 to 2147483647; got 0"),
        ({"rank": -3}, "rank must be"),
        ({"rank": 2.0}, "rank must be"),
        ({"rank": True}, "rank must be"),
        ({"alpha": 0}, "alpha must be a number above 0, or None; got 0"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"alpha": float("nan")}, "alpha must be"),
        ({"alpha": float("inf")}, "alpha must be"),
        ({"alpha": 10**400}, "alpha must be"),
        ({"loraplus_lr_ratio": 10**400}, "loraplus_lr_ratio must be"),
        ({"alpha": "16"}, "alpha must be"),
        ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1; got 1.0"),
        ({"dropout": -0.1}, "dropout must be"),
        ({"dropout": None}, "dropout must be"),
        ({"use_rslora": 1}, "use_rslora must be True or False; got 1"),
        ({"targets": ()}, r"targets must be at least one name; got \(\)"),
        ({"targets": ""}, "targets must be"),
        ({"targets": (1,)}, "targets must be"),
        ({"targets": None}, "targets must be"),
        ({"use_dora": 1}, "use_dora must be True or False; got 1"),
        ({"num_layers": 0}, "num_layers must be a whole number from 1 to"),
        ({"num_layers": -1}, "num_layers must be"),
        ({"num_layers": True}, "num_layers must be"),
        ({"use_lorafa": 1}, "use_lorafa must be True or False; got 1"),
        (
            {"use_lorafa": True, "loraplus_lr_ratio": 16},
            "use_lorafa=True trains no A, .* loraplus_lr_ratio= compares B's; got 16: use one",
        ),
        ({"init": "pissa_niter_"}, "init must be one of normal, peft, pissa, pissa_niter_N; got"),
        (
            {"init": "pissa", "use_dora": True},
            "use_dora=True needs the whole matrix; got init 'pissa'",
        ),
    ],
)
def test_options_out_of_range_are_refused_by_name(wrong, message):
    with pytest.raises(ConfigError, match=f"LoRA: {message}"):
        AdapterOptions(**{"rank": 2} | wrong)


@pytest.mark.parametrize(
    ("more", "targets", "message"),
    [
        ({"use_dora": True}, "embed", "DoRA does not support the embedding table"),
        ({"use_dora": True}, "experts", "DoRA does not support expert matrices"),
        (
            {"use_lorafa": True},
            "embed",
            "token_embd.weight: LoRA-FA trains only B, and A of the em",
        ),
        ({"init": "pissa"}, "experts", "init 'pissa' does not support expert matrices"),
    ],
)
def test_what_a_kind_of_adapter_is_not_for(more, targets, message):
    names = llamas.config("qwen3moe", **llamas.EXPERTS).shapes(untied=True)
    with pytest.raises(ConfigError, match=message):
        AdapterOptions(2, targets=targets, **more).resolve("qwen3moe", names)


@pytest.mark.parametrize(
    ("number", "targets", "expected"),
    [
        (1, ("q", "head"), ["blk.1.attn_q.weight", "output.weight"]),
        (2, "q", ["blk.0.attn_q.weight", "blk.1.attn_q.weight"]),
        (1, ("embed", "blk.1.ffn_up"), ["token_embd.weight", "blk.1.ffn_up.weight"]),
    ],
)
def test_the_last_blocks(number, targets, expected):
    options = AdapterOptions(2, targets=targets, num_layers=number)
    assert options.resolve("qwen3", NAMES["qwen3"]) == expected


@pytest.mark.parametrize(
    ("number", "targets", "message"),
    [
        (3, "q", "num_layers: expected at most 2, the blocks of this qwen3; got 3"),
        (1, "blk.0.attn_q", "targets: this qwen3 has no 'blk.0.attn_q' in the last 1 of its 2 blo"),
    ],
)
def test_blocks_that_are_none(number, targets, message):
    with pytest.raises(ConfigError, match=message):
        AdapterOptions(2, targets=targets, num_layers=number).resolve("qwen3", NAMES["qwen3"])


def test_scales():
    assert AdapterOptions(8).scale("w") == 1
    assert AdapterOptions(8, 16).scale("w") == 2
    assert AdapterOptions(4, 6.0, use_rslora=True).scale("w") == 3
    assert AdapterOptions(4, 6.0, ranks={"w": 2}).scale("w") == 3


def read(alpha, *ranks, **more):
    tensors = {}
    for n, rank in enumerate(ranks):
        tensors[f"blk.{n}.attn_q.weight.lora_a"] = np.ones((rank, 3), np.float32)
        tensors[f"blk.{n}.attn_q.weight.lora_b"] = np.ones((5, rank), np.float32)
    return Adapter("llama", alpha, tensors, **more)


@pytest.mark.parametrize("more", [{}, {"use_rslora": True}])
def test_the_options_of_an_adapter_that_was_read(more):
    for adapter in (read(6.0, 2, 2), read(6.0, 3, 2, 2, **more), read(0.0, 4, 4, **more)):
        options = AdapterOptions.of(adapter, 0.1)
        assert options.targets == tuple(adapter.pairs)
        assert options.dropout == 0.1
        for weight in adapter.pairs:
            assert options.rank_of(weight) == adapter.rank_of(weight)
            assert options.scale(weight) == adapter.scale(weight)
    with pytest.raises(AdapterError, match="alpha: expected a number above 0, as the ranks differ"):
        AdapterOptions.of(read(0.0, 4, 3))
