"""Granite 4: Granite's four scales, with Mamba 2 in most blocks, and sometimes experts.

    x += residual_scale * mamba(n), or W_o attention(...)                       n = rmsnorm(x)
    x += residual_scale * (mixture(n) + W_down (silu(W_gate n) * W_up n))       n = rmsnorm(x)

The formulas of mamba are in mamba.py, those of the mixture in granitemoe.py. Without experts there
is no mixture. Few models have RoPE. Source: IBM 2025, Granite 4.0; granitemoehybrid of transformers
and granitehybrid of llama.cpp.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.models.granite import FINETUNED, Granite
from toynn.models.granitemoe import PARTS, SHARED_MLP, GraniteMoE, GraniteMoEConfig
from toynn.models.hyper import Hyper
from toynn.models.keys import KV
from toynn.models.llama import Llama
from toynn.models.mamba import GROUPS, HEADS, INNER, STATE, TAPS, Mamba, MambaConfig, mamba_rows
from toynn.models.mixture import EXPERTS, SHARED, USED, with_experts
from toynn.models.registry import architecture, register
from toynn.models.rows import LAYER, changed
from toynn.models.sequence import SequenceModel
from toynn.models.tables import Floats

#: What config.json calls kinds of blocks: those with attention, and those without.
_ATTENTION, _MAMBA = ("attention", "full_attention"), ("mamba", "linear_attention")
#: The values of time_step_limit that set no limit: toynn computes no other.
_LIMITS = (None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}])


@dataclass(frozen=True)
class GraniteHybridConfig(GraniteMoEConfig, MambaConfig):
    """Shape of a Granite 4. Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    n_experts
        0: there are none, and d_ff is the width of the MLP.
    """

    least_experts: ClassVar[int] = 0

    arch: str = "granitehybrid"
    n_experts: int = 0
    n_experts_used: int = 0
    rotated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if {bool(self.n_experts_used), bool(self.shared_d_ff)} != {bool(self.n_experts)}:
            raise ConfigError(
                f"{type(self).__name__}: n_experts_used and shared_d_ff must be at least 1 if "
                f"n_experts is, and 0 if it is 0; got n_experts {self.n_experts}, "
                f"{self.n_experts_used} and {self.shared_d_ff}"
            )


class GraniteHybrid(GraniteMoE, Mamba):
    """The architecture."""

    config_type = GraniteHybridConfig
    rope_base = 1e4
    table = changed(
        with_experts(
            tuple(
                replace(row, bias=False, when="attends")
                if row.name.startswith("blk.{n}.attn_") and row.name != "blk.{n}.attn_norm"
                else row
                for row in Llama.table
                if row.when != "head_norms"
            ),
            f"{LAYER}.block_sparse_moe",
            {"router": "router.layer", **PARTS},
            dense=True,
        ),
        **{
            f"ffn_{part}{end}": {"elsewhere": name}
            for part, name in SHARED_MLP.items()
            for end in ("", "_shexp")
        },
    )
    table = (*table[:3], *mamba_rows(f"{LAYER}.mamba"), *table[3:])
    hf = replace(
        Granite.hf,
        model_type="granitemoehybrid",
        keys={
            **{key: name for key, name in Granite.hf.keys.items() if key != KV},
            HEADS: "mamba_n_heads",
            GROUPS: "mamba_n_groups",
            STATE: "mamba_d_state",
            TAPS: "mamba_d_conv",
        },
        optional=Granite.hf.optional | {"feed_forward_length"},
        fixed={
            **Granite.hf.fixed,
            "attention_bias": (False,),
            "mamba_conv_bias": (True,),
            "mamba_proj_bias": (False,),
            "time_step_limit": _LIMITS,
        },
        biases={},
        zero_biases=frozenset(),
    )

    def new_config(self, **shape: Any) -> Any:
        """Return a configuration: every fourth block has attention, in a small model the last."""
        count = shape["n_layers"]
        blocks = tuple(range(3, count, 4)) or tuple(range(1, count))[-1:]
        return super().new_config(**{"attention_blocks": blocks} | shape)

    # -- Files ---------------------------------------------------------------------------------

    def shape(self, hyper: Hyper, **known: int) -> tuple[dict[str, Any], int]:
        """Return the sizes of a file's model, and the width of its heads."""
        sizes, d_head = super().shape(hyper, **known)
        count, used = hyper.count(EXPERTS), hyper.count(USED)
        shared = hyper.whole(SHARED) if count else 0
        experts = {"n_experts": count, "n_experts_used": used, "shared_d_ff": shared}
        return sizes | experts, d_head

    def filed_as(self, hyper: Mapping[str, Any]) -> str:
        """Return the architecture of a file: without a state space, llama.cpp wants another."""
        heads = hyper.get(KV, 1)  # in each block, or one number for all
        if not all(heads if isinstance(heads, list | np.ndarray) else [heads]):
            return ""
        return "granitemoe" if hyper.get(EXPERTS) else "granite"

    def filed(self, cfg: Any) -> tuple[SequenceModel[Any], Any]:
        """Return the architecture and the configuration that a GGUF file of a model names."""
        if not (name := self.filed_as(self.write(cfg))):
            return self, cfg
        model = architecture(name)
        shape = {field.name: getattr(cfg, field.name) for field in fields(model.config_type)}
        return model, model.config_type(**shape | {"arch": model.architecture})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return super().write(cfg) | {FINETUNED: cfg.rotated}

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read config.json's keys for attention blocks, RoPE, widths and experts."""
        self._read_blocks(config, hyper)
        position = config.get("position_embedding_type")
        if position not in (None, "nope", "rope"):
            config.refuse(f"position_embedding_type must be null or rope; got {position!r}")
        hyper[FINETUNED] = position == "rope"
        heads, d_model = hyper.get(HEADS, 1), hyper.get("embedding_length", 0)
        expand = config.whole("mamba_expand", 2)
        width = config.get("mamba_d_head", "auto")
        width = expand * d_model // heads if width == "auto" else width
        self.read_inner(config, hyper, width, "mamba_d_head")
        if hyper[INNER] != expand * d_model:
            config.refuse(
                f"mamba_n_heads x mamba_d_head must be mamba_expand x hidden_size, "
                f"{expand * d_model}; got {hyper[INNER]}"
            )
        config.ignore("mamba_chunk_size")  # no result depends on it
        config.ignore("num_experts_per_tok")
        experts = config.whole("num_local_experts", least=0)
        shared = config.whole("shared_intermediate_size")
        if experts:
            hyper |= {USED: config.whole("num_experts_per_tok"), SHARED: shared}
        else:
            hyper |= {USED: 0, "feed_forward_length": shared}
        return super().complete(config, hyper)

    def _read_blocks(self, config: Config, hyper: dict[str, Any]) -> None:
        """Read which blocks attend."""
        count = hyper.get("block_count", 0)
        kinds = config.get("layer_types") or config.get("layers_block_type")
        kinds = [_MAMBA[0]] * min(count, 1 << 16) if kinds is None else kinds
        if not isinstance(kinds, list) or any(kind not in (*_ATTENTION, *_MAMBA) for kind in kinds):
            config.refuse(f"layer_types must be mamba or attention; got {kinds!r}")
        if len(kinds) != count:
            config.refuse(f"layer_types must be {count} kinds; got {len(kinds)}")
        heads = config.get("num_key_value_heads")
        heads = hyper.get("attention.head_count", 0) if heads is None else heads
        heads = config.number("num_key_value_heads", heads, real=False)
        hyper[KV] = [int(heads) * (kind in _ATTENTION) for kind in kinds]

    def read_kinds(self, config: Config, hyper: dict[str, Any]) -> None:
        """Do nothing: ``complete`` reads the kinds."""

    def spare(self, hyper: Mapping[str, Any]) -> Collection[str]:
        """Return the names that the shared MLP has in other models."""
        end = "" if hyper.get(EXPERTS) else "_shexp"
        return [f"blk.{{n}}.ffn_{part}{end}" for part in SHARED_MLP]

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for attention blocks, RoPE, widths and experts.

        Raises ConfigError for a state space that folders cannot express.
        """
        keys = Llama.folder(self, hyper, tensors) | self.folder_heads(hyper)
        keys |= {
            "layer_types": [(_ATTENTION if heads else _MAMBA)[1] for heads in hyper[KV]],
            "position_embedding_type": "rope" if hyper[FINETUNED] else None,
            "mamba_d_head": hyper[INNER] // hyper[HEADS],
            "num_local_experts": hyper[EXPERTS],
            "num_experts_per_tok": hyper[USED],
            "shared_intermediate_size": hyper.get(SHARED) or hyper["feed_forward_length"],
        }
        if hyper[INNER] % hyper["embedding_length"]:
            raise ConfigError(
                f"export_hf: a folder of granitemoehybrid needs mamba heads whose channels add up "
                f"to a multiple of d_model, {hyper['embedding_length']}; got {hyper[INNER]}"
            )
        return keys | {"mamba_expand": hyper[INNER] // hyper["embedding_length"]}


register(GraniteHybrid("granitehybrid", "GraniteMoeHybrid", interleaved=True))
