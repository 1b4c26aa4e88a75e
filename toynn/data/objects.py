"""The JSON of rows, in which an object that names a key twice is an error."""

import json
from collections import Counter
from typing import Any

__all__ = ["ROWS", "RepeatedKey"]


class RepeatedKey(ValueError):
    """An object in JSON names a key twice: which of the two values is meant, nobody knows."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises RepeatedKey, where the json library would keep the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise RepeatedKey(f"the key {name!r} comes twice")
    return found


#: Decodes the JSON of rows; raises RepeatedKey beside what the json library raises.
ROWS = json.JSONDecoder(object_pairs_hook=_once)
