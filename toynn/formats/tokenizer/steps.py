"""Read parts of tokenizer.json: steps, added tokens, and the tokens put around a text."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from toynn.errors import DataError

#: The key of the list in a step of type Sequence, by step.
_LISTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}


class Added(NamedTuple):
    """A token that is matched in a text, and whether it strips white space on its sides."""

    id: int
    text: str
    special: bool
    lstrip: bool
    rstrip: bool


def parts_of(data: Mapping[str, Any], step: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a step; a sequence yields each of its parts."""
    waiting = [data.get(step)]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, dict) and isinstance(part.get("type"), str):
            if part["type"] == "Sequence":
                more = part.get(_LISTS[step])
                waiting = [*(more if isinstance(more, list) else ()), *waiting]
            else:
                yield part


def added_of(
    path: Path, data: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int] = {}
) -> list[Added]:
    """Return the added tokens of tokenizer.json, or else of tokenizer_config.json.

    ``ids`` are the ids of the vocabulary by text. Raises DataError for malformed entries.
    """
    entries = data.get("added_tokens") or []
    if not data:
        table = config.get("added_tokens_decoder") or {}
        if not isinstance(table, dict) or not all(isinstance(e, dict) for e in table.values()):
            raise DataError(
                f"{path}: added_tokens_decoder: expected tokens by id; got {table!r:.80}"
            )
        entries = [{"id": int(id), **entry} for id, entry in table.items() if str(id).isdecimal()]
    added = []
    for entry in entries if isinstance(entries, list) else [entries]:
        fields = entry if isinstance(entry, dict) else {}
        text, id = fields.get("content"), fields.get("id")
        if not isinstance(text, str) or not text or type(id) is not int or not 0 <= id < 1 << 31:
            raise DataError(f"{path}: added_tokens: expected id and content; got {entry!r:.80}")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise DataError(
                f"{path}: added_tokens: expected Unicode text; got half of a surrogate pair in "
                f"{text!a:.80}"
            )
        if fields.get("single_word"):
            raise DataError(f"{path}: added_tokens: {text!r}: single_word is not supported")
        added.append(
            Added(
                id,
                text,
                bool(fields.get("special")),
                bool(fields.get("lstrip")),
                bool(fields.get("rstrip")),
            )
        )
    return added


class Frame(NamedTuple):
    """The ids that are put before, between and after texts, and the second text's token type."""

    before: list[int]
    between: list[int]
    behind: list[int]
    second: int


def put_around(path: Path, data: Mapping[str, Any]) -> Frame:
    """Return what tokenizer.json puts around a text, and around two.

    Raises DataError for an unknown step.
    """
    parts: list[list[int]] = [[], [], [], []]  # before A, between, after B; after a single A
    second = 0
    for part in parts_of(data, "post_processor"):
        kind = part["type"]
        if kind == "TemplateProcessing":
            for key, last in (("single", 3), ("pair", 1)):
                at = 0
                for each in _objects(path, part, key):
                    if "Sequence" in each:
                        at = last if at == 0 else 2
                        second = each["Sequence"].get("type_id", 0) if at == 2 else second
                    elif "SpecialToken" in each and (key, at) != ("pair", 0):
                        parts[at].extend(_put(path, part, each["SpecialToken"]))
        elif kind in ("RobertaProcessing", "BertProcessing"):
            cls, sep = (_id_beside(path, part, name) for name in ("cls", "sep"))
            roberta = kind == "RobertaProcessing"
            parts, second = [[cls], [sep] * (1 + roberta), [sep], [sep]], int(not roberta)
        elif kind != "ByteLevel":
            raise DataError(f"{path}: post_processor: {kind} is not known to toynn")
    return Frame(parts[0], parts[1], parts[3], int(second))


def _id_beside(path: Path, part: Mapping[str, Any], name: str) -> int:
    """Return the id of a token, which stands beside its text."""
    pair = part.get(name)
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[1]) is not int:
        raise DataError(f"{path}: post_processor.{name}: expected text and id; got {pair!r:.80}")
    return pair[1]


def _objects(path: Path, part: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the objects in a part's list. Raises DataError for anything else."""
    objects = part.get(key) or []
    if not isinstance(objects, list) or not all(isinstance(each, dict) for each in objects):
        raise DataError(f"{path}: post_processor.{key}: expected objects; got {objects!r:.80}")
    return objects


def _put(path: Path, part: Mapping[str, Any], token: Any) -> list[int]:
    """Return the ids of a token that is put around a text. Raises DataError without ids."""
    name, table = token.get("id") if isinstance(token, dict) else None, part.get("special_tokens")
    entry = table.get(name) if isinstance(table, dict) and isinstance(name, str) else None
    ids = entry.get("ids") if isinstance(entry, dict) else None
    if not isinstance(ids, list) or not all(type(id) is int for id in ids):
        raise DataError(
            f"{path}: post_processor.special_tokens: expected ids of {token!r:.80}; got "
            f"{(entry or table)!r:.80}"
        )
    return ids


def without_prefix(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the normalizer and pre_tokenizer for a text that continues another one.

    They put no space before the text.
    """
    return {step: _bare(data.get(step), _LISTS[step]) for step in ("normalizer", "pre_tokenizer")}


def _bare(part: Any, parts: str) -> Any:
    if not isinstance(part, dict) or part.get("type") == "Prepend":
        return None
    if part.get("type") == "Sequence":
        inner = [_bare(each, parts) for each in part.get(parts) or ()]
        return {**part, parts: [each for each in inner if each is not None]}
    if part.get("type") == "Metaspace":
        others = {key: value for key, value in part.items() if key != "add_prefix_space"}
        return {**others, "prepend_scheme": "never"}
    return {**part, "add_prefix_space": False} if part.get("type") == "ByteLevel" else part
