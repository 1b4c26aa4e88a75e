"""Mixtures of experts: a Llama whose blocks have many MLPs; each token uses a few.

    p = softmax(W_router n)                                 n = rmsnorm(x)
    x += sum_j w_j W_down,e_j (silu(W_gate,e_j n) * W_up,e_j n)     e_1 .. e_k the k largest of p

w_j is p[e_j], or its share in the sum of the k. Here is what the architectures have in common:
sizes, keys, names and the forward pass. The router's product is as exact as float32 at any
precision: a rounding could choose another expert. Sources: Shazeer et al. 2017, arXiv:1701.06538;
Fedus et al. 2021, arXiv:2101.03961; Jiang et al. 2024, arXiv:2401.04088.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_sizes
from toynn.models.hyper import Hyper, refuse
from toynn.models.llama import Llama, LlamaConfig
from toynn.models.table import Row, Sizes, experts, router
from toynn.nn import Layers
from toynn.options import RecipeOptions

__all__ = ["Mixture", "MixtureConfig"]

EXPERTS, USED = "expert_count", "expert_used_count"
_DENSE = tuple(f"blk.{{n}}.ffn_{part}" for part in ("gate", "up", "down"))


@dataclass(frozen=True)
class MixtureConfig(LlamaConfig):
    """Shape of a Llama with experts; ``d_ff`` is the width of one of them.

    Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    n_experts, n_experts_used
        MLPs of a block, and how many of them each token uses.
    """

    n_experts: int = 8
    n_experts_used: int = 2

    def __post_init__(self) -> None:
        check_sizes(self, "n_experts", "n_experts_used")
        if self.n_experts_used > self.n_experts:
            raise ConfigError(
                f"{type(self).__name__}: n_experts_used must be at most n_experts; got "
                f"{self.n_experts_used} of {self.n_experts}"
            )
        super().__post_init__()


def with_experts(rows: tuple[Row, ...], block: str, parts: dict[str, str]) -> tuple[Row, ...]:
    """Return a table whose MLP is a mixture, by the names that it has at Hugging Face.

    ``block``: what they begin with; ``parts``: the router's, and those of gate, up and down.
    """
    mixture = (
        router("blk.{n}.ffn_gate_inp", "X C", f"{block}.{parts['router']}"),
        experts("blk.{n}.ffn_gate_exps", "X F C", f"{block}.{parts['gate']}"),
        experts("blk.{n}.ffn_up_exps", "X F C", f"{block}.{parts['up']}"),
        experts("blk.{n}.ffn_down_exps", "X C F", f"{block}.{parts['down']}"),
    )
    table: tuple[Row, ...] = ()
    for row in rows:
        if row.name == _DENSE[0]:
            table += mixture
        elif row.name not in _DENSE:
            table += (row,)
    return table


class Mixture(Llama):
    """What the architectures share."""

    config_type = MixtureConfig
    #: Whether the weights of the experts that are used add up to 1. Files have no key for it.
    normalized = True
    hf = replace(
        Llama.hf,
        keys={**Llama.hf.keys, EXPERTS: "num_experts", USED: "num_experts_per_tok"},
    )

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return what the table's letters and conditions mean."""
        return {**super().sizes(cfg, opts, n), "X": cfg.n_experts}

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> tuple[Any, dict[str, Any]]:
        """Return the configuration of a file's model, and the options that it calls for."""
        cfg, options = super().read(hyper)
        count, used = hyper.whole(EXPERTS), hyper.whole(USED)
        if count != (stacked := hyper.rows("blk.0.ffn_gate_exps.weight")):
            refuse(
                hyper.file,
                f"{hyper.prefix}{EXPERTS} is {count}; blk.0.ffn_gate_exps.weight has {stacked}",
            )
        hyper.expect("expert_gating_func", 1)  # softmax
        found: dict[str, Any] = {"n_experts": count, "n_experts_used": used}
        return replace(cfg, **found), options

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | {EXPERTS: cfg.n_experts, USED: cfg.n_experts_used}

    def used(self, cfg: Any) -> float:
        """Return which part of its experts a token uses."""
        return float(cfg.n_experts_used / cfg.n_experts)

    def complete(self, config: Config, found: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
        """Read the number of experts, by either of its names.

        What balances their loads counts only where output_router_logits is true, which is refused.
        """
        config.get("router_aux_loss_coef")
        for name in ("num_experts", "num_local_experts"):
            if (count := config.get(name)) is None:
                continue
            if found.setdefault(EXPERTS, config.number(name, count, real=False)) != count:
                config.refuse(f"{name} is {count}; by its other name it is {found[EXPERTS]}")
        return super().complete(config, found)

    # -- Forward -------------------------------------------------------------------------------

    def feed_forward(self, block: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record the mixture of x (B T, C)."""
        routes = block.routes(x, "ffn_gate_inp", cfg.n_experts_used, normalized=self.normalized)
        names = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
        return block.mixture(x, *names, routes)
