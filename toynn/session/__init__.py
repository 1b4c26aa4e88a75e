"""The session: it declares tensors, owns the weights and the life cycle, uploads, runs, downloads.

session     the life cycle: declare, record, realize, upload, run, download
feeding     all inputs of a step in one call
gradients   clipping, micro-batches that wait, sums over processes
updates     what training keeps from run to run: gradients, moments, micro-batches
memory      what tapes need, and which weights are prepacked
persistent  what runs of any tape leave to later runs
"""

from toynn.session.session import Session

__all__ = ["Session"]
