"""Join the other ranks, once per process; report an error that comes before that."""

import atexit
import os
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from toynn.distributed.group import Group
from toynn.distributed.launcher import Launch
from toynn.errors import BackendUnavailable
from toynn.system.printing import print_line

if TYPE_CHECKING:
    from toynn.distributed.watch import Watchdog

#: Seconds that every rank but the first waits before it prints an error. If all ranks have the same
#: error, rank 0 has printed it by then, and mpiexec has ended the others.
TURN = 10.0

FLUSH = 2.0  # seconds for mpiexec to pass on the message before it ends all

_group: Group | None = None


def current() -> Group:
    """Return the group that ``init`` has made, or a group of one; does not join."""
    return _group or Group()


def init() -> Group:
    """Return the group of the processes that mpiexec has started; without it, a group of one.

    The first call joins the other processes, which must all make it. If mpi4py is missing, or
    mpiexec belongs to another MPI than mpi4py uses, one rank prints the error and all end.
    """
    global _group
    if _group is None:
        launch = Launch.found()
        _group = Group() if launch is None or launch.size == 1 else _joined(launch)
    return _group


def _joined(launch: Launch) -> Group:
    import socket

    from toynn.distributed import mpi
    from toynn.distributed.ranks import Ranks
    from toynn.distributed.watch import Watchdog

    watch = Watchdog(f"rank {launch.rank} of {launch.size} ({socket.gethostname()})")
    try:
        loaded = mpi.load(start=True)
    except BackendUnavailable as error:
        _end(launch, watch, str(error))
    if loaded.COMM_WORLD.size != launch.size:
        library, theirs = mpi.named(loaded.Get_library_version()), mpi.mpiexec()
        _end(
            launch,
            watch,
            f"mpiexec has started {launch.size} processes, but mpi4py's MPI ({library}) sees "
            f"{loaded.COMM_WORLD.size}: mpiexec belongs to another MPI. Use the mpiexec of "
            f"mpi4py's MPI ({theirs or 'not found'}), or install mpi4py for the other",
        )
    group = Ranks(loaded, watch)
    atexit.register(group.leave)
    return group


def _end(launch: Launch, watch: "Watchdog", why: str) -> NoReturn:
    """End all processes before there is a group that could."""
    if launch.rank:
        time.sleep(TURN)
    print_line(f"toynn: error: rank {launch.rank} of {launch.size}: {why}")
    watch.end()
    pmi = os.environ.get("PMI_FD", "")
    if pmi.isdigit():  # MPICH's mpiexec waits for ranks that never joined: this ends them
        time.sleep(FLUSH)
        os.write(int(pmi), b"cmd=abort exitcode=2\n")
    sys.exit(2)
