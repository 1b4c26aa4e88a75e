"""Preference losses: token losses, their sums over completions, and losses of the sums."""

from dataclasses import replace

from toynn.errors import ConfigError
from toynn.graph.tape import Op, Role, Tensor
from toynn.numerics import checks
from toynn.ops._shape import EXP, Recorder, by_names, flops, matrix, require
from toynn.ops.loss import CHUNK


def token_losses(s: Recorder, logits: Tensor, labels: Tensor) -> Tensor:
    """Record -log softmax(logits)[label] of each row (N,); 0 where the label is -100.

    logits (N, V); labels i32 (N,), an input or the result of ``valid_rows``. Raises ConfigError for
    other labels.
    """
    N, V = matrix("token_losses", logits=logits)
    if labels.role is Role.INPUT:
        s.tape.checks.setdefault(labels, []).append(checks.Below(V, ignorable=True))
    elif labels.role is not Role.ACTIVATION:
        raise ConfigError(f"token_losses: labels must be an input; got {labels!r}")
    losses = s.tape.new("losses", (N,), valid=logits.valid_rows)
    tensors = {"losses": losses, "logits": logits, "labels": labels}
    return s.tape.record(TOKEN_LOSSES, tensors).output


def token_sums(s: Recorder, losses: Tensor, bounds: Tensor) -> Tensor:
    """Record sums (S, 2) of losses (N,) over each sequence's prompt and completion.

    bounds, an i32 input (2 S + 1,), has the first row of each part, and the end of the last part.
    """
    fits = bounds.dtype == "i32" and bounds.role is Role.INPUT
    require(fits, "token_sums", "bounds (2 S + 1,), an input of i32", losses=losses, bounds=bounds)
    sums = s.tape.record(SUMS, {"losses": losses, "bounds": bounds}).output
    s.tape.checks.setdefault(bounds, []).append(checks.rising_to(losses.size))
    sums.valid = None  # its rows are sequences
    return sums


def dpo(
    s: Recorder,
    sums: Tensor,
    reference: Tensor,
    count: Tensor,
    beta: float = 0.1,
    smoothing: float = 0.0,
) -> Tensor:
    """Record the loss () of pairs: rows 2i of sums (S, 2) are chosen, 2i + 1 rejected.

    reference (S,): log p of the completions under the reference model. count, an i32 input (): the
    number of sequences.
    """
    _count_sequences(s, "dpo", sums, count, 2)
    tensors = {"sums": sums, "reference": reference, "count": count}
    return s.tape.record(DPO, tensors, beta=beta, smoothing=smoothing).output


def orpo(s: Recorder, sums: Tensor, bounds: Tensor, count: Tensor, beta: float = 0.1) -> Tensor:
    """Record the loss () of pairs, as in ``dpo``; bounds are those of ``token_sums``."""
    _count_sequences(s, "orpo", sums, count, 2)
    tensors = {"sums": sums, "bounds": bounds, "count": count}
    return s.tape.record(ORPO, tensors, beta=beta).output


def kto(
    s: Recorder,
    sums: Tensor,
    reference: Tensor,
    kl: Tensor,
    wanted: Tensor,
    count: Tensor,
    beta: float = 0.1,
    weights: tuple[float, float] = (1.0, 1.0),
) -> Tensor:
    """Record the loss () of wanted (1) and unwanted (0) completions, wanted i32 (S,).

    kl (): the divergence of the model from the reference. weights: of wanted and of unwanted
    completions. The rest is as in ``dpo``.
    """
    _count_sequences(s, "kto", sums, count, 1)
    tensors = {"sums": sums, "reference": reference, "kl": kl, "wanted": wanted, "count": count}
    return s.tape.record(KTO, tensors, beta=beta, good=weights[0], bad=weights[1]).output


def _count_sequences(s: Recorder, op: str, sums: Tensor, count: Tensor, of: int) -> None:
    """Add a check of the number of sequences (rows of sums) at upload."""
    S, _ = matrix(op, sums=sums)
    fits = count.role is Role.INPUT and count.dtype == "i32" and count.shape == ()
    require(fits, op, "count, an input i32 ()", sums=sums, count=count)
    s.tape.checks.setdefault(count, []).append(checks.count_within(S, of))


TOKEN_LOSSES_BACKWARD = Op("chunked_cross_entropy.each", flops(EXP + 4, "N", "V"), rows="N logits")
TOKEN_LOSSES = replace(CHUNK, gradient=by_names(TOKEN_LOSSES_BACKWARD))
SUMS_BACKWARD = Op("token_sums.backward", flops(1, "N"), rows="N dlosses")
SUMS = Op("token_sums.forward", flops(1, "N"), by_names(SUMS_BACKWARD), rows="N losses")
# For a sequence: the margin, an exponential, a logarithm, and arithmetic.
DPO_BACKWARD = Op("dpo.backward", flops(EXP + 8, "S"))
DPO = Op("dpo.forward", flops(2 * EXP + 6, "S"), by_names(DPO_BACKWARD))
ORPO_BACKWARD = Op("orpo.backward", flops(4 * EXP + 12, "S"))
ORPO = Op("orpo.forward", flops(4 * EXP + 12, "S"), by_names(ORPO_BACKWARD))
KTO_BACKWARD = Op("kto.backward", flops(2 * EXP + 8, "S"))
KTO = Op("kto.forward", flops(EXP + 6, "S"), by_names(KTO_BACKWARD))
