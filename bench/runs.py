"""Whole jobs in hours, gigabytes and joules: ``python bench/runs.py FOLDER 135M 1.1B 8B``.

LoRA (rank 8, all linear layers) over files with the shapes and types of SmolLM2-135M in Q8_0,
TinyLlama-1.1B and Llama-3.1-8B in Q4_K_M. The weights are random: their values change neither time
nor memory. Some steps are timed, each row in a process of its own, by the fastest plan that fits.
The time of 1,000 examples of natural lengths is extrapolated from the median step. PEFT takes the
same steps in bfloat16 where its weights fit into memory. ``--held`` runs each row in a control
group of that memory, which also counts the pages of mapped files. Joules are those of the whole CPU
package, where Linux lets one read them. ``--fits`` prints which plan fits into how much memory, and
runs nothing.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from beyond import spent, write_file
from lora import anonymous, peft_step, recipe_over, toynn_calls
from real import lengths
from rows import lora_precisions
from smallest import smallest

import toynn
from toynn.data.examples import Examples
from toynn.data.packing import PackedExamples
from toynn.engines.plans import Plan
from toynn.formats import gguf
from toynn.jobs.memory import plans_of_adapters, read_by_step
from toynn.options import RecipeOptions
from toynn.system.machine import free_memory
from toynn.testing.lora_step import Shape

JOULES = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
GROUPS = Path("/sys/fs/cgroup")
FITS = 8, 16, 32  # gigabytes
LONGEST = 32768  # tokens of a row
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
    "135M": Model(Shape(576, 30, 9, 3, 1536, 49152, False, LONGEST), False),
    "1.1B": Model(Shape(2048, 22, 32, 4, 5632, 32000, True, LONGEST), True),
    "8B": Model(Shape(4096, 32, 32, 8, 14336, 128256, True, LONGEST), True),
}
MODELS = {
    name: smallest(of, Model(Shape(256, 1, 4, 2, 256, 512, True, LONGEST), of.q4_k_m))
    for name, of in MODELS.items()
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


@contextmanager
def held(gigabytes: float | None) -> Iterator[Callable[[], None] | None]:
    """Yield what a new process calls to enter a control group of that memory; None: no group."""
    if gigabytes is None:
        yield None
        return
    first = (GROUPS / "memory").exists()
    group = GROUPS / ("memory" if first else ".") / f"toynn-{os.getpid()}"
    group.mkdir()
    try:
        limit = group / ("memory.limit_in_bytes" if first else "memory.max")
        limit.write_text(str(int(gigabytes * 1e9)))
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    finally:
        group.rmdir()


def fitting(path: Path, seq: int, precision: str, room: float) -> tuple[Plan, bool]:
    """Return the fastest plan that fits beside the file, else the smallest; and whether it fits."""
    with gguf.open(path) as file:
        options = RecipeOptions(t_seq=seq, t_batch=1, precision=precision)
        every = plans_of_adapters(file, options)
        found = [plan for plan in every if plan.level.activations == "float32"]  # the same bits
        read = read_by_step(file, seq)
    fits = [plan for plan in found if plan.memory.peak + plan.of_file(read) <= room]
    return (fits or found[-1:])[0], bool(fits)


def measured(path: Path, model: Model, options: argparse.Namespace) -> dict[str, Any]:
    """Take steps in this process; return seconds, bytes, joules and the plan of one."""
    (seq,), (precision,) = options.seq, options.precision
    shape = model.shape._replace(T=seq)
    before, plan = anonymous(), ""
    if precision == PEFT:
        step = peft_step(shape, "bfloat16", options.threads)
    else:
        toynn.set_num_threads(options.threads)
        chosen, _ = fitting(path, seq, precision, free_memory() or 0)
        plan = chosen.name
        recipe = recipe_over(path, shape, precision=precision, **chosen.options)
        step = toynn_calls(recipe, shape)["toynn"]
    step()
    start = energy()
    walls, cpus, reads = zip(*(taken(step) for _ in range(options.steps)), strict=True)
    joules = None if start is None else ((energy() or 0) - start) / options.steps
    of = {"wall": walls, "cpu": cpus, "read": reads}
    found = {name: statistics.median(each) for name, each in of.items()}
    return found | {"joules": joules, "held": anonymous() - before, "plan": plan}


def taken(step: Callable[[], object]) -> list[float]:
    """Take a step; return the seconds that passed, those of the CPU, and the bytes read."""
    before = spent()
    step()
    return [b - a for a, b in zip(before, spent(), strict=True)]


def row(path: Path, name: str, seq: int, precision: str, options: argparse.Namespace) -> str:
    """Measure in a process of its own; return a line of the table, or why there is none."""
    model, own = MODELS[name], [sys.executable, __file__, str(path.parent), name, "--here"]
    head = f"{name:6}{seq:6} {precision:14}"
    weights = 2 * sum(map(prod, model.shape.config.shapes(untied=model.shape.untied).values()))
    room = min(free_memory() or 0, math.inf if options.held is None else options.held * 1e9)
    if precision == PEFT and (find_spec("peft") is None or weights > room):
        return f"{head} not run: PEFT is not installed, or {weights / 1e9:.1f} GB are not free"
    own += ["--seq", str(seq), "--precision", precision, "--steps", str(options.steps)]
    own += ["--threads", str(options.threads)]
    with held(options.held) as enter:
        done = subprocess.run(own, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
    if done.returncode:
        return f"{head} ended with {done.returncode}"
    found = json.loads(done.stdout)
    hours = packed_rows(seq) * found["wall"] / 3600
    joules = "" if found["joules"] is None else f"{found['joules']:10.0f}"
    return (
        f"{head}{found['wall']:9.2f}{found['cpu']:9.2f}{seq / found['wall']:10.1f}"
        f"{found['held'] / 1e9:8.2f}{found['read'] / 1e9:8.2f}{hours:9.2f}{joules}  {found['plan']}"
    )


def fits_row(path: Path, name: str, seq: int, precision: str) -> str:
    """Return the plans that fit into FITS gigabytes, and what they take."""
    cells = []
    for gigabytes in FITS:
        plan, fits = fitting(path, seq, precision, gigabytes * 1e9)
        how = plan.name or "as it is"
        cells.append(f"{how if fits else 'file read again'} {plan.memory.peak / 1e9:.2f}")
    return f"{name:6}{seq:6} {precision:14}{''.join(f'{cell:>44}' for cell in cells)}"


def main() -> None:
    """Write the files that are not there; print a line for each model, length and precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+", choices=MODELS)
    parser.add_argument("--seq", type=int, nargs="+", default=smallest([512, 2048], [512]))
    known = [*lora_precisions(), PEFT]
    parser.add_argument("--precision", nargs="+", choices=known, default=known)
    parser.add_argument("--steps", type=int, default=smallest(20, 1))
    parser.add_argument("--threads", type=int, default=toynn.get_num_threads())
    parser.add_argument("--held", type=float, metavar="GB", help="run in a control group")
    parser.add_argument("--fits", action="store_true", help="print plans; run nothing")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    paths = {name: options.folder / f"{name}.gguf" for name in options.models}
    if options.here:
        (path,) = paths.values()
        print(json.dumps(measured(path, MODELS[path.stem], options)))
        return
    head = f"{'model':6}{'T':>6} {'precision':14}"
    if options.fits:
        print(head, *(f"{f'{each} GB':>43}" for each in FITS))
    else:
        print(f"{head}{'s/step':>9}{'CPU s':>9}{'tokens/s':>10}{'GB':>8}{'read GB':>8}", end="")
        print(f"{'h/1,000':>9}{'' if energy() is None else '    J/step'}  plan")
    for name, path in paths.items():
        shape = MODELS[name].shape
        if not path.exists():
            write_file(path, shape.config, MODELS[name].type_of, untied=shape.untied)
        for seq, precision in product(options.seq, options.precision):
            if not options.fits:
                print(row(path, name, seq, precision, options), flush=True)
            elif precision != PEFT:
                print(fits_row(path, name, seq, precision), flush=True)


if __name__ == "__main__":
    main()
