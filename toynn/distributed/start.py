"""Join the other ranks, once per process; one rank reports an error before that."""

import atexit
import os
import socket
import sys
import time
from typing import NoReturn

from toynn.distributed import mpi
from toynn.distributed.group import Group
from toynn.distributed.launcher import Launch
from toynn.distributed.ranks import Ranks
from toynn.distributed.watch import Watchdog
from toynn.errors import BackendUnavailable
from toynn.system.printing import print_line

__all__ = ["current", "init"]

#: Seconds that every rank but the first waits before it prints an error. If all ranks have the same
#: error, rank 0 has printed it by then, and mpiexec has ended the others.
TURN = 10.0

FLUSH = 2.0  # seconds in which mpiexec passes on what was said, before it ends all

_group: Group | None = None


def current() -> Group:
    """Return the group that ``init`` has made, or a group of one: this joins none."""
    return _group or Group()


def init() -> Group:
    """Return the group of the processes that mpiexec has started; a group of one outside of it.

    The first call joins them, and all must make it. Where mpi4py is missing, or the mpiexec is
    another MPI's than that of mpi4py, one rank says so, and all end.
    """
    global _group
    if _group is None:
        launch = Launch.found()
        _group = Group() if launch is None or launch.size == 1 else _joined(launch)
    return _group


def _joined(launch: Launch) -> Ranks:
    watch = Watchdog(f"rank {launch.rank} of {launch.size} ({socket.gethostname()})")
    try:
        found = mpi.load(start=True)
    except BackendUnavailable as error:
        _end(launch, watch, str(error))
    if found.COMM_WORLD.size != launch.size:
        library, own = mpi.named(found.Get_library_version()), mpi.mpiexec()
        _end(
            launch,
            watch,
            f"mpiexec has started {launch.size} processes, but mpi4py's MPI ({library}) sees "
            f"{found.COMM_WORLD.size}: it is another MPI's mpiexec; use that of mpi4py's "
            f"({own or 'which is not found'}), or install mpi4py for the other",
        )
    group = Ranks(found, watch)
    atexit.register(group.leave)
    return group


def _end(launch: Launch, watch: Watchdog, why: str) -> NoReturn:
    """End this process, and with it all, before there is a group that could do so."""
    if launch.rank:
        time.sleep(TURN)
    print_line(f"toynn: error: rank {launch.rank} of {launch.size}: {why}")
    watch.end()
    pmi = os.environ.get("PMI_FD", "")
    if pmi.isdigit():  # MPICH's mpiexec waits for ranks that never joined: this tells it
        time.sleep(FLUSH)
        os.write(int(pmi), b"cmd=abort exitcode=2\n")
    sys.exit(2)
