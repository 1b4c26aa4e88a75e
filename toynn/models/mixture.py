"""Mixtures of experts: a Llama whose blocks have many MLPs; each token uses a few.

    p = softmax(W_router n), or sigmoid                                     n = rmsnorm(x)
    x += sum_j w_j W_down,e_j (silu(W_gate,e_j n) * W_up,e_j n)
       + W_down (silu(W_gate n) * W_up n)                   an expert that all tokens share,
                                                            perhaps times sigmoid(W_s n)

The indices of the k largest values of p + b are e_1 .. e_k. The weight w_j is p[e_j], or p[e_j]
divided by the sum of all k. Some models multiply w_j by a constant. b balances the load of the
experts: it only influences the choice. Some models have no b or no shared expert; in some the first
blocks are dense. This file holds what the architectures share: sizes, keys, names and the forward
pass.
The router's product is computed in float32 at any precision, since a rounding error could choose
another expert.
Sources: Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961; Jiang et al.
2024, arXiv:2401.04088; DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_flags, check_positive, check_sizes, set_defaults
from toynn.models.hyper import Hyper, refuse
from toynn.models.llama import Llama, LlamaConfig
from toynn.models.tables import Floats, Row, Sizes, experts, matrix, router
from toynn.nn import Layers
from toynn.options import RecipeOptions

EXPERTS, USED = "expert_count", "expert_used_count"
EXPERT_WIDTH, SHARED = "expert_feed_forward_length", "expert_shared_feed_forward_length"
SHARED_COUNT = "expert_shared_count"
GROUPS, GROUPS_USED = "expert_group_count", "expert_group_used_count"
DENSE, SUM, SCALE = "leading_dense_block_count", "expert_weights_norm", "expert_weights_scale"
GATING = "expert_gating_func"
_MOST_GROUPS = 64  # most groups of experts that routing can have
SCORES = {"softmax": 1, "sigmoid": 2}
#: config.json's names where it speaks of routed experts.
ROUTED = {
    EXPERTS: "n_routed_experts",
    USED: "num_experts_per_tok",
    EXPERT_WIDTH: "moe_intermediate_size",
    SHARED_COUNT: "n_shared_experts",
    SCALE: "routed_scaling_factor",
    GROUPS: "n_group",
    GROUPS_USED: "topk_group",
}
#: Values of the fields that not every architecture has (see SparseConfig.has).
PLAIN = {"shared_d_ff": 0, "dense_blocks": 0, "normalized": True, "weights_scale": 1.0}
PLAIN |= {"expert_groups": 1}
_PARTS = {
    "router": "gate",
    "gate": "experts.{e}.gate_proj",
    "up": "experts.{e}.up_proj",
    "down": "experts.{e}.down_proj",
}
_CHOICE, _SHARED_GATE = "blk.{n}.exp_probs_b.bias", "blk.{n}.ffn_gate_inp_shexp"
_DENSE = tuple(f"blk.{{n}}.ffn_{part}" for part in ("gate", "up", "down"))


@dataclass(frozen=True)
class MixtureConfig(LlamaConfig):
    """Shape of a Llama with experts; ``d_ff`` is the width of one expert.

    Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    n_experts, n_experts_used
        Experts in a block, and how many of them each token uses.
    """

    #: How many experts there are at least: 0, if a model may have none.
    least_experts: ClassVar[int] = 1

    n_experts: int = 8
    n_experts_used: int = 2

    def __post_init__(self) -> None:
        check_sizes(self, "n_experts", "n_experts_used", least=self.least_experts)
        if self.n_experts_used > self.n_experts:
            raise ConfigError(
                f"{type(self).__name__}: n_experts_used must be at most n_experts; got "
                f"{self.n_experts_used} of {self.n_experts}"
            )
        super().__post_init__()

    @property
    def expert_width(self) -> int:
        """Width of an expert."""
        return self.d_ff

    def mixes(self, n: int) -> bool:
        """Say whether block n has experts."""
        return self.n_experts > 0


@dataclass(frozen=True)
class SparseConfig(MixtureConfig):
    """Shape of a mixture whose experts may be wider or narrower than a dense block's MLP.

    Raises ConfigError for sizes that make no model, and for fields that the architecture lacks.

    Attributes
    ----------
    expert_d_ff
        Width of an expert; None: d_ff, the width of the MLP in dense blocks.
    shared_d_ff
        Width of the expert that all tokens share. None: expert_d_ff, or 0 in an architecture
        without a shared expert.
    dense_blocks
        Number of first blocks that have an MLP instead of experts.
    normalized
        Whether the weights of the chosen experts add up to weights_scale.
    weights_scale
        Factor of the experts' weights.
    expert_groups, expert_groups_used
        Number of groups of experts, and how many of them a token uses. A token uses the groups
        whose two best scores have the largest sums.
    """

    #: Which of the fields after expert_d_ff the architecture has.
    has: ClassVar[tuple[str, ...]] = ()
    #: Whether shared_d_ff may be 0.
    may_share_none: ClassVar[bool] = False
    #: Whether files give shared_d_ff as a number of experts.
    counts_shared: ClassVar[bool] = False

    expert_d_ff: int | None = None
    shared_d_ff: int | None = None
    dense_blocks: int = 0
    normalized: bool = True
    weights_scale: float = 1.0
    expert_groups: int = 1
    expert_groups_used: int = 1

    def __post_init__(self) -> None:
        shares = "shared_d_ff" in self.has
        set_defaults(self, expert_d_ff=self.d_ff)
        set_defaults(self, shared_d_ff=self.expert_d_ff if shares else 0)
        super().__post_init__()
        kind = type(self).__name__
        check_sizes(self, "expert_d_ff", "expert_groups", "expert_groups_used")
        check_sizes(self, "dense_blocks", least=0)
        check_sizes(self, "shared_d_ff", least=int(shares and not self.may_share_none))
        check_flags(self, "normalized")
        check_positive(self, "weights_scale")
        for name, plain in PLAIN.items():
            if name not in self.has and (value := getattr(self, name)) != plain:
                raise ConfigError(f"{kind}: {name} must be {plain} in {self.arch}; got {value}")
        check_groups(self)
        if self.counts_shared and (self.shared_d_ff or 0) % self.expert_width:
            raise ConfigError(
                f"{kind}: expert_d_ff must divide shared_d_ff; got {self.expert_d_ff} and "
                f"{self.shared_d_ff}"
            )
        if not any(self.mixes(n) for n in range(self.n_layers)):
            raise ConfigError(
                f"{kind}: dense_blocks must be less than n_layers; got {self.dense_blocks} of "
                f"{self.n_layers}"
            )

    @property
    def expert_width(self) -> int:
        """Width of an expert."""
        return self.expert_d_ff or 0

    def mixes(self, n: int) -> bool:
        """Say whether block n has experts."""
        return n >= self.dense_blocks


def check_groups(cfg: Any) -> None:
    """Check groups of experts; raises ConfigError."""
    groups, used = cfg.expert_groups, cfg.expert_groups_used
    size, rest = divmod(cfg.n_experts, groups)
    whole = groups == 1 or (not rest and size > 1 and groups <= _MOST_GROUPS)
    if not whole or used > groups or cfg.n_experts_used > size * used:
        raise ConfigError(
            f"{type(cfg).__name__}: expert_groups must be at most {_MOST_GROUPS} and divide "
            "n_experts into groups of 2 or more. As many of them as expert_groups_used must hold "
            f"n_experts_used experts; got {groups}, {cfg.n_experts}, {used} and "
            f"{cfg.n_experts_used}"
        )


def with_experts(
    rows: tuple[Row, ...],
    block: str = "model.layers.{n}.mlp",
    parts: Mapping[str, str] = _PARTS,
    *,
    dense: bool = False,
    choice: str = "",
    shared: str = "",
    shared_gate: str = "",
    **more: Any,
) -> tuple[Row, ...]:
    """Return a table with a mixture in place of the MLP.

    The arguments give the names at Hugging Face. ``block`` is the prefix of all of them.

    parts
        Names of the router and of the experts' gate, up and down.
    dense
        Whether some blocks keep their MLP.
    choice
        Name of b, which is added to the scores before experts are chosen; empty: none.
    shared, shared_gate
        Names of the shared expert, and of the row whose sigmoid is the shared expert's weight.
    more
        Further fields of the row of b.
    """

    def named(part: str) -> str:
        return f"{block}.{part}" if part else ""

    mixture = (
        router("blk.{n}.ffn_gate_inp", "N C", named(parts["router"]), when="mixes"),
        Row(_CHOICE, "N", named(choice), "choice", bare=True, frozen=True, when="chooses", **more),
        experts("blk.{n}.ffn_gate_exps", "N M C", named(parts["gate"]), when="mixes"),
        experts("blk.{n}.ffn_up_exps", "N M C", named(parts["up"]), when="mixes"),
        experts("blk.{n}.ffn_down_exps", "N C M", named(parts["down"]), when="mixes"),
        *((matrix(_SHARED_GATE, "1 C", named(shared_gate), when="S"),) if shared_gate else ()),
        *(
            matrix(
                f"blk.{{n}}.ffn_{part}_shexp",
                shape,
                named(shared and f"{shared}.{part}_proj"),
                when="S",
            )
            for part, shape in (("gate", "S C"), ("up", "S C"), ("down", "C S"))
        ),
    )
    table: tuple[Row, ...] = ()
    for row in rows:
        if row.name in _DENSE and dense:
            table += (replace(row, when="dense"),)
        elif row.name not in _DENSE:
            table += (row,)
        if row.name == _DENSE[-1]:
            table += mixture
    return table


class Mixture(Llama):
    """Base of the architectures with experts."""

    config_type: ClassVar[type[Any]] = MixtureConfig
    #: Whether the weights of the chosen experts add up to 1, where files have no key for it.
    normalized = True
    #: The function from a router's logits to scores; the number added to the chosen scores' sum.
    score, eps = "softmax", 0.0
    #: Whether b is added to the scores before experts are chosen.
    chooses = False
    hf = replace(
        Llama.hf,
        keys={**Llama.hf.keys, EXPERTS: "num_experts", USED: "num_experts_per_tok"},
    )

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        mixes = n is not None and cfg.mixes(n)
        chooses = mixes and self.chooses and self.scored(cfg) == self.score
        letters = {"mixes": mixes, "dense": not mixes, "chooses": chooses}
        letters |= {"N": cfg.n_experts, "M": cfg.expert_width, "1": 1}
        letters["S"] = getattr(cfg, "shared_d_ff", 0) if mixes else 0
        return {**super().sizes(cfg, opts, n), **letters}

    def scored(self, cfg: Any) -> str:
        """Return the function from a router's logits to scores; with another one, no b chooses."""
        return self.score

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg: Any
        cfg = super().read(hyper)
        if not cfg.least_experts and hyper.count(EXPERTS) == hyper.count(USED) == 0:
            return replace(cfg, n_experts=0, n_experts_used=0)
        count, used = hyper.whole(EXPERTS), hyper.whole(USED)
        stored = next((name for name in hyper.tensors if name.endswith("ffn_gate_exps.weight")), "")
        if count != (stacked := hyper.rows(stored or "blk.0.ffn_gate_exps.weight")):
            refuse(
                hyper.file,
                f"{hyper.prefix}{EXPERTS} is {count}; {stored} has {stacked} experts",
            )
        hyper.expect(GATING, SCORES[self.scored(cfg)])
        return replace(cfg, n_experts=count, n_experts_used=used)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | {EXPERTS: cfg.n_experts, USED: cfg.n_experts_used}

    def used(self, cfg: Any) -> float:
        """Return the fraction of a block's experts that a token uses."""
        return float(cfg.n_experts_used / max(cfg.n_experts, 1))

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read the number of experts, which has two names.

        router_aux_loss_coef is ignored: it acts only with output_router_logits, which is refused.
        """
        config.ignore("router_aux_loss_coef")
        for name in ("num_experts", "num_local_experts"):
            if (count := config.get(name)) is None:
                continue
            count = config.whole(name, least=self.config_type.least_experts)
            if hyper.setdefault(EXPERTS, count) != count:
                config.refuse(f"{name} is {count}; by its other name it is {hyper[EXPERTS]}")
        return super().complete(config, hyper)

    # -- Forward -------------------------------------------------------------------------------

    def feed_forward(self, block: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record the mixture of x (B T, C), or the MLP of a block without experts."""
        if not block.has("ffn_gate_inp"):
            return super().feed_forward(block, cfg, x)
        routes = block.routes(x, "ffn_gate_inp", cfg.n_experts_used, **self.routing(cfg))
        y = block.mixture(x, "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", routes)
        if not block.has("ffn_gate_shexp"):
            return y
        gate, names = "ffn_gate_inp_shexp", ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
        # The shared expert's weight: a router with one expert, scored by a sigmoid.
        share = (
            block.routes(x, gate, 1, normalized=False, score="sigmoid") if block.has(gate) else None
        )
        return block.add(y, block.swiglu(x, *names, share))

    def routing(self, cfg: Any) -> dict[str, Any]:
        """Return how experts are chosen and weighed, as Layers.routes takes it."""
        return {"normalized": self.normalized}


class Sparse(Mixture):
    """Base of the mixtures with a SparseConfig."""

    config_type: ClassVar[type[Any]] = SparseConfig
    #: config.json's key for dense_blocks.
    dense_key = ""
    #: transformers' default of dense_blocks.
    usually_dense = 1
    #: The value of ``normalized`` if a GGUF file does not say.
    usually_normalized = True
    #: Whether files give the number of shared experts, and not their width.
    names_no_width = False

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        fields: dict[str, Any] = {"expert_d_ff": hyper.whole(EXPERT_WIDTH)}
        if "dense_blocks" in cfg.has:
            fields["dense_blocks"] = hyper.count(DENSE)
        if "normalized" in cfg.has:
            fields["normalized"] = hyper.flag(SUM, self.usually_normalized)
        if "weights_scale" in cfg.has:
            fields["weights_scale"] = hyper.real(SCALE, 1.0)
        if "expert_groups" in cfg.has:
            fields["expert_groups"] = hyper.count(GROUPS) or 1
            fields["expert_groups_used"] = hyper.count(GROUPS_USED) or 1
        if "shared_d_ff" in cfg.has:
            fields["shared_d_ff"] = (
                hyper.whole(SHARED_COUNT) * fields["expert_d_ff"]
                if self.names_no_width
                else hyper.count(SHARED)
            )
        return replace(cfg, **fields)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        values: dict[str, Any] = {EXPERT_WIDTH: cfg.expert_d_ff}
        fields = {DENSE: "dense_blocks", SUM: "normalized", SCALE: "weights_scale"}
        fields |= {SHARED: "shared_d_ff", GROUPS: "expert_groups"}
        values |= {key: getattr(cfg, name) for key, name in fields.items() if name in cfg.has}
        if GROUPS in values:
            values[GROUPS_USED] = cfg.expert_groups_used
        if self.names_no_width:
            del values[SHARED]
        if cfg.counts_shared:
            values[SHARED_COUNT] = cfg.shared_d_ff // cfg.expert_d_ff
        return super().write(cfg) | values | {GATING: SCORES[self.scored(cfg)]}

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for dense_blocks and normalized."""
        has = self.config_type.has
        if "dense_blocks" in has:
            count = config.get(self.dense_key)
            count = self.usually_dense if count is None else count
            hyper[DENSE] = config.number(self.dense_key, count, real=False, least=0)
        if "normalized" in has:
            hyper[SUM] = config.flag("norm_topk_prob", True)
        return super().complete(config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for dense_blocks and normalized."""
        keys = super().folder(hyper, tensors)
        names = {self.dense_key: DENSE, "norm_topk_prob": SUM}
        return keys | {name: hyper[key] for name, key in names.items() if key in hyper}

    # -- Forward -------------------------------------------------------------------------------

    def routing(self, cfg: Any) -> dict[str, Any]:
        """Return how experts are chosen and weighed, as Layers.routes takes it."""
        how = {"normalized": cfg.normalized, "scale": cfg.weights_scale}
        how["score"] = self.scored(cfg)
        groups = (cfg.expert_groups, cfg.expert_groups_used)
        return how | {"eps": self.eps, "choice": "exp_probs_b", "groups": groups}
