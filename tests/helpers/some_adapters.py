"""Adapters with random weights, for tests."""

import numpy as np

from toynn.formats import adapters
from toynn.formats.adapters import LORA_A, LORA_B, Adapter
from toynn.formats.hf.name_mapping import NAME_MAPPINGS, module_of

RANKS = (1, 3, 4, 4)  # of one tensor after the other


class SomeBase:
    """An open base model that says other things of itself."""

    def __init__(self, base, metadata):
        self.architecture, self.tensors, self.path = base.architecture, base.tensors, base.path
        self.metadata, self._base = metadata, base

    def __getitem__(self, name):
        return self._base[name]


def matrices(base):
    """The matrices of a model's blocks, but for those that PEFT or llama.cpp adapts not."""
    names = [n for n, info in base.tensors.items() if n.startswith("blk.") and len(info.shape) > 1]
    none = ("conv.weight", "conv1d.weight", ".bias", ".ssm_a", ".ssm_d", "norm.weight")
    mapping = NAME_MAPPINGS.get(base.architecture)
    unadapted = mapping.unadapted if mapping else {}
    names = [name for name in names if module_of(name) not in unadapted]
    return [n for n in names if "ffn_gate_inp" not in n and not n.endswith(none)]


def draw(base, weights=None, *, ranks=(4,), alpha=8.0, size=0.1, seed=0, **more):
    """An adapter for these weights of a base model; for the matrices of its blocks by default."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for i, weight in enumerate(weights or matrices(base)):
        (*experts, rows, columns), rank = base.tensors[weight].shape, ranks[i % len(ranks)]
        shapes = ((*experts, rank, columns), (*experts, rows, rank))
        if weight == "token_embd.weight":
            shapes = ((rows, rank), (columns, rank))
        for suffix, shape in zip((LORA_A, LORA_B), shapes, strict=True):
            tensors[weight + suffix] = rng.normal(0, size, shape).astype(np.float32)
    metadata = adapters.base_metadata(base)
    return Adapter(base.architecture, alpha, tensors, metadata=metadata, **more)


def merged(base, adapter):
    """Every weight of a model with its adapter, in float64."""
    weights = {name: base[name].astype(np.float64) for name in base.tensors}
    for weight, (a, b) in adapter.pairs.items():
        a, b = a.astype(np.float64), b.astype(np.float64)
        rank = b.shape[-1]
        scale = adapter.alpha / (rank**0.5 if adapter.use_rslora else rank) or 1.0
        delta = a @ b.T if weight == "token_embd.weight" else b @ a
        weights[weight] += scale * delta
    return weights
