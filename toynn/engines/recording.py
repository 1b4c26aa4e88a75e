"""Record the tapes of a sequence engine: the loss of a batch, and logits."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from toynn import ops
from toynn.engines.engine import Recorded
from toynn.graph.tape import Tensor
from toynn.models import SequenceModel
from toynn.nn import Caches, Dropout, Layers
from toynn.options import RecipeOptions
from toynn.session import Session

__all__ = ["Model", "Pass", "record_logits", "record_loss", "record_losses"]


@dataclass(frozen=True, kw_only=True)
class Pass(Recorded):
    """Handles of one recorded tape, with its inputs."""

    tokens: Tensor
    positions: Tensor
    segments: Tensor | None = None  # like the next one, only where a batch may be packed
    #: positions in long examples, 0 in others; ``positions`` is then 0 in long examples
    long_positions: Tensor | None = None
    is_long: Callable[[int], bool] | None = None  # whether an example of n tokens is long
    count: Tensor | None = None  # the number of valid tokens, or of chosen rows
    losses: Tensor | None = None  # of labels with loss, in the first rows; if requested
    rows: Tensor | None = None  # whose logits are wanted; None: all


class Model(Protocol):
    """What recording needs from an engine."""

    config: Any
    options: RecipeOptions
    t_batch: int
    t_seq: int
    context: int

    @property
    def session(self) -> Session:
        """The session that owns the weights."""

    @property
    def model(self) -> SequenceModel[Any]:
        """Its architecture."""

    def layers(
        self,
        batch: int,
        dropout: Dropout | None = None,
        caches: Caches | None = None,
        segments: Tensor | None = None,
        *,
        adapted: bool = True,
        long: bool = False,
        long_positions: Tensor | None = None,
    ) -> Layers:
        """Return what recording a forward pass over the weights needs."""

    def measure_norms(self) -> None:
        """Compute the row norms for DoRA, if weights have changed."""

    def check_unchanged(self) -> None:
        """Raise the file's error if it is mapped and has changed since it was opened."""


def _inputs(engine: Model, size: int, *, packed: bool) -> Pass:
    """Record the inputs of a pass; a packed one with possibly long examples has more."""
    s = engine.session
    is_long = partial(engine.model.is_long, engine.config)
    both = packed and is_long(min(size, engine.context))
    count = s.input("count", (), "i32") if packed else None
    tokens, positions = (s.input(name, (size,), "i32", count) for name in ("tokens", "positions"))
    segments = s.input("segments", (size,), "i32", count) if packed else None
    return Pass(
        tape=s.tape,
        tokens=tokens,
        positions=positions,
        segments=segments,
        count=count,
        long_positions=s.input("long_positions", (size,), "i32", count) if both else None,
        is_long=is_long,
    )


def _through(
    model: SequenceModel[Any], layers: Layers, cfg: Any, found: Pass, rows: Tensor | None
) -> Tensor:
    """Record the blocks over a batch's tokens; return all rows, or only ``rows``."""
    if rows is None:
        return model.forward(layers, cfg, found.tokens, found.positions)
    return model.rows(layers, cfg, found.tokens, found.positions, rows)


def record_logits(engine: Model, batch: int, length: int, wanted: int) -> Pass:
    """Record the logits of all rows of a batch, or of at most ``wanted`` rows if not 0."""
    s, cfg, model, count = engine.session, engine.config, engine.model, None
    found = _inputs(engine, batch * length, packed=False)
    layers = engine.layers(batch, long=model.is_long(cfg, length))
    if wanted:
        count = s.input("count", (), "i32")
        found = replace(found, count=count, rows=s.input("rows", (wanted,), "i32", count))
    x = _through(model, layers, cfg, found, found.rows)
    logits = s.output(model.logits(layers, cfg, engine.options, model.last(layers, cfg, x)))
    return replace(found, logits=logits)


def record_loss(
    engine: Model, batch: int, length: int, dropout: float, *, dense: bool, packed: bool
) -> Pass:
    """Record the loss of a batch. With integer labels, the head computes only rows with loss.

    A packed batch is one run of tokens, possibly fewer than the tape has room for: the rest is not
    computed.
    """
    s, cfg, model, N = engine.session, engine.config, engine.model, batch * length
    vocab = cfg.vocab
    control = s.input("dropout", (2,), "i32") if dropout else None
    found = _inputs(engine, N, packed=packed)
    layers = engine.layers(
        1 if packed else batch,
        Dropout(dropout, control) if control else None,
        segments=found.segments,
        long=not packed and model.is_long(cfg, length),
        long_positions=found.long_positions,
    )
    shape, dtype = ((N, vocab), "f32") if dense else ((N,), "i32")
    labels = target = s.input("labels", shape, dtype, found.count)
    hp, rows = s.input("hp", (7,)), None
    if not dense:
        rows, target = ops.valid_rows(s, labels, vocab)
    x = _through(model, layers, cfg, found, rows)
    logits, loss = model.loss(layers, cfg, engine.options, model.last(layers, cfg, x), target)
    s.set_loss(loss)
    if engine.options.label_losses and not dense:
        found = replace(found, losses=_each(s, logits, target, loss))
    return replace(found, logits=logits, labels=labels, hp=hp, loss=loss, dropout=control)


def _each(s: Session, logits: Tensor | None, target: Tensor, loss: Tensor) -> Tensor:
    """Record an output with the loss of each row, for runs that end at the mean loss.

    A chunked cross-entropy computes them anyway; otherwise an op of phase E does.
    """
    if logits is None:
        mean = next(node for node in reversed(s.tape.nodes) if loss in node.outputs)
        return s.output(mean["losses"])
    s.tape.phase = "E"
    losses = ops.token_losses(s, logits, target)
    s.tape.phase = "F"
    return s.output(losses)


def record_losses(
    engine: Model, size: int, dropout: float, *, adapted: bool
) -> tuple[Pass, Tensor]:
    """Record the loss of each valid token of a packed batch of at most ``size`` tokens.

    Without ``adapted`` the model runs without its adapters.
    """
    s, cfg, model = engine.session, engine.config, engine.model
    control = s.input("dropout", (2,), "i32") if dropout else None
    found = _inputs(engine, size, packed=True)
    given = Dropout(dropout, control) if control else None
    layers = engine.layers(
        1,
        given,
        segments=found.segments,
        adapted=adapted,
        long_positions=found.long_positions,
    )
    labels = s.input("labels", (size,), "i32", found.count)
    rows, target = ops.valid_rows(s, labels, cfg.vocab)
    x = model.last(layers, cfg, _through(model, layers, cfg, found, rows))
    losses = ops.token_losses(s, model.logits(layers, cfg, engine.options, x), target)
    return replace(found, labels=labels, dropout=control), losses
