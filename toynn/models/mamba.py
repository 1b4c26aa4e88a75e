"""Mamba 2 in some blocks, attention in the others: shared by such architectures.

    z, u, dt = W_in n                               n = rmsnorm(x), u = (x, b, c) side by side
    mamba(n) = W_out gatednorm(ssd(silu(conv(u)), dt), z)

The kernels of the same names define ssd and gatednorm. Attention has RoPE only if the architecture
says so. In a GGUF file, blocks without attention have 0 heads of k and v.
Source: Dao & Gu 2024, arXiv:2405.21060.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_recurrent, check_sizes, set_defaults
from toynn.models.hyper import Hyper, refuse, shape_of
from toynn.models.keys import KV
from toynn.models.llama import Llama, LlamaConfig
from toynn.models.tables import Row, Sizes, matrix, norm, taps
from toynn.nn import Layers
from toynn.options import RecipeOptions

TAPS, STATE, GROUPS = "ssm.conv_kernel", "ssm.state_size", "ssm.group_count"
HEADS, INNER = "ssm.time_step_rank", "ssm.inner_size"


@dataclass(frozen=True)
class MambaConfig(LlamaConfig):
    """Shape of a model with Mamba 2. Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    attention_blocks
        Indices of the blocks with attention, ascending.
    mamba_heads, mamba_dim
        Heads of a state space, and channels of each; None: n_heads, and twice d_model in all.
    mamba_groups
        Groups of these heads that share b and c.
    state_dim
        Numbers of a state for each channel.
    conv_taps
        Rows that a convolution sums, 1 to 16.
    """

    attention_blocks: tuple[int, ...] = ()
    mamba_heads: int | None = None
    mamba_dim: int | None = None
    mamba_groups: int = 1
    state_dim: int = 128
    conv_taps: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        set_defaults(self, mamba_heads=self.n_heads)
        check_sizes(self, "mamba_heads")
        set_defaults(self, mamba_dim=max(2 * self.d_model // self.heads, 1))
        check_sizes(self, "mamba_dim", "mamba_groups", "state_dim", "conv_taps")
        if self.heads % self.mamba_groups:
            raise ConfigError(
                f"{type(self).__name__}: mamba_groups must divide mamba_heads; got "
                f"{self.mamba_groups} and {self.heads}"
            )
        check_recurrent(self)

    @property
    def heads(self) -> int:
        """Heads of a state space."""
        return self.mamba_heads or 0

    @property
    def inner(self) -> int:
        """Channels of all heads of a state space."""
        return self.heads * (self.mamba_dim or 0)

    def is_mamba(self, n: int) -> bool:
        """Say whether block n has a state space."""
        return n not in self.attention_blocks


def mamba_rows(block: str) -> tuple[Row, ...]:
    """Return the table's rows of a state space; ``block`` is the prefix of Hugging Face's names."""
    return (
        matrix("blk.{n}.ssm_in", "P C", f"{block}.in_proj", when="mamba"),
        taps("blk.{n}.ssm_conv1d", "X L", f"{block}.conv1d", when="mamba", bias=True),
        norm("blk.{n}.ssm_dt.bias", "H", f"{block}.dt_bias", bare=True, when="mamba"),
        Row(
            "blk.{n}.ssm_a", "H 1", f"{block}.A_log", "decays",
            bare=True, when="mamba", logarithm=True, flat=HEADS,
        ),
        norm("blk.{n}.ssm_d", "H 1", f"{block}.D", bare=True, when="mamba", flat=HEADS),
        norm("blk.{n}.ssm_norm", "G EG", f"{block}.norm", when="mamba", flat=GROUPS),
        matrix("blk.{n}.ssm_out", "C I", f"{block}.out_proj", when="mamba"),
    )  # fmt: skip


class Mamba(Llama):
    """Base of the architectures with a MambaConfig."""

    config_type: ClassVar[type[Any]] = MambaConfig
    narrows = True
    biases_are_fixed = "have no"

    def sizes(self, cfg: Any, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return what the table's letters and conditions mean."""
        inner, shared = cfg.inner, 2 * cfg.mamba_groups * cfg.state_dim
        mamba = n is not None and cfg.is_mamba(n)
        letters = {"mamba": mamba, "attends": n in cfg.attention_blocks, "1": 1, "I": inner}
        letters |= {"H": cfg.heads, "X": inner + shared, "P": 2 * inner + shared + cfg.heads}
        letters |= {"G": cfg.mamba_groups, "EG": inner // cfg.mamba_groups, "L": cfg.conv_taps}
        return {**super().sizes(cfg, opts, n), **letters}

    # -- Files ---------------------------------------------------------------------------------

    def shape(self, hyper: Hyper, **known: int) -> tuple[dict[str, Any], int]:
        """Return the sizes of a file's model, and the width of its heads; see Hyper.sizes."""
        counts = hyper.counts(KV, hyper.layers)
        attends = [n for n, heads in enumerate(counts) if heads]
        if len({counts[n] for n in attends}) > 1:
            refuse(hyper.file, f"{hyper.prefix}{KV} must be 0, or one number; got {counts}")
        queries = f"blk.{attends[0]}.attn_q.weight" if attends else "token_embd.weight"
        n_kv_heads = counts[attends[0]] if attends else 1
        sizes, d_head = shape_of(hyper, queries, n_kv_heads, self.eps_key, **known)
        heads, inner = hyper.whole(HEADS), hyper.whole(INNER)
        if inner % heads:
            refuse(
                hyper.file,
                f"{hyper.prefix}{INNER} must be a multiple of the {heads} heads; got {inner}",
            )
        return sizes | {
            "attention_blocks": tuple(attends),
            "mamba_heads": heads,
            "mamba_dim": inner // heads,
            "mamba_groups": hyper.whole(GROUPS),
            "state_dim": hyper.whole(STATE),
            "conv_taps": hyper.whole(TAPS),
        }, d_head

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        kv = [cfg.n_kv_heads * (n in cfg.attention_blocks) for n in range(cfg.n_layers)]
        hyper = {KV: kv, TAPS: cfg.conv_taps, STATE: cfg.state_dim, GROUPS: cfg.mamba_groups}
        return super().write(cfg) | hyper | {HEADS: cfg.heads, INNER: cfg.inner}

    def read_inner(self, config: Config, hyper: dict[str, Any], width: object, name: str) -> None:
        """Read the channels of all heads of a state space, from those of each head."""
        hyper[INNER] = int(config.number(name, width, real=False)) * hyper.get(HEADS, 0)

    def folder_heads(self, hyper: Mapping[str, Any]) -> dict[str, int]:
        """Return config.json's number of heads of k and v; GGUF has one for each block."""
        return {"num_key_value_heads": max(hyper[KV]) or hyper["attention.head_count"]}

    # -- Forward -------------------------------------------------------------------------------

    def mixed(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record the state space of block n, or its attention."""
        return (
            self.mamba(block, cfg, x)
            if cfg.is_mamba(n)
            else super().mixed(block, cfg, n, x, positions)
        )

    def mamba(self, block: Layers, cfg: Any, x: Tensor) -> Tensor:
        """Record a gated state space of x (B T, C)."""
        inner, D, G = cfg.inner, cfg.state_dim, cfg.mamba_groups
        wide = inner + 2 * G * D
        both = block.linear(x, "ssm_in")
        z, dt = block.columns(both, 0, inner), block.columns(both, inner + wide, cfg.heads)
        u = block.silu(block.convolution(block.columns(both, inner, wide), "ssm_conv1d"))
        y = block.ssd(u, dt, "ssm_a", "ssm_dt.bias", "ssm_d", G, D)
        y = block.gatednorm(y, block.narrowed(z), "ssm_norm", cfg.norm_eps)
        return block.linear(y, "ssm_out")
