"""A LoRA step over a mixture larger than memory: ``python bench/beyond.py FOLDER mixture``.

The shape of Qwen3-30B-A3B in random Q4_K blocks, 17 GB; ``dense``: a model of the active size.
Adapters of rank 8 on attention. Prints the time of each step, and what it read from the disk. Run
it in a control group whose memory is limited: this also counts pages of mapped files.
"""

import argparse
import os
import resource
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from smallest import smallest

import toynn
from toynn.formats import gguf, quants
from toynn.models import LlamaConfig, architecture
from toynn.models.qwen3moe import Qwen3MoEConfig
from toynn.options import RecipeOptions
from toynn.testing.cases.quants import blocks

SHAPE = {"vocab": 151936, "d_model": 2048, "n_heads": 32, "n_kv_heads": 4, "n_layers": 48}
SHAPE |= {"context": 128, "head_dim": 128}
SHAPE |= smallest({}, {"vocab": 256, "d_model": 256, "n_heads": 2, "n_kv_heads": 1, "n_layers": 1})
MODELS = {
    "mixture": Qwen3MoEConfig(**SHAPE, d_ff=768, n_experts=smallest(128, 8), n_experts_used=8),
    "dense": LlamaConfig(**SHAPE, d_ff=6144, arch="qwen3"),
}
DRAWN = 2**20  # blocks of a type, which are used again and again
#: Scales that make weights of a few hundredths, and the scales' first byte in a block.
SCALES = {
    "Q4_K": ((1e-4, 7.5e-4), 0),
    "Q6_K": ((2e-5,), 208),
    "Q8_0": ((3e-4,), 0),
    "Q4_0": ((3e-3,), 0),
}


def drawn(rng: np.random.Generator, kind: str) -> NDArray[np.uint8]:
    """Return random blocks of a type."""
    found, (scales, at) = blocks(rng, quants.TYPES[kind], DRAWN), SCALES[kind]
    raw = np.array(scales, np.float16).view(np.uint8)
    found[:, at : at + len(raw)] = raw
    return found


def write_file(
    path: Path,
    cfg: LlamaConfig,
    type_of: Callable[[str], str] = lambda name: "Q4_K",
    *,
    untied: bool = False,
) -> None:
    """Write a model of random blocks of a type for each matrix; norms are ones, routers floats."""
    rng, model = np.random.default_rng(0), architecture(cfg.arch)
    shapes = model.shapes(cfg, RecipeOptions(untied=untied))
    of = {kind: drawn(rng, kind) for kind in sorted(set(map(type_of, shapes)))}
    tensors: dict[str, Any] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensors[name] = np.ones(shape, np.float32), "F32"
        elif "ffn_gate_inp" in name:
            tensors[name] = rng.standard_normal(shape, np.float32) / 45, "F32"
        else:
            elements, nbytes = quants.BLOCKS[kind := type_of(name)]
            row = (*shape[:-1], shape[-1] // elements * nbytes)
            make = lambda row=row, kind=kind: np.resize(of[kind], prod(row)).reshape(row)  # noqa: E731
            tensors[name] = gguf.Deferred(row, np.dtype(np.uint8), make), kind
    metadata = {f"{cfg.arch}.{key}": value for key, value in model.write(cfg).items()}
    own = {"general.architecture": cfg.arch, "tokenizer.ggml.model": "no_vocab"}
    gguf.write(path, own | metadata, tensors)


def spent() -> tuple[float, float, int]:
    """Return wall seconds, CPU seconds, and the bytes read from the disk."""
    text = Path("/proc/self/io").read_text()
    read = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("read_bytes"))
    return time.perf_counter(), time.process_time(), read


def main() -> None:
    """Write the file, if it is not there, and take some steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    path = options.folder / f"{options.model}.gguf"
    if not path.exists():
        write_file(path, MODELS[options.model])
        os.sync()
    toynn.set_float32_matmul_precision("medium")
    recipe, adamw = toynn.recipes.LoRA(), toynn.AdamW.for_lora()
    recipe.realize(path, None, 8, RecipeOptions(t_seq=options.seq), 16.0, "attention")
    rng = np.random.default_rng(0)
    for k in range(options.steps):
        ids, labels = rng.integers(0, SHAPE["vocab"], (2, options.seq), np.int32)
        before = spent()
        recipe.step(ids, None, labels, adamw.hp_for_step(k), k == 0)
        wall, cpu, read = (b - a for a, b in zip(before, spent(), strict=True))
        print(f"step {k}: {wall:.1f} s, {cpu:.1f} s of the CPU, {read / 1e9:.1f} GB read")
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{held / 1e9:.1f} GB resident at most, pages of the file among them")


if __name__ == "__main__":
    main()
