"""BPE on bytes, as in GPT-2, or over spaces, as in Gemma 4, with the tokenizers library.

A text is cut into pieces (`pre`). In byte-level BPE each piece becomes bytes, each byte written as
a printable letter. Over spaces (``Kind.spaced``) a space is written as U+2581. Then the adjacent
pair whose merge comes first in the list is merged, until no merge applies.

Source: Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019 (GPT-2), section 2.2.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from toynn.errors import GGUFError
from toynn.formats.tokenizer.chat import needed
from toynn.formats.tokenizer.panics import refused
from toynn.formats.tokenizer.pre import Kind
from toynn.formats.tokenizer.spm import SPACE
from toynn.formats.tokenizer.spm import piece_of as spelled_piece
from toynn.formats.tokenizer.vocab import TokenType, Vocab

__all__ = ["BPE", "byte_letters", "cutter", "pairs_of", "piece_of"]

MISSING = "\ufdd0"  # a noncharacter for a byte without a token, so that nothing merges across it


def byte_letters() -> list[str]:
    """Return the letter that byte-level BPE writes for each byte: all are printable.

    Source: bytes_to_unicode of github.com/openai/gpt-2, src/encoder.py.
    """
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) if byte in seen else chr(256 + others.index(byte)) for byte in range(256)]


def cutter(kind: Kind) -> Any:
    """Return the library's pre-tokenizer that cuts a text into pieces of bytes."""
    library = needed("tokenizers")
    cut = library.pre_tokenizers
    return cut.Sequence(
        [cut.Split(library.Regex(regex), "isolated") for regex in kind.regexes]
        + ([] if kind.spaced else [cut.ByteLevel(add_prefix_space=False, use_regex=False)])
    )


class BPE:
    """Turns texts without special tokens into ids, and ids into bytes.

    Raises GGUFError for an invalid vocabulary.
    """

    def __init__(self, vocab: Vocab, kind: Kind) -> None:
        library = needed("tokenizers")
        self._vocab = vocab
        ids = {text: id for id, text in enumerate((*vocab.tokens, MISSING))}
        keys = f"{vocab.path}: tokenizer.ggml.tokens and .merges"
        with refused(f"{keys} do not make a tokenizer", GGUFError):
            model = library.models.BPE(
                ids,
                list(pairs_of(vocab)),
                unk_token=MISSING,
                ignore_merges=kind.whole_words,
                byte_fallback=kind.spaced,
            )
        self._tokenizer = library.Tokenizer(model)
        self._tokenizer.pre_tokenizer = cutter(kind)
        if kind.spaced:
            self._tokenizer.normalizer = library.normalizers.Replace(" ", SPACE)
        self._piece = spelled_piece if kind.spaced else piece_of

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Return the ids of texts. Bytes without a token are left out, as in llama.cpp.

        Raises GGUFError if the library fails.
        """
        given = [text for text, _ in texts]
        many = len(given) > 1
        encode = self._tokenizer.encode_batch if many else self._one
        missing = len(self._vocab.tokens)
        with refused(f"{self._vocab.path}: cannot encode", GGUFError):
            found = [each.ids for each in encode(given, add_special_tokens=False)]
        return [[id for id in ids if id != missing] if missing in ids else ids for ids in found]

    def _one(self, texts: list[str], **how: bool) -> list[Any]:
        """Encode in this thread: for one text the library's threads are slower."""
        return [self._tokenizer.encode(text, **how) for text in texts]

    def piece(self, id: int) -> bytes:
        """Return the bytes that a token stands for."""
        return self._piece(self._vocab, id)


def piece_of(vocab: Vocab, id: int) -> bytes:
    """Return the bytes that a token stands for."""
    text = vocab.tokens[id]
    if vocab.declared[id] != TokenType.NORMAL:
        return text.encode()
    spelled = _spelled()
    return b"".join(
        bytes((spelled[letter],)) if letter in spelled else letter.encode() for letter in text
    )


@cache
def _spelled() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(byte_letters())}


def pairs_of(vocab: Vocab) -> Iterator[tuple[str, str]]:
    """Yield the two texts of each merge. Raises GGUFError for an entry that is not two."""
    for index, merge in enumerate(vocab.merges):
        space = merge.find(" ", 1)
        if space < 0:
            raise GGUFError(
                f"{vocab.path}: tokenizer.ggml.merges: entry {index}: expected two texts with a "
                f"space between; got {merge!r}"
            )
        yield merge[:space], merge[space + 1 :]
