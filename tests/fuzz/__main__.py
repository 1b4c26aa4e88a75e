"""python -m tests.fuzz --minutes 30 [--reader gguf] [--seed 1]: damaged files, until time is up.

    python -m tests.fuzz --cases 200000 --reader csv parquet      so many of each of these

Each reader has its turns, in a process of its own: one that dies, or takes more than a minute of
the CPU for a turn of two seconds, is a find, too. Finds are kept in tests/fuzz/finds and read again
by the suite.
"""

import argparse
import faulthandler
import itertools
import multiprocessing
import resource
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers"), str(ROOT / "tests" / "fuzz")]

from finds import keep  # noqa: E402
from hang import HANG  # noqa: E402
from readers import READERS  # noqa: E402
from run import case, described, little_room, read  # noqa: E402

#: Where files cost no disk, if there is such a place: twice as many cases a second.
IN_MEMORY = Path("/dev/shm")
TURN, PATIENCE = 2.0, 60  # seconds: of the clock, and, of what hangs, of the CPU


def turn(reader, seed, begin, number, finds):
    """Read cases for some seconds; number says at which one the process is."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE + 5))
    where = IN_MEMORY if IN_MEMORY.is_dir() else None
    with TemporaryDirectory(dir=where) as folder, little_room():
        until = time.monotonic() + TURN
        for number.value in itertools.count(begin):
            files = case(reader, seed, number.value)
            try:
                read(reader, files, Path(folder))
            except BaseException as error:
                finds.put((number.value, described(error)))
            if time.monotonic() > until:
                return


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--cases", type=int, help="of each reader; --minutes then does not count")
    parser.add_argument("--reader", nargs="+", choices=[reader.name for reader in READERS])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    chosen = [r for r in READERS if r.name in (arguments.reader or [r.name])]
    counts = dict.fromkeys((reader.name for reader in chosen), 0)
    context, found = multiprocessing.get_context("fork"), 0
    begin = time.monotonic()
    for reader in itertools.cycle(chosen):
        if arguments.cases is None and time.monotonic() - begin > 60 * arguments.minutes:
            break
        if arguments.cases is not None and min(counts.values()) >= arguments.cases:
            break
        if arguments.cases is not None and counts[reader.name] >= arguments.cases:
            continue
        reader.whole()
        number, finds = context.Value("q", 0), context.SimpleQueue()
        given = (reader, arguments.seed, counts[reader.name], number, finds)
        process = context.Process(target=turn, args=given)
        process.start()
        process.join(HANG)
        if process.is_alive() or process.exitcode:
            hangs = process.is_alive() or process.exitcode == -signal.SIGXCPU
            end = "hangs" if hangs else f"ends with {process.exitcode}"
            process.kill()
            process.join()
            finds.put((number.value, f"the process {end}"))
        while not finds.empty():
            at, what = finds.get()
            found += 1
            print(f"{reader.name}: {keep(reader, case(reader, arguments.seed, at))}\n{what}")
        counts[reader.name] = number.value + 1
    seconds = time.monotonic() - begin
    for name, count in counts.items():
        print(f"{name:12} {count:9,} cases")
    total = sum(counts.values())
    print(f"{total:,} cases, {total / seconds:.0f} a second, {found} finds (seed {arguments.seed})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
