"""Training: the one loop, what it reports, and the run folder it fills."""

from toynn.train.trainer import Trainer

__all__ = ["Trainer"]
