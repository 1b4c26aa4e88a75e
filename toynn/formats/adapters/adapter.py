"""An adapter in memory, independent of its file's format, and its base model."""

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import AdapterError
from toynn.formats.bases import Base
from toynn.formats.gguf.tensors import HEAD, TABLE
from toynn.formats.hf.name_mapping import NAME_MAPPINGS

__all__ = [
    "BASE_NAME",
    "HEAD",
    "LORA_A",
    "LORA_B",
    "LORA_M",
    "TABLE",
    "Adapter",
    "Base",
    "Floats",
    "gguf_architecture",
    "is_embedding",
    "is_stack",
    "is_tied",
    "matrix_of",
    "text_of",
]

Floats = NDArray[np.float32]

LORA_A, LORA_B, LORA_M = ".lora_a", ".lora_b", ".lora_magnitude"
BASE_NAME = "general.base_model.0.name"


def is_embedding(weight: str) -> bool:
    """Return whether a weight is the embedding table; its A and B have shapes of their own."""
    return weight == TABLE


def is_stack(name: str) -> bool:
    """Return whether a weight, or an adapter's tensor, holds the matrices of all experts."""
    return "_exps.weight" in name


def gguf_architecture(base: Base, name: str = "") -> str:
    """Return the architecture of a GGUF file of ``base``, which is a ``name`` here."""
    name = name or base.architecture
    return NAME_MAPPINGS[name].gguf_architecture(base.metadata) if name in NAME_MAPPINGS else name


@dataclass(frozen=True, eq=False)
class Adapter:
    """A LoRA adapter: y = W x + s B A x, for some of the matrices W (out, in) of a model.

    ``architecture`` is that of a GGUF file of the model: llama.cpp compares the two.
    ``tensors`` has `<weight>.lora_a` (r, in) and `<weight>.lora_b` (out, r). Names and order of
    rows are as in GGUF files; r may differ from weight to weight. For a stack of E experts they are
    (E, r, in) and (E, out, r). For the embedding table token_embd.weight (V, D), A is (V, r) and B
    is (D, r): row i gets s B A[i] added.

    A DoRA adapter has `<weight>.lora_magnitude` m (out,) for all weights:

    y = m (W + s B A) x / n    n (out,): norms of the rows of W + s B A

    s = alpha / r, or alpha / sqrt(r) with ``use_rslora``; if alpha is 0, s = 1, as in llama.cpp.

    ``metadata`` is the other metadata of a GGUF file: key -> value or (value, type). ``path`` is
    the adapter's name in messages. Raises AdapterError for invalid values.
    """

    architecture: str
    alpha: float
    tensors: Mapping[str, Floats]
    use_rslora: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    path: str | os.PathLike[str] = "adapter"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            self._refuse("alpha", "a number of at least 0", self.alpha)
        if not self.tensors:
            self._refuse("tensors", "<weight>.lora_a and <weight>.lora_b", "none")
        for name, values in self.tensors.items():
            if name.endswith(LORA_M):
                continue
            weight, suffix = name[: -len(LORA_A)], name[-len(LORA_A) :]
            if suffix not in (LORA_A, LORA_B) or not weight:
                self._refuse(f"tensor {name}", "a name that ends in .lora_a or .lora_b", repr(name))
            partner = weight + (LORA_B if suffix == LORA_A else LORA_A)
            if partner not in self.tensors:
                self._refuse(f"tensor {name}", f"{partner} as well", "no such tensor")
            if values.dtype != np.float32 or values.ndim not in (2, 3) or not values.size:
                self._refuse(f"tensor {name}", "a float32 matrix", f"{values.dtype} {values.shape}")
            if not np.isfinite(values).all():
                self._refuse(f"tensor {name}", "finite numbers", "NaN or infinity")
        for weight, (a, b) in self.pairs.items():
            if self.rank_of(weight) != b.shape[-1] or a.shape[:-2] != b.shape[:-2]:
                shapes = "A (V, r), B (D, r)" if is_embedding(weight) else "A (r, in), B (out, r)"
                self._refuse(weight, f"one rank r in {shapes}", f"{a.shape} and {b.shape}")

        self._check_magnitudes()

    def _check_magnitudes(self) -> None:
        """Raise AdapterError unless all weights have a fitting magnitude, or none has one."""
        pairs, magnitudes = self.pairs, self.magnitudes
        if magnitudes.keys() - pairs.keys() or (magnitudes and pairs.keys() - magnitudes.keys()):
            odd = min(magnitudes.keys() ^ pairs.keys())
            self._refuse(odd, "A, B and a magnitude, like the others", "only some of these")
        for weight, m in magnitudes.items():
            shape = (pairs[weight][1].shape[0],)
            if is_embedding(weight) or is_stack(weight):
                self._refuse(weight, "no magnitude (DoRA) of the embedding table or experts", "one")
            if m.dtype != np.float32 or m.shape != shape or not np.isfinite(m).all():
                self._refuse(f"{weight}{LORA_M}", f"{shape} finite float32", f"{m.dtype} {m.shape}")

    def _refuse(self, what: str, expected: str, got: object) -> None:
        raise AdapterError(f"{os.fspath(self.path)}: {what}: expected {expected}; got {got}")

    @property
    def pairs(self) -> dict[str, tuple[Floats, Floats]]:
        """A and B by the name of their weight."""
        weights = (name.removesuffix(LORA_A) for name in self.tensors if name.endswith(LORA_A))
        return {w: (self.tensors[w + LORA_A], self.tensors[w + LORA_B]) for w in weights}

    @property
    def magnitudes(self) -> dict[str, Floats]:
        """DoRA's magnitudes (out,) by the name of their weight."""
        return {n.removesuffix(LORA_M): m for n, m in self.tensors.items() if n.endswith(LORA_M)}

    @property
    def use_dora(self) -> bool:
        """Whether there are magnitudes."""
        return bool(self.magnitudes)

    @property
    def rank(self) -> int:
        """The rank that most pairs have."""
        return Counter(map(self.rank_of, self.pairs)).most_common(1)[0][0]

    def rank_of(self, weight: str) -> int:
        """Return the rank of a weight's pair."""
        shape: tuple[int, ...] = self.tensors[weight + LORA_A].shape
        return shape[1 if is_embedding(weight) else -2]

    def scale(self, weight: str) -> float:
        """Return s of a weight's pair."""
        rank = self.rank_of(weight)
        if not self.alpha:
            return 1.0
        return self.alpha / (math.sqrt(rank) if self.use_rslora else rank)


def matrix_of(weight: str, base: Base) -> str:
    """Return the base's tensor of an adapted weight: for a tied head, the embedding table."""
    return TABLE if weight == HEAD and is_tied(base) else weight


def is_tied(base: Base) -> bool:
    """Return whether a model's head is its embedding table."""
    return HEAD not in base.tensors and TABLE in base.tensors


def text_of(metadata: Mapping[str, Any], key: str) -> str:
    """Return a string from metadata with values or (value, type) pairs; "" if it has none."""
    value = metadata.get(key)
    value = value[0] if isinstance(value, tuple) else value
    return value if isinstance(value, str) else ""
