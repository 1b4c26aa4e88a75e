"""A node in NumPy, to try an idea before it gets a kernel."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from toynn.graph.autograd import Backward
from toynn.graph.hosted import hosted
from toynn.graph.tape import Node, Tensor
from toynn.numerics import checks
from toynn.ops._shape import Recorder


def numpy(
    s: Recorder,
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None,
    inputs: Sequence[Tensor],
    shape: Sequence[int],
    *,
    pure: bool = False,
) -> Tensor:
    """Record y (shape) = ``forward(*inputs)``, of NumPy arrays; the program is cut there.

        def huber(d):
            return np.where(abs(d) < 1, d * d / 2, abs(d) - 0.5)

        def huber_backward(dy, d):
            return dy * np.clip(d, -1, 1)

        y = ops.numpy(s, huber, huber_backward, [d], d.shape)

    ``backward(dy, *inputs)`` returns a gradient for each input, None for one without; a single
    array if there is one input. ``backward`` None: no gradient flows back. Arrays are read-only
    views of the session's memory, which the functions must not keep. The backends cpu and reference
    call them, in one thread. ``pure`` promises the same result for the same arrays: without it the
    node cannot be in a block that is recomputed.

    Raises ShapeError for an impossible shape.
    """
    name = getattr(forward, "__name__", "function").strip("<>")
    dimensions = checks.dimensions(f"ops.numpy {name}", shape)
    names = [f"x{i}" for i in range(len(inputs))]
    called = dict(zip(names, inputs, strict=True))

    @wraps(forward)
    def compute(*arrays: Any) -> tuple[Any, ...]:
        return (forward(*arrays),)

    def gradient(back: Backward, node: Node, dy: Tensor) -> None:
        wanted = [x for x in names if back.wants(node[x]) and node[x].dtype == "f32"]
        if backward is None or not wanted:
            return

        @wraps(backward)
        def compute_backward(*arrays: Any) -> list[Any]:
            gradients = backward(*arrays)
            gradients = gradients if isinstance(gradients, tuple | list) else [gradients]
            if len(gradients) != len(names):
                raise ValueError(
                    f"{len(names)} inputs need {len(names)} gradients; got {len(gradients)}"
                )
            return [gradients[names.index(x)] for x in wanted]

        tensors = {x: node[x] for x in names}
        outputs = {f"d{x}": node[x] for x in wanted}
        op = hosted(f"{name}_backward", outputs, {"dy": dy, **tensors}, compute_backward, pure)
        back.emit(op, outputs, {"dy": dy, **tensors})

    y = s.tape.new(name, dimensions)
    op = hosted(name, {"y": y}, called, compute, pure, gradient)
    return s.tape.record(op, {"y": y, **called}).output
