"""SentencePiece's BPE, as in Llama 2, with the sentencepiece library.

Spaces are written as U+2581, and the text is split into characters. Then the adjacent pair that
makes the token with the highest score is merged, until no pair makes a token. A character without a
token becomes bytes.

The library reads a model in Protocol Buffers' wire format. This module builds it from the
vocabulary of a GGUF file, which has all that it needs.

Sources: Kudo & Richardson 2018, arXiv:1808.06226; src/sentencepiece_model.proto of
github.com/google/sentencepiece; protobuf.dev/programming-guides/encoding.
"""

import struct
from collections.abc import Sequence

from toynn.errors import GGUFError
from toynn.formats.tokenizer.chat import needed
from toynn.formats.tokenizer.vocab import TokenType, Vocab

__all__ = ["BPE", "SPACE", "SPELLED", "SentencePiece", "piece_of"]

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
BPE = 2  # TrainerSpec.ModelType

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # ModelProto.SentencePiece.Type
HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)

#: The texts of byte tokens.
SPELLED = {f"<0x{byte:02X}>": byte for byte in range(256)}


class SentencePiece:
    """Turns texts without special tokens into ids, and ids into bytes.

    Raises GGUFError for an invalid vocabulary.
    """

    def __init__(self, vocab: Vocab) -> None:
        library = needed("sentencepiece")
        self._vocab = vocab
        self._processor = library.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(_model(vocab))
        except (RuntimeError, ValueError) as error:
            raise GGUFError(
                f"{vocab.path}: tokenizer.ggml.tokens and .scores do not make a tokenizer: {error}"
            ) from error

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Return the ids of texts; a space comes before each unless it continues another."""
        prefix = " " if self._vocab.add_space_prefix else ""
        given = [text if continues else prefix + text for text, continues in texts]
        ids: list[list[int]] = self._processor.EncodeAsIds(given)
        return ids

    def piece(self, id: int) -> bytes:
        """Return the bytes that a token stands for."""
        return piece_of(self._vocab, id)


def piece_of(vocab: Vocab, id: int) -> bytes:
    """Return the bytes that a token stands for."""
    text, type = vocab.tokens[id], vocab.declared[id]
    if type == TokenType.BYTE and text in SPELLED:
        return bytes((SPELLED[text],))
    if type == TokenType.NORMAL:
        text = text.replace(SPACE, " ")
    return text.encode("utf-8", "surrogateescape")


def _model(vocab: Vocab) -> bytes:
    """Return a ModelProto: the pieces, the kind of model, and no normalization of texts."""
    types = _types(vocab)
    texts = (text.encode("utf-8", "surrogateescape") for text in vocab.tokens)
    pieces = b"".join(
        _bytes(1, _bytes(1, text) + _float(2, score) + _int(3, type))
        for text, score, type in zip(texts, vocab.scores.tolist(), types, strict=True)
    )
    trainer = _int(3, BPE) + _int(35, int(BYTE in types))
    as_it_is = _bytes(1, b"identity") + _int(3, 0) + _int(4, 0) + _int(5, 1)
    return pieces + _bytes(2, trainer) + _bytes(3, as_it_is)


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
