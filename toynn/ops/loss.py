"""The cross-entropy of logits, or of the head's input in chunks of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Role, Tensor, ValidRows
from toynn.numerics import checks
from toynn.ops._shape import EXP, Recorder, by_names, flops, matrix, require
from toynn.ops.arithmetic import add
from toynn.ops.elementwise import SOFTCAP, SOFTCAP_BACKWARD, softcap
from toynn.ops.linear import (
    BIAS_BACKWARD,
    LINEAR,
    LINEAR_BACKWARD_INPUT,
    LINEAR_BACKWARD_WEIGHT,
    linear,
)

#: Logits of up to this many bytes are one chunk: chunks would save too little memory.
WHOLE = 64 << 20
#: Rows of a chunk of larger logits. Each chunk reads and packs w twice, and adds to dw once. That
#: takes as long as the products of 40 to 100 rows (GPT-2's head, highest to medium).
ROWS = 512


@dataclass(frozen=True)
class Teacher:
    """What a teacher says of N rows: its K most likely tokens, and the divergence from it.

    Attributes
    ----------
    ids, log_p
        K tokens of each row, an input i32 (N, K), and their log probabilities (N, K).
    log_rest
        The log probability of all other tokens (N,).
    weight
        The share of the divergence in the loss (); cross-entropy has the rest of it.
    beta, temperature
        Of the divergence: see toynn/_kernels/losses/distillation.pyx.
    """

    ids: Tensor
    log_p: Tensor
    log_rest: Tensor
    weight: Tensor
    beta: float = 0.0
    temperature: float = 1.0

    def rows(self, first: int, end: int) -> dict[str, Tensor]:
        """Return the kernel's inputs for some rows."""
        by_row = {"ids": self.ids, "log_p": self.log_p, "log_rest": self.log_rest}
        parts = {name: tensor.rows(first, end) for name, tensor in by_row.items()}
        return {**parts, "weight": self.weight}


def cross_entropy(s: Recorder, logits: Tensor, labels: Tensor) -> Tensor:
    """Record the mean cross-entropy () over the labelled rows of logits (N, V).

    labels: i32 (N,), or dense f32 (N, V). A row with the label -100, or with dense labels of 0
    only, has none.

    Raises ConfigError for labels that are not an input.
    """
    N, V = matrix("cross_entropy", logits=logits)
    dense = labels.dtype == "f32"
    expected = (N, V) if dense else (N,)
    require(
        labels.shape == expected,
        "cross_entropy",
        f"labels {expected}",
        logits=logits,
        labels=labels,
    )
    _check_labels(s, "cross_entropy", labels, V)
    op = CROSS_ENTROPY_DENSE if dense else CROSS_ENTROPY
    return s.tape.record(op, {"logits": logits, "labels": labels}).output


def valid_rows(s: Recorder, labels: Tensor, V: int) -> tuple[Tensor, Tensor]:
    """Record the labelled rows of labels i32 (N,); return their indices and labels, (N,) each.

    As many rows of both are valid as there are labelled rows. ``V`` is the number of classes.
    Raises ConfigError unless labels are an input.
    """
    (N,) = labels.shape
    require(labels.dtype == "i32", "valid_rows", f"labels ({N},) of i32", labels=labels)
    _check_labels(s, "valid_rows", labels, V)
    count = s.tape.new("count", (), "i32")
    rows, picked = (s.tape.new(name, (N,), "i32", ValidRows(count)) for name in ("rows", "picked"))
    written = {"rows": rows, "picked": picked, "count": count}
    s.tape.record(VALID_ROWS, {**written, "labels": labels})
    return rows, picked


def _check_labels(s: Recorder, op: str, labels: Tensor, V: int) -> None:
    """Add a check of labels at upload, before any kernel reads them."""
    if labels.role is Role.ACTIVATION and labels.dtype == "i32":
        return  # picked by valid_rows()
    if labels.role is not Role.INPUT:
        raise ConfigError(f"{op}: labels must be an input; got {labels!r}")
    check = checks.dense_labels if labels.dtype == "f32" else checks.Below(V, ignorable=True)
    s.tape.checks.setdefault(labels, []).append(check)


def chunk_rows(N: int, V: int) -> int:
    """Return the most rows of a chunk of ``linear_cross_entropy`` for N rows and V classes."""
    return N if 4 * N * V <= WHOLE else min(N, ROWS)


def linear_cross_entropy(
    s: Recorder,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    b: Tensor | None = None,
    rows: int | None = None,
    cap: float = 0.0,
    added: Sequence[tuple[Tensor, Tensor]] = (),
    teacher: Teacher | None = None,
) -> Tensor:
    """Record cross_entropy(linear(x, w, b), labels), at most ``rows`` rows of logits at a time.

    With a ``cap``, the logits are softcap(linear(x, w, b), cap). For each pair (x', w') in
    ``added``, with x' (N, R) and w' (V, R), linear(x', w') is added before the cap. The divergence
    from a ``teacher`` is mixed into the loss.

    x (N, C), w (V, C) and b (V,) are as in ``linear``. labels i32 (N,) are -100 for a row without
    loss. The default of ``rows`` is ``chunk_rows(N, V)``. In training the backward pass computes
    the loss, too. It does everything for one chunk at a time: logits, losses and their gradients, a
    part of dw, rows of dx. See phase E in tape.py.

    Raises ConfigError for labels that are not an input, or rows below 1.
    """
    (N, C), (V, columns) = matrix("linear_cross_entropy", x=x), matrix("linear_cross_entropy", w=w)
    require(columns == C, "linear_cross_entropy", f"w (V, {C})", x=x, w=w)
    require(x.base is None, "linear_cross_entropy", "x as it was computed, not reshaped", x=x)
    require(b is None or b.shape == (V,), "linear_cross_entropy", f"b ({V},)", x=x, w=w, b=b)
    fits = labels.shape == (N,) and labels.dtype == "i32"
    require(fits, "linear_cross_entropy", f"labels ({N},) of i32", x=x, labels=labels)
    for low, right in added:
        R = low.shape[-1]
        fits = low.shape == (N, R) and right.shape == (V, R)
        require(
            fits,
            "linear_cross_entropy",
            f"added ({N}, R) and ({V}, R)",
            x=x,
            w=w,
            low=low,
            right=right,
        )
    if rows is not None and rows < 1:
        raise ConfigError(f"linear_cross_entropy: rows must be at least 1; got {rows}")
    _check_labels(s, "linear_cross_entropy", labels, V)
    options: dict[str, Any] = {}
    if teacher is not None:
        s.tape.checks.setdefault(teacher.ids, []).append(checks.Below(V))
        options = {"beta": teacher.beta, "temperature": teacher.temperature}
    chunks = -(-N // (rows or chunk_rows(N, V)))
    count, loss = s.tape.new("rows", ()), s.tape.new("loss", ())
    losses = s.tape.new("losses", (N,), valid=x.valid_rows)
    s.tape.record(COUNT, {"rows": count, "labels": labels}, V=V)
    recorded = []
    for i in range(chunks):
        start, first, end = len(s.tape.nodes), i * N // chunks, (i + 1) * N // chunks
        logits = linear(s, x.rows(first, end), w, b)
        for low, right in added:
            logits = add(s, logits, linear(s, low.rows(first, end), right))
        logits = softcap(s, logits, cap) if cap else logits
        part = {"losses": losses.rows(first, end), "labels": labels.rows(first, end)}
        part |= {} if teacher is None else teacher.rows(first, end)
        s.tape.record(TAUGHT if teacher else CHUNK, {**part, "logits": logits}, **options)
        recorded.append(s.tape.nodes[start:])
    # The rule needs the chunks, which are not inputs of the node. So this op serves only this loss.
    mean = replace(MEAN, gradient=partial(_chunked_gradient, recorded))
    return s.tape.record(mean, {"loss": loss, "losses": losses, "rows": count}).output


def _chunked_gradient(
    chunks: Sequence[Sequence[Node]], back: Backward, node: Node, dy: Tensor
) -> None:
    """Recompute each chunk's logits, and from them its losses and gradients at once.

    So the forward's chunks serve only evaluation, unless something else depends on the loss. Each
    product writes its own rows of dx. The products add to dw one after the other.
    """
    inputs = [step["x"].root for step in chunks[0] if step.op is LINEAR]
    d_inputs = {x: back.new(x) for x in inputs if back.wants(x)}
    first = 0
    for chunk in chunks:
        recomputed: dict[Tensor | None, Tensor] = {}
        for step in chunk[:-1]:
            y = step["y"]
            recomputed[y] = replace(y, name=f"{y.name}'")
            tensors = {name: recomputed.get(t, t) for name, t in step.named.items()}
            back.tape.record(step.op, tensors, like=step)
        loss, last, product = chunk[-1], chunk[-2], chunk[0]
        logits, d_logits = recomputed[last["y"]], back.new(product["y"])
        tensors = {**loss.named, "logits": logits, "rows": node["rows"]}
        gradients = {"dlogits": d_logits, "dloss": dy}
        backward = TAUGHT_BACKWARD if loss.op is TAUGHT else CHUNK_BACKWARD
        back.tape.record(backward, {**tensors, **gradients}, like=loss)
        if last.op is SOFTCAP:
            of_capped, d_logits = d_logits, back.new(product["y"])
            read = {"dy": of_capped, "y": logits}
            back.tape.record(SOFTCAP_BACKWARD, {"dx": d_logits, **read}, like=last)
        for step in chunk:
            if step.op is LINEAR:
                _product_gradient(back, step, d_logits, d_inputs, first)
        first += product.sizes["M"]
    for x, d_x in d_inputs.items():
        back.contribute(x, d_x)
    if back.tape.supersede([*chain.from_iterable(chunks), node]):
        back.tape.record(MEAN, node.named)


def _product_gradient(
    back: Backward, step: Node, dy: Tensor, d_inputs: Mapping[Tensor, Tensor], first: int
) -> None:
    """Record the backward of a product of rows from ``first`` on."""
    rows, w, b = step["x"], step["w"], step.named["b"]
    back.emit(LINEAR_BACKWARD_WEIGHT, {"dw": w}, {"dy": dy, "x": rows}, step)
    back.emit(BIAS_BACKWARD, {"db": b}, {"dy": dy})
    if rows.root in d_inputs:
        part = d_inputs[rows.root].rows(first, first + rows.shape[0])
        back.tape.record(LINEAR_BACKWARD_INPUT, {"dx": part, "dy": dy, "w": w}, like=step)


# Of a logit, forward: maximum, difference, exponential, sum.
CROSS_ENTROPY_BACKWARD = Op("cross_entropy.backward", flops(EXP + 2, "N", "V"), rows="N logits")
CROSS_ENTROPY = Op(
    "cross_entropy.forward",
    flops(EXP + 3, "N", "V"),
    by_names(CROSS_ENTROPY_BACKWARD),
    rows="N logits",
)
CROSS_ENTROPY_DENSE_BACKWARD = Op("cross_entropy.backward_dense", flops(EXP + 5, "N", "V"))
CROSS_ENTROPY_DENSE = Op(
    "cross_entropy.forward_dense", flops(EXP + 7, "N", "V"), by_names(CROSS_ENTROPY_DENSE_BACKWARD)
)
VALID_ROWS = Op("valid_rows.forward", flops(1, "N"), rows="N labels")
COUNT = Op("chunked_cross_entropy.count", flops(1, "N"), rows="N labels")
CHUNK = Op("chunked_cross_entropy.forward", flops(EXP + 3, "N", "V"), rows="N logits")
CHUNK_BACKWARD = Op("chunked_cross_entropy.backward", flops(EXP + 4, "N", "V"), rows="N logits")
MEAN = Op("chunked_cross_entropy.mean", flops(1, "N"), rows="N losses")
TAUGHT = Op("distillation.forward", flops(2 * EXP + 6, "N", "V"), rows="N logits")
TAUGHT_BACKWARD = Op("distillation.backward", flops(4 * EXP + 10, "N", "V"), rows="N logits")
