"""OLMo 2 and 3: a Llama with norms after attention and MLP, and over the whole width of q and k.

    x += rmsnorm(W_o attention(rotate(rmsnorm(W_q x)), rotate(rmsnorm(W_k x)), W_v x))
    x += rmsnorm(W_down (silu(W_gate x) * W_up x))

The norms of q and k take all heads at once. RoPE rotates channels half a head apart. OLMo 3 is an
OLMo 2 with windows. Its RoPE is stretched only in blocks without a window; blocks with a window may
have another base. Sources: OLMo Team 2025, arXiv:2501.00656, section 2; olmo3 of transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_positive
from toynn.models.hyper import Hyper
from toynn.models.keys import FREQ_BASE, LOCAL_FREQ_BASE, WINDOW
from toynn.models.llama import Llama
from toynn.models.registry import register
from toynn.models.rope import base_of, plain
from toynn.models.rows import ATTENDED, EMBEDDING, LAYER, MLP, OUTPUT, QKV
from toynn.models.tables import Floats, norm
from toynn.models.windows import WindowConfig, Windowed
from toynn.nn import Layers

_THIRD = "olmo3"
_BASE = 5e5  # of RoPE in OLMo 3, where config.json does not say


@dataclass(frozen=True)
class Olmo2Config(WindowConfig):
    """Shape of an OLMo 2, or 3. Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    local_base
        RoPE's base in blocks with a window; None: rope_base.
    """

    arch: str = "olmo2"
    local_base: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_base is not None:
            check_positive(self, "local_base")
        if not self.window or self.local_base == self.rope_base:
            object.__setattr__(self, "local_base", None)


class Olmo2(Windowed):
    """The architecture."""

    config_type = Olmo2Config
    fixed_heads = True
    needs_head = True
    wide_norms = True
    table = (
        *EMBEDDING,
        *(replace(row, bias="qkv_bias") for row in QKV),
        norm("blk.{n}.attn_q_norm", "NQ", f"{LAYER}.self_attn.q_norm"),
        norm("blk.{n}.attn_k_norm", "NK", f"{LAYER}.self_attn.k_norm"),
        replace(ATTENDED, bias="output_bias"),
        norm("blk.{n}.post_attention_norm", "C", f"{LAYER}.post_attention_layernorm"),
        *MLP,
        norm("blk.{n}.post_ffw_norm", "C", f"{LAYER}.post_feedforward_layernorm"),
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        if hyper.has(LOCAL_FREQ_BASE):
            cfg = replace(cfg, local_base=hyper.real(LOCAL_FREQ_BASE))
        return cfg

    def unlike(self, cfg: Any) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        return super().unlike(cfg) + ["has one base of RoPE for all blocks"] * bool(cfg.local_base)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        local = {LOCAL_FREQ_BASE: float(cfg.local_base)} if cfg.local_base else {}
        return super().write(cfg) | local

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for windows, and for RoPE in both kinds of blocks."""
        if config.get("model_type") != _THIRD:
            return super().complete(config, hyper)
        rope, base = config.get("rope_parameters") or {}, config.get("rope_theta", _BASE)
        kinds = {"full_attention", "sliding_attention"}
        if not isinstance(rope, dict) or not rope.keys() <= kinds:
            config.refuse(
                "rope_parameters must be given for full_attention and sliding_attention; "
                f"got {rope!r}"
            )
        local = config.over(rope_parameters=rope.get("sliding_attention"), rope_scaling=None)
        others = base_of(local, hyper, base)
        if others.pop("rope_type") != "default" or any(others.values()):
            config.refuse(f"RoPE of sliding_attention must be default; got {others}")
        hyper[LOCAL_FREQ_BASE] = hyper.pop(FREQ_BASE)
        full = rope.get("full_attention")
        if isinstance(full, dict) and full.get("truncate", True) is not True:
            config.refuse("RoPE of full_attention: truncate must be true; got false")
        return super().complete(config.over(rope_parameters=full, rope_theta=base), hyper)

    def read_kinds(self, config: Config, hyper: dict[str, Any]) -> None:
        """Read which blocks have a window; OLMo 2 has none."""
        if config.get("model_type") == _THIRD:
            super().read_kinds(config, hyper)
        else:
            Llama.read_kinds(self, config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for the model_type, and for RoPE in both kinds of blocks."""
        keys = super().folder(hyper, tensors)
        if WINDOW not in hyper:
            return keys
        base = hyper[FREQ_BASE]
        full = {"rope_type": "default", "rope_theta": base} | keys.pop("rope_scaling", {})
        local = {"rope_type": "default", "rope_theta": hyper.get(LOCAL_FREQ_BASE, base)}
        keys["rope_parameters"] = {"full_attention": full, "sliding_attention": local}
        return keys | {"model_type": _THIRD, "architectures": ["Olmo3ForCausalLM"]}

    # -- Forward -------------------------------------------------------------------------------

    def constants(self, cfg: Any) -> dict[str, Floats]:
        """Return RoPE's frequencies in blocks without and with a window."""
        local = plain(cfg.local_base or cfg.rope_base, cfg.d_head).astype(np.float32)
        return super().constants(cfg) | ({"local_frequencies": local} if cfg.window else {})

    def rope(self, cfg: Any, n: int) -> dict[str, Any]:
        """Return arguments of Layers.rope for block n: with a window, RoPE is not stretched."""
        return {"frequencies": "local_frequencies", "magnitude": 1.0} if cfg.width(n) else {}

    def block(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record block n for x (B T, C)."""
        heads = self.mixed(block, cfg, n, x, positions)
        x = block.residual(x, self.norm(block, cfg, heads, "post_attention_norm"))
        wide = self.feed_forward(block, cfg, x)
        return block.add(x, self.norm(block, cfg, wide, "post_ffw_norm"))


register(Olmo2("olmo2", "Olmo2", head_norms=True, also=(_THIRD,)))
