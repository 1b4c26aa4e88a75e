"""``toynn selftest``: compare this machine's results with float64, as a report to paste."""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toynn import backends
from toynn.backends.threads import get_num_threads
from toynn.cli._commands import add_command
from toynn.cli._flags import add
from toynn.cli.bench import print_limits
from toynn.jobs.options import BACKEND
from toynn.system.machine import total_memory

if TYPE_CHECKING:  # the case table is imported only when it is needed
    from toynn.testing.selftest import Found


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "selftest")
    help_ = "backend to check: cpu, or a Mac's GPU"
    add(parser, replace(BACKEND, read=None, words=("cpu", "metal"), help=help_))
    parser.add_argument("--no-speeds", action="store_true", help="leave the timings out")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the report; return 2 if anything is wrong or the backend is not available."""
    from importlib.metadata import version

    from toynn.backends.config import describe
    from toynn.testing import selftest

    name = arguments.backend
    limits = getattr(backends.get(name), "limits", {})
    about = describe() | {"numpy": version("numpy")}
    if memory := total_memory():
        about["memory"] = f"{memory / 2**30:.1f} GiB"
    about |= {f"device {key}": value for key, value in limits.items()}
    print("```")
    for key, value in about.items():
        print(f"{key:26} {value}")
    print("\nkernels against float64")
    wrong = _report(selftest.kernels(name))
    print(f"\n{selftest.STEPS} steps of each recipe against {selftest.beside(name)}")
    wrong += _report(selftest.recipes(name))
    print("\nruns of the command line")
    wrong += _report(selftest.resumed(name))
    if not arguments.no_speeds:
        print()
        _print_speeds(name)
    print(f"\n{'all right' if not wrong else f'{wrong} wrong'}")
    print("```")
    return 2 if wrong else 0


def _print_speeds(name: str) -> None:
    from toynn.testing import limits, selftest

    if name == "cpu":
        print_limits(limits.measure(get_num_threads()))
        print("\nspeeds")
        for each in selftest.speeds(name):
            print(f"  {each}")
        return
    print("speeds, and those of the CPU")
    for speed, cpu in zip(selftest.speeds(name), selftest.speeds("cpu"), strict=True):
        print(f"  {speed}; cpu {cpu.rpartition(': ')[2]}")


def _report(checks: "Iterable[Found]") -> int:
    """Print a line for each check; return how many are wrong."""
    wrong = 0
    for name, right, said in checks:
        print(f"  {name:24} {'ok   ' if right else 'WRONG'} {said}", flush=True)
        wrong += not right
    return wrong
