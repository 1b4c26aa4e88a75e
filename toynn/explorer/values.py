"""The numbers of one step: memory before and after each node."""

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError, LifecycleError
from toynn.graph.tensor import Role, Tensor
from toynn.numerics.adamw_row import SLOTS

MOST = 1 << 20  # most numbers in a page: about 6 MB
STEP = 0.05  # of a finite difference: float32 losses of nearer weights differ too little

_UPDATED = (Role.PARAMETER, Role.MOMENT)
_ELEMENT = re.compile(r"(?P<name>.+?)\[(?P<index>\d+(?:\s*,\s*\d+)*)\]")


def recorded(session: Any, numbers: dict[Tensor, int]) -> dict[str, Any]:
    """Run the step of a session again on its current inputs; return its numbers.

    ``numbers`` gives each tensor of the tape an index. The result has two lists. ``versions`` are
    contents of tensors, each [tensor, base64 of its float32 or int32 numbers]. For each node that
    ran, ``nodes`` gives the version of each tensor before and after it. ``loss`` is the loss of the
    step, and that of the same inputs after its update; ``hp`` has AdamW's numbers by name. Weights
    and moments are restored; gradients are those of this step.

    Raises ConfigError for a step of more than MOST numbers, and for a backend that only runs whole
    phases. Raises LifecycleError for a session that cannot run yet or has pending micro-batches.
    """
    tape = session.tape
    size = sum(root.size for root in tape.roots)
    if size > MOST:
        raise ConfigError(
            f"values: the tensors of this step have {size:,} numbers; a page takes at most "
            f"{MOST:,}: take a smaller model, fewer tokens, or no values"
        )
    versions: list[list[Any]] = []
    newest: dict[int, tuple[bytes, int]] = {}
    nodes: list[dict[str, Any]] = []
    written: set[Tensor] = set()

    def version_of(tensor: Tensor, values: NDArray[Any]) -> int:
        number, raw = numbers[tensor], np.ascontiguousarray(values).tobytes()
        if number not in newest or newest[number][0] != raw:
            newest[number] = raw, len(versions)
            versions.append([number, base64.b64encode(raw).decode("ascii")])
        return newest[number][1]

    def look(i: int, done: bool, read: Any) -> None:
        node = tape.nodes[i]
        seen = node.outputs + node.saved if done else node.tensors
        roots = dict.fromkeys(t.root for t in seen if t is not None)
        if done:
            written.update(roots)
        else:  # before it is written, an activation's memory holds other tensors
            roots = {t: None for t in roots if t.role is not Role.ACTIVATION or t in written}
        shown = {str(numbers[root]): version_of(root, read(root)) for root in roots}
        if done:
            nodes[-1]["after"] = shown
        else:
            nodes.append({"node": i, "before": shown})

    with unchanged(session):
        if session.pending:
            raise LifecycleError("values: micro-batches wait for an update: run(to='apply') first")
        session.reset(moments=False)  # so that the page shows which node writes a gradient
        session.run(look=look)
        told: dict[str, Any] = {"versions": versions, "nodes": nodes}
        updates = (node for node in tape.nodes if node.op.kernel == "adamw.step")
        if update := next(updates, None):
            told["hp"] = dict(zip(SLOTS, session.download(update["hp"]).tolist(), strict=True))
        if tape.loss is not None:
            told["loss"] = [_loss(session, ran=True), _loss(session)]
    return told


def _loss(session: Any, *, ran: bool = False) -> float | None:
    """Return the loss of the current weights and inputs; None if it is not finite."""
    if not ran:
        session.run(to="loss")
    loss = float(session.download(session.tape.loss))
    return loss if np.isfinite(loss) else None


@contextmanager
def unchanged(session: Any) -> Iterator[None]:
    """Copy weights and moments; restore them after the body, which may take steps.

    Other threads that use the session meanwhile get LifecycleError.
    """
    with session.exclusively("looking at a step", signals=True):
        updated = [tensor for tensor in session.tape.roots if tensor.role in _UPDATED]
        before = {tensor: session.download(tensor) for tensor in updated}
        try:
            yield
        finally:
            for tensor, values in before.items():
                session.upload(tensor, values)


def followed(session: Any, element: str, numbers: dict[Tensor, int]) -> dict[str, Any]:
    """Return the tensor and the index that "blk.0.attn_q.weight[3,5]" names.

    For a weight that is trained, ``difference`` is the finite difference of the loss by it: four
    losses, at one and two steps of STEP to each side, so that its own error is of the order STEP^4.
    ``error`` is what the rounding of the losses to float32 can make of it.

    Raises ConfigError if the tape has no such tensor, or the tensor no such index.
    """
    match = _ELEMENT.fullmatch(element.strip())
    if match is None:
        raise ConfigError(f"follow: expected a weight and an index, w[3,5]; got {element!r}")
    name, index = match["name"], tuple(map(int, match["index"].split(",")))
    tensor = next((t for t in numbers if t.name == name and t.base is None), None)
    if tensor is None:
        weights = [t.name for t in numbers if t.role is Role.PARAMETER]
        raise ConfigError(f"follow: there is no tensor {name!r}; weights are {', '.join(weights)}")
    inside = len(index) == len(tensor.shape) and all(map(int.__lt__, index, tensor.shape))
    if not inside:
        raise ConfigError(f"follow: {name} is {tensor.shape}; got the index {list(index)}")
    told: dict[str, Any] = {"tensor": numbers[tensor], "index": list(index)}
    if tensor.role is Role.PARAMETER and session.tape.loss is not None:
        with unchanged(session):
            at = session.download(tensor)
            losses: list[float] = []
            for step in (-2, -1, 1, 2):
                moved = at.copy()
                moved[index] += step * STEP
                session.upload(tensor, moved)
                loss = _loss(session)
                losses += [] if loss is None else [loss]
        if len(losses) == 4:
            far, near = losses[3] - losses[0], losses[2] - losses[1]
            error = 1.5 * float(np.spacing(np.float32(max(losses)))) / STEP
            told |= {"difference": (8 * near - far) / (12 * STEP), "error": error, "step": STEP}
    return told
