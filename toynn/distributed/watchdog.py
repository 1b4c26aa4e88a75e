"""Watch one rank, and report it if it ends without a word: killed, or out of memory.

A rank starts this process with a pipe as its standard input. Each line is a report; the last line
is printed when the pipe closes, that is, when the rank ends. "bye" prints nothing.
When a rank is gone, mpiexec kills whole process groups, watchdogs included. Only the watchdog of
the rank that went first is left. MPICH's mpiexec notices the end of a rank by the socket that
PMI_FD names. The watchdog holds that socket open, so it prints before the other ranks end.
"""

import os
import signal
import sys


def main() -> None:
    """Wait for the end of the standard input."""
    for number in sys.argv[1:]:  # signals that ask to stop
        signal.signal(int(number), signal.SIG_IGN)
    lines = sys.stdin.buffer.read().splitlines()
    if lines and lines[-1] != b"bye":
        os.write(2, lines[-1] + b"\n")


if __name__ == "__main__":
    main()
