"""Run a folder's tokenizer.json as it is, with the tokenizers library.

The file's own steps normalize, cut and merge a text. Added tokens are found before (`pieces`), and
BOS and EOS are added after.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from toynn.errors import DataError
from toynn.formats.tokenizer import bpe, spm
from toynn.formats.tokenizer.chat import needed
from toynn.formats.tokenizer.folder import JSON, FolderKeys
from toynn.formats.tokenizer.panics import refused
from toynn.formats.tokenizer.steps import without_prefix
from toynn.formats.tokenizer.vocab import Vocab

__all__ = ["Pipeline"]


class Pipeline:
    """Turns texts without special tokens into ids, and ids into bytes.

    Raises DataError for an invalid file.
    """

    def __init__(self, vocab: Vocab, keys: FolderKeys) -> None:
        assert keys.data is not None
        library, data = needed("tokenizers"), keys.data
        plain: dict[str, Any] = {"version": "1.0", "added_tokens": []}
        plain |= {key: data.get(key) for key in ("normalizer", "pre_tokenizer", "model")}
        small = {
            **plain,
            "model": {"type": "BPE", "vocab": {}, "merges": []},
            **without_prefix(data),
        }
        whole = json.dumps(plain)
        self._path = keys.path / JSON
        with refused(f"{self._path}: does not make a tokenizer", DataError):
            self._begins = self._continues = library.Tokenizer.from_str(whole)
            if any(small[step] != plain[step] for step in ("normalizer", "pre_tokenizer")):
                steps = library.Tokenizer.from_str(json.dumps(small))
                self._continues = library.Tokenizer(self._begins.model)
                for step in ("normalizer", "pre_tokenizer"):
                    if getattr(steps, step) is not None:
                        setattr(self._continues, step, getattr(steps, step))
        self._vocab = vocab
        self._piece: Callable[[Vocab, int], bytes] = bpe.piece_of if keys.of_bytes else spm.piece_of
        #: a SHA-256 of everything that ids depend on
        self.told = hashlib.sha256(whole.encode()).hexdigest()

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Return the ids of texts; only a text that continues no other gets a space in front.

        Raises DataError if the library fails.
        """
        found: list[list[int]] = [[] for _ in texts]
        for wanted, by in ((False, self._begins), (True, self._continues)):
            places = [index for index, (_, continues) in enumerate(texts) if continues is wanted]
            with refused(f"{self._path}: cannot encode", DataError):
                encoded = _encoded(by, [texts[index][0] for index in places])
            for place, ids in zip(places, encoded, strict=True):
                found[place] = ids
        return found

    def piece(self, id: int) -> bytes:
        """Return the bytes of a token."""
        return self._piece(self._vocab, id)


def _encoded(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    if len(texts) == 1:  # the library's threads are slower for one text
        return [tokenizer.encode(texts[0], add_special_tokens=False).ids]
    return [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
