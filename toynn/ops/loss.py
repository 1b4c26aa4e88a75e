"""The loss: of logits, or of what the head makes logits of, a chunk of rows at a time."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from toynn import checks
from toynn.autograd import Backward
from toynn.errors import ConfigError
from toynn.ops._shape import Recorder, Rule, flops, given, matrix, require
from toynn.ops.linear import (
    BIAS_BACKWARD,
    LINEAR,
    LINEAR_BACKWARD_INPUT,
    LINEAR_BACKWARD_WEIGHT,
    linear,
)
from toynn.tape import Node, Op, Role, Tensor

__all__ = ["chunk_rows", "cross_entropy", "linear_cross_entropy"]

#: Logits up to this many bytes come in one chunk; there is too little to save.
WHOLE = 64 << 20
#: Rows of a chunk beyond that. Each chunk reads and packs w twice and adds to dw once more, which
#: takes as long as the products of some 40 to 100 rows do (GPT-2's head, highest to medium).
ROWS = 512


def cross_entropy(s: Recorder, logits: Tensor, labels: Tensor) -> Tensor:
    """Record the mean cross-entropy () over the rows of logits (N, V) that count.

    labels: i32 (N,), where -100 marks a row that does not count; or f32 (N, V), dense, where an
    all-zero row does not.
    """
    N, V = matrix("cross_entropy", logits)
    dense = labels.dtype == "f32"
    expected = (N, V) if dense else (N,)
    require(labels.shape == expected, "cross_entropy", f"labels {expected}", logits, labels)
    _check_labels(s, "cross_entropy", labels, V)
    loss = s.tape.new("loss", ())
    saved = [s.tape.new("lse", (N,)), s.tape.new("rows", ())]
    op = CROSS_ENTROPY_DENSE if dense else CROSS_ENTROPY
    s.tape.record(op, [loss], saved, [logits, labels], {"N": N, "V": V})
    return loss


def _cross_entropy_gradient(backward: Op) -> Rule:
    def rule(back: Backward, node: Node, dy: Tensor) -> None:
        back.emit(backward, node.inputs[:1], [dy, *node.inputs, *node.saved], node.sizes)

    return rule


def _check_labels(s: Recorder, op: str, labels: Tensor, V: int) -> None:
    """Have labels checked when they are uploaded, which is before any kernel reads them."""
    if labels.role is not Role.INPUT:
        raise ConfigError(f"{op}: labels must be an input; got {labels!r}")
    check = checks.dense_labels if labels.dtype == "f32" else checks.labels_below(V)
    s.tape.checks.setdefault(labels, []).append(check)


def chunk_rows(N: int, V: int) -> int:
    """Return in chunks of how many rows, at most, ``linear_cross_entropy`` takes N rows of V."""
    return N if 4 * N * V <= WHOLE else min(N, ROWS)


def linear_cross_entropy(
    s: Recorder,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    b: Tensor | None = None,
    rows: int | None = None,
) -> Tensor:
    """Record cross_entropy(linear(x, w, b), labels), at most ``rows`` rows of logits at a time.

    x (N, C), w (V, C), b (V,), labels i32 (N,), where -100 marks a row that does not count; x, w
    and b as in ``linear``; ``rows`` is ``chunk_rows(N, V)`` unless given. Where training goes on to
    the gradients, the backward pass computes the loss by the way: of each chunk the logits, their
    losses and gradients at once, the share in dw, and the rows of dx. See segment E in tape.py.
    """
    (N, C), (V, columns) = matrix("linear_cross_entropy", x), matrix("linear_cross_entropy", w)
    require(columns == C, "linear_cross_entropy", f"w (V, {C})", x, w)
    require(b is None or b.shape == (V,), "linear_cross_entropy", f"b ({V},)", x, w, b)
    fits = labels.shape == (N,) and labels.dtype == "i32"
    require(fits, "linear_cross_entropy", f"labels ({N},) of i32", x, labels)
    if rows is not None and rows < 1:
        raise ConfigError(f"linear_cross_entropy: rows must be at least 1; got {rows}")
    _check_labels(s, "linear_cross_entropy", labels, V)
    chunks = -(-N // (rows or chunk_rows(N, V)))
    count, losses, loss = (
        s.tape.new(name, shape) for name, shape in (("rows", ()), ("losses", (N,)), ("loss", ()))
    )
    s.tape.record(COUNT, [count], [], [labels], {"N": N, "V": V})
    start = len(s.tape.nodes)
    for i in range(chunks):
        first, end = i * N // chunks, (i + 1) * N // chunks
        logits = linear(s, x.rows(first, end), w, b)
        inputs, sizes = [logits, labels.rows(first, end)], {"N": end - first, "V": V}
        s.tape.record(CHUNK, [losses.rows(first, end)], [], inputs, sizes)
    # The rule is told the chunks, which the node does not read: so this op is of this loss alone.
    op = replace(MEAN, gradient=partial(_chunked_gradient, s.tape.nodes[start:]))
    s.tape.record(op, [loss], [], [losses, count], {"N": N})
    return loss


def _chunked_gradient(chunks: Sequence[Node], back: Backward, node: Node, dy: Tensor) -> None:
    """Compute each chunk's logits again, and from them its losses and gradients at once.

    So where nothing but the end of a run hangs on the loss, the forward's chunks serve evaluation
    alone. Products write the rows of dx side by side, and add to dw one after another.
    """
    losses, count = node.inputs
    x = given(chunks[0].inputs[0]).root
    d_x = back.new(x) if back.wants(x) else None
    first = 0
    for product, loss in zip(chunks[::2], chunks[1::2], strict=True):
        rows, w, b = product.inputs
        old, labels = given(loss.inputs[0]), loss.inputs[1]
        logits, d_logits = replace(old, name=f"{old.name}'"), back.new(old)
        back.tape.record(LINEAR, [logits], product.saved, product.inputs, product.sizes)
        outputs, inputs = [d_logits, *loss.outputs], [dy, logits, labels, count]
        back.tape.record(CHUNK_BACKWARD, outputs, [], inputs, loss.sizes)
        sizes = {name: product.sizes[name] for name in ("M", "N", "K", "precision")}
        back.emit(LINEAR_BACKWARD_WEIGHT, [w], [d_logits, rows], sizes)
        back.emit(BIAS_BACKWARD, [b], [d_logits], {"N": sizes["M"], "C": sizes["N"]})
        if d_x is not None:
            part = d_x.rows(first, first + sizes["M"])
            sizes |= {"type": product.sizes["type"]}
            back.tape.record(LINEAR_BACKWARD_INPUT, [part], [], [d_logits, w], sizes)
        first += sizes["M"]
    if d_x is not None:
        back.contribute(x, d_x)
    if back.tape.supersede([*chunks, node]):
        back.tape.record(MEAN, node.outputs, [], [losses, count], node.sizes)


CROSS_ENTROPY_BACKWARD = Op(
    "cross_entropy.backward", flops(12, "N", "V"), inplace={0: 1}, integers=(2,)
)
CROSS_ENTROPY = Op(
    "cross_entropy.forward",
    flops(12, "N", "V"),
    _cross_entropy_gradient(CROSS_ENTROPY_BACKWARD),
    integers=(1,),
)
CROSS_ENTROPY_DENSE_BACKWARD = Op(
    "cross_entropy.backward_dense", flops(14, "N", "V"), inplace={0: 1}
)
CROSS_ENTROPY_DENSE = Op(
    "cross_entropy.forward_dense",
    flops(14, "N", "V"),
    _cross_entropy_gradient(CROSS_ENTROPY_DENSE_BACKWARD),
)
COUNT = Op("chunked_cross_entropy.count", flops(1, "N"), integers=(0,))
CHUNK = Op("chunked_cross_entropy.forward", flops(12, "N", "V"), integers=(1,))
CHUNK_BACKWARD = Op(
    "chunked_cross_entropy.backward", flops(14, "N", "V"), inplace={0: 1}, integers=(2,)
)
MEAN = Op("chunked_cross_entropy.mean", flops(1, "N"))
