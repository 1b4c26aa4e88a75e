"""The forward segment of a tape in float64 NumPy: what its kernels should compute.

Each op's formula is the ``function`` of its case (toynn/testing/cases); the rules here only give it
the tensors of a node by name and in its shape.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import numpy as np

from toynn.tape import Node, Tape, Tensor
from toynn.testing.cases import CASES, Array
from toynn.testing.cases.chunked_cross_entropy import losses

__all__ = ["forward"]

_Rule = Callable[..., Array]


def forward(tape: Tape, values: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
    """Return ``values`` (float64; integers as they are) and the output of every forward node.

    ``values`` holds each weight and input that the nodes read.
    """
    known = dict(values)
    for node in tape.nodes:
        output = node.outputs[0]
        if node.segment not in "FE" or output is None:
            continue
        y = _RULES[node.op.kernel](node, *(_read(known, tensor) for tensor in node.inputs))
        whole = known.setdefault(output.root, np.empty(output.root.shape))
        _rows(whole, output)[...] = y.reshape(output.shape)
    return known


def _read(known: Mapping[Tensor, Array], tensor: Tensor | None) -> Array | None:
    """Value of a tensor; of a part as wide as the whole, the columns from its offset on."""
    if tensor is None:
        return None
    value = known[tensor.root]
    if tensor.base is not None and tensor.shape == tensor.base.shape:
        return value[:, tensor.offset :]
    return _rows(value, tensor)


def _rows(value: Array, tensor: Tensor) -> Array:
    """Return the rows of a tensor's root that are the tensor's own."""
    rows: Array = value.reshape(-1)[tensor.offset :][: tensor.size].reshape(tensor.shape)
    return rows


def _function(op: str, inputs: dict[str, Array], options: Mapping[str, Any]) -> Array:
    function = CASES[op].function
    assert function is not None
    return function(inputs, **options)


def _by_names(op: str, *names: str) -> _Rule:
    """Rule of an op whose function takes a node's tensors as they are."""

    def rule(node: Node, *inputs: Array) -> Array:
        return _function(op, dict(zip(names, inputs, strict=True)), {**node.sizes, **node.options})

    return rule


def _pointwise(op: str, *names: str) -> _Rule:
    """Rule of an op whose function takes flat arrays."""

    def rule(node: Node, *inputs: Array) -> Array:
        flat = {name: x.ravel() for name, x in zip(names, inputs, strict=True)}
        return _function(op, flat, node.sizes)

    return rule


def _rope(node: Node, x: Array, positions: Array, inverse_frequency: Array) -> Array:
    heads = x.reshape(len(x), node.sizes["H"], node.sizes["D"])
    inputs = {"x": heads, "positions": positions, "inverse_frequency": inverse_frequency}
    return _function("rope", inputs, node.sizes)


def _rounding(node: Node, x: Array) -> Array:
    raise ValueError("a rounded weight has no difference quotients: check with weight_dtype f32")


def _rmsnorm(node: Node, x: Array, w: Array) -> Array:
    return _function(
        "rmsnorm", {"x": x.reshape(-1, w.size), "w": w}, {**node.sizes, **node.options}
    )


def _linear(node: Node, x: Array, w: Array, b: Array | None) -> Array:
    y = _function("matmul", {"x": x, "w": w, "b": np.zeros(len(w)) if b is None else b}, {})
    if node.sizes["activation"]:
        y = _function(
            "gelu", {"x": y.ravel()}, {"n": y.size, "exact": node.sizes["activation"] - 1}
        )
    return y


def _dropout(node: Node, x: Array, control: Array) -> Array:
    options = {**node.sizes, **node.options}
    return _function("dropout", {"x": x.ravel(), "control": control}, options)


def _attention(node: Node, q: Array, k: Array, v: Array) -> Array:
    """Cut q, k and v out of rows that may hold all three."""
    H, KV, D = (node.sizes[name] for name in ("H", "KV", "D"))
    scale = node.options["scale"] * sqrt(D)  # beyond the function's own
    inputs = {"q": q[:, : H * D] * scale, "k": k[:, : KV * D], "v": v[:, : KV * D]}
    return _function("attention", inputs, node.sizes)


_RULES: dict[str, _Rule] = {
    "dropout.forward": _dropout,
    "elementwise.add": lambda node, a, b: a + b,
    "elementwise.scale": lambda node, x: node.options["alpha"] * x,
    "gelu.forward": _pointwise("gelu", "x"),
    "silu.forward": _pointwise("silu", "x"),
    "swiglu.forward": _pointwise("swiglu", "gate", "up"),
    "softmax.forward": _by_names("softmax", "x"),
    "layernorm.forward": _by_names("layernorm", "x", "w", "b"),
    "rmsnorm.forward": _rmsnorm,
    "rope.forward": _rope,
    "rounding.forward": _rounding,
    "embedding.forward": _by_names("embedding", "w", "ids"),
    "class_token.forward": _by_names("class_token", "x", "cls", "pos"),
    "matmul.forward": _linear,
    "attention.forward": _attention,
    "cross_entropy.forward": _by_names("cross_entropy", "logits", "labels"),
    "cross_entropy.forward_dense": _by_names("cross_entropy", "logits", "labels"),
    "chunked_cross_entropy.count": lambda node, labels: (labels >= 0).sum(),
    "chunked_cross_entropy.forward": lambda node, logits, labels: losses(logits, labels),
    "chunked_cross_entropy.mean": lambda node, losses, rows: losses.sum() / rows,
}
