"""The launcher of this process: mpiexec sets environment variables before any MPI is loaded."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

#: Variables of the rank and the number of processes: MPICH and Intel MPI, Open MPI, MVAPICH2.
VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)


@dataclass(frozen=True)
class Launch:
    """The rank of this process, and the number of processes."""

    rank: int
    size: int

    @classmethod
    def found(cls, variables: Mapping[str, str] = os.environ) -> "Launch | None":
        """Read them from the environment; None if no mpiexec has started this process."""
        for rank, size in VARIABLES:
            texts = variables.get(rank, ""), variables.get(size, "")
            if all(text.isascii() and text.isdigit() for text in texts):
                return cls(int(texts[0]), int(texts[1]))
        return None
