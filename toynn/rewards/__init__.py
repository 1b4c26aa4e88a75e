"""Rewards of completions: functions of the user, in a process of their own, and ready ones.

>>> from toynn.rewards import Rewards
>>> with Rewards(["exact"]) as rewards:
...     rewards.score(["1 + 1 =", "1 + 2 ="], [" 2", " 4"], {"answer": ["2", "3"]}).tolist()
[[1.0], [0.0]]
"""

from typing import TYPE_CHECKING

from toynn.system.later import names

if TYPE_CHECKING:
    from toynn.rewards.functions import Rewards, identity

__all__ = ["READY", "Rewards", "identity"]

#: Ready rewards, and how they are typed.
READY = {
    "exact": "exact[:COLUMN]",
    "number": "number[:COLUMN]",
    "regex": "regex:PATTERN",
    "json": "json[:SCHEMA.json]",
    "length": "length:CHARACTERS",
}
__getattr__ = names(__name__, dict.fromkeys(("Rewards", "identity"), "functions"))
