"""Parse the JSON of rows; a key that comes twice in an object is an error."""

import json
from collections import Counter
from typing import Any


class RepeatedKey(ValueError):
    """A JSON object has a key twice, so its value is ambiguous."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises RepeatedKey; the json library would keep the last value."""
    row = dict(pairs)
    if len(row) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise RepeatedKey(f"the key {name!r} comes twice")
    return row


#: Decodes the JSON of rows; raises RepeatedKey besides the json library's errors.
ROWS = json.JSONDecoder(object_pairs_hook=_once)
