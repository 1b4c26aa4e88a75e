"""BPE with the tokenizers library, by the steps and the model of a tokenizer.json.

A text is normalized and cut into pieces. In byte-level BPE each piece becomes bytes, each byte
written as a printable letter. Over spaces (``Kind.spaced``) a space is written as U+2581. Then the
adjacent pair whose merge comes first in the list is merged, until no merge applies.

A folder's steps are its own. `described` says those of a GGUF file's vocabulary.

Source: Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019 (GPT-2), section 2.2.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toynn.errors import DataError, GGUFError, ToynnError
from toynn.formats.tokenizer.chat import needed
from toynn.formats.tokenizer.panics import refused
from toynn.formats.tokenizer.pre import Kind
from toynn.formats.tokenizer.steps import without_prefix
from toynn.formats.tokenizer.vocab import SPACE, Vocab

MISSING = "\ufdd0"  # a noncharacter for a byte without a token, so that nothing merges across it
STEPS = ("normalizer", "pre_tokenizer")
_SETTINGS = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk")
SETTINGS = (*_SETTINGS, "byte_fallback", "ignore_merges")  # of a tokenizer.json's model
_LETTERS: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


class BPE:
    """Turns texts without special tokens into ids.

    ``data`` is what a tokenizer.json holds, read from ``path``. Raises ``error``, which says
    ``wrong``, if it does not make a tokenizer. Subclasses have other models than merges.
    """

    settings: tuple[str, ...] = SETTINGS

    def __init__(
        self,
        vocab: Vocab,
        data: Mapping[str, Any],
        path: Path,
        error: type[ToynnError] = DataError,
        wrong: str = "does not make a tokenizer",
    ) -> None:
        library, model = needed("tokenizers"), data["model"]
        self._path, self._error, self._missing = path, error, len(vocab.tokens)
        settings = {key: model[key] for key in self.settings if model.get(key) is not None}
        steps = {step: data.get(step) for step in STEPS}
        bare = self.without_prefix(data)
        merges = [tuple(pair) for pair in model.get("merges") or ()]
        with refused(f"{path}: {wrong}", error):
            made = self.made(library.models, vocab, model["vocab"], merges, settings)
            self._tokenizer = self._continues = steps_of(steps, made)
            if bare != steps:
                self._continues = steps_of(bare, made)
        said = [steps, settings, [] if vocab.merges else merges]
        #: a SHA-256 of everything that ids depend on, besides the vocabulary
        self.told = hashlib.sha256(json.dumps(said).encode()).hexdigest()

    def made(self, models: Any, vocab: Vocab, ids: Any, merges: Any, settings: Any) -> Any:
        """Return the library's model."""
        return models.BPE(ids, merges, **settings)

    def without_prefix(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the steps for a text that continues another one."""
        return without_prefix(data)

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Return the ids of texts; only a text that continues no other gets a space in front.

        Bytes without a token are left out, as in llama.cpp. Raises the class's error if the library
        fails.
        """
        all_ids: list[list[int]] = [[] for _ in texts]
        for wanted, by in ((False, self._tokenizer), (True, self._continues)):
            places = [index for index, (_, continues) in enumerate(texts) if continues is wanted]
            with refused(f"{self._path}: cannot encode", self._error):
                encoded = _encoded(by, [texts[index][0] for index in places])
            for place, ids in zip(places, encoded, strict=True):
                missing = self._missing in ids
                all_ids[place] = [id for id in ids if id != self._missing] if missing else ids
        return all_ids


def _encoded(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    if len(texts) == 1:  # the library's threads are slower for one text
        return [tokenizer.encode(texts[0], add_special_tokens=False).ids]
    return [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]


def of_vocab(vocab: Vocab) -> BPE:
    """Return the BPE of a GGUF file's vocabulary. Raises GGUFError for an invalid one."""
    data = described(vocab, pairs_of(vocab))
    data["model"]["vocab"][MISSING] = len(vocab.tokens)
    data["model"]["unk_token"] = MISSING
    wrong = "tokenizer.ggml.tokens and .merges do not make a tokenizer"
    return BPE(vocab, data, vocab.path, GGUFError, wrong)


def steps_of(steps: Mapping[str, Any], model: Any = None) -> Any:
    """Return the library's tokenizer of a model, by default an empty one, with steps of a file."""
    library = needed("tokenizers")
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"version": "1.0", "added_tokens": [], **steps, "model": empty}
    tokenizer = library.Tokenizer.from_str(json.dumps(whole))
    if model is not None:
        tokenizer.model = model
    return tokenizer


def described(vocab: Vocab, merges: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return what a tokenizer.json holds for a vocabulary with merges: its steps and its model."""
    ids = {text: id for id, text in enumerate(vocab.tokens)}
    model = {"type": "BPE", "vocab": ids, "merges": list(merges)}
    kind = vocab.kind
    if kind is not None and not kind.spaced:
        return {
            "pre_tokenizer": cuts(kind),
            "decoder": {**_LETTERS, "use_regex": True},
            "model": {**model, "ignore_merges": kind.whole_words},
        }
    begins = [{"type": "Prepend", "prepend": SPACE}] if vocab.add_space_prefix else []
    ends = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins else []
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*begins, space]},
        "pre_tokenizer": cuts(kind) if kind else None,
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *ends],
        },
        "model": {**model, "byte_fallback": True},
    }


def cuts(kind: Kind, removed: Sequence[str] = ()) -> dict[str, Any]:
    """Return a pre_tokenizer of tokenizer.json; it drops the ``removed`` letters of bytes."""
    steps = [_split(regex, "Isolated") for regex in kind.regexes]
    steps += [] if kind.spaced else [{**_LETTERS, "use_regex": False}]
    if removed:
        letters = "".join(rf"\x{{{ord(letter):x}}}" for letter in removed)
        steps.append(_split(f"[{letters}]", "Removed"))
    return {"type": "Sequence", "pretokenizers": steps}


def _split(regex: str, behavior: str) -> dict[str, Any]:
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


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
