"""Training: the one loop, what it reports, and the run folder it fills."""

from toynn.train.token_cache import TokenCache
from toynn.train.trainer import Trainer

__all__ = ["TokenCache", "Trainer"]
