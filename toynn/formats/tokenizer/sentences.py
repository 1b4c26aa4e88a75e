"""Read tokenizer.model, SentencePiece's file, with its library and its wire format."""

from pathlib import Path
from typing import Any, NamedTuple

from toynn.errors import DataError
from toynn.formats.tokenizer.chat import needed
from toynn.formats.tokenizer.spm import BPE
from toynn.system.reading import read_bytes

__all__ = ["Sentences", "read_model"]

_TRAINER, _NORMALIZER = 2, 3  # fields of ModelProto
_MODEL_TYPE, _DUMMY_PREFIX = 3, 3  # of TrainerSpec, of NormalizerSpec


class Sentences(NamedTuple):
    """Ids and scores by the texts of tokens, and whether a space is put before a text."""

    ids: dict[str, int]
    scores: dict[str, float]
    prefix: bool


def read_model(path: Path) -> Sentences:
    """Read a file. Raises DataError unless it is a BPE model."""
    library = needed("sentencepiece")
    raw = read_bytes(path)
    processor = library.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(raw)
        fields = _fields(raw)
        trainer, normalizer = (
            _fields(b"".join(fields.get(n, []))) for n in (_TRAINER, _NORMALIZER)
        )
    except (RuntimeError, ValueError, IndexError) as error:
        raise DataError(f"{path}: not a SentencePiece model: {error}") from error
    if trainer.get(_MODEL_TYPE, [1])[-1] != BPE:
        raise DataError(f"{path}: expected a model of BPE; got another kind (unigram, words)")
    count = processor.GetPieceSize()
    texts = [processor.IdToPiece(id) for id in range(count)]
    return Sentences(
        {text: id for id, text in enumerate(texts)},
        {text: processor.GetScore(id) for id, text in enumerate(texts)},
        bool(normalizer.get(_DUMMY_PREFIX, [1])[-1]),
    )


def _fields(raw: bytes) -> dict[int, list[Any]]:
    """Return the integer and bytes fields of a Protocol Buffers message."""
    found: dict[int, list[Any]] = {}
    value: Any
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(raw, at)
        elif kind == 2:
            size, at = _varint(raw, at)
            value, at = raw[at : at + size], at + size
        elif kind in (1, 5):
            value, at = None, at + (8 if kind == 1 else 4)
        else:
            raise ValueError(f"a field of kind {kind}")
        if value is not None:
            found.setdefault(key >> 3, []).append(value)
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] > 127:
        value |= (raw[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | raw[at] << shift, at + 1
