"""The watchdog of this rank: a small process that reports it if the rank is killed."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from toynn.system.platform import ASKS_TO_STOP


class Watchdog:
    """A watchdog process, which runs until ``end`` or the end of this process."""

    def __init__(self, rank: str) -> None:
        """Start the watchdog of a rank. Without it, only mpiexec reports a rank that is killed."""
        self._lost = (
            f"toynn: error: {rank}, process {os.getpid()}, has ended without a message: killed, or "
            "out of memory; all ranks stop"
        )
        held = os.environ.get("PMI_FD", "")
        watchdog = Path(__file__).with_name("watchdog.py")
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError, ValueError):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(watchdog), *map(str, map(int, ASKS_TO_STOP))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(int(held),) if held.isdigit() else (),
            )

        self._write(self._lost)

    def hint(self, what: str) -> None:
        """Set the advice that the report adds."""
        self._write(" ".join(f"{self._lost}; {what}".splitlines()))

    def end(self) -> None:
        """End the watchdog, since this process ends normally."""
        self._write("bye")
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _write(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
