"""SmolLM3: a Llama without RoPE in every fourth block (NoPE).

    x += W_o attention(W_q n, W_k n, W_v n)     in blocks 3, 7, 11, ...; else as in llama.py

llama.cpp knows this interval only, and GGUF files have no key for it, so a config.json with another
interval is refused. Sources: Bakouch et al. 2025, https://huggingface.co/blog/smollm3; Yang et al.
2025, arXiv:2501.18795.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toynn.formats.hf.config import Config
from toynn.models.llama import Llama
from toynn.models.registry import register
from toynn.models.tables import Floats

_INTERVAL = 4  # of the blocks without RoPE


def _kinds(n_layers: int) -> list[int]:
    """Return config.json's no_rope_layers: 1 for a block with RoPE, 0 for one without."""
    return [int((n + 1) % _INTERVAL != 0) for n in range(n_layers)]


class SmolLM3(Llama):
    """The architecture."""

    hf = replace(Llama.hf, tied=True)

    def rotates(self, cfg: Any, n: int) -> bool:
        """Say whether block n has RoPE."""
        return (n + 1) % _INTERVAL != 0

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Refuse a config.json unless exactly every fourth block lacks RoPE."""
        interval, kinds = config.get("no_rope_layer_interval"), config.get("no_rope_layers")
        if kinds is None and interval not in (None, _INTERVAL):
            config.refuse(f"no_rope_layer_interval must be {_INTERVAL}; got {interval!r}")
        expected = _kinds(len(kinds)) if isinstance(kinds, list) else []
        if kinds is not None and (kinds != expected or len(kinds) < hyper.get("block_count", 0)):
            config.refuse(f"no_rope_layers must be 0 in every fourth layer; got {kinds!r}")
        rope = config.get("rope_parameters") or {}
        if config.get("rope_theta") is None and "rope_theta" not in rope:
            config.refuse("rope_theta is missing")
        return super().complete(config, hyper)

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for RoPE, and pad_token_id null: the default is 128004."""
        keys = super().folder(hyper, tensors)
        kinds = _kinds(hyper["block_count"])
        return keys | {"no_rope_layers": kinds, "pad_token_id": None}


register(SmolLM3("smollm3", "SmolLM3", interleaved=True))
