"""The optimizer's numbers: AdamW's hyperparameters of a step, and the learning rate by step."""

from toynn.optim.adamw import AdamW
from toynn.optim.schedule import Schedule

__all__ = ["AdamW", "Schedule"]
