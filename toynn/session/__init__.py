"""The session: it declares tensors, owns the weights and the life cycle, uploads, runs, downloads.

session  the life cycle: declare, record, realize, upload, run, download
updates  what training keeps from run to run: gradients, moments, micro-batches
feeding  all inputs of a step in one compiled call
memory   what tapes need, and which frozen weights are prepacked
"""

from toynn.session.session import Session

__all__ = ["Session"]
