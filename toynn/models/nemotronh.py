"""Nemotron-H and Nemotron 3: one norm and one mixer in each block, most of them Mamba 2.

    x += mamba(n), or W_o attention(W_q n, W_k n, W_v n)            n = rmsnorm(x)
    x += W_down relu(W_up n)^2
    x += W_out mixture(W_in n) + W_down relu(W_up n)^2              experts: V relu(U m)^2

The formulas of mamba are in mamba.py; no head is rotated. Experts are chosen and weighted by the
scores of mixture.py. All tokens share one more expert, of another width. A model may have W_in and
W_out: they make n narrower for the experts alone. In a GGUF file, a block's widths and number of
heads tell its kind.
Sources: NVIDIA 2025, arXiv:2504.03624 and arXiv:2512.20856; nemotron_h of transformers and of
llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_flags, check_positive, check_sizes
from toynn.models.hyper import Hyper, refuse
from toynn.models.keys import EPS, FREQ_BASE, KV, LAYER_EPS, WIDTH
from toynn.models.llama import Llama
from toynn.models.mamba import GROUPS, HEADS, INNER, STATE, TAPS, Mamba, MambaConfig, mamba_rows
from toynn.models.mixture import (
    EXPERT_WIDTH,
    EXPERTS,
    GATING,
    SCALE,
    SCORES,
    SHARED,
    SHARED_COUNT,
    SUM,
    USED,
    check_groups,
)
from toynn.models.mixture import GROUPS as EXPERT_GROUPS
from toynn.models.mixture import GROUPS_USED as EXPERT_GROUPS_USED
from toynn.models.registry import register
from toynn.models.rows import LAYER, OUTPUT
from toynn.models.tables import Floats, Row, Sizes, experts, matrix, norm, router, table
from toynn.nn import Layers
from toynn.options import RecipeOptions

_MIXER = f"{LAYER}.mixer"
_LATENT = "moe_latent_size"
#: Kinds of blocks: by their letters, and config.json's names of each.
_KINDS = {
    "M": ("linear_attention", "mamba"),
    "*": ("full_attention", "attention"),
    "-": ("mlp",),
    "E": ("moe",),
}
#: Keys of config.json of RoPE, which there is not, of how weights start, and of other programs.
_UNUSED = (
    "chunk_size", "expand", "hybrid_override_pattern", "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap", "mtp_hybrid_override_pattern", "mtp_layers_block_type",
    "num_logits_to_keep", "partial_rotary_factor", "rescale_prenorm_residual",
    "rope_parameters", "rope_scaling", "rope_theta", "time_step_floor", "time_step_max",
    "time_step_min", "use_mamba_kernels",
)  # fmt: skip


@dataclass(frozen=True)
class NemotronHConfig(MambaConfig):
    """Shape of a Nemotron-H.

    Attributes
    ----------
    kinds
        A letter for each block: M for a state space, * for attention, - for an MLP, E for experts.
    n_experts, n_experts_used, expert_d_ff, shared_d_ff
        Experts of a block, how many of them each token uses, the width of an expert, and the width
        of the shared expert; 0 without such blocks.
    latent
        Width of what experts see of a row; 0: all of it.
    expert_groups, expert_groups_used
        Groups of experts, and how many of them a token uses.
    normalized, weights_scale
        Whether the weights of the chosen experts add up to 1, and their factor.
    """

    arch: str = "nemotron_h"
    kinds: str = ""
    n_experts: int = 0
    n_experts_used: int = 0
    expert_d_ff: int = 0
    shared_d_ff: int = 0
    latent: int = 0
    expert_groups: int = 1
    expert_groups_used: int = 1
    normalized: bool = True
    weights_scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the kinds of blocks and the sizes. Raises ConfigError."""
        kind, count = type(self).__name__, self.n_layers
        if len(self.kinds) != count or set(self.kinds) - set(_KINDS):
            raise ConfigError(
                f"{kind}: kinds must be {count} letters of {' '.join(_KINDS)}; got {self.kinds!r}"
            )
        blocks = tuple(n for n, letter in enumerate(self.kinds) if letter == "*")
        object.__setattr__(self, "attention_blocks", blocks)
        if "-" not in self.kinds:
            object.__setattr__(self, "d_ff", 1)  # nothing is so wide
        super().__post_init__()
        mixes = "E" in self.kinds
        if mixes != self.arch.endswith("_moe"):
            raise ConfigError(
                f"{kind}: arch must be nemotron_h_moe with experts, nemotron_h without; got "
                f"{self.arch!r} of {self.kinds!r}"
            )
        sizes = ("n_experts", "n_experts_used", "expert_d_ff", "shared_d_ff")
        check_sizes(self, *sizes, least=int(mixes))
        check_sizes(self, "latent", least=0)
        check_sizes(self, "expert_groups", "expert_groups_used")
        check_flags(self, "normalized")
        check_positive(self, "weights_scale")
        if self.n_experts_used > self.n_experts:
            raise ConfigError(
                f"{kind}: n_experts_used must be at most n_experts; got {self.n_experts_used} of "
                f"{self.n_experts}"
            )
        check_groups(self)

    def is_mamba(self, n: int) -> bool:
        """Say whether block n has a state space."""
        return self.kinds[n] == "M"


class NemotronH(Mamba):
    """The architecture."""

    config_type: ClassVar[type[Any]] = NemotronHConfig
    table = (
        table("token_embd", "V C", "model.embeddings", std=0.02),
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.norm"),
        *mamba_rows(_MIXER),
        *(
            matrix(f"blk.{{n}}.attn_{part}", shape, f"{_MIXER}.{name}_proj", when="attends")
            for part, shape, name in (
                ("q", "Q C", "q"), ("k", "KV C", "k"), ("v", "KV C", "v"), ("output", "C Q", "o")
            )
        ),
        matrix("blk.{n}.ffn_up", "F C", f"{_MIXER}.up_proj", when="wide"),
        matrix("blk.{n}.ffn_down", "C F", f"{_MIXER}.down_proj", when="wide"),
        router("blk.{n}.ffn_gate_inp", "N C", f"{_MIXER}.gate", when="mixes"),
        Row(
            "blk.{n}.exp_probs_b.bias", "N", f"{_MIXER}.gate.e_score_correction_bias", "choice",
            bare=True, frozen=True, when="mixes",
        ),
        matrix("blk.{n}.ffn_latent_down", "Z C", f"{_MIXER}.fc1_latent_proj", when="latent"),
        experts("blk.{n}.ffn_up_exps", "N M Z", f"{_MIXER}.experts.{{e}}.up_proj", when="mixes"),
        experts(
            "blk.{n}.ffn_down_exps", "N Z M", f"{_MIXER}.experts.{{e}}.down_proj", when="mixes"
        ),
        matrix("blk.{n}.ffn_latent_up", "C Z", f"{_MIXER}.fc2_latent_proj", when="latent"),
        matrix("blk.{n}.ffn_up_shexp", "S C", f"{_MIXER}.shared_experts.up_proj", when="mixes"),
        matrix("blk.{n}.ffn_down_shexp", "C S", f"{_MIXER}.shared_experts.down_proj", when="mixes"),
        norm("output_norm", "C", "model.norm_f"),
        OUTPUT,
    )  # fmt: skip
    hf = replace(
        Llama.hf,
        model_type="nemotron_h",
        keys={
            **{key: name for key, name in Llama.hf.keys.items()
               if key not in (KV, EPS, WIDTH, "block_count", FREQ_BASE)},
            EPS: "layer_norm_epsilon",
            HEADS: "mamba_num_heads",
            GROUPS: "n_groups",
            STATE: "ssm_state_size",
            TAPS: "conv_kernel",
        },
        real=frozenset((EPS,)),
        fixed={
            "mlp_hidden_act": ("relu2",),
            "mamba_hidden_act": ("silu",),
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "use_bias": (False,),
            "mamba_proj_bias": (False,),
            "use_conv_bias": (True,),
            "sliding_window": (None,),
            "tie_word_embeddings": (False,),  # transformers ties nothing
            "time_step_limit": ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}], None),
        },
        biases={},
        zero_biases=frozenset(),
        begins={"backbone.": "model."},
        unadapted={
            "blk.{n}.ssm_out": "peft",
            "blk.{n}.ffn_latent_down": "gguf",
            "blk.{n}.ffn_latent_up": "gguf",
        },
    )  # fmt: skip

    def __init__(self, name: str, title: str) -> None:
        super().__init__(name, title)
        self.hf = replace(self.hf, shown={"architectures": [f"{title}ForCausalLM"]})

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return what the table's letters and conditions mean."""
        letter = "" if n is None else cfg.kinds[n]
        mixes = letter == "E"
        letters = {"wide": letter == "-", "mixes": mixes, "latent": mixes and cfg.latent > 0}
        letters |= {"N": cfg.n_experts, "M": cfg.expert_d_ff, "S": cfg.shared_d_ff}
        return {**super().sizes(cfg, opts, n), **letters, "Z": cfg.latent or cfg.d_model}

    def claims(self, config: Config) -> bool:
        """Say whether a folder's model is of this architecture: whether a block has experts."""
        return ("E" in _letters(config)) == self.architecture.endswith("_moe")

    def used(self, cfg: Any) -> float:
        """Return which part of its experts a token uses."""
        return float(cfg.n_experts_used / max(cfg.n_experts, 1))

    def new_config(self, **shape: Any) -> Any:
        """Return a configuration of state spaces, by turns with MLPs or experts, then attention.

        Raises ConfigError for one block with experts: llama.cpp wants a state space, too.
        """
        mixes = self.architecture.endswith("_moe")
        turns, count = "ME" if mixes else "M-", shape["n_layers"]
        if mixes and count < len(turns):
            raise ConfigError(
                f"{self.config_type.__name__}: n_layers must be at least {len(turns)} for "
                f"{self.architecture}, for a state space and for experts; got {count}"
            )
        kinds = "".join(turns[n % 2] for n in range(count))
        kinds = f"{kinds[:-1]}*" if count > 2 else kinds
        width = shape["d_ff"]
        experts = {"n_experts": 8, "n_experts_used": 2, "expert_d_ff": width, "shared_d_ff": width}
        return super().new_config(**{"kinds": kinds} | (experts if mixes else {}) | shape)

    # -- Files ---------------------------------------------------------------------------------

    def shape(self, hyper: Hyper, **known: int) -> tuple[dict[str, Any], int]:
        """Return the sizes that a file says of a model, and the width of its heads."""
        widths = hyper.counts(WIDTH, hyper.layers)
        kv = hyper.counts(KV, hyper.layers)
        if len({width for width in widths if width}) > 1 and not hyper.has(EXPERTS):
            refuse(hyper.file, f"{hyper.prefix}{WIDTH} must be 0, or one number; got {widths}")
        mixing = [f"blk.{n}.ffn_gate_inp.weight" in hyper.tensors for n in range(hyper.layers)]
        letters = [
            "*" if heads else "E" if mixes else "-" if width else "M"
            for heads, width, mixes in zip(kv, widths, mixing, strict=True)
        ]
        dense = [width for width, letter in zip(widths, letters, strict=True) if letter == "-"]
        sizes, d_head = super().shape(hyper, d_ff=dense[0] if dense else 1, **known)
        sizes["kinds"] = "".join(letters)
        if "E" not in letters:
            return sizes, d_head
        hyper.expect(GATING, SCORES["sigmoid"])
        hyper.expect(SHARED_COUNT, 1)
        return sizes | {
            "n_experts": hyper.whole(EXPERTS),
            "n_experts_used": hyper.whole(USED),
            "expert_d_ff": hyper.whole(EXPERT_WIDTH),
            "shared_d_ff": hyper.whole(SHARED),
            "latent": hyper.count(_LATENT),
            "expert_groups": hyper.whole(EXPERT_GROUPS, 1),
            "expert_groups_used": hyper.whole(EXPERT_GROUPS_USED, 1),
            "normalized": hyper.flag(SUM, False),
            "weights_scale": hyper.real(SCALE, 1.0),
        }, d_head

    def check_gguf(self, cfg: Any) -> None:
        """Refuse MLPs beside experts, and no state space. Raises ConfigError."""
        super().check_gguf(cfg)
        if {"-", "E"} <= set(cfg.kinds) or "M" not in cfg.kinds:
            raise ConfigError(
                f"export: llama.cpp reads {cfg.arch} with a state space (M) in at least one block, "
                f"and not with both MLPs (-) and experts (E); got {cfg.kinds!r}"
            )

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        widths = {"-": cfg.d_ff, "E": cfg.expert_d_ff}
        values: dict[str, Any] = {WIDTH: [widths.get(letter, 0) for letter in cfg.kinds]}
        values[LAYER_EPS] = float(cfg.norm_eps)  # which llama.cpp wants, too
        if cfg.n_experts:
            values |= {EXPERTS: cfg.n_experts, USED: cfg.n_experts_used, SHARED_COUNT: 1}
            values |= {EXPERT_WIDTH: cfg.expert_d_ff, SHARED: cfg.shared_d_ff, _LATENT: cfg.latent}
            values |= {EXPERT_GROUPS: cfg.expert_groups, EXPERT_GROUPS_USED: cfg.expert_groups_used}
            values |= {SUM: cfg.normalized, SCALE: float(cfg.weights_scale)}
            values[GATING] = SCORES["sigmoid"]
        return super().write(cfg) | values

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        if hyper.has(LAYER_EPS) and hyper.real(LAYER_EPS) != cfg.norm_eps:
            refuse(hyper.file, f"{hyper.prefix}{LAYER_EPS} must be {cfg.norm_eps}, as {EPS} is")
        return cfg

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read what each block is, and experts."""
        letters = _letters(config)
        count = config.get("num_hidden_layers")
        if count not in (None, len(letters)):
            config.refuse(f"num_hidden_layers is {count}; there are {len(letters)} kinds of blocks")
        hyper["block_count"] = len(letters)
        hyper[FREQ_BASE] = 1e4  # which nothing reads
        kv = config.whole("num_key_value_heads")
        hyper[KV] = [kv * (letter == "*") for letter in letters]
        self.read_inner(config, hyper, config.get("mamba_head_dim"), "mamba_head_dim")
        widths = {"-": config.whole("intermediate_size")}
        names = (
            *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
            *("moe_shared_expert_intermediate_size", "n_shared_experts", "n_group"),
        )
        config.ignore(*names, "topk_group", "moe_latent_size", "norm_topk_prob")
        config.ignore("routed_scaling_factor")
        if "E" in letters:
            counts = (EXPERTS, USED, EXPERT_WIDTH, SHARED, SHARED_COUNT, EXPERT_GROUPS)
            hyper |= {key: config.whole(name) for key, name in zip(counts, names, strict=True)}
            hyper[EXPERT_GROUPS_USED] = config.whole("topk_group")
            if hyper[SHARED_COUNT] != 1:
                config.refuse(f"n_shared_experts must be 1; got {hyper[SHARED_COUNT]}")
            has_latent = config.get("moe_latent_size") is not None
            hyper[_LATENT] = config.whole("moe_latent_size") if has_latent else 0
            hyper[SUM] = config.flag("norm_topk_prob", True)
            hyper[SCALE] = config.real("routed_scaling_factor", 1.0)
            hyper[GATING] = SCORES["sigmoid"]
            widths["E"] = hyper[EXPERT_WIDTH]
        hyper[WIDTH] = [widths.get(letter, 0) for letter in letters]
        config.ignore(*_UNUSED)
        return {}

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return what each block is, and experts. Raises ConfigError for a head that is tied."""
        if "output.weight" not in tensors:
            raise ConfigError("export_hf: folders of nemotron_h have a head of their own: untie it")
        pairs = enumerate(zip(hyper[KV], hyper[WIDTH], strict=True))
        kinds = [
            "*" if heads
            else "E" if f"blk.{n}.ffn_gate_inp.weight" in tensors
            else "-" if width
            else "M"
            for n, (heads, width) in pairs
        ]  # fmt: skip
        dense = [w for w, letter in zip(hyper[WIDTH], kinds, strict=True) if letter == "-"]
        keys: dict[str, Any] = {"layers_block_type": [_KINDS[letter][0] for letter in kinds]}
        keys |= self.folder_heads(hyper) | {"intermediate_size": max(dense, default=1)}
        keys |= {"mamba_head_dim": hyper[INNER] // hyper[HEADS], "mamba_hidden_act": "silu"}
        names = {EXPERTS: "n_routed_experts", USED: "num_experts_per_tok", SUM: "norm_topk_prob"}
        names |= {EXPERT_WIDTH: "moe_intermediate_size", SCALE: "routed_scaling_factor"}
        names |= {SHARED: "moe_shared_expert_intermediate_size"}
        names |= {EXPERT_GROUPS: "n_group", EXPERT_GROUPS_USED: "topk_group"}
        keys |= {name: hyper[key] for key, name in names.items() if key in hyper}
        # transformers makes no step of a prompt smaller than this; NVIDIA's code and llama.cpp do.
        keys["time_step_min"] = 1e-30
        keys |= {"n_shared_experts": hyper[SHARED_COUNT]} if SHARED_COUNT in hyper else {}
        return keys | {"moe_latent_size": hyper.get(_LATENT) or None}

    # -- Forward -------------------------------------------------------------------------------

    def rotates(self, cfg: Any, n: int) -> bool:
        """Say that no block has RoPE."""
        return False

    def block(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record block n for x (B T, C): its norm and its mixer."""
        normed, letter = block.rmsnorm(x, "attn_norm", cfg.norm_eps), cfg.kinds[n]
        if letter in "M*":
            return block.residual(x, self.mixed(block, cfg, n, normed, positions))
        normed = block.narrowed(normed)
        if letter == "-":
            return block.residual(x, block.mlp(normed, "ffn_up", "ffn_down", "relu2"))
        routes = block.routes(
            normed,
            "ffn_gate_inp",
            cfg.n_experts_used,
            normalized=cfg.normalized,
            score="sigmoid",
            scale=cfg.weights_scale,
            eps=1e-20,
            choice="exp_probs_b",
            groups=(cfg.expert_groups, cfg.expert_groups_used),
        )
        seen = block.linear(normed, "ffn_latent_down") if cfg.latent else normed
        y = block.mixture(seen, "", "ffn_up_exps", "ffn_down_exps", routes)
        y = block.linear(y, "ffn_latent_up") if cfg.latent else y
        shared = block.mlp(normed, "ffn_up_shexp", "ffn_down_shexp", "relu2")
        return block.residual(x, block.add(y, shared))


def _letters(config: Config) -> str:
    """Return a letter for each block of a config.json, which says it in one of three ways."""
    pattern, kinds = config.get("hybrid_override_pattern"), config.get("layers_block_type")
    kinds = config.get("layer_types") if kinds is None else kinds
    if kinds is None and isinstance(pattern, str):
        kinds = [_KINDS.get(letter, (letter,))[0] for letter in pattern]
    names = {name: letter for letter, words in _KINDS.items() for name in words}
    if not isinstance(kinds, list) or not kinds or any(str(kind) not in names for kind in kinds):
        config.refuse(
            f"layers_block_type must be kinds of {', '.join(kind[0] for kind in _KINDS.values())}; "
            f"got {kinds!r}"
        )
    return "".join(names[kind] for kind in kinds)


register(NemotronH("nemotron_h", "NemotronH"))
register(NemotronH("nemotron_h_moe", "NemotronH"))
