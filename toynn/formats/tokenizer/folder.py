"""Read a Hugging Face folder's tokenizer, with GGUF's keys: tokens, types, merges, BOS and EOS.

    tokenizer.json              tokens, merges, how a text is cut, which tokens are put around it
    tokenizer.model             SentencePiece's tokens and scores, if there is no tokenizer.json
    vocab.txt                   WordPiece's tokens, if there is neither
    tokenizer_config.json       the tokens that begin and end a text; the chat template
    chat_template.jinja         the chat template in its own file
    generation_config.json      the tokens that end an answer

Keys are those that llama.cpp's converter writes for such a folder. Source: github.com/huggingface/
tokenizers and transformers, whose files these are; convert_hf_to_gguf.py of ggml-org/llama.cpp.
"""

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from toynn.errors import DataError
from toynn.formats.objects import read_object
from toynn.formats.tokenizer.recognized import PROBE, name_of_cut
from toynn.formats.tokenizer.spm import read_model
from toynn.formats.tokenizer.steps import added_of, parts_of, put_around
from toynn.formats.tokenizer.subwords import CONTINUES, engine_of, of_lines, phantom
from toynn.formats.tokenizer.vocab import (
    PREFIX,
    SPELLED,
    Given,
    TokenType,
    byte_letters,
    read_vocab,
)
from toynn.system.reading import read_bytes

JSON, MODEL, LINES = "tokenizer.json", "tokenizer.model", "vocab.txt"
_CONFIG, _MAP, _TEMPLATE = "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"
_GENERATION = ("generation_config.json", "config.json")
#: All files of a tokenizer.
FILES = (
    *(JSON, MODEL, LINES, _CONFIG, _MAP, _TEMPLATE, "added_tokens.json", "vocab.json"),
    *("merges.txt", "sentencepiece.bpe.model", "spiece.model"),
)
MAX_IDS = 1 << 24  # most ids without a model's size; ids without a token get names
#: Named tokens: Hugging Face's key by GGUF's.
_NAMED = {
    "bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep",
    "mask": "mask",
}  # fmt: skip
#: Texts of added tokens that llama.cpp's converter takes for control tokens.
_SPECIAL = re.compile(
    r"<\|.*\|>|<\uff5c.*\uff5c>|<pad>|<mask>|<2mass>|\[@BOS@\]|<start_of_.*", re.S
)


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has a tokenizer of any kind."""
    return any((folder / name).exists() for name in (JSON, MODEL, LINES))


class FolderKeys(Given):
    """A folder's tokenizer: `metadata` and `types`, like a GGUF file's.

    `data` is the contents of tokenizer.json, or None with only a tokenizer.model. `pre` is
    llama.cpp's name of how texts are cut, or None. `added` are the tokens that are matched in a
    text before it is cut. `ends` are the ids that end an answer.

    Raises DataError for a tokenizer that toynn does not know, or that is incomplete.
    """

    error = DataError

    def __init__(self, folder: Path, rows: int | None = None) -> None:
        super().__init__(folder, {})
        self._config = _object(folder / _CONFIG)
        self.data = read_object(folder / JSON) if (folder / JSON).exists() else self._lines(folder)
        self.pre: str | None = None
        self.subwords = ""  # tokenizer.ggml.model of WordPiece or Unigram
        self.of_bytes = self.of_merges = self.prefix_once = False
        self._old_ends: list[int] = []
        if self.data is not None:
            ids, scores = self._read_json(folder / JSON, self.data)
        elif (folder / MODEL).exists():
            ids, scores = self._read_model(folder / MODEL)
        else:
            names = sorted(path.name for path in folder.iterdir())
            raise DataError(
                f"{folder}: expected {JSON} or {MODEL}, the tokenizer; got "
                f"{', '.join(names) or 'an empty folder'}; name one that has it with --tokenizer"
            )
        self._ids = ids | {token.text: token.id for token in self.added}
        self._set_tokens(ids, scores, rows)
        self._set_named()
        self.ends = frozenset((*self._old_ends, *self._ends()))
        template = self._template()
        if template is not None:
            self._set({"tokenizer.chat_template": (template, "STRING")})

    @property
    def is_plain(self) -> bool:
        """Whether each token is a byte, and its id the byte's value."""
        plain = self.of_bytes and not self.pairs and not self.added
        return plain and self.metadata[f"{PREFIX}tokens"] == byte_letters()

    @property
    def _kind(self) -> str:
        """The value of tokenizer.ggml.model."""
        if self.subwords:
            return self.subwords
        return "gpt2" if self.of_bytes else "gemma4" if self.of_merges else "llama"

    def typed(self) -> dict[str, tuple[Any, str]]:
        """Return the keys for a GGUF file. Raises DataError if llama.cpp could not cut texts."""
        if self.is_plain:
            return {f"{PREFIX}model": ("no_vocab", "STRING")}
        if self.of_bytes and self.pre is None:
            raise DataError(
                f"{self.path / JSON}: llama.cpp does not know the way in which it cuts texts, "
                "so a GGUF file would give other ids; use the folder itself"
            )
        if self.subwords:
            self._check_filed()
        return {key: (value, self.types[key]) for key, value in self.metadata.items()}

    def _check_filed(self) -> None:
        """Raise DataError if a GGUF file with these keys would give other ids."""
        vocab, texts = read_vocab(self), [(PROBE, False), (f" {PROBE.swapcase()}  A", False)]
        engines = engine_of(vocab, self.data, self.path / JSON), engine_of(vocab)
        ours, filed = (each.encode_all(texts) for each in engines)
        if ours != filed:
            raise DataError(
                f"{self.path / JSON}: llama.cpp normalizes or cuts texts in another way (with "
                "WordPiece it makes all letters small), so a GGUF file would give other ids; use "
                "the folder itself"
            )

    def _lines(self, folder: Path) -> dict[str, Any] | None:
        """Return what a tokenizer.json would hold for a vocab.txt, if there is nothing else."""
        path = folder / LINES
        if (folder / MODEL).exists() or not path.exists():
            return None
        return of_lines(path, text_of(path), self._config)

    def _set(self, typed: Mapping[str, tuple[Any, str]]) -> None:
        self.metadata |= {key: value for key, (value, _) in typed.items()}
        self.types |= {key: type for key, (_, type) in typed.items()}

    # -- Tokens --------------------------------------------------------------------------------

    def _read_json(self, path: Path, data: Mapping[str, Any]) -> tuple[dict[str, int], Any]:
        """Read tokenizer.json; return ids by text, and scores or None."""
        model = data.get("model")
        kind = model.get("type", "BPE") if isinstance(model, dict) else model
        if not isinstance(model, dict) or kind not in ("BPE", "WordPiece", "Unigram"):
            raise DataError(f"{path}: model: expected BPE, WordPiece or Unigram; got {kind!r:.80}")
        if kind != "BPE":
            return self._read_subwords(path, data, model)
        ids, merges = _ids_of(path, model.get("vocab")), model.get("merges")
        listed = (merges or []) if isinstance(merges, list | None) else [merges]
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in listed]
        if not all(
            isinstance(pair, list) and [type(text) for text in pair] == [str, str] for pair in pairs
        ):
            raise DataError(f"{path}: model.merges: expected pairs of texts")
        inner = model.get("continuing_subword_prefix") or ""
        for _, right in pairs:
            if not isinstance(inner, str) or not right.startswith(inner):
                raise DataError(  # else the library would crash the process
                    f"{path}: model.merges: expected second texts that begin with "
                    f"continuing_subword_prefix, {inner!r:.80}; got {right!r:.80}"
                )
        self.added = added_of(path, data, self._config)
        kinds = {
            part["type"] for part in (*parts_of(data, "pre_tokenizer"), *parts_of(data, "decoder"))
        }
        self.of_bytes = "ByteLevel" in kinds
        prefixed = [part for part in parts_of(data, "normalizer") if part["type"] == "Prepend"]
        spaced = [part for part in parts_of(data, "pre_tokenizer") if part["type"] == "Metaspace"]
        schemes = [part.get("prepend_scheme", "always") for part in spaced]
        self.prefix_once = "first" in schemes
        model["merges"] = self.pairs = pairs
        # Merges of a whole text: SentencePiece also makes tokens that no merge makes.
        sentences = path.with_name(MODEL)
        self.of_merges = bool(pairs) and not (prefixed or spaced or sentences.exists())
        if self.of_bytes:
            self.pre = name_of_cut(data)
            return ids, None
        if not prefixed and not spaced and not model.get("byte_fallback"):
            raise DataError(
                f"{path}: expected GPT-2's kind (ByteLevel) or SentencePiece's (Metaspace, or "
                f"byte_fallback); got {', '.join(sorted(kinds)) or 'neither'}"
            )
        prefix = bool(prefixed) or any(scheme != "never" for scheme in schemes)
        self._set({f"{PREFIX}add_space_prefix": (prefix, "BOOL")})
        stored = read_model(sentences) if sentences.exists() else None
        return ids, _scores(ids, pairs, stored.scores if stored else {})

    def _read_subwords(
        self, path: Path, data: Mapping[str, Any], model: dict[str, Any]
    ) -> tuple[dict[str, int], Any]:
        """Read a WordPiece's or Unigram's tokens; return ids by text, and scores or None."""
        self.added, self.pairs = added_of(path, data, self._config), []
        vocab, self.subwords = model.get("vocab"), "bert"
        if model["type"] == "WordPiece":
            prefix = model.get("continuing_subword_prefix", CONTINUES)
            if not isinstance(prefix, str) or not prefix:
                raise DataError(f"{path}: model: continuing_subword_prefix: got {prefix!r:.80}")
            self._prefix = prefix
            return _ids_of(path, vocab), None
        self.subwords = "t5"
        pairs: list[Any] = vocab if isinstance(vocab, list) else [vocab]
        for pair in pairs:
            kinds = [type(each) for each in pair] if isinstance(pair, list) else []
            if kinds not in ([str, float], [str, int]):
                raise DataError(f"{path}: model.vocab: expected texts and scores; got {pair!r:.80}")
        steps = [*parts_of(data, "normalizer"), *parts_of(data, "pre_tokenizer")]
        tables = [part.get("precompiled_charsmap") for part in steps]
        table = next((each for each in tables if isinstance(each, str)), "")
        try:
            charsmap = np.frombuffer(base64.b64decode(table, validate=True), np.uint8)
        except ValueError as error:
            raise DataError(f"{path}: normalizer: precompiled_charsmap: {error}") from error
        spaces = [part for part in steps if part["type"] == "Metaspace"]
        single = any(part["type"] in ("WhitespaceSplit", "Replace") for part in steps)
        prefix = any(part.get("prepend_scheme", "always") != "never" for part in spaces)
        self._set({f"{PREFIX}add_space_prefix": (prefix, "BOOL")})
        self._set({f"{PREFIX}remove_extra_whitespaces": (single, "BOOL")})
        self._set({f"{PREFIX}precompiled_charsmap": (charsmap, "[UINT8]")} if table else {})
        scores = {text: float(score) for text, score in pairs}
        if len(scores) < len(pairs):
            raise DataError(f"{path}: model.vocab: expected each text once")
        return {text: id for id, (text, _) in enumerate(pairs)}, scores

    def _read_model(self, path: Path) -> tuple[dict[str, int], Any]:
        """Read tokenizer.model; return ids by text, and scores."""
        sentences = read_model(path)
        self.added = added_of(path, {}, self._config, sentences.ids)
        self.pairs = []
        self._set({f"{PREFIX}add_space_prefix": (sentences.prefix, "BOOL")})
        return sentences.ids, sentences.scores

    def _set_tokens(self, ids: Mapping[str, int], scores: Any, rows: int | None) -> None:
        """Set tokens (one for each row of the model), their types, and merges or scores."""
        texts = {id: text for text, id in ids.items()} | {
            token.id: token.text for token in self.added
        }
        count = max(texts, default=-1) + 1
        if rows is not None and count > rows:
            raise DataError(
                f"{self.path}: the tokenizer has ids up to {count - 1}, the model {rows} rows; it "
                "belongs to another model, or tokens were added without resizing the model"
            )
        if rows is None and count > MAX_IDS:
            raise DataError(
                f"{self.path}: expected ids below {MAX_IDS:,}, as no vocabulary has more; got "
                f"{count - 1}"
            )
        count = count if rows is None else rows
        tokens = [texts.get(id, f"[PAD{id}]") for id in range(count)]
        types = np.full(count, TokenType.NORMAL, np.int32)
        types[[id for id in range(count) if id not in texts]] = TokenType.UNUSED
        if not self.of_bytes:
            types[[ids[text] for text in SPELLED if text in ids]] = TokenType.BYTE
        for token in self.added:
            special = token.special or _SPECIAL.fullmatch(token.text)
            types[token.id] = TokenType.CONTROL if special else TokenType.USER_DEFINED
        unknown = self._id_of("unk", ids)
        if self.subwords == "bert":
            plain = np.isin(types, (TokenType.NORMAL, TokenType.USER_DEFINED))
            for id in np.flatnonzero(plain).tolist():
                tokens[id] = phantom(tokens[id], self._prefix)
        elif not self.of_bytes and unknown is not None:
            types[unknown] = TokenType.UNKNOWN
        self._set(
            {
                f"{PREFIX}model": (self._kind, "STRING"),
                f"{PREFIX}tokens": (tokens, "[STRING]"),
                f"{PREFIX}token_type": (types, "[INT32]"),
            }
        )
        if self.of_bytes or self.of_merges:
            if self.pre is not None:
                self._set({f"{PREFIX}pre": (self.pre, "STRING")})
            if self.pairs:
                merges = [f"{left} {right}" for left, right in self.pairs]
                self._set({f"{PREFIX}merges": (merges, "[STRING]")})
        else:
            numbers = np.zeros(count, np.float32)
            for text, score in (scores or {}).items():
                numbers[self._ids[text]] = score
            self._set({f"{PREFIX}pre": ("default", "STRING")})
            self._set({f"{PREFIX}scores": (numbers, "[FLOAT32]")})

    # -- How texts begin and end ---------------------------------------------------------------

    def _set_named(self) -> None:
        """Set the ids of named tokens, and whether BOS and EOS are added to a text."""
        before, self.between, behind, self.second = put_around(self.path / JSON, self.data or {})
        for key, spelled in _NAMED.items():
            id = self._id_of(spelled, self._ids)
            if id is None and key in ("bos", "eos"):
                ids = [id for name in _GENERATION for id in self._ids_in(name, f"{key}_token_id")]
                put = before if key == "bos" else behind
                id = next(iter((*put, *ids)), None)
            if key == "eos" and len(behind) == 1 and behind != [id]:  # as gguf-py has it
                self._old_ends, id = [] if id is None else [id], behind[0]
            if key == "seperator" and self.between:
                id = self.between[-1]
            if id is not None:
                self._set({f"{PREFIX}{key}_token_id": (id, "UINT32")})
        adds_token = {key: self._config.get(f"add_{key}_token") for key in ("bos", "eos")}
        if any(value is not None for value in adds_token.values()) or self.data is None:
            usual = self.data is None  # SentencePiece's default: BOS, no EOS
            adds = {"bos": bool(adds_token["bos"] if adds_token["bos"] is not None else usual)}
            adds["eos"] = bool(adds_token["eos"])
        else:
            self._expect_known("before", before, "bos")
            self._expect_known("after", behind, "eos")
            adds = {"bos": bool(before), "eos": bool(behind)}
        if len(self.between) == 2:
            adds["sep"] = True
        for key, add in adds.items():
            name = "seperator" if key == "sep" else key
            has = f"{PREFIX}{name}_token_id" in self.metadata
            self._set({f"{PREFIX}add_{key}_token": (add and has, "BOOL")})

    def _expect_known(self, where: str, put: list[int], name: str) -> None:
        token_id = self.metadata.get(f"{PREFIX}{name}_token_id")
        if put not in ([], [token_id]):
            raise DataError(
                f"{self.path / JSON}: post_processor: expected {name}_token {where} a text, or "
                f"nothing; got the tokens {put}"
            )

    def _id_of(self, name: str, ids: Mapping[str, int]) -> int | None:
        """Return the id of a named token, such as bos."""
        key = f"{name}_token"
        value = self._config.get(key) or _object(self.path / _MAP).get(key)
        text = value.get("content") if isinstance(value, dict) else value
        model = self.data.get("model") if self.data else None
        if text is None and name == "unk" and isinstance(model, dict):
            text = model.get("unk_token")
            number = model.get("unk_id")
            if text is None and isinstance(number, int):
                return number if number in ids.values() else None
        if text is None and name == "unk" and self.data is None:
            text = "<unk>"
        if text is not None and not isinstance(text, str):
            self._refuse(f"{key}: expected a text; got {text!r:.80}")
        return ids.get(text) if text is not None else None

    def _ids_in(self, name: str, key: str) -> list[int]:
        """Return the ids under a key of a file: none, one, or a list."""
        value = _object(self.path / name).get(key)
        listed = value if isinstance(value, list) else [value]
        count = len(self.metadata[f"{PREFIX}tokens"])
        return [id for id in listed if type(id) is int and 0 <= id < count]

    def _ends(self) -> list[int]:
        return [id for name in _GENERATION for id in self._ids_in(name, "eos_token_id")]

    def _template(self) -> str | None:
        """Return the chat template or None; of several, the one named default."""
        path = self.path / _TEMPLATE
        if path.exists():
            return text_of(path)
        template = self._config.get("chat_template")
        if isinstance(template, list):
            if not all(isinstance(e, dict) and isinstance(e.get("name"), str) for e in template):
                self._refuse(f"chat_template: expected templates by name; got {template!r:.80}")
            template = {each["name"]: each.get("template") for each in template}.get("default")
        if template is not None and not isinstance(template, str):
            self._refuse(f"chat_template: expected a text; got {type(template).__name__}")
        return template

    def _refuse(self, what: str) -> NoReturn:
        raise DataError(f"{self.path / _CONFIG}: {what}")


def _ids_of(path: Path, ids: Any) -> dict[str, int]:
    if not isinstance(ids, dict) or not all(type(id) is int and id >= 0 for id in ids.values()):
        raise DataError(f"{path}: model.vocab: expected ids by the texts of tokens")
    return ids


def text_of(path: Path) -> str:
    """Return a file's text. Raises DataError unless it is UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8; byte {error.start} is not") from None


def _object(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if the file does not exist."""
    return read_object(path) if path.exists() else {}


def _scores(
    ids: Mapping[str, int], pairs: list[list[str]], stored: Mapping[str, float]
) -> dict[str, float]:
    """Return scores with which SentencePiece merges in the order of the pairs.

    They are tokenizer.model's, if it has all tokens; otherwise a later pair gets a lower score.
    """
    if stored and all(left + right in stored for left, right in pairs):
        return {text: stored[text] for text in ids if text in stored}
    order = dict.fromkeys(left + right for left, right in pairs)
    return {text: -float(rank) for rank, text in enumerate(order) if text in ids}
