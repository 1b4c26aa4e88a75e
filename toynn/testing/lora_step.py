"""A LoRA step over a quantized file: shapes, files of random weights, the recipe.

Weights are random, since their values do not change the time of a step. Rank 8, all linear layers.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.engines import LlamaConfig
from toynn.formats import gguf, quants
from toynn.options import RecipeOptions
from toynn.recipes import LoRA
from toynn.testing.cases.quants import blocks as random_blocks

RANK, ALPHA = 8, 16.0
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Shape(NamedTuple):
    """A Llama model."""

    d_model: int
    layers: int
    heads: int
    kv_heads: int
    d_ff: int
    vocab: int
    untied: bool
    T: int

    @property
    def config(self) -> LlamaConfig:
        """Return its configuration."""
        C, L, H, KV, F, V, _, T = self
        return LlamaConfig(V, C, H, KV, F, L, T)


SHAPES = {
    "smollm2_135m_T256": Shape(576, 30, 9, 3, 1536, 49152, False, 256),
    "tinyllama_1.1b_T256": Shape(2048, 22, 32, 4, 5632, 32000, True, 256),
}


def write_file(
    path: Path, shape: Shape, type: str = "Q8_0", tokenizer: dict[str, Any] | None = None
) -> None:
    """Write a model of random blocks of a type, one tensor at a time."""
    cfg, rng = shape.config, np.random.default_rng(0)
    elements, nbytes = quants.BLOCKS[type]

    def blocks(rows: int, columns: int) -> NDArray[Any]:
        if type == "F32":
            return rng.standard_normal((rows, columns), np.float32)
        raw = random_blocks(rng, quants.TYPES[type], rows * columns // elements)
        if type == "Q8_0":
            raw[:, :2] = np.frombuffer(np.float16(1 / (73 * columns**0.5)).tobytes(), np.uint8)
        return raw.reshape(rows, -1)

    tensors: dict[str, Any] = {}
    for name, dims in cfg.shapes(untied=shape.untied).items():
        if len(dims) == 1:
            tensors[name] = np.ones(dims, np.float32), "F32"
        else:
            rows, columns = dims
            row = dims if type == "F32" else (rows, columns // elements * nbytes)
            stored = np.dtype(np.float32 if type == "F32" else np.uint8)
            make = lambda dims=dims: blocks(*dims)  # noqa: E731
            tensors[name] = gguf.Deferred(row, stored, make), type
    hyper = {
        "context_length": cfg.context,
        "embedding_length": cfg.d_model,
        "feed_forward_length": cfg.d_ff,
        "block_count": cfg.n_layers,
        "attention.head_count": cfg.n_heads,
        "attention.head_count_kv": cfg.n_kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 1e4,
    }
    metadata: dict[str, Any] = {f"llama.{key}": value for key, value in hyper.items()}
    metadata |= {"general.architecture": "llama"}
    gguf.write(path, metadata | (tokenizer or {"tokenizer.ggml.model": "no_vocab"}), tensors)


def batch(shape: Shape) -> NDArray[Any]:
    """Return ids and labels (2, T)."""
    return np.random.default_rng(0).integers(0, shape.vocab, (2, shape.T), np.int32)


def recipe_over(
    path: Path, shape: Shape, *, kind: Mapping[str, Any] = NOTHING, **more: Any
) -> LoRA:
    """Return a recipe over a file, for one sequence; ``kind``: further fields of AdapterOptions."""
    recipe = LoRA()
    options = RecipeOptions(t_seq=shape.T, **more)
    recipe.realize(path, None, RANK, options, ALPHA, "all-linear", init="peft", **kind)
    return recipe
