"""Watches one rank, and says so if that ends without a word: killed, or thrown out for memory.

A process of its own, started by the rank with a pipe as its standard input. Each line is what to
say; the last one counts, and "bye" is nothing. It ends with the pipe, that is, with the rank.
mpiexec kills whole process groups when a rank is gone, and so the witnesses of those that it kills:
one is left, that of the rank that went first. MPICH's mpiexec learns that from the socket that
PMI_FD names, which the witness holds open: it has spoken before the others end.
"""

import os
import signal
import sys


def main() -> None:
    """Wait for the end of the standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = sys.stdin.buffer.read().splitlines()
    if lines and lines[-1] != b"bye":
        os.write(2, lines[-1] + b"\n")


if __name__ == "__main__":
    main()
