"""Whole jobs in hours, gigabytes and joules: ``python bench/runs.py FOLDER 135M 1.1B 8B``.

LoRA (rank 8, all linear layers) over files with the shapes and types of SmolLM2-135M in Q8_0,
TinyLlama-1.1B and Llama-3.1-8B in Q4_K_M. The weights are random: their values change neither time
nor memory. Some steps are timed, each row in a process of its own, and the time of 1,000 examples
of natural lengths is extrapolated from their median. PEFT takes the same steps in bfloat16 where
its weights fit into memory. To hold the memory, run it in a control group: this counts the pages of
mapped files, too. Joules are those of the whole package, where Linux lets one read them.
"""

import argparse
import json
import statistics
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from beyond import spent, write_file
from lora import anonymous, peft_step, recipe_over, toynn_calls
from real import lengths

import toynn
from toynn._kernels import matmul
from toynn.data.examples import Examples
from toynn.data.packing import PackedExamples
from toynn.system.machine import free_memory
from toynn.testing.lora_step import Shape

JOULES = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
EXAMPLES, PEFT = 1000, "PEFT bfloat16"


class Model(NamedTuple):
    """A shape and the types of its file."""

    shape: Shape
    q4_k_m: bool

    def type_of(self, name: str) -> str:
        """Return the type of a matrix: Q8_0, or what llama.cpp's mix Q4_K_M has there."""
        if not self.q4_k_m:
            return "Q8_0"
        if name == "output.weight":
            return "Q6_K"
        if "attn_v." not in name and "ffn_down." not in name:
            return "Q4_K"
        block, layers = int(name.split(".")[1]), self.shape.layers
        more = block < layers // 8 or block >= 7 * layers // 8 or (block - layers // 8) % 3 == 2
        return "Q6_K" if more else "Q4_K"


MODELS = {
    "135M": Model(Shape(576, 30, 9, 3, 1536, 49152, False, 512), False),
    "1.1B": Model(Shape(2048, 22, 32, 4, 5632, 32000, True, 512), True),
    "8B": Model(Shape(4096, 32, 32, 8, 14336, 128256, True, 512), True),
}


def packed_rows(seq: int) -> float:
    """Return the rows of seq tokens that EXAMPLES examples of natural lengths fill."""
    found = Examples(seq)
    for prompt, answer in lengths(EXAMPLES).tolist():
        found.append([([1] * prompt, False), ([1] * answer, True)])
    return PackedExamples(found, 1, 0).per_epoch


def energy() -> float | None:
    """Return the joules that the package has taken so far; None where Linux does not say."""
    try:
        return int(JOULES.read_text()) / 1e6
    except OSError:
        return None


def measured(path: Path, model: Model, options: argparse.Namespace) -> dict[str, Any]:
    """Take steps in this process; return seconds, bytes and joules of one."""
    shape = model.shape._replace(T=options.seq[0])
    before = anonymous()
    if options.precision[0] == PEFT:
        step = peft_step(shape, "bfloat16", options.threads)
    else:
        toynn.set_num_threads(options.threads)
        recipe = recipe_over(
            path, shape, precision=options.precision[0], checkpointing=options.checkpointing
        )
        step = toynn_calls(recipe, shape)["toynn"]
    step()
    walls, cpus, start = [], [], energy()
    for _ in range(options.steps):
        at = spent()
        step()
        wall, cpu, _ = (b - a for a, b in zip(at, spent(), strict=True))
        walls.append(wall)
        cpus.append(cpu)
    joules = None if start is None else (energy() - start) / options.steps
    found = {"wall": statistics.median(walls), "cpu": statistics.median(cpus), "joules": joules}
    return found | {"held": anonymous() - before}


def row(path: Path, name: str, seq: int, precision: str, options: argparse.Namespace) -> str:
    """Measure in a process of its own; return a line of the table, or why there is none."""
    model, own = MODELS[name], [sys.executable, __file__, str(path.parent), name, "--here"]
    head = f"{name:6}{seq:6} {precision:14}"
    weights = 2 * sum(map(prod, model.shape.config.shapes(untied=model.shape.untied).values()))
    if precision == PEFT and (find_spec("peft") is None or weights > (free_memory() or 0)):
        return f"{head} not run: PEFT is not installed, or {weights / 1e9:.1f} GB are not free"
    own += ["--seq", str(seq), "--precision", precision, "--steps", str(options.steps)]
    own += ["--threads", str(options.threads), *["--checkpointing"] * options.checkpointing]
    done = subprocess.run(own, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return f"{head} ended with {done.returncode}"
    found = json.loads(done.stdout)
    hours = packed_rows(seq) * found["wall"] / 3600
    joules = "" if found["joules"] is None else f"{found['joules']:10.0f}"
    return (
        f"{head}{found['wall']:9.2f}{found['cpu']:9.2f}{seq / found['wall']:10.1f}"
        f"{found['held'] / 1e9:8.2f}{path.stat().st_size / 1e9:8.2f}{hours:9.2f}{joules}"
    )


def main() -> None:
    """Write the files that are not there; print a line for each model, length and precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+", choices=MODELS)
    parser.add_argument("--seq", type=int, nargs="+", default=[512, 2048])
    known = ("highest", "medium", *["int8"] * matmul.multiplies_quads(), PEFT)
    parser.add_argument("--precision", nargs="+", choices=known, default=list(known))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=toynn.get_num_threads())
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    paths = {name: options.folder / f"{name}.gguf" for name in options.models}
    if options.here:
        (path,) = paths.values()
        print(json.dumps(measured(path, MODELS[path.stem], options)))
        return
    print(f"{'model':6}{'T':>6} {'precision':14}{'s/step':>9}{'CPU s':>9}{'tokens/s':>10}", end="")
    print(f"{'GB':>8}{'file GB':>8}{'h/1,000':>9}{'' if energy() is None else '    J/step'}")
    for name, path in paths.items():
        shape = MODELS[name].shape
        if not path.exists():
            write_file(path, shape.config, MODELS[name].type_of, untied=shape.untied)
        for seq, precision in product(options.seq, options.precision):
            print(row(path, name, seq, precision, options), flush=True)


if __name__ == "__main__":
    main()
