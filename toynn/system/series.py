"""Files in shards: NAME-00000-of-00003.parquet, NAME-00001-of-00003.gguf, ..."""

import re
from collections.abc import Iterable

#: The end of a shard's name: number, number of shards, perhaps a hash, suffix.
SHARD = re.compile(r"[-.](\d{5})-of-(\d{5})((?:-[0-9a-f]+)?)(\.[\w.]+)")


def series(name: str, names: Iterable[str]) -> list[str]:
    """Return all shards of a file among ``names``, in order; for a file of one part, its name."""
    match = SHARD.search(name)
    if match is None:
        return [name]
    stem, behind = re.escape(name[: match.start() + 1]), "(-[0-9a-f]+)?" if match[3] else ""
    shard = re.compile(rf"{stem}\d{{5}}-of-{match[2]}{behind}{re.escape(match[4])}")
    return sorted(each for each in names if shard.fullmatch(each))
