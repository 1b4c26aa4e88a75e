"""Rewards of completions: functions of the user, in a process of their own, and ready ones.

>>> from toynn.rewards import Rewards
>>> with Rewards(["exact"]) as rewards:
...     rewards.score(["1 + 1 =", "1 + 2 ="], [" 2", " 4"], {"answer": ["2", "3"]}).tolist()
[[1.0], [0.0]]
"""

from toynn.rewards.functions import READY, Rewards, identity

__all__ = ["READY", "Rewards", "identity"]
