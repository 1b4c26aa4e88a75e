"""Dropout with a mask that is computed and never stored."""

import numpy as np

from toynn.errors import ConfigError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Role, Tensor
from toynn.numerics import checks
from toynn.ops._shape import Recorder, flops, require


def dropout(s: Recorder, x: Tensor, p: float, control: Tensor, site: int) -> Tensor:
    """Record y = x mask / (1 - p): each element is dropped with probability p, in [0, 1).

    control: an i32 input (2,), (step, active). If active is 0, as in evaluation, y = x. The mask is
    a hash of (the session's seed, step, site, element). Upload another ``step`` for each
    micro-batch, and give each dropout of a model its own number, ``site``. With p = 0 nothing is
    recorded, and x is returned.

    Raises ConfigError for a p outside [0, 1).
    """
    if not 0 <= p < 1 or np.float32(p) == 1:
        raise ConfigError(f"dropout: p must be a number in [0, 1); got {p!r}")
    if site < 0:
        raise ConfigError(f"dropout: site must be a whole number of at least 0; got {site!r}")
    switch = control.role is Role.INPUT and control.dtype == "i32" and control.shape == (2,)
    require(switch, "dropout", "control, an i32 input (2,)", x=x, control=control)
    if p == 0:
        return x
    s.tape.checks.setdefault(control, [checks.step_and_switch])
    seed = s.seed % 2**63
    return s.tape.record(DROPOUT, {"x": x, "control": control}, seed=seed, site=site, p=p).output


def _dropout_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(DROPOUT, {"y": node["x"]}, {"x": dy, "control": node["control"]}, node)


DROPOUT = Op("dropout.forward", flops(1, "n"), _dropout_gradient, rows="n x")
