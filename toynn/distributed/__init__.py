"""The processes that train together: those that ``mpiexec`` has started, each with a rank.

    mpiexec -n 4 python script.py

    group = toynn.distributed.init()
    group.rank, group.size          which of how many this one is, from 0 on; or rank(), size()

Outside of mpiexec a group has one member, and all that it does is nothing: a script need not ask.
``toynn.train.Trainer`` does what is to be done among several.
"""

from toynn.distributed.cost import LINKS, Cost
from toynn.distributed.group import Group
from toynn.distributed.start import current, init
from toynn.distributed.sums import ORDERS
from toynn.distributed.waits import PATIENCE

__all__ = ["LINKS", "ORDERS", "PATIENCE", "Cost", "Group", "current", "init", "rank", "size"]


def rank() -> int:
    """Return which of the processes this one is, from 0 on."""
    return init().rank


def size() -> int:
    """Return how many processes train together."""
    return init().size
