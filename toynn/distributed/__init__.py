"""Training by several processes, which ``mpiexec`` starts; each has a rank.

    mpiexec -n 4 python script.py

    group = toynn.distributed.init()
    group.rank, group.size          this process's rank, from 0, and their number; or rank(), size()

Without mpiexec a group has one member, and its calls do nothing: a script need not check.
``toynn.train.Trainer`` makes all the calls that several ranks need.
"""

from toynn.distributed.cost import LINKS, Cost
from toynn.distributed.group import Group
from toynn.distributed.start import current, init
from toynn.distributed.sums import ORDERS
from toynn.distributed.waits import PATIENCE

__all__ = ["LINKS", "ORDERS", "PATIENCE", "Cost", "Group", "current", "init", "rank", "size"]


def rank() -> int:
    """Return the rank of this process, from 0."""
    return init().rank


def size() -> int:
    """Return the number of processes that train together."""
    return init().size
