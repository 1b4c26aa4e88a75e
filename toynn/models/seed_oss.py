"""Seed-OSS: a Llama with biases of q, k and v; its files have another name for the MLP's norm.

The formulas are those of llama.py; RoPE rotates channels half a head apart. In transformers,
attention's output and the MLP may have biases too; llama.cpp does not read them.
Source: ByteDance Seed 2025, seed_oss of transformers and of llama.cpp.
"""

from dataclasses import replace
from typing import Any

from toynn.formats.hf.config import Config
from toynn.models.llama import Llama
from toynn.models.registry import register
from toynn.models.rows import ATTENDED, MLP, QKV, changed, names
from toynn.models.tables import Floats

_NORM = "post_attention_norm"


class SeedOss(Llama):
    """The architecture."""

    mlp_norm = _NORM
    table = changed(Llama.table, ffn_norm={"name": f"blk.{{n}}.{_NORM}"})
    hf = replace(
        Llama.hf,
        biases={
            "attention_bias": (True, names(*QKV)),
            "attention_out_bias": (False, names(ATTENDED)),
            "mlp_bias": (False, names(*MLP)),
        },
        zero_biases=frozenset(),
    )

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for RoPE; residual_dropout acts in training only."""
        config.ignore("residual_dropout")
        return super().complete(config, hyper)


register(SeedOss("seed_oss", "SeedOss"))
