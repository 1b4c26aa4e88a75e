"""Hunyuan (dense): a Llama that normalises heads of q and k after RoPE.

    x += W_o attention(rmsnorm(rotate(W_q n)), rmsnorm(rotate(W_k n)), W_v n)       n = rmsnorm(x)

RoPE rotates channels half a head apart. A config.json may give its base by two numbers, theta and
alpha: base = theta alpha^(D / (D - 2)). It calls this "dynamic", but the base is the same for all
lengths. Folders that toynn writes have the base alone.
Source: Tencent 2025, hunyuan_v1_dense of transformers.
"""

from dataclasses import replace
from typing import Any

from toynn.formats.hf.config import Config
from toynn.models.keys import FREQ_BASE
from toynn.models.llama import Llama
from toynn.models.registry import register
from toynn.models.rope import base_of, width_of
from toynn.models.rows import ATTENDED, QKV, changed, names
from toynn.models.tables import Floats

_ATTENTION = "model.layers.{n}.self_attn"
#: Keys beside alpha that transformers does not read, and their usual values.
_BESIDE = {"factor": 1, "mscale": 1, "mscale_all_dim": 1, "beta_fast": 32, "beta_slow": 1}
#: Keys of config.json that transformers does not read.
_UNUSED = (
    "attention_head_dim", "cla_share_factor", "eod_token_id", "org_vocab_size", "pad_id",
    "sep_token_id", "text_end_id", "text_start_id",
)  # fmt: skip


class Hunyuan(Llama):
    """The architecture."""

    norms_behind = True
    table = changed(
        Llama.table,
        attn_q_norm={"elsewhere": f"{_ATTENTION}.query_layernorm"},
        attn_k_norm={"elsewhere": f"{_ATTENTION}.key_layernorm"},
    )
    hf = replace(
        Llama.hf,
        model_type="hunyuan_v1_dense",
        biases={"attention_bias": (False, names(*QKV, ATTENDED))},
        fixed={
            **Llama.hf.fixed,
            "norm_type": ("rms", "hf_rms"),
            "use_cla": (False,),
            "use_qk_norm": (True,),
            "use_rotary_pos_emb": (True,),
        },
    )

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys, RoPE's base by theta and alpha among them."""
        config.ignore(*_UNUSED)
        rope = base_of(config, hyper)
        if rope["rope_type"] != "dynamic":
            return super().complete(config, hyper)
        D, alpha = width_of(hyper), config.number("alpha", rope.pop("alpha", None), real=True)
        for key, usual in _BESIDE.items():
            if (value := rope.pop(key, None)) not in (None, usual):
                config.refuse(f"RoPE by alpha: {key} must be {usual}; got {value!r}")
        if any(value for key, value in rope.items() if key != "rope_type") or D < 4:
            config.refuse(f"RoPE by alpha has keys that are not known: {rope}")
        base = hyper[FREQ_BASE] * alpha ** (D / (D - 2))
        told = config.over(rope_parameters=None, rope_scaling=None, rope_theta=base)
        return super().complete(told, hyper)


register(Hunyuan("hunyuan-dense", "HunYuanDenseV1", head_norms=True))
