"""The shape of a Gemma 4, and what files and folders say of it: see gemma4.py."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.models.checks import check_flags, check_lists, check_sizes, set_defaults
from toynn.models.hyper import Hyper, refuse
from toynn.models.keys import (
    EPS,
    FREQ_BASE,
    KEY,
    KV,
    LOCAL_FREQ_BASE,
    LOGITS,
    PATTERN,
    ROTATED,
    VALUE,
    WIDTH,
    WINDOW,
)
from toynn.models.mixture import EXPERT_WIDTH, EXPERTS, USED
from toynn.models.sharing import INPUT, KINDS, SHARED, Sharing, SharingConfig
from toynn.models.tables import Floats

LOCAL = "attention.key_length_swa"
_FACTORS, SCALE = "rope_freqs.weight", "blk.{n}.layer_output_scale.weight"
#: Modules of some files, which have the two parts of ffn_gate_up_exps each as one tensor.
APART = ("blk.{n}.ffn_gate_exps", "blk.{n}.ffn_up_exps")
_STACKED = "expert_gate_up_stacked"  # of folders alone
_K_AS_V = "attention.k_as_v"  # of folders alone: files have no v then
_STILL = 1e30  # by what the frequencies of pairs are divided that do not rotate
#: Of config.json, where it does not say.
_ROPE = {
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e6,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


@dataclass(frozen=True)
class Gemma4Config(SharingConfig):
    """Shape of a Gemma 4. Raises ConfigError for sizes and blocks that make no model.

    Attributes
    ----------
    full_head_dim, full_kv_heads
        head_dim and n_kv_heads of blocks without a window; None: as in blocks with one.
    rope_channels
        Channels that rotate in a head of a block without a window; None: all. rope_base is the
        base of these blocks.
    k_as_v
        Whether blocks without a window have no matrix of v.
    wide_shared
        Whether the MLP of blocks without k and v is twice as wide.
    block_scales
        What the result of each block is multiplied by; none: 1.
    n_experts, n_experts_used, expert_d_ff
        Experts of a block, how many of them each token uses, and their width; 0: none.
    experts_apart
        Whether gate and up of experts are two weights, as in some files, and not one.
    """

    arch: str = "gemma4"
    full_head_dim: int | None = None
    full_kv_heads: int | None = None
    rope_channels: int | None = None
    k_as_v: bool = False
    wide_shared: bool = False
    block_scales: tuple[float, ...] = ()
    n_experts: int = 0
    n_experts_used: int = 0
    expert_d_ff: int = 0
    experts_apart: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_defaults(self, full_head_dim=self.d_head, full_kv_heads=self.n_kv_heads)
        set_defaults(self, rope_channels=self.full_head_dim)
        check_sizes(self, "full_head_dim", "full_kv_heads", "rope_channels")
        mixture = ("n_experts", "n_experts_used", "expert_d_ff")
        check_sizes(self, *mixture, least=0)
        check_flags(self, "k_as_v", "wide_shared", "experts_apart")
        if self.block_scales:
            check_lists(self, self.n_layers, "block_scales")
        self._check_heads()
        if self.windowed[-1]:
            raise ConfigError("Gemma4Config: the last block must have no window; it has one")
        if any(getattr(self, name) for name in mixture) and not (
            self.expert_d_ff and 0 < self.n_experts_used <= self.n_experts
        ):
            raise ConfigError(
                "Gemma4Config: experts need n_experts, n_experts_used of them and expert_d_ff; got "
                f"{self.n_experts}, {self.n_experts_used} and {self.expert_d_ff}"
            )
        if self.experts_apart and not self.n_experts:
            raise ConfigError("Gemma4Config: experts_apart needs n_experts; got 0")

    def _check_heads(self) -> None:
        heads, width, channels = self.heads(True), self.width_of(True), self.rope_channels or 0
        if self.n_heads % heads:
            raise ConfigError(
                f"Gemma4Config: full_kv_heads must divide n_heads; got {heads} and {self.n_heads}"
            )
        if width % 2 or channels % 2 or channels > width:
            raise ConfigError(
                "Gemma4Config: full_head_dim and rope_channels must be even, and those at most "
                f"this; got {width} and {channels}"
            )

    def width_of(self, full: bool) -> int:
        """Return the width of a head of blocks without a window, or with one."""
        return (self.full_head_dim or 0) if full else self.d_head

    def heads(self, full: bool) -> int:
        """Return the heads of k and v of blocks without a window, or with one."""
        return (self.full_kv_heads or 0) if full else self.n_kv_heads

    def widths(self) -> list[int]:
        """Return the width of each block's MLP."""
        twice = [self.wide_shared and self.shares(n) for n in range(self.n_layers)]
        return [self.d_ff * (1 + wide) for wide in twice]

    def frequencies(self, full: bool) -> Floats:
        """Return by how much each pair rotates from one position to the next."""
        angles = super().frequencies(full)
        if full:
            angles[(self.rope_channels or 0) // 2 :] = 0
        return angles


class Gemma4Files(Sharing):
    """What files and folders say of the architecture."""

    config_type = Gemma4Config
    config_says = frozenset(("rope_freqs", "blk.{n}.layer_output_scale"))

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        count, shared = hyper.layers, hyper.count(SHARED)
        windowed = hyper.pattern(PATTERN, count, Gemma4Config.period)
        full, local = hyper.whole(KEY), hyper.whole(LOCAL)
        for key in (VALUE, ROTATED):
            hyper.expect(key, full)
            hyper.expect(f"{key}_swa", local)
        heads = {}
        for has in (True, False):
            pairs = zip(hyper.counts(KV, count), windowed, strict=True)
            heads[has] = {number for number, window in pairs if window == has}
            if len(heads[has]) > 1:
                refuse(
                    hyper.file,
                    f"{hyper.prefix}{KV} must be one number for all blocks with a window, and one "
                    f"for all without; got {hyper.counts(KV, count)}",
                )
        usual = max(heads[True] | heads[False])
        widths = hyper.counts(WIDTH, count)
        values = [n for n in range(count - shared) if not windowed[n]]
        has_v = any(f"blk.{n}.attn_v.weight" in hyper.tensors for n in values)
        sizes = hyper.sizes(d_ff=widths[0])
        cfg = Gemma4Config(
            **sizes,
            arch=self.architecture,
            n_kv_heads=max(heads[True], default=usual),
            rms_eps=hyper.real(EPS),
            head_dim=None if local * sizes["n_heads"] == sizes["d_model"] else local,
            window=hyper.whole(WINDOW),
            windowed=tuple(windowed),
            full_head_dim=full,
            full_kv_heads=max(heads[False], default=usual),
            rope_channels=2 * self._read_pairs(hyper, full // 2),
            rope_base=hyper.real(FREQ_BASE, 1e4),
            local_base=hyper.real(LOCAL_FREQ_BASE, hyper.real(FREQ_BASE, 1e4)),
            k_as_v=hyper.flag(_K_AS_V, bool(values) and not has_v),
            shared_kv=shared,
            wide_shared=widths[-1] != widths[0],
            per_layer=hyper.count(INPUT),
            block_scales=self._read_scales(hyper),
            logit_cap=hyper.real(LOGITS) if hyper.has(LOGITS) else 0.0,
            n_experts=hyper.count(EXPERTS),
            n_experts_used=hyper.count(USED),
            expert_d_ff=hyper.count(EXPERT_WIDTH),
            experts_apart=not hyper.flag(_STACKED, False)
            and any(name.endswith(".ffn_gate_exps.weight") for name in hyper.tensors),
        )
        if widths != cfg.widths():
            refuse(
                hyper.file,
                f"{hyper.prefix}{WIDTH} must be one number, or twice that in the last {shared} "
                f"blocks; got {widths}",
            )
        return cfg

    def _read_pairs(self, hyper: Hyper, pairs: int) -> int:
        """Return how many pairs of a head rotate: those whose factor is 1 come first."""
        if _FACTORS not in hyper.tensors:
            return pairs
        factors = np.ravel(hyper.file[_FACTORS])
        count = int((factors == 1).sum())
        if (factors[:count] != 1).any() or (factors[count:] < _STILL / 2).any():
            refuse(hyper.file, f"{_FACTORS} must be 1 for the first pairs and 1e30 for the others")
        return count

    def _read_scales(self, hyper: Hyper) -> tuple[float, ...]:
        """Return what the result of each block is multiplied by; none, if no tensor says it."""
        names = [SCALE.replace("{n}", str(n)) for n in range(hyper.layers)]
        there = [name in hyper.tensors for name in names]
        if not any(there):
            return ()
        pairs = zip(names, there, strict=True)
        values = [np.ravel(hyper.file[name])[:1] if has else np.ones(1) for name, has in pairs]
        return tuple(float(str(number)) for number in np.concatenate(values))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        written = super().write(cfg)
        full, local, widths = cfg.width_of(True), cfg.d_head, cfg.widths()
        for key in (KEY, VALUE, ROTATED):
            written |= {key: full, f"{key}_swa": local}
        written |= {
            WIDTH: widths if cfg.wide_shared else cfg.d_ff,
            KV: [cfg.heads(not windowed) for windowed in cfg.windowed],
            LOCAL_FREQ_BASE: float(cfg.local_base),
            SHARED: cfg.shared_kv,
            INPUT: cfg.per_layer,
        }
        if cfg.logit_cap:
            written[LOGITS] = float(cfg.logit_cap)
        if cfg.n_experts:
            written |= {EXPERTS: cfg.n_experts, USED: cfg.n_experts_used}
            written[EXPERT_WIDTH] = cfg.expert_d_ff
        return written

    def beside(self, cfg: Any) -> dict[str, Floats]:
        """Return the divisors of RoPE's frequencies, and the scales of blocks."""
        turning = np.arange(cfg.width_of(True) // 2) < cfg.rope_channels // 2
        tensors = {_FACTORS: np.where(turning, 1, _STILL).astype(np.float32)}
        for n, scale in enumerate(cfg.block_scales):
            tensors[SCALE.replace("{n}", str(n))] = np.array([scale], np.float32)
        return tensors

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read kinds of blocks, their heads and widths, RoPE, and which parts there are."""
        self.read_kinds(config, hyper)
        windowed, count = hyper[PATTERN], len(hyper[PATTERN])
        hyper |= {_K_AS_V: config.flag("attention_k_eq_v", False), _STACKED: True}
        local = {"head_dim": hyper.get(LOCAL, 1), "num_key_value_heads": hyper.get(KV, 1)}
        full = local | self._read_full(config, hyper)
        hyper[KEY] = full["head_dim"]
        heads = [local if window else full for window in windowed]
        hyper[KV] = [kind["num_key_value_heads"] for kind in heads]
        self.read_counts(config, hyper)
        rows = config.get("vocab_size_per_layer_input", hyper.get("vocab_size"))
        if hyper[INPUT] and rows != hyper.get("vocab_size"):
            config.refuse(
                f"vocab_size_per_layer_input must be vocab_size, {hyper.get('vocab_size')}; got "
                f"{rows!r}"
            )
        if config.flag("use_double_wide_mlp", False) and hyper[SHARED]:
            width, first = hyper.get(WIDTH, 1), count - hyper[SHARED]
            hyper[WIDTH] = [width * (1 + (n >= first)) for n in range(count)]
        mixes = config.flag("enable_moe_block", False)
        for key in (EXPERTS, USED, EXPERT_WIDTH):
            if not mixes:
                hyper.pop(key, None)
            elif key not in hyper:
                config.refuse(f"{self.hf.keys[key]} is missing; enable_moe_block is true")
        pairs = self._read_rope(config, hyper)
        turning = np.arange(hyper[KEY] // 2) < pairs
        return {_FACTORS: np.where(turning, 1, _STILL).astype(np.float32)}

    def spare(self, hyper: Mapping[str, Any]) -> Collection[str]:
        """Return the parts of experts that a folder stores as one tensor."""
        return APART if hyper.get(_STACKED) else ()

    def read_kinds(self, config: Config, hyper: dict[str, Any]) -> None:
        """Read which blocks have a window."""
        super().read_kinds(config, hyper)
        if hyper[PATTERN][-1:] != [False]:
            kinds = config.get("layer_types")
            config.refuse(f"layer_types must end in {KINDS[0]}; got {kinds!r}")

    def _read_full(self, config: Config, hyper: dict[str, Any]) -> dict[str, int]:
        """Return head_dim, and num_key_value_heads if they differ, of blocks without a window."""
        each = config.get("per_layer_config")
        keys = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        shape = {name: config.get(key) for name, key in keys.items()}
        if each is None:
            shape["head_dim"] = shape["head_dim"] or 512  # where config.json does not say
            if not hyper[_K_AS_V]:
                shape["num_key_value_heads"] = None
        else:
            full = [str(n) for n, window in enumerate(hyper[PATTERN]) if not window]
            if not isinstance(each, dict):
                config.refuse(f"per_layer_config must be an object; got {each!r}")
            if sorted(each) != sorted(full):
                config.refuse(
                    f"per_layer_config must have the full_attention blocks, {full}; got {[*each]}"
                )
            if not all(isinstance(value, dict) for value in each.values()):
                config.refuse(f"per_layer_config must have an object for each block; got {each!r}")
            alike = all(value == each[full[0]] for value in each.values())
            if not alike or not each[full[0]].keys() <= keys.keys():
                config.refuse(
                    "per_layer_config must say the same head_dim and num_key_value_heads of each "
                    f"full_attention block, and nothing else; got {each!r}"
                )
            shape = each[full[0]]
        return {
            name: int(config.number(keys[name], value, real=False))
            for name, value in shape.items()
            if value is not None
        }

    def _read_rope(self, config: Config, hyper: dict[str, Any]) -> int:
        """Set the bases of RoPE; return how many pairs of a head without a window rotate."""
        ropes = config.get("rope_parameters") or _ROPE
        kinds = {kind: ropes.get(kind) for kind in KINDS} if isinstance(ropes, dict) else {}
        if (
            not kinds
            or ropes.keys() - kinds
            or not all(isinstance(r, dict) for r in kinds.values())
        ):
            config.refuse(
                f"rope_parameters must be those of two kinds of layers, as objects; got {ropes!r}"
            )
        part = 1.0
        for kind, key in zip(KINDS, (FREQ_BASE, LOCAL_FREQ_BASE), strict=True):
            rope = dict(kinds[kind] or {})
            hyper[key] = config.number("rope_theta", rope.pop("rope_theta", None), real=True)
            name = rope.pop("rope_type", "default")
            if kind == KINDS[0] and name == "proportional":
                part = rope.pop("partial_rotary_factor", 1.0)
                part = config.number("partial_rotary_factor", part, real=True)
                name = "default"
            if name != "default" or any(value not in (None, 1) for value in rope.values()):
                config.refuse(f"RoPE of {kind} must be default, or proportional; got {kinds[kind]}")
        if part > 1:
            config.refuse(f"partial_rotary_factor must be at most 1; got {part:g}")
        return int(part * hyper[KEY] // 2)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return kinds of blocks, their heads and widths, RoPE, and which parts there are."""
        keys = super().folder(hyper, tensors)
        windowed, first = hyper[PATTERN], hyper["block_count"] - hyper[SHARED]
        full = [n for n, window in enumerate(windowed) if not window]
        local = [n for n, window in enumerate(windowed) if window] or full
        widths = hyper[WIDTH] if isinstance(hyper[WIDTH], list) else [hyper[WIDTH]]
        width, heads, part = hyper[KEY], hyper[KV], int((tensors[_FACTORS] == 1).sum())
        whole = {"rope_type": "proportional", "rope_theta": hyper[FREQ_BASE]}
        whole["partial_rotary_factor"] = 2 * part / width
        if int(whole["partial_rotary_factor"] * width // 2) != part:  # which is how it is read
            whole["partial_rotary_factor"] = (2 * part + 0.5) / width
        shape = {"head_dim": width, "num_key_value_heads": heads[full[0]]}
        keys |= {
            "intermediate_size": widths[0],
            "num_key_value_heads": heads[local[0]],
            "per_layer_config": {str(n): shape for n in full},
            "attention_k_eq_v": not any(
                f"blk.{n}.attn_v.weight" in tensors for n in full if n < first
            ),
            "use_double_wide_mlp": widths[-1] != widths[0],
            "enable_moe_block": EXPERTS in hyper,
            "rope_parameters": {
                KINDS[0]: whole,
                KINDS[1]: {"rope_type": "default", "rope_theta": hyper[LOCAL_FREQ_BASE]},
            },
        }
        return keys
