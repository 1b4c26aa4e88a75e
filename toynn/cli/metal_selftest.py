"""``toynn metal-selftest``: what a Mac's GPU computes beside the CPU, as a report to paste."""

from argparse import Namespace
from typing import Any

from toynn import backends
from toynn.backends.config import describe

__all__ = ["add_parser"]

BACKEND = "metal"


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    help_ = "check the Metal backend on this Mac; prints a report to paste into an issue"
    parser = commands.add_parser(
        "metal-selftest", help=help_, description=help_, allow_abbrev=False
    )
    parser.add_argument("--no-speeds", action="store_true", help="leave the timings out")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the report; return 2 if anything is wrong, as where there is no device."""
    from toynn.testing import selftest  # the case table is imported when it is needed

    limits = backends.get(BACKEND).limits  # type: ignore[attr-defined]
    about = {**describe(), **{f"device {key}": value for key, value in limits.items()}}
    print("```")
    for key, value in about.items():
        print(f"{key:26} {value}")
    print("\nkernels against float64")
    wrong = _report(selftest.kernels(BACKEND))
    print(f"\n{selftest.STEPS} steps of each recipe against the CPU")
    wrong += _report(selftest.recipes(BACKEND))
    if not arguments.no_speeds:
        print("\nspeeds, with the CPU's beside")
        for own, cpu in zip(selftest.speeds(BACKEND), selftest.speeds("cpu"), strict=True):
            print(f"  {own}; cpu {cpu.rpartition(': ')[2]}")
    print(f"\n{'all right' if not wrong else f'{wrong} wrong'}")
    print("```")
    return 2 if wrong else 0


def _report(found: Any) -> int:
    """Print a line for each check; return how many are wrong."""
    wrong = 0
    for name, right, said in found:
        print(f"  {name:24} {'ok   ' if right else 'WRONG'} {said}", flush=True)
        wrong += not right
    return wrong
