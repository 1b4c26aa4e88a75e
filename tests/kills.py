"""Kill runs of every recipe, many times: ``python -m tests.kills --moments 50 --writes 20``.

Each run is killed at random moments, or at random calls that change the disk, resumed, and at its
end compared byte by byte with one that was never killed. tests/train/test_resume.py has a few.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import killing
import runs


def main():
    """Kill as often as the arguments say; return 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--writes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return _all(Path(folder), arguments)


def _all(work, arguments):
    names, rng, lost, begin = sorted(runs.RECIPES), random.Random(arguments.seed), 0, time.time()
    for name in names:
        runs.trainer(name, work, folder=work / name).fit()
    done = {"moments": 0, "writes": 0}
    for kind, wanted in (("moments", arguments.moments), ("writes", arguments.writes)):
        while done[kind] < wanted:
            name, out = names[done[kind] % len(names)], work / f"{kind}-{done[kind]}"
            if kind == "moments":
                left = min(5, wanted - done[kind])
                done[kind] += killing.killed_at_moments(name, work, out, left, rng.random())
            else:
                done[kind] += killing.killed_in_writing(name, work, out, rng.randrange(130))
                killing.go_on(name, work, out)
            same = runs.learned(out) == runs.learned(work / name)
            lost += not same
            print(f"{name:14} {kind} {done[kind]:3}/{wanted}  {'same' if same else 'LOST'}")
    print(f"{sum(done.values())} kills, {lost} with another end, {time.time() - begin:.0f} s")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
