"""Watch one rank, and report it if it ends without a message: killed, or out of memory.

A rank starts this process with a pipe as its standard input, and writes its report there as a line.
When the rank ends, the pipe closes, and the watchdog prints the last line, unless it is "bye".

mpiexec ends a run by killing whole process groups, watchdogs included. MPICH's mpiexec notices the
end of a rank by the socket that PMI_FD names. The watchdog holds that socket open, so it prints
before mpiexec notices.
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
