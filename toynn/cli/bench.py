"""``toynn bench``: how fast each kernel is on this machine, each result checked first."""

from argparse import Namespace
from typing import Any

import numpy as np

import toynn
from toynn import _kernels
from toynn.cli._numbers import whole
from toynn.errors import ConfigError

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser("bench", help="time every kernel", allow_abbrev=False)
    parser.add_argument(
        "--only", metavar="OP", help=f"one kernel: {', '.join(_kernels.OPS)} (default: all)"
    )
    parser.add_argument("--threads", type=whole(1, 1024), metavar="N", help="default: one per core")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Check and time every entry at the case table's named shapes; print a row for each."""
    from toynn.testing.cases import CASES
    from toynn.testing.doors import check, invoke, seconds

    if arguments.only and arguments.only not in CASES:
        raise ConfigError(f"bench: no kernel {arguments.only!r}; there are {', '.join(CASES)}")
    n_threads = arguments.threads or toynn.get_num_threads()
    print(f"ISA level {_kernels.level}, threads {n_threads}; medians, float32")
    print(f"{'kernel':30} {'shape':18} {'ms':>9} {'GFLOP/s':>9} {'GB/s':>8}")
    for op in [arguments.only] if arguments.only else CASES:
        for name, sizes in CASES[op].bench.items():
            for call in CASES[op].calls(np.random.default_rng(0), **sizes):
                check(op, call, invoke(op, call, n_threads))
                time = seconds(op, call, n_threads)
                rates = f"{call.flops / time / 1e9:9.1f} {call.nbytes / time / 1e9:8.1f}"
                print(f"{op + '.' + call.entry:30} {name:18} {time * 1e3:9.3f} {rates}", flush=True)
    return 0
