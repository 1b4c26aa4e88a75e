"""``toynn bench``: this machine's limits, and the speed of each kernel beside them."""

import json
from argparse import ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from toynn import _kernels
from toynn.backends.threads import get_num_threads, set_num_threads
from toynn.cli._commands import add_command
from toynn.cli._flags import add
from toynn.cli._scaling import DEFAULT, PARTS, scaling
from toynn.errors import ConfigError
from toynn.formats.files import write_atomically
from toynn.jobs.options import PRECISION, THREADS
from toynn.numerics.precision import PRECISIONS, set_float32_matmul_precision
from toynn.options import names_of, typed_path

if TYPE_CHECKING:  # the case table is imported only when it is needed
    from toynn.testing.limits import Limits
    from toynn.testing.race import Contestants
    from toynn.testing.roofline import KernelTime

STEPS = ("d64_L2_T32_B1", "d128_L4_T128_B8", "d256_L8_T256_B4", "gpt2_124m_T64_B4")
LORA = "smollm2_135m_T256"  # of toynn/testing/lora_step.py
#: The largest ratio of a step's time to its roofline: at highest, and at medium.
GOALS = {
    "d128_L4_T128_B8": (1.8, 1.8),
    "gpt2_124m_T64_B4": (1.6, 2.0),
    LORA: (1.8, 1.8),
}
CORES = (1, 2, 4, 8, 16)
MOST_CORES = 64  # scratch memory grows with them
ROUNDS = 3  # how often each contestant of a race runs
#: Kernels in a report to paste, by precision, and their shapes.
PASTED: dict[str, Sequence[str]] = {
    "highest": ("matmul", "attention", "rmsnorm", "adamw"),
    "medium": ("matmul", "attention"),
}
SHAPES = ("gpt2_fc", "llama_row_q8_0", "llama_row_q4_k", "gpt2_124m_t64", "gpt2_124m", "16m")

EPILOG = """\
Times are the best of many calls, with as many threads as a training step gives the kernel. Results
are checked first. GB/s counts each array once. docs/performance.md says how to read the tables.

The limits are measured first, by loops that only compute in registers, or only move memory. `limit`
says what bounds a kernel: multiply-adds, at the rate that --precision allows, or bytes moved.
`share` is the least time at that limit, divided by the measured time.

With --steps the rows are the kernels of whole training steps. A step's roofline is the time of all
its nodes at their limits. The goal is the largest ratio of a step's time to its roofline.
--compare runs the steps of GPT-2 in PyTorch too, in turns. One thread is timed by its CPU time.

With --scaling the rows are numbers of cores, measured or simulated, with the time lost. Serial: one
thread computes. Uneven: shares are too few or unequal. Hand-over: the pool is called. Growth: all
shares together take longer than on one thread. Memory: moving bytes takes longer than all this."""


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(
        commands,
        "bench",
        description="Measure this machine's limits, and how near the kernels come to them.",
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    kernels = "one kernel, such as matmul (default: all)"
    only: Any = parser.add_argument("--only", metavar="OP", help=kernels)
    only.words = tuple(_kernels.OPS)
    parser.add_argument(
        "--steps", action="store_true", help="time training steps instead, by kernel"
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="time the steps in turns with PyTorch (which must be installed)",
    )
    scaling_: Any = parser.add_argument(
        "--scaling",
        metavar="PARTS",
        nargs="?",
        const=",".join(DEFAULT),
        type=names_of(PARTS),
        help="show how these parts scale with cores, comma-separated: "
        f"{', '.join(PARTS)} (default: all but lora-1.1b, which takes minutes)",
    )
    scaling_.words = PARTS
    parser.add_argument(
        "--cores",
        metavar="N,N",
        type=_cores,
        default=CORES,
        help="numbers of cores for --scaling (default 1,2,4,8,16)",
    )
    parser.add_argument(
        "--bandwidth",
        metavar="GB/S",
        type=_bandwidth,
        default=float("inf"),
        help="memory bandwidth of all simulated cores together, for --scaling (default: no limit)",
    )
    parser.add_argument(
        "--paste",
        action="store_true",
        help="print a report to paste into an issue: this CPU, its limits, a few kernels",
    )
    add(parser, THREADS)
    help_ = "precision of matrix products"
    add(parser, replace(PRECISION, words=PRECISIONS, help=help_))
    parser.add_argument(
        "--json", type=typed_path, metavar="FILE", help="write the figures to a file too"
    )
    parser.set_defaults(run=run, saves="json")


def _cores(text: str) -> tuple[int, ...]:
    """Read comma-separated numbers of cores; 1 is always among them."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ArgumentTypeError(
            f"must be comma-separated whole numbers, such as 1,2,16; got {text!r}"
        )
    counts = {1, *map(int, words)}
    if min(counts) < 1 or max(counts) > MOST_CORES:
        raise ArgumentTypeError(f"must be numbers from 1 to {MOST_CORES}; got {text!r}")
    return tuple(sorted(counts))


def _bandwidth(text: str) -> float:
    """Read gigabytes per second."""
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = 0.0
    if not 0 < gigabytes < float("inf"):
        raise ArgumentTypeError(f"must be a number of gigabytes per second > 0; got {text!r}")
    return 1e9 * gigabytes


def run(arguments: Namespace) -> int:
    """Measure the limits, then time kernels or steps; print a row for each."""
    from toynn.backends.config import describe, show_config
    from toynn.testing.cases import CASES
    from toynn.testing.limits import measure
    from toynn.testing.roofline import kernel_rows

    steps = arguments.steps or arguments.compare
    if arguments.only and arguments.only not in CASES:
        raise ConfigError(
            f"bench: --only {arguments.only}: no such kernel; expected one of {', '.join(CASES)}"
        )
    if arguments.only and steps:
        raise ConfigError("bench: --only is for the table of kernels, without --steps or --compare")
    if arguments.paste and (arguments.only or steps):
        raise ConfigError("bench: --paste cannot be combined with --only, --steps or --compare")
    if arguments.scaling and (arguments.only or arguments.paste or steps or arguments.threads):
        raise ConfigError(
            "bench: --scaling cannot be combined with --only, --steps, --compare, --paste or "
            "--threads"
        )
    if not arguments.scaling and (arguments.cores, arguments.bandwidth) != (CORES, float("inf")):
        raise ConfigError("bench: --cores and --bandwidth are for --scaling")
    if arguments.compare and find_spec("torch") is None:
        raise ConfigError("bench: --compare needs PyTorch (pip install torch); --steps does not")
    if arguments.json:
        arguments.json.open("a").close()  # fail now, not after a minute's work
    set_float32_matmul_precision(arguments.precision)
    if arguments.threads:
        set_num_threads(arguments.threads)
    if arguments.scaling:
        print(f"ISA level {_kernels.level}, precision {arguments.precision}\n")
        parts = scaling(arguments.scaling.split(","), arguments.cores, arguments.bandwidth)
        return _write(arguments.json, {"config": describe(), "scaling": parts})
    n_threads = get_num_threads()
    limits = measure(n_threads)
    report: dict[str, Any] = {"config": describe(), "limits": asdict(limits)}
    if arguments.paste:
        print("```")
        show_config()
        print()
    else:
        print(f"ISA level {_kernels.level}, threads {n_threads}, precision {arguments.precision}\n")
    print_limits(limits)
    if steps:
        report["steps"] = [run_step(name, limits, arguments.compare) for name in STEPS]
        if not arguments.compare:
            report["steps"].append(run_lora_step(limits))
    else:
        every = [arguments.only] if arguments.only else list(CASES)
        its = PASTED if arguments.paste else {arguments.precision: every}
        report["kernels"] = []
        for precision, ops in its.items():
            print_heading(f"kernel, {precision}", "shape", "threads")
            for row in kernel_rows(ops, limits, precision, SHAPES if arguments.paste else None):
                print_row(row, row.shape, row.threads)
                report["kernels"].append(asdict(row))
    if arguments.paste:
        print("```")
    return _write(arguments.json, report)


def _write(path: Path | None, report: dict[str, Any]) -> int:
    """Write the figures to a file if there is one; return the exit status."""
    if path:
        write_atomically(path, (json.dumps(report, indent=1) + "\n").encode())
    return 0


def print_limits(limits: "Limits") -> None:
    """Print the rates of one thread and of all threads."""
    both = [limits.one, limits.all] if limits.n_threads > 1 else [limits.one]
    counts = ["1 thread", f"{limits.n_threads} threads"][: len(both)]
    print(f"{'limits of this machine':44}" + "".join(f"{count:>22}" for count in counts))
    for name in ("float32", "bfloat16", "tiles"):
        rates = [getattr(rates, name) for rates in both]
        cells = [f"{rate / 1e9:22.0f}" if rate else f"{'none':>22}" for rate in rates]
        print(f"{f'multiply-adds in {name}, GFLOP/s':44}" + "".join(cells))
    for size in limits.one.memory:
        cells = ["/".join(f"{rate / 1e9:.0f}" for rate in r.memory[size].values()) for r in both]
        title = f"memory, {_size(size)}: read/update/triad, GB/s"
        print(f"{title:44}" + "".join(f"{cell:>22}" for cell in cells))


def run_step(name: str, limits: "Limits", compare: bool) -> dict[str, Any]:
    """Time a training step, with ``compare`` PyTorch's too; print its time and its kernels."""
    from toynn.testing import steps

    shape = steps.SHAPES[name]
    recipe = steps.gpt2_recipe(shape)
    contestants = steps.contestants(shape, limits.n_threads, recipe=recipe, torch=compare)
    return time_step(name, contestants, recipe.session, limits)


def run_lora_step(limits: "Limits") -> dict[str, Any]:
    """Time a LoRA step over a temporary base file."""
    from toynn.testing import lora_step, steps

    shape = lora_step.SHAPES[LORA]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows: it is mapped
        path = Path(folder, "base.gguf")
        lora_step.write_file(path, shape)
        recipe = lora_step.recipe_over(path, shape)
        ids, labels = lora_step.batch(shape)
        step = steps.toynn_step(recipe, ids, None, labels)
        return time_step(LORA, {"toynn": step}, recipe.session, limits)


def time_step(
    name: str, contestants: "Contestants", session: Any, limits: "Limits"
) -> dict[str, Any]:
    """Time a step by all contestants; print its times, its roofline and toynn's kernels."""
    from toynn.testing.race import race
    from toynn.testing.roofline import least_seconds, step_rows

    clock = process_time if limits.n_threads == 1 else perf_counter
    times = race(contestants, ROUNDS, clock)
    rows = step_rows(name, contestants["toynn"], session, limits)
    least = least_seconds(session, limits)
    print()
    for who, spent in times.items():
        told = f"{name}: {who}, ms a step, best/median"
        slower = [of(spent) / of(times["toynn"]) for of in (min, median)]
        tail = "" if who == "toynn" else "   {:.2f}/{:.2f} times as long".format(*slower)
        print(f"{told:54}{min(spent) * 1e3:10.3f}/{median(spent) * 1e3:.3f}{tail}")
    goal = GOALS.get(name, (None, None))[session.matmul_precision == "medium"]
    told = f"   a step takes {min(times['toynn']) / least:.2f} times as long"
    told += f", the goal is {goal} at most" if goal else ""
    print(f"{'its roofline: all nodes at their limits':54}{least * 1e3:10.3f}{told}")
    print_heading("kernel", "", "calls")
    for row in rows:
        print_row(row, "", row.calls)
    kernels = [asdict(row) for row in rows]
    return {"shape": name, "seconds": times, "roofline": least, "goal": goal, "kernels": kernels}


def print_heading(*names: str) -> None:
    """Print the names of the columns of rows."""
    kernel, shape, count = names
    print(
        f"\n{kernel:32}{shape:20}{count:>8}{'ms':>10}{'GFLOP/s':>10}{'GB/s':>8}{'share':>8}  limit"
    )


def print_row(row: "KernelTime", shape: str, count: int) -> None:
    """Print a kernel, with its threads or its calls in a step."""
    rates = f"{row.gflops:10.1f}{row.gbytes:8.1f}{row.share:8.0%}  {row.limit}"
    print(f"{row.kernel:32}{shape:20}{count:8d}{row.seconds * 1e3:10.3f}{rates}", flush=True)


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KB"
