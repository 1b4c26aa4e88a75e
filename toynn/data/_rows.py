"""Read the rows of a file as objects; errors name file and line."""

import json
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from toynn.data._containers import (
    LINES,
    TABLES,
    is_array,
    items_of,
    kind_of,
    lines_of,
    plain,
    table_rows,
)
from toynn.data._forms import EVERY, FORMS, READ, renamed
from toynn.data.bounds import USUAL, Bounds
from toynn.data.objects import ROWS, RepeatedKey
from toynn.data.splits import files_of
from toynn.data.stream import Progress
from toynn.errors import DataError

ACCEPTED = "text, prompt and completion, or messages"
NEAR = 0.8  # similarity, of 1, from which a key is suggested
LISTS = ("messages", "conversations", "tools")  # a table may hold these as JSON text


def checked_messages(where: str, messages: Any) -> list[dict[str, Any]]:
    """Return messages, each checked to have a role and a content. Raises DataError."""
    if not isinstance(messages, list) or not messages:
        got = "an empty list" if messages == [] else _kind(messages)
        raise DataError(f"{where}: messages: expected a list of messages; got {got}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise DataError(
                f"{where}: message {index}: expected an object with role and content; "
                f"got {_kind(message)}"
            )
        for key in ("role", "content"):
            if key not in message:
                raise DataError(
                    f"{where}: message {index}: expected role and content; got {keys_of(message)}"
                )
            string_of(f"{where}: message {index}", message, key, empty=key == "content")
    return messages


def rows(
    path: Path,
    progress: Progress,
    columns: Mapping[str, str] = MappingProxyType({}),
    bounds: Bounds = USUAL,
    read: Collection[str] = READ,
) -> Iterator[tuple[int | str, Mapping[str, Any]]]:
    """Yield the number and the object of each non-blank line, or of each row of a table.

    ``columns`` renames columns: see ``renamed``. ``read`` are the keys of interest. Raises
    DataError for a row that is not an object, and for a line or a file beyond its ``bounds``.
    """
    with closing(attempts(path, progress, columns, bounds, read)) as numbered:
        for line, row in numbered:
            if isinstance(row, DataError):
                raise row  # refers to the frames that have the file open, so it is closed here
            yield line, row


def attempts(
    path: Path,
    progress: Progress,
    columns: Mapping[str, str] = MappingProxyType({}),
    bounds: Bounds = USUAL,
    read: Collection[str] = READ,
) -> Generator[tuple[int | str, Mapping[str, Any] | DataError], None, None]:
    """Yield what ``rows`` does; for a bad row, yield its error and continue.

    If the path means several files, a row's place is a string: see ``where_of``.
    """
    files = files_of(path)
    for file in files:
        for place, row in _attempts(file, progress, columns, bounds, read):
            yield (place if len(files) == 1 else where_of(file, place)), row


def where_of(path: Path, place: int | str) -> str:
    """Return where a row is, for an error: file and line, or the file if it is the row."""
    return place if isinstance(place, str) else f"{path}:{place}"


def line_of(place: int | str) -> str:
    """Return how an error names the place of another row."""
    return place if isinstance(place, str) else f"line {place}"


def _attempts(
    path: Path,
    progress: Progress,
    columns: Mapping[str, str],
    bounds: Bounds,
    read: Collection[str],
) -> Iterator[tuple[int | str, Mapping[str, Any] | DataError]]:
    numbered: Generator[tuple[int | str, Any], None, None]
    if kind_of(path) in TABLES or (path.is_dir() and kind_of(path) not in LINES):
        wanted = read if read is EVERY else {*read, *columns.values()}
        numbered = table_rows(path, progress, wanted, bounds)
    elif is_array(path):
        numbered = items_of(path, progress, bounds)
    else:
        numbered = lines_of(path, progress, bounds)
    with closing(numbered):
        for line, raw in numbered:
            try:
                row = _row(path, int(line), raw) if isinstance(raw, bytes) else raw
                if not isinstance(row, Mapping):
                    raise _no_object(where_of(path, line), row)
                row = renamed(where_of(path, line), row, columns, read) if columns else row
            except DataError as error:
                yield line, error
                continue
            lists = {key: plain(row[key]) for key in LISTS if isinstance(row.get(key), str)}
            yield line, {**row, **lists} if lists else row


def _row(path: Path, line: int, raw: bytes) -> Mapping[str, Any]:
    where = f"{path}:{line}"
    try:
        row = ROWS.decode(raw.decode().rstrip())
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 text: byte 0x{raw[error.start]:02x} at byte {error.start} of the "
            f"line ({error.reason})"
        ) from error
    except json.JSONDecodeError as error:
        if line == 1 and raw.lstrip().startswith(b"["):
            _refuse_array(where)
        raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError:
        raise DataError(f"{where}: JSON nested too deep to be read") from None
    except RepeatedKey as error:
        raise DataError(f"{where}: expected each key of an object once; {error}") from None
    except ValueError:
        raise DataError(f"{where}: JSON with a number too long to be read") from None
    if isinstance(row, dict):
        return row
    if isinstance(row, list) and line == 1:
        _refuse_array(where)
    raise _no_object(where, row)


def _no_object(where: str, row: object) -> DataError:
    return DataError(f"{where}: expected an object with {ACCEPTED}; got {_kind(row)}")


def _refuse_array(where: str) -> NoReturn:
    raise DataError(
        f"{where}: expected a JSON object on each line; got a JSON array: write its objects one "
        f"per line, without the commas and brackets around them, or name the file .json"
    )


def form_of(where: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of a row's format. Raises DataError if no format fits, or several do."""
    forms = [form for form in FORMS if all(key in row for key in form)]
    if len(forms) == 1:
        return forms[0]
    got = keys_of(row)
    if {"chosen", "rejected"} <= row.keys() or {"prompt", "label"} <= row.keys():
        got += ": these are preferences: use --loss dpo, orpo or kto"
    elif forms:
        got += ", which fits more than one format: name the columns to read, and no others: "
        got += f"--columns {','.join(f'{key}={key}' for key in forms[0])}"
    else:
        got += (
            f"{meant(row)}; if your columns have other names: --columns prompt=...,completion=..."
        )
    raise DataError(f"{where}: expected {ACCEPTED}; got {got}")


def meant(row: Mapping[str, Any]) -> str:
    """Return a suggestion for a key that is nearly one that is read; "" if there is none."""
    for key in row:
        if key not in READ and (near := get_close_matches(key, sorted(READ - row.keys()), 1, NEAR)):
            return f"; {key!r}: did you mean {near[0]!r}?"
    return ""


def keys_of(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, list(row)[:8])) or "an empty object"


def string_of(where: str, row: Mapping[str, Any], key: str, *, empty: bool = False) -> str:
    """Return the string in a field of a row. Raises DataError for any other value."""
    text = row[key]
    if not isinstance(text, str):
        raise DataError(f"{where}: {key}: expected a text; got {_kind(text)}")
    if not text and not empty:
        raise DataError(f"{where}: {key}: expected a text; got an empty one")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: {key}: expected Unicode text; got half of a surrogate pair, "
                f"{text[error.start]!a}, at character {error.start}"
            ) from error
    return text


def _kind(value: object) -> str:
    """Return JSON's name for the type of a value."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")
