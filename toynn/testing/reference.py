"""The phases of a tape in float64: the right results of its kernels.

Values between kernels are float64, too. The reference backend rounds them to float32, which is too
coarse for difference quotients.
"""

from collections.abc import Mapping

import numpy as np

from toynn.backends.protocol import Accumulate
from toynn.backends.reference import KERNELS, Layout
from toynn.graph.tape import Node, Tape, Tensor
from toynn.testing.cases import Array


def computed(tape: Tape, values: Mapping[Tensor, Array], phases: str = "FE") -> dict[Tensor, Array]:
    """Return ``values`` and everything that the nodes of phases write, in float64 or integers.

    ``values`` holds each weight and input that the nodes read. For phase B it also holds the
    results of phases F and E, and the gradient of the loss.
    """
    arrays = dict(values)
    for node in tape.nodes:
        if node.phase in phases:
            _run(node, arrays)
    return arrays


def _run(node: Node, arrays: dict[Tensor, Array]) -> None:
    if node.op.straight_through:
        raise ValueError(
            "a rounded weight has no difference quotients: check with weight_dtype f32"
        )

    def view(name: str, layout: Layout) -> Array | None:
        tensor = node.named[name]
        if tensor is None:
            return None
        dtype = np.int64 if tensor.dtype == "i32" else np.float64
        whole = arrays.setdefault(tensor.root, np.empty(tensor.root.shape, dtype))
        width = whole.itemsize
        strides = None if layout.row is None else (width * layout.row, width)
        return np.ndarray(layout.shape, whole.dtype, whole, width * tensor.offset, strides)

    sizes, leader = node.sizes, node.leader
    if leader is not None and leader.valid_rows is not None:
        valid, name = leader.valid_rows, node.op.rows.partition(" ")[0]
        rows = max(0, min(leader.shape[0], int(arrays[valid.count]) - valid.first))
        sizes = {**sizes, name: sizes[name] // leader.shape[0] * rows}
    adds = node.accumulate is Accumulate.ALWAYS
    (node.op.function or KERNELS[node.op.kernel]).run(view, sizes, node.options, adds)
