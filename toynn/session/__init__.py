"""The session: it declares tensors, owns the weights and the life cycle, uploads, runs, downloads.

session  the life cycle: declare, record, realize, upload, run, download
step     a step of training as one call: inputs by name in, the loss out
updates  what training keeps from run to run: gradients, moments, micro-batches
feeding  all inputs of a step in one compiled call
memory   what tapes need, and which frozen weights are prepacked
"""

from toynn.session.session import Session
from toynn.session.step import Step

__all__ = ["Session", "Step"]
