"""Run a tape node by node, and call a function that may read memory before and after each."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from toynn.backends.protocol import Buffer, Program, Stepping
from toynn.errors import ConfigError
from toynn.graph.storage import values_at
from toynn.graph.tape import Tape, Tensor
from toynn.graph.tensor import place_of

Read = Callable[[Tensor], NDArray[Any]]
Look = Callable[[int, bool, Read], object]  # node, whether it has run, a function to read memory


def check_stops(program: Program) -> None:
    """Raise ConfigError if the backend's programs run only whole phases."""
    if not isinstance(program, Stepping):
        raise ConfigError(
            f"run(look=...): {type(program).__name__} runs only whole phases; the backends cpu "
            "and reference stop at each node"
        )


def run_looking(
    program: Any,
    tape: Tape,
    phases: str,
    accumulate: bool,
    buffers: Mapping[str, Buffer],
    look: Look,
) -> None:
    """Run the nodes of these phases of a compiled tape one at a time; see Session.run."""

    def read(tensor: Tensor) -> NDArray[Any]:
        place = place_of(tensor, tape.places)
        return values_at(tensor, buffers[place.buffer], place.offset)

    for i, node in enumerate(tape.nodes):
        if node.phase in phases:
            look(i, False, read)
            program.run_one(i, accumulate)
            look(i, True, read)
