"""Qwen3-Next: Qwen3.5 with experts, whose linear projections are fused and grouped by key head.

    b, a = W_ba n, side by side for each key head                           n = rmsnorm(x)
    x += W_o (rmsnorm(delta(silu(conv(W_qkv n)), g, b)) * silu(W_z n))    g from a, as in qwen35.py

The r heads of v that share a head of q and k are adjacent, in GGUF files too. Head h of v reads
head h // r of q and k. At Hugging Face W_qkv and W_z are one matrix. Its rows are, for each key
head: q, k, r heads of v and r heads of z. The experts' weights need not add up to 1, but llama.cpp
assumes that they do.
Source: Qwen Team 2025, qwen3_next of transformers and qwen3next of llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.formats.hf.name_mapping import Order
from toynn.graph.tape import Tensor
from toynn.models.qwen35 import D_K, DELTA, INNER, K_HEADS, SECTIONS, V_HEADS, Qwen35Config
from toynn.models.qwen35moe import Qwen35MoE, Qwen35MoEConfig
from toynn.models.registry import register
from toynn.models.rows import changed
from toynn.models.tables import Sizes
from toynn.nn import Layers
from toynn.options import RecipeOptions


@dataclass(frozen=True)
class Qwen3NextConfig(Qwen35MoEConfig):
    """Shape of a Qwen3-Next."""

    has: ClassVar[tuple[str, ...]] = ("shared_d_ff", "normalized")

    arch: str = "qwen3next"


def _grouped(hyper: Mapping[str, Any], size: int, *, gate: bool) -> NDArray[np.intp]:
    """Return the rows of W_qkvz that belong to z, or to q, k and v."""
    K, V, D, inner = (hyper[key] for key in (K_HEADS, V_HEADS, D_K, INNER))
    if size != 2 * (K * D + inner) or K < 1 or inner % K:
        raise ValueError(f"{K} and {V} heads, {D} and {inner} channels")
    heads = np.arange(size).reshape(K, -1)
    q, k, v, z = np.split(heads, np.cumsum([D, D, inner // K]), axis=1)
    return np.concatenate([part.reshape(-1) for part in ((z,) if gate else (q, k, v))])


_FUSED = f"{DELTA}.in_proj_qkvz"
_PLAIN = {"order": None}


class Qwen3Next(Qwen35MoE):
    """The architecture."""

    config_type: ClassVar[type[Any]] = Qwen3NextConfig
    grouped = True
    table = changed(
        tuple(row for row in Qwen35MoE.table if row.name != "blk.{n}.ssm_alpha"),
        attn_qkv={"elsewhere": f"{_FUSED}[0]", "order": Order(0, partial(_grouped, gate=False))},
        attn_gate={"elsewhere": f"{_FUSED}[1]", "order": Order(0, partial(_grouped, gate=True))},
        ssm_beta={"name": "blk.{n}.ssm_ba", "shape": "2H C", "elsewhere": f"{DELTA}.in_proj_ba"}
        | _PLAIN,
        ssm_conv1d=_PLAIN,
        ssm_a=_PLAIN,
        ssm_out=_PLAIN,
        **{"ssm_dt.bias": _PLAIN},
    )

    def __init__(self, name: str, title: str, model_type: str) -> None:
        super().__init__(name, title, model_type)
        self.hf = replace(self.hf, fixed={**self.hf.fixed, "decoder_sparse_step": (1,)})

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return what the table's letters and conditions mean."""
        sizes = super().sizes(cfg, opts, n)
        return {**sizes, "2H": 2 * sizes["H"]}

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file: those of Qwen3.5 except the key for pictures."""
        return {key: value for key, value in super().write(cfg).items() if key != SECTIONS}

    def check_gguf(self, cfg: Any) -> None:
        """Refuse weights of experts that do not add up to 1. Raises ConfigError."""
        super().check_gguf(cfg)
        if not cfg.normalized:
            raise ConfigError(f"export: llama.cpp reads {cfg.arch} with normalized; got False")

    def written(self, block: Layers, cfg: Qwen35Config, x: Tensor) -> tuple[Tensor, Tensor]:
        """Record b and a (B T, V): they give the strength and the decay of a write."""
        both, K = block.linear(x, "ssm_ba"), cfg.delta[0]
        return block.queries(both, K), block.queries(both, K, 1)


register(Qwen3Next("qwen3next", "Qwen3Next", "qwen3_next"))
