"""The loss."""

from toynn import checks
from toynn.autograd import Backward
from toynn.errors import ConfigError
from toynn.ops._shape import Recorder, Rule, flops, matrix, require
from toynn.tape import Node, Op, Role, Tensor

__all__ = ["cross_entropy"]


def cross_entropy(s: Recorder, logits: Tensor, labels: Tensor) -> Tensor:
    """Record the mean cross-entropy () over the rows of logits (N, V) that count.

    labels: i32 (N,), where -100 marks a row that does not count; or f32 (N, V), dense, where an
    all-zero row does not.
    """
    N, V = matrix("cross_entropy", logits)
    dense = labels.dtype == "f32"
    expected = (N, V) if dense else (N,)
    require(labels.shape == expected, "cross_entropy", f"labels {expected}", logits, labels)
    if labels.role is not Role.INPUT:
        raise ConfigError(f"cross_entropy: labels must be an input; got {labels!r}")
    check = checks.dense_labels if dense else checks.labels_below(V)
    s.tape.checks.setdefault(labels, []).append(check)
    loss = s.tape.new("loss", ())
    saved = [s.tape.new("lse", (N,)), s.tape.new("rows", ())]
    op = CROSS_ENTROPY_DENSE if dense else CROSS_ENTROPY
    s.tape.record(op, [loss], saved, [logits, labels], {"N": N, "V": V})
    return loss


def _cross_entropy_gradient(backward: Op) -> Rule:
    def rule(back: Backward, node: Node, dy: Tensor) -> None:
        back.emit(backward, node.inputs[:1], [dy, *node.inputs, *node.saved], node.sizes)

    return rule


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
