"""The files of a model: one, or several that llama.cpp's splitter has made.

Several are called NAME-00001-of-00003.gguf and so on. Each has a header and tensors of its own, and
says which of how many it is (`split.no`, counted from 0, and `split.count`); the first one has the
metadata of the model, which others may repeat. Each is mapped, so none is longer to open for being
one of many.

Source: tools/gguf-split of github.com/ggml-org/llama.cpp.
"""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from toynn.errors import GGUFError
from toynn.formats.gguf.header import Entry, Header, read_header
from toynn.formats.gguf.mapping import Mapping, map_file

__all__ = ["Part", "open_parts"]

COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class Part:
    """A mapped file and what its header says."""

    path: Path
    mapping: Mapping
    header: Header


def open_parts(path: Path) -> list[Part]:
    """Map a file, and the others of its model; return them in order. Raises GGUFError."""
    parts = [_open(path)]
    try:
        paths = _paths(parts[0])
        for other in paths:
            if other != path:
                parts.append(_open(other))
        parts.sort(key=lambda part: part.path)
        if len(paths) > 1:
            _check_together(parts)
    except GGUFError:
        for part in parts:
            part.mapping.close()
        raise
    return parts


def _open(path: Path) -> Part:
    mapping = map_file(path)
    try:
        part = Part(path, mapping, read_header(path, mapping))
    except GGUFError:
        mapping.close()
        raise
    _mention_rest(part)
    return part


def _mention_rest(part: Part) -> None:
    """Warn of bytes after the tensors: a file joined to another, or not what it seems."""
    header = part.header
    end = max((info.offset + info.nbytes for info in header.tensors.values()), default=0)
    rest = len(part.mapping) - -(-end // header.alignment) * header.alignment
    if end and rest > 0:
        warnings.warn(f"{part.path}: {rest} bytes after the last tensor are ignored", stacklevel=5)


def _paths(part: Part) -> list[Path]:
    """Return the paths of a model's files by those of one; refuse where one is missing."""
    entry = part.header.entries.get(COUNT)
    count = 1 if entry is None else entry.value
    if entry is None or not isinstance(count, int) or count <= 1:
        return [part.path]
    found = NAME.fullmatch(part.path.name)
    if found is None or int(found[3]) != count:
        raise _wrong(part, COUNT, f"a name that ends in -00001-of-{count:05}.gguf", part.path.name)
    paths = [
        part.path.with_name(f"{found[1]}-{index:05}-of-{found[3]}.gguf")
        for index in range(1, count + 1)
    ]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        others = f" and {len(missing) - 3} others" if len(missing) > 3 else ""
        raise _wrong(
            part,
            COUNT,
            f"{count} files beside one another",
            f"{', '.join(missing[:3])}{others} missing",
        )
    return paths


def _check_together(parts: list[Part]) -> None:
    """Refuse files that do not belong together, or not in this order."""
    seen: dict[str, Path] = {}
    for index, part in enumerate(parts):
        _expect(part, COUNT, len(parts))
        _expect(part, NUMBER, index)
        for name in part.header.tensors:
            if name in seen:
                raise GGUFError(f"{part.path}: tensor {name} is in {seen[name].name}, too")
            seen[name] = part.path
    for part in parts:
        _expect(part, TENSORS, len(seen))
        for key, entry in parts[0].header.entries.items():
            said = key.startswith("general.") and isinstance(entry.value, str | int | float)
            if said and key in part.header.entries:  # of another model
                _expect(part, key, entry.value)


def _expect(part: Part, key: str, value: object) -> None:
    entry = part.header.entries.get(key)
    if entry is None or type(entry.value) is not type(value) or entry.value != value:
        raise _wrong(part, key, str(value), "nothing" if entry is None else repr(entry.value))


def _wrong(part: Part, key: str, expected: str, got: str) -> GGUFError:
    entry: Entry | None = part.header.entries.get(key)
    where = "" if entry is None else f" at byte {entry.offset}"
    return GGUFError(f"{part.path}: {key}{where}: expected {expected}, got {got}")
