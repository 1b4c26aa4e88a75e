"""SentencePiece's BPE, as in Llama 2, with the sentencepiece library.

Spaces are written as U+2581, and the text is split into characters. Then adjacent pairs that make a
token are merged, the one with the highest score first, until no pair makes a token. If scores are
equal, the first pair in the text is merged. A character without a token becomes bytes. (The
tokenizers library cannot do this: its merges have an order, and scores may be equal.)

The library reads a model in Protocol Buffers' wire format. This module builds it from the
vocabulary of a GGUF file, which has all that it needs, and reads a folder's tokenizer.model.

Sources: Kudo & Richardson 2018, arXiv:1808.06226; src/sentencepiece_model.proto of
github.com/google/sentencepiece; protobuf.dev/programming-guides/encoding.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toynn.errors import DataError, GGUFError
from toynn.formats.tokenizer.chat import needed
from toynn.formats.tokenizer.vocab import SPELLED, TokenType, Vocab
from toynn.system.reading import read_bytes

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # ModelProto.SentencePiece.Type
PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of ModelProto
MODEL_TYPE, BYTE_FALLBACK = 3, 35  # of TrainerSpec
NAME, DUMMY_PREFIX, EXTRA_SPACES, SPACES = 1, 3, 4, 5  # of NormalizerSpec
BPE = 2  # TrainerSpec.ModelType
HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)


class SentencePiece:
    """Turns texts without special tokens into ids.

    Raises GGUFError for an invalid vocabulary.
    """

    told = ""

    def __init__(self, vocab: Vocab) -> None:
        self._prefix = " " if vocab.add_space_prefix else ""
        self._processor = needed("sentencepiece").SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(_model(vocab))
        except (RuntimeError, ValueError) as error:
            raise GGUFError(
                f"{vocab.path}: tokenizer.ggml.tokens and .scores do not make a tokenizer: {error}"
            ) from error

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Return the ids of texts; a space comes before each unless it continues another."""
        prefixed = [text if continues else self._prefix + text for text, continues in texts]
        ids: list[list[int]] = self._processor.EncodeAsIds(prefixed)
        return ids


class Sentences(NamedTuple):
    """Ids and scores by the texts of tokens, and whether a space is put before a text."""

    ids: dict[str, int]
    scores: dict[str, float]
    prefix: bool


def read_model(path: Path) -> Sentences:
    """Read a tokenizer.model. Raises DataError unless it is a BPE model."""
    processor, raw = needed("sentencepiece").SentencePieceProcessor(), read_bytes(path)
    try:
        processor.LoadFromSerializedProto(raw)
        fields = _fields(raw)
        trainer, normalizer = (_fields(b"".join(fields.get(n, []))) for n in (TRAINER, NORMALIZER))
    except (RuntimeError, ValueError, IndexError) as error:
        raise DataError(f"{path}: not a SentencePiece model: {error}") from error
    if trainer.get(MODEL_TYPE, [1])[-1] != BPE:
        raise DataError(f"{path}: expected a model of BPE; got another kind (unigram, words)")
    texts = [processor.IdToPiece(id) for id in range(processor.GetPieceSize())]
    return Sentences(
        {text: id for id, text in enumerate(texts)},
        {text: processor.GetScore(id) for id, text in enumerate(texts)},
        bool(normalizer.get(DUMMY_PREFIX, [1])[-1]),
    )


def _model(vocab: Vocab) -> bytes:
    """Return a ModelProto: the pieces, the kind of model, and no normalization of texts."""
    types = _types(vocab)
    texts = (text.encode("utf-8", "surrogateescape") for text in vocab.tokens)
    pieces = b"".join(
        _bytes(PIECES, _bytes(1, text) + _float(2, score) + _int(3, type))
        for text, score, type in zip(texts, vocab.scores.tolist(), types, strict=True)
    )
    trainer = _int(MODEL_TYPE, BPE) + _int(BYTE_FALLBACK, int(BYTE in types))
    as_it_is = _int(DUMMY_PREFIX, 0) + _int(EXTRA_SPACES, 0) + _int(SPACES, 1)
    return (
        pieces + _bytes(TRAINER, trainer) + _bytes(NORMALIZER, _bytes(NAME, b"identity") + as_it_is)
    )


def _types(vocab: Vocab) -> list[int]:
    """Return the pieces' types: exactly one is unknown, and all bytes have tokens or none.

    Other types become normal: Tokenizer has already matched user-defined tokens, and llama.cpp
    merges into unused tokens too.
    """
    if vocab.unknown is None:
        raise GGUFError(
            f"{vocab.path}: tokenizer.ggml.unknown_token_id: expected the id of a token; got none"
        )
    has_bytes = SPELLED.keys() <= set(vocab.tokens)
    types = [
        BYTE if has_bytes and text in SPELLED else CONTROL if type in HIDDEN else NORMAL
        for text, type in zip(vocab.tokens, vocab.types.tolist(), strict=True)
    ]
    types[vocab.unknown] = UNKNOWN
    return types


# -- Protocol Buffers -------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes((*groups, number))


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _fields(raw: bytes) -> dict[int, list[Any]]:
    """Return the integer and bytes fields of a message."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(raw):
        key, at = _read_varint(raw, at)
        number, kind = key >> 3, key & 7
        if kind in (1, 5):  # a number of 8 or 4 bytes
            at += 8 if kind == 1 else 4
            continue
        if kind not in (0, 2):
            raise ValueError(f"a field of kind {kind}")
        value: Any
        value, at = _read_varint(raw, at)
        if kind == 2:
            value, at = raw[at : at + value], at + value
        fields.setdefault(number, []).append(value)
    return fields


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] > 127:
        value |= (raw[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | raw[at] << shift, at + 1
