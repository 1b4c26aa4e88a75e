"""Open the files of a model: one, or several from llama.cpp's gguf-split.

Several files are named NAME-00001-of-00003.gguf and so on. Each has its own header and tensors, its
number (`split.no`, from 0) and the number of files (`split.count`). The first file has the model's
metadata, which the others may repeat. Each file is mapped.

Source: tools/gguf-split of github.com/ggml-org/llama.cpp.
"""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from toynn.errors import GGUFError
from toynn.formats.gguf.header import Entry, Header, read_header
from toynn.formats.gguf.mapping import Mapping, map_file

COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class PartFile:
    """A mapped file and its header."""

    path: Path
    mapping: Mapping
    header: Header


def open_parts(path: Path) -> list[PartFile]:
    """Map a file and the other files of its model; return them in order. Raises GGUFError."""
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


def _open(path: Path) -> PartFile:
    mapping = map_file(path)
    try:
        part = PartFile(path, mapping, read_header(path, mapping))
    except GGUFError:
        mapping.close()
        raise
    _mention_rest(part)
    return part


def _mention_rest(part: PartFile) -> None:
    """Warn of bytes after the tensors: perhaps two files were joined."""
    header = part.header
    end = max((info.offset + info.nbytes for info in header.tensors.values()), default=0)
    rest = len(part.mapping) - -(-end // header.alignment) * header.alignment
    if end and rest > 0:
        warnings.warn(f"{part.path}: {rest} bytes after the last tensor are ignored", stacklevel=5)


def _paths(part: PartFile) -> list[Path]:
    """Return the paths of all files of a model. Raises GGUFError if one is missing."""
    entry = part.header.entries.get(COUNT)
    count = 1 if entry is None else entry.value
    if entry is None or not isinstance(count, int) or count <= 1:
        return [part.path]
    match = NAME.fullmatch(part.path.name)
    if match is None or int(match[3]) != count:
        raise _wrong(part, COUNT, f"a name that ends in -00001-of-{count:05}.gguf", part.path.name)
    paths = [
        part.path.with_name(f"{match[1]}-{index:05}-of-{match[3]}.gguf")
        for index in range(1, count + 1)
    ]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        others = f" and {len(missing) - 3} others" if len(missing) > 3 else ""
        raise _wrong(
            part,
            COUNT,
            f"{count} files in one folder",
            f"{', '.join(missing[:3])}{others} missing",
        )
    return paths


def _check_together(parts: list[PartFile]) -> None:
    """Raise GGUFError unless the files belong together, in this order."""
    seen: dict[str, Path] = {}
    for index, part in enumerate(parts):
        _expect(part, COUNT, len(parts))
        _expect(part, NUMBER, index)
        for name in part.header.tensors:
            if name in seen:
                raise GGUFError(f"{part.path}: tensor {name} is also in {seen[name].name}")
            seen[name] = part.path
    for part in parts:
        _expect(part, TENSORS, len(seen))
        for key, entry in parts[0].header.entries.items():
            said = key.startswith("general.") and isinstance(entry.value, str | int | float)
            if said and key in part.header.entries:  # differs in another model
                _expect(part, key, entry.value)


def _expect(part: PartFile, key: str, value: object) -> None:
    entry = part.header.entries.get(key)
    if entry is None or type(entry.value) is not type(value) or entry.value != value:
        raise _wrong(part, key, str(value), "nothing" if entry is None else repr(entry.value))


def _wrong(part: PartFile, key: str, expected: str, got: str) -> GGUFError:
    entry: Entry | None = part.header.entries.get(key)
    where = "" if entry is None else f" at byte {entry.offset}"
    return GGUFError(f"{part.path}: {key}{where}: expected {expected}, got {got}")
