"""EXAONE 4: the norms of OLMo 2, q and k normalised by head, RoPE only in blocks with a window.

    x += rmsnorm(W_o attention(rotate(rmsnorm(W_q x)), rotate(rmsnorm(W_k x)), W_v x))
    x += rmsnorm(W_down (silu(W_gate x) * W_up x))

A model without windows has RoPE in all blocks. llama.cpp assumes windows in models of 64 blocks,
and in no others. Source: LG AI Research 2025, arXiv:2507.11407.
"""

from dataclasses import dataclass
from typing import Any

from toynn.models.llama import IN_FILES
from toynn.models.olmo2 import Olmo2
from toynn.models.registry import register
from toynn.models.windows import WindowConfig, Windowed

_WINDOWED = 64  # blocks


@dataclass(frozen=True)
class Exaone4Config(WindowConfig):
    """Shape of an EXAONE 4."""

    arch: str = "exaone4"


class Exaone4(Windowed):
    """The architecture."""

    config_type = Exaone4Config
    fixed_heads = True
    table = Olmo2.table
    block = Olmo2.block
    biases_are_fixed = "have no"

    def unlike(self, cfg: Any) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        said = "" if cfg.window else "out"
        is_pair = (cfg.n_layers == _WINDOWED) == bool(cfg.window)
        other = f"does not know a model of {cfg.n_layers} blocks with{said} windows"
        return super().unlike(cfg) + [other] * (not is_pair)

    def rotates(self, cfg: Any, n: int) -> bool:
        """Say whether block n has RoPE: those with a window, or all if there is no window."""
        return not cfg.window or cfg.windowed[n]


register(Exaone4("exaone4", "Exaone4", head_norms=True, in_files=IN_FILES[:1]))
