"""Training: the one loop, its reports, and the run folder."""

from toynn.train.token_cache import TokenCache
from toynn.train.trainer import Trainer

__all__ = ["TokenCache", "Trainer"]
