"""DeepSeek-V2 and V3, GLM-4.7-Flash: latent attention, and a mixture of experts.

    x += W_o attention(rotate(W_qb rmsnorm(W_qa n)), (W_k c | rotate(r)), W_v c)      n = rmsnorm(x)
    c | r = W_kva n                         c and W_qa n each pass through an rmsnorm of their own
    x += sum_j w_j expert_j(n) + shared(n), or in the first blocks W_down (silu(W_gate n) * W_up n)

A head of q or k has nope_dim channels without RoPE, then rope_dim channels that RoPE rotates,
interleaved. All heads share r. Generation caches c and r alone: see Layers.latent_attention. Small
models have one W_q instead of W_qa and W_qb. Scores are scaled by D^-1/2, D = nope_dim + rope_dim.
YaRN, which makes the context s times as long, also scales them by (1 + yarn_scores ln(s) / 10)^2.
The norms of latents have their own eps, 1e-6 in folders; llama.cpp uses rms_eps there, too. Blocks
that predict further tokens are not imported. DeepSeek-V2's scores of experts are a softmax over all
experts, without b; a group has the score of its best expert.
Sources: DeepSeek-AI 2024, arXiv:2405.04434 and arXiv:2412.19437; deepseek_v2, deepseek_v3 and
glm4_moe_lite of transformers; deepseek2 of llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isclose, log
from typing import Any, ClassVar

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_flags, check_positive, check_sizes, set_defaults
from toynn.models.deepseek_scores import V2, scores_read, scores_written
from toynn.models.hyper import Hyper, refuse, sizes_of
from toynn.models.keys import EPS, FACTOR, FREQ_BASE, KEY, KV, MAGNITUDE, ROTATED, VALUE, YARN_LOG
from toynn.models.llama import Llama
from toynn.models.mixture import (
    DENSE,
    GATING,
    GROUPS,
    GROUPS_USED,
    PLAIN,
    ROUTED,
    SCALE,
    SCORES,
    Sparse,
    SparseConfig,
    with_experts,
)
from toynn.models.registry import register
from toynn.models.rope import magnitude, stretch_of, written
from toynn.models.rows import ATTENDED, EMBEDDING, LAYER, MLP, OUTPUT
from toynn.models.tables import Floats, Sizes, matrix, norm
from toynn.nn import Layers
from toynn.options import RecipeOptions

_ATTENTION = f"{LAYER}.self_attn"
_Q_RANK, _KV_RANK = "attention.q_lora_rank", "attention.kv_lora_rank"
_KEY_MLA, _VALUE_MLA = "attention.key_length_mla", "attention.value_length_mla"
_LATENT_EPS = "attention.latent_layer_norm_rms_epsilon"  # toynn's own
_LITE = 27  # llama.cpp takes a model with this number of blocks for one without W_qa
_FOLDER_EPS = 1e-6
_GLM = "glm4_moe_lite"

#: Keys of config.json to ignore: load balancing in training, and keys of other programs.
_UNUSED = ("ep_size", "aux_loss_alpha", "seq_aux", "index_topk", "num_mtp_layers")


@dataclass(frozen=True)
class DeepSeek2Config(SparseConfig):
    """Configuration of a DeepSeek-V3. Raises ConfigError for invalid values.

    Attributes
    ----------
    q_rank, kv_rank
        Channels of the latent of q (0: no latent) and of the latent of k and v (default:
        d_model / 2).
    nope_dim, rope_dim
        Channels of a head of q or k without RoPE (default: d_model / n_heads), and with RoPE
        (default: half of nope_dim, rounded down to an even number, at least 2).
    value_dim
        Channels of a head of v; default: d_model / n_heads.
    latent_eps
        eps of the norms of latents.
    softmax
        Whether the scores of experts are a softmax over all experts, and those of groups the
        scores of their best experts, as in DeepSeek-V2.
    yarn_scores
        Under YaRN, scores are scaled by (1 + yarn_scores ln(rope_factor) / 10)^2.
    """

    has: ClassVar[tuple[str, ...]] = tuple(PLAIN)
    counts_shared: ClassVar[bool] = True
    scalings: ClassVar[tuple[str, ...]] = ("none", "linear", "yarn")

    arch: str = "deepseek2"
    rms_eps: float = 1e-6
    q_rank: int = 0
    kv_rank: int | None = None
    nope_dim: int | None = None
    rope_dim: int | None = None
    value_dim: int | None = None
    latent_eps: float = _FOLDER_EPS
    yarn_scores: float = 0.0
    softmax: bool = False

    def __post_init__(self) -> None:
        usual = max(self.d_model // max(self.n_heads, 1), 1)
        set_defaults(
            self,
            kv_rank=max(self.d_model // 2, 1),
            nope_dim=usual,
            rope_dim=max(usual // 4 * 2, 2),
            value_dim=usual,
        )
        check_sizes(self, "kv_rank", "nope_dim", "rope_dim", "value_dim")
        check_sizes(self, "q_rank", least=0)
        check_positive(self, "latent_eps")
        check_flags(self, "softmax")
        if self.head_dim is not None or self.n_kv_heads != self.n_heads:
            raise ConfigError(
                "DeepSeek2Config: needs head_dim None (nope_dim + rope_dim give it) and n_kv_heads "
                f"{self.n_heads} as n_heads; got {self.head_dim} and {self.n_kv_heads}"
            )
        if (self.rope_dim or 0) % 2:
            raise ConfigError(
                f"DeepSeek2Config: rope_dim must be even (RoPE rotates pairs); got {self.rope_dim}"
            )
        if not 0 <= self.yarn_scores < 1e3 or (self.yarn_scores and self.rope_scaling != "yarn"):
            raise ConfigError(
                "DeepSeek2Config: yarn_scores must be 0 to 1000, and needs rope_scaling 'yarn'; "
                f"got {self.yarn_scores!r} and {self.rope_scaling!r}"
            )
        object.__setattr__(self, "head_dim", self.d_head)
        super().__post_init__()
        object.__setattr__(self, "head_dim", None)

    @property
    def d_head(self) -> int:
        """Width of a head of q or k."""
        return (self.nope_dim or 0) + (self.rope_dim or 0)

    @property
    def rope_channels(self) -> int:
        """Channels of a head with RoPE."""
        return self.rope_dim or 0

    @property
    def score_growth(self) -> float:
        """The square root of the factor by which YaRN scales scores."""
        return _growth(self.rope_factor, self.yarn_scores)


class Latent(Llama):
    """Llama with latent attention."""

    table = (
        *EMBEDDING,
        norm("blk.{n}.attn_norm", "C", f"{LAYER}.input_layernorm"),
        matrix("blk.{n}.attn_q", "Q C", f"{_ATTENTION}.q_proj", when="whole_q"),
        matrix("blk.{n}.attn_q_a", "QR C", f"{_ATTENTION}.q_a_proj", when="QR"),
        norm("blk.{n}.attn_q_a_norm", "QR", f"{_ATTENTION}.q_a_layernorm", when="QR"),
        matrix("blk.{n}.attn_q_b", "Q QR", f"{_ATTENTION}.q_b_proj", when="QR"),
        matrix("blk.{n}.attn_kv_a_mqa", "KA C", f"{_ATTENTION}.kv_a_proj_with_mqa"),
        norm("blk.{n}.attn_kv_a_norm", "KR", f"{_ATTENTION}.kv_a_layernorm"),
        matrix("blk.{n}.attn_kv_b", "KB KR", f"{_ATTENTION}.kv_b_proj"),
        replace(ATTENDED, shape="C HV"),
        norm("blk.{n}.ffn_norm", "C", f"{LAYER}.post_attention_layernorm"),
        *MLP,
        norm("output_norm", "C", "model.norm"),
        OUTPUT,
    )
    reads_betas = True
    biases_are_fixed = "have no"

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        H, sizes = cfg.n_heads, {"QR": cfg.q_rank, "whole_q": not cfg.q_rank, "KR": cfg.kv_rank}
        sizes |= {"KA": cfg.kv_rank + cfg.rope_dim, "HV": H * cfg.value_dim}
        sizes |= {"KB": H * (cfg.nope_dim + cfg.value_dim)}
        return {**super().sizes(cfg, opts, n), **sizes}

    def new_config(self, **shape: Any) -> Any:
        """Return a configuration; it has a latent of q if llama.cpp requires one."""
        rank = 0 if shape["n_layers"] == _LITE else max(shape["d_model"] // 2, 1)
        return super().new_config(**{"q_rank": rank} | shape)

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return the configuration of a file's model.

        In old files, key_length and value_length are widths of heads; in newer ones, of latents.
        """
        sizes, mla = hyper.sizes(), hyper.has(_KEY_MLA)
        rank, R = hyper.whole(_KV_RANK), hyper.whole(ROTATED)
        D, E = hyper.whole(_KEY_MLA if mla else KEY), hyper.whole(_VALUE_MLA if mla else VALUE)
        if D <= R:
            refuse(hyper.file, f"heads must have more channels than RoPE's {R}; got {D}")
        if mla:
            hyper.expect(KEY, rank + R)
            hyper.expect(VALUE, rank)
        hyper.expect(KV, 1 if mla else sizes["n_heads"])
        stretch, eps = stretch_of(hyper), hyper.real(EPS)
        if hyper.has(YARN_LOG):
            stretch["yarn_scores"] = _rounded(10 * hyper.real(YARN_LOG))
            whole = stretch.get("yarn_magnitude", 1.0)
            stretch["yarn_magnitude"] = _rounded(whole / _growth(stretch.get("rope_factor", 1.0)))
        cfg = self.config_type(
            **sizes,
            n_kv_heads=sizes["n_heads"],
            rms_eps=eps,
            latent_eps=hyper.real(_LATENT_EPS, eps),
            rope_base=hyper.real(FREQ_BASE, 1e4),
            arch=self.architecture,
            q_rank=hyper.count(_Q_RANK),
            kv_rank=rank,
            nope_dim=D - R,
            rope_dim=R,
            value_dim=E,
            **stretch,
            **self.read_latent(hyper),
        )
        return cfg

    def read_latent(self, hyper: Hyper) -> dict[str, Any]:
        """Return further values of a file's configuration."""
        return {}

    def check_gguf(self, cfg: Any) -> None:
        """Raise ConfigError for a model that llama.cpp does not read."""
        if bool(cfg.q_rank) == (cfg.n_layers == _LITE):
            raise ConfigError(
                f"export: llama.cpp reads {cfg.arch} without q_rank if there are {_LITE} blocks, "
                f"else with it; got {cfg.q_rank} and {cfg.n_layers} blocks"
            )
        if not isclose(magnitude(cfg), 1, rel_tol=1e-6):
            raise ConfigError(
                f"export: llama.cpp reads {cfg.arch} only where YaRN scales RoPE by 1, as with "
                f"mscale equal to mscale_all_dim in config.json; got {magnitude(cfg):.6g}"
            )

    def unlike(self, cfg: Any) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        differences = super().unlike(cfg)
        if cfg.latent_eps != cfg.norm_eps:
            differences.append(
                f"uses the other norms' eps for the norms of latents, {cfg.norm_eps:g} in place of "
                f"{cfg.latent_eps:g}"
            )
        if cfg.softmax and cfg.expert_groups_used < cfg.expert_groups:
            differences.append(
                "chooses groups of experts by the sum of their two best, not their best"
            )
        return differences

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return a file's hyper-parameters."""
        rank, stretch = cfg.kv_rank, written(cfg)
        if cfg.yarn_scores:
            stretch[YARN_LOG] = 0.1 * cfg.yarn_scores
            stretch[MAGNITUDE] = magnitude(cfg)  # with _LOG, llama.cpp has no other factor
        if isclose(stretch.get(MAGNITUDE, 0), 1, rel_tol=1e-6):
            del stretch[MAGNITUDE]
        return {
            **sizes_of(cfg),
            KV: 1,
            KEY: rank + cfg.rope_dim,
            VALUE: rank,
            _KEY_MLA: cfg.d_head,
            _VALUE_MLA: cfg.value_dim,
            _KV_RANK: rank,
            **({_Q_RANK: cfg.q_rank} if cfg.q_rank else {}),
            EPS: float(cfg.norm_eps),
            **({_LATENT_EPS: float(cfg.latent_eps)} if cfg.latent_eps != cfg.norm_eps else {}),
            ROTATED: cfg.rope_dim,
            FREQ_BASE: float(cfg.rope_base),
            **stretch,
        }

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read the widths of heads and of latents, and RoPE."""
        nope = config.whole("qk_nope_head_dim")
        R, rank = hyper.get(ROTATED, 0), hyper.get(_KV_RANK, 0)
        hyper |= {KEY: rank + R, VALUE: rank, _KEY_MLA: nope + R, KV: 1}
        hyper[_LATENT_EPS] = _FOLDER_EPS
        H = hyper.get("attention.head_count")
        for key, usual in (("num_key_value_heads", H), ("qk_head_dim", nope + R), ("head_dim", R)):
            if config.get(key) not in (None, usual):
                config.refuse(f"{key} must be {usual} here; got {config.get(key)!r}")
        config.ignore(*_UNUSED)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        scores = 0.0
        if isinstance(rope, dict):
            whole = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
            if whole != 1:
                config.refuse(f"partial_rotary_factor must be 1; got {whole!r}")
            config = config.over(
                rope_parameters={k: v for k, v in rope.items() if k != "partial_rotary_factor"},
                rope_scaling=None,
            )
            if rope.get("mscale_all_dim"):
                scores = config.number("mscale_all_dim", rope["mscale_all_dim"], real=True)
        more = super().complete(config, hyper)
        if scores:
            hyper[YARN_LOG] = 0.1 * scores
            hyper[MAGNITUDE] *= _growth(hyper[FACTOR])
        return more

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return the widths of heads, and RoPE. Raises ConfigError unless latent_eps is 1e-6."""
        eps = hyper.get(_LATENT_EPS, hyper[EPS])
        if eps != _FOLDER_EPS:
            raise ConfigError(
                f"export_hf: latent_eps must be {_FOLDER_EPS:g}, as config.json has no key for it; "
                f"got {eps:g}"
            )
        scores = 10 * hyper.get(YARN_LOG, 0.0)
        grown = _growth(hyper[FACTOR]) if scores else 1.0
        plain = {**hyper, MAGNITUDE: hyper.get(MAGNITUDE, 1.0) / grown}
        keys = super().folder(plain, tensors)
        if scores:
            keys["rope_scaling"]["mscale_all_dim"] = _rounded(scores)
        H, R = hyper["attention.head_count"], hyper[ROTATED]
        heads = {"num_key_value_heads": H, "qk_nope_head_dim": hyper[_KEY_MLA] - R}
        return keys | heads | {"q_lora_rank": hyper.get(_Q_RANK), "pad_token_id": None}

    # -- Forward -------------------------------------------------------------------------------

    def mixed(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record the latent attention of block n."""
        rope: dict[str, Any] = {"interleaved": True, "magnitude": magnitude(cfg)}
        if cfg.q_rank:
            low = block.rmsnorm(block.linear(x, "attn_q_a"), "attn_q_a_norm", cfg.latent_eps)
            q = block.linear(low, "attn_q_b")
        else:
            q = block.linear(x, "attn_q")
        both = block.linear(x, "attn_kv_a_mqa")
        c = block.columns(both, 0, cfg.kv_rank)
        r = block.rope(block.columns(both, cfg.kv_rank, cfg.rope_dim), positions, 1, **rope)
        heads = block.latent_attention(
            block.rope_behind(q, positions, cfg.n_heads, **rope),
            block.rmsnorm(c, "attn_kv_a_norm", cfg.latent_eps),
            r,
            "attn_kv_b",
            n_heads=cfg.n_heads,
            d_value=cfg.value_dim,
            scale=cfg.score_growth**2 / cfg.d_head**0.5,
        )
        return block.linear(heads, "attn_output")


class DeepSeek2(Sparse, Latent):
    """DeepSeek-V2 and V3: latent attention and a mixture of experts."""

    config_type = DeepSeek2Config
    score, eps, chooses = "sigmoid", 1e-20, True
    usually_normalized, usually_dense, names_no_width = False, 3, True
    dense_key = "first_k_dense_replace"
    table = with_experts(
        Latent.table, dense=True, choice="gate.e_score_correction_bias", shared="shared_experts"
    )
    hf = replace(
        Llama.hf,
        model_type="deepseek_v3",
        keys={
            **{k: v for k, v in Llama.hf.keys.items() if k not in (KV, KEY)},
            _Q_RANK: "q_lora_rank",
            _KV_RANK: "kv_lora_rank",
            ROTATED: "qk_rope_head_dim",
            _VALUE_MLA: "v_head_dim",
            **ROUTED,
        },
        real=Llama.hf.real | {SCALE},
        optional=frozenset((_Q_RANK, GROUPS, GROUPS_USED)),
        fixed={
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "rope_interleave": (True,),
            "moe_layer_freq": (1,),
        },
        biases={},
        zero_biases=frozenset(),
    )

    def scored(self, cfg: Any) -> str:
        """Return the function from a router's logits to scores."""
        return "softmax" if cfg.softmax else self.score

    def routing(self, cfg: Any) -> dict[str, Any]:
        """Return how experts are chosen and weighed, as Layers.routes takes it."""
        return super().routing(cfg) | {"best": 1 if cfg.softmax else 2}

    # -- Files ---------------------------------------------------------------------------------

    def read_latent(self, hyper: Hyper) -> dict[str, Any]:
        """Return which scores a file's experts have; old files of DeepSeek-V2 do not say it."""
        if hyper.has(GATING):
            return {"softmax": hyper.whole(GATING) == SCORES["softmax"]}
        return {"softmax": not any("exp_probs_b" in name for name in hyper.tensors)}

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read which blocks are dense, from a list in GLM's folders, and the rest."""
        kinds, count = config.get("mlp_layer_types"), hyper.get("block_count", 0)
        config = scores_read(config, hyper, self.dense_key)
        if config.get("model_type") == _GLM:
            config.get(self.dense_key)  # transformers ignores this key for GLM
            kinds = ["dense"] + ["sparse"] * (count - 1) if kinds is None else kinds
            dense = kinds.index("sparse") if isinstance(kinds, list) and "sparse" in kinds else 0
            config = config.over(first_k_dense_replace=dense)
        more = super().complete(config, hyper)
        dense = hyper[DENSE]
        if kinds is not None and kinds != ["dense"] * dense + ["sparse"] * (count - dense):
            config.refuse(
                f"mlp_layer_types must be {count} of dense, then of sparse; got {kinds!r}"
            )
        return more

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return further keys of config.json. Raises ConfigError for a V2 whose weights add up."""
        return super().folder(hyper, tensors) | scores_written(hyper)


def _growth(factor: float, times: float = 1.0) -> float:
    """Return YaRN's scale for a context that is ``factor`` times as long."""
    return 1 + 0.1 * times * log(factor)


def _rounded(x: float) -> float:
    """Return x to seven digits, the precision of float32 in files."""
    return float(f"{x:.7g}")


register(DeepSeek2("deepseek2", "DeepseekV3", interleaved=True, also=(_GLM, V2)))
