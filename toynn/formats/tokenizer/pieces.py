"""Cut a text at special tokens, and a long one also where a cut changes no id."""

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from toynn.errors import DataError
from toynn.formats.tokenizer.vocab import TokenType, Vocab

PIECE = 1 << 14  # characters of a piece for one core
#: A text, and whether it continues the one before.
Text = tuple[str, bool]
_WHITE = " \t\n\v\f\r"
CUT = re.compile(r"(?<=\S\n)(?=\w)")  # no pre-tokenizer's piece crosses it, and rarely a token


class Algorithm(Protocol):
    """Turns texts into ids."""

    told: str  # what ids depend on, besides the vocabulary

    def encode_all(self, texts: Sequence[Text]) -> list[list[int]]:
        """Return the ids of each text, without special tokens; of many, on all cores."""


class Pieces:
    """Cuts texts into pieces, by a vocabulary."""

    def __init__(self, vocab: Vocab, *, whole: bool = False) -> None:
        """Take a vocabulary; with ``whole``, long texts are never cut."""
        self._vocab = vocab
        self._cuttable: bool | None = False if whole else None

    def of(
        self, text: str, parse_special: bool, continues: bool, guard: str = ""
    ) -> Iterator[tuple[str | int, bool]]:
        """Yield pieces of a text, with whether each continues another, and ids of special tokens.

        Raises DataError for text that is not Unicode.
        """
        _check_unicode(text)
        for fragment in self._split(text, parse_special):
            if isinstance(fragment, int):
                yield fragment, False
                continues = self._vocab.prefix_once
                continue
            for chunk in self._chunks(fragment.replace(guard, "") if guard else fragment):
                yield chunk, continues
                continues = True

    def encoded(
        self, model: Algorithm, text: str, parse_special: bool, continues: bool, guard: str = ""
    ) -> list[int]:
        """Return the ids of a text, its pieces encoded one by one. Raises what ``of`` does."""
        ids: list[int] = []
        for piece, follows in self.of(text, parse_special, continues, guard):
            ids += [piece] if isinstance(piece, int) else model.encode_all([(piece, follows)])[0]
        return ids

    @property
    def _can_be_cut(self) -> bool:
        """Whether no token has a line break inside, so that none crosses a cut."""
        if self._cuttable is None:
            inner = re.compile(r"\S\n|\n\S")
            self._cuttable = not any(inner.search(token) for token in self._vocab.tokens)
        return self._cuttable

    def _chunks(self, text: str) -> Iterator[str]:
        """Cut a long text where a cut changes no id."""
        begin = 0
        while len(text) - begin > PIECE and self._can_be_cut:
            cut = CUT.search(text, begin + PIECE)
            if cut is None:
                break
            yield text[begin : cut.end()]
            begin = cut.end()
        if begin < len(text):
            yield text[begin:]

    def last_cut(self, text: str, begin: int) -> int:
        """Return the last possible cut of a text after ``begin``; 0 if it has none."""
        at = len(text)
        while self._can_be_cut and (at := text.rfind("\n", begin, at)) >= 0:
            if CUT.match(text, at + 1):
                return at + 1
        return 0

    def _split(self, text: str, parse_special: bool) -> list[str | int]:
        """Split a text at special tokens, the longest ones first; return texts and ids."""
        fragments: list[str | int] = [text] if text else []
        specials = self._vocab.specials
        types = self._vocab.types
        for special, id in specials:
            if special not in text or not (parse_special or types[id] == TokenType.USER_DEFINED):
                continue
            strip, before = id in self._vocab.strips_right, id in self._vocab.strips_left
            split: list[str | int] = []
            for fragment in fragments:
                if isinstance(fragment, int):
                    split.append(fragment)
                    continue
                parts = fragment.split(special)
                for index, part in enumerate(parts):
                    if index:
                        split.append(id)
                        part = part.lstrip(_WHITE) if strip else part
                    if before and index < len(parts) - 1:
                        part = part.rstrip(_WHITE)
                    if part:
                        split.append(part)
            fragments = split
        return fragments


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"encode: expected Unicode text; got half of a surrogate pair, "
            f"{text[error.start]!r}, at character {error.start}"
        ) from error
