"""Training: the one loop, its reports, and the run folder."""

from typing import TYPE_CHECKING

from toynn.system.later import names

if TYPE_CHECKING:
    from toynn.train.token_cache import TokenCache
    from toynn.train.trainer import Trainer

__all__ = ["TokenCache", "Trainer"]

__getattr__ = names(__name__, {"TokenCache": "token_cache", "Trainer": "trainer"})
