"""The cost of training on several machines: a model of the time of a step.

    T(n) = T_1 + S(n)                       n machines, one rank on each; T_1: a step's own work
    S(n) = 2 (n - 1) / n  b / w + 2 (n - 1) a + b m

    b    bytes of all gradients
    w    bytes a second that a link carries, each way
    a    seconds of latency of a message
    m    seconds to copy and add a byte in memory

Each machine trains on a batch of its own: n machines are n T_1 / T(n) times as fast as one.
Source: Thakur, Rabenseifner, Gropp 2005, Optimization of collective communication operations in
MPICH, section 4 (reduce-scatter by pairs, allgather), with the order of sums fixed.
"""

from dataclasses import dataclass

#: Bytes a second of TCP over a link: 94 % of its bits.
LINKS = {"1 Gbit/s": 0.94e9 / 8, "10 Gbit/s": 9.4e9 / 8}
LATENCY = 50e-6  # seconds of a message over Ethernet and TCP


@dataclass(frozen=True)
class Cost:
    """The time of a step of one rank, and of the sum of gradients.

    Attributes
    ----------
    nbytes
        Bytes of all gradients.
    work
        Seconds of a step without the sum.
    memory
        Seconds to copy and add a byte.
    here
        Seconds of a sum over the ranks of this run.
    """

    nbytes: int
    work: float
    memory: float = 0.0
    here: float = 0.0

    def moved(self, ranks: int) -> float:
        """Return the bytes that each rank sends in a step; it receives as many."""
        return 2 * (ranks - 1) / ranks * self.nbytes

    def summing(self, machines: int, link: float, latency: float = LATENCY) -> float:
        """Return the seconds of a sum over ``machines``, with a link of ``link`` bytes a second."""
        if machines == 1:
            return 0.0
        there = self.moved(machines) / link + 2 * (machines - 1) * latency
        return there + self.nbytes * self.memory

    def step(self, machines: int, link: float) -> float:
        """Return the seconds of a step."""
        return self.work + self.summing(machines, link)

    def faster(self, machines: int, link: float) -> float:
        """Return how many times as fast as one machine they train."""
        return machines * self.work / self.step(machines, link)
