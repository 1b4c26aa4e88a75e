"""Interrupt calls of every recipe, many times: ``python -m tests.interrupts --count 2000``.

Each recipe is walked through its calls, of which each is interrupted at random instructions of
Python, and, a quarter as often, by an alarm at a random moment. Behind each interrupt a call must
have been made wholly or not at all, and what follows has the bits that it has without interrupts.
tests/recipes/test_interrupts.py has a few.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import interrupting
from lora_bases import write_base


def main():
    """Interrupt each recipe as often as the arguments say; what goes wrong is an AssertionError."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", nargs="*", choices=interrupting.RECIPES)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    count = arguments.count
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.recipe or interrupting.RECIPES:
            begin, course = time.time(), interrupting.Course(name, folder)
            chosen = _walked(course, arguments.seed, count, alarm=False)
            alarms = _walked(course, arguments.seed, count // 4, alarm=True)
            _say(name, f"{chosen} at instructions, {alarms} by alarms", begin)
        base = write_base(Path(folder) / "another.gguf")
        for name in interrupting.REALIZED if arguments.recipe is None else ():
            begin, times = time.time(), count // 40
            interrupting.realized(name, base, arguments.seed, times)
            _say(name, f"{times} while it was realized", begin)
    print("none was lost, and none has changed what followed")
    return 0


def _say(name, what, begin):
    print(f"{name:14} {what}, {time.time() - begin:.0f} s", flush=True)


def _walked(course, seed, wanted, *, alarm):
    done = 0
    while done < wanted:
        done += course.interrupted(seed, 3, alarm=alarm)
        seed += 1
    return done


if __name__ == "__main__":
    sys.exit(main())
