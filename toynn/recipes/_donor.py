"""A donor: the embedding table in another model's GGUF file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from toynn.errors import GGUFError
from toynn.formats import gguf, quants
from toynn.formats.foreign import foreign
from toynn.formats.gguf import GGUFFile, Strings
from toynn.formats.tokenizer import byte_letters
from toynn.models import ARCHITECTURES, TABLE, refuse

CHUNK = 4096  # rows that are dequantized at a time
BYTES = 256


class Donor:
    """A table of embeddings, checked: ``count`` rows, each ``width`` wide."""

    def __init__(self, file: GGUFFile) -> None:
        architecture = file.architecture
        if architecture not in ARCHITECTURES:
            expected = f"general.architecture: expected {', '.join(ARCHITECTURES)}; got "
            refuse(file, foreign([architecture]) or f"{expected}{architecture!r}")
        self.width = file.require(f"{architecture}.embedding_length", int)
        if self.width < 1:
            key = f"{architecture}.embedding_length"
            refuse(file, f"{key}: expected at least 1; got {self.width}")
        if TABLE not in file.tensors:
            refuse(file, f"the donor has no tensor {TABLE}")
        self._file, self._info = file, file.tensors[TABLE]
        if len(self._info.shape) != 2 or self._info.shape[1] != self.width:
            expected = f"rows as wide as {architecture}.embedding_length, {self.width}"
            self.refuse(expected, f"shape {self._info.shape}")
        if self._info.type not in quants.BLOCKS:
            self.refuse(f"a type of {', '.join(quants.BLOCKS)}", self._info.type)
        self.count = self._info.shape[0]

    def refuse(self, expected: str, got: object) -> NoReturn:
        """Raise GGUFError: the donor does not fit the model."""
        refuse(self._file, f"{TABLE}: expected {expected}; got {got}")

    def ids_of(self, tokens: Sequence[str]) -> NDArray[np.intp]:
        """Return the donor's id of each token, by its text; -1 where the donor has none."""
        texts = self._texts()
        ids = {text: id for id, text in reversed(list(enumerate(texts)))}
        return np.array([ids.get(token, -1) for token in tokens], np.intp)

    def byte_tokens(self) -> list[str] | None:
        """Return the text of each byte's token; None if a token's id is the byte itself."""
        key = "tokenizer.ggml.model"
        kind = self._file.metadata.get(key, "no_vocab")
        if kind == "no_vocab" and self.count == BYTES:
            return None
        if kind == "gpt2":
            return byte_letters()
        if kind == "llama":  # <0x..> names a byte unless its letter is a token
            texts = set(self._texts())
            letters = ["\N{LOWER ONE EIGHTH BLOCK}" if b == 32 else chr(b) for b in range(128)]
            letters += [""] * 128
            return [
                letter if letter in texts else f"<0x{byte:02X}>"
                for byte, letter in enumerate(letters)
            ]
        expected = "expected gpt2 or llama, whose tokens for bytes are known"
        refuse(self._file, f"{key}: {expected}; got {kind!r} with {self.count} tokens")

    def _texts(self) -> Strings:
        key = "tokenizer.ggml.tokens"
        texts = self._file.metadata.get(key)
        if not isinstance(texts, Strings) or len(texts) != self.count:
            got = f"{len(texts)} of them" if isinstance(texts, Strings) else "none"
            refuse(self._file, f"{key}: expected {self.count} token texts; got {got}")
        return texts

    def rows(self, ids: NDArray[np.intp]) -> Iterator[NDArray[np.float32]]:
        """Yield these rows of the table in float32, CHUNK at a time."""
        raw = self._file.raw(TABLE)
        for begin in range(0, len(ids), CHUNK):
            part = ids[begin : begin + CHUNK]
            rows = quants.dequantize(raw[part], self._info.type, (len(part), self.width))
            if not np.isfinite(rows).all():
                row = part[np.argmin(np.isfinite(rows).all(1))]
                refuse(self._file, f"{TABLE}: row {row} is not finite")
            yield rows


@contextmanager
def open_donor(call: str, path: str | PathLike[str]) -> Iterator[Donor]:
    """Open a donor; every GGUFError then begins with the name of the call."""
    try:
        with gguf.open(path, check=False) as file:
            yield Donor(file)
            file.check_unchanged()
    except GGUFError as error:
        raise GGUFError(f"{call}: {error}") from error
