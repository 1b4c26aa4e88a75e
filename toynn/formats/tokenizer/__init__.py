"""Tokenizers, built from the vocabulary in a GGUF file or a Hugging Face folder.

    tokenizer = Tokenizer.from_gguf("model.gguf")
    ids = tokenizer.encode("Once upon a time")  # the ids that llama.cpp gives
    tokenizer.decode(ids)

Five kinds are supported: byte-level BPE (`tokenizer.ggml.model` gpt2), SentencePiece (llama), BPE
over spaces (gemma4), and for encoders WordPiece (bert) and Unigram (t5). The file of a byte-level
model (no_vocab, 256 tokens) gives a ByteTokenizer.

**Special tokens.** A text comes from a user: "<|im_end|>" in it must not end a turn. So `encode`
finds tokens of type CONTROL in a text only with parse_special. The methods for conversations find
them where the chat template wrote them, not where a message did.
"""

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError, DataError, GGUFError
from toynn.formats import gguf
from toynn.formats.bases import Base
from toynn.formats.gguf import GGUFFile
from toynn.formats.hf import TABLE, HFModel
from toynn.formats.tokenizer import hf_files
from toynn.formats.tokenizer.bpe import BPE, of_vocab
from toynn.formats.tokenizer.chat import ChatTemplate, Message
from toynn.formats.tokenizer.conversations import Conversations, Talk, Turn
from toynn.formats.tokenizer.folder import JSON, FolderKeys
from toynn.formats.tokenizer.pieces import Algorithm, Pieces, Text
from toynn.formats.tokenizer.pre import Kind
from toynn.formats.tokenizer.recognized import PROBE
from toynn.formats.tokenizer.spm import SentencePiece
from toynn.formats.tokenizer.subwords import engine_of
from toynn.formats.tokenizer.vocab import (
    SPELLED,
    SUBWORDS,
    Given,
    Keys,
    TokenType,
    Vocab,
    byte_letters,
    read_vocab,
)

__all__ = [
    "ByteTokenizer",
    "Given",
    "Message",
    "Stream",
    "Talk",
    "TokenType",
    "Tokenizer",
    "Turn",
    "byte_letters",
]

BYTES = 256
VOCAB = {field.name for field in fields(Vocab)} - {"path"}  # what ids depend on
CHUNK = 1 << 18  # characters that the library gets at once: it takes 100 bytes for each


class Tokenizer:
    """Texts to ids and back."""

    of_bytes = False  # whether a token is a byte

    def __init__(
        self, vocab: Vocab, model: Algorithm, template: str | None = None, *, whole: bool = False
    ) -> None:
        """Take a file's vocabulary; with ``whole``, texts are never cut to be shared by cores."""
        self._vocab, self._model, self._source = vocab, model, template
        self._template: ChatTemplate | None = None
        self._pieces: dict[int, bytes] = {}
        self._cutter = Pieces(vocab, whole=whole)
        self._special_ids = frozenset(id for _, id in vocab.specials)
        shy = np.isin(vocab.declared, (TokenType.CONTROL, TokenType.UNKNOWN))
        self._hidden = frozenset(np.flatnonzero(shy).tolist())
        #: texts of the tokens, by id
        self.tokens = vocab.tokens
        #: ids of the tokens that begin and end a text, or None
        self.bos, self.eos = vocab.bos, vocab.eos
        #: ids that end a generation
        self.eog = vocab.eog
        #: whether encode adds these tokens
        self.add_bos, self.add_eos = vocab.add_bos, vocab.add_eos

    @classmethod
    def from_gguf(cls, file: str | PathLike[str] | Keys) -> "Tokenizer":
        """Build the tokenizer of a file, from its path, open, or from its keys.

        Raises GGUFError, ConfigError.
        """
        if isinstance(file, str | PathLike):
            with gguf.open(file, check=False) as opened:
                return cls.from_gguf(opened)
        key = "tokenizer.ggml.model"
        if isinstance(file, GGUFFile) and (
            key not in file.metadata or file.require(key, str) == "no_vocab"
        ):
            return _without_vocab(file)
        vocab = read_vocab(file)
        subwords = vocab.model in SUBWORDS
        make = engine_of if subwords else of_vocab if vocab.kind else SentencePiece
        key = "tokenizer.chat_template"
        template = file.require(key, str) if key in file.metadata else None
        return cls(vocab, make(vocab), template, whole=subwords)

    @classmethod
    def of(cls, file: str | PathLike[str] | Base, rows: int | None = None) -> "Tokenizer":
        """Build the tokenizer of a GGUF file or a Hugging Face folder, from its path or open.

        A folder's tokenizer.json is read, or else its tokenizer.model. The ids equal those of
        transformers' AutoTokenizer. ``rows`` is the model's number of ids; some of them may have no
        token. Raises GGUFError, DataError, ConfigError.
        """
        if isinstance(file, HFModel):
            return cls.of(file.path, file.rows)
        if isinstance(file, GGUFFile) or not Path(file).is_dir():
            return cls.from_gguf(file)
        keys = FolderKeys(Path(file), rows)
        if keys.is_plain:
            return ByteTokenizer(file)
        vocab = replace(
            stored := read_vocab(keys, Kind(()) if keys.of_bytes else None),
            eog=stored.eog | keys.ends,
            strips_right=frozenset(token.id for token in keys.added if token.rstrip),
            strips_left=frozenset(token.id for token in keys.added if token.lstrip),
            prefix_once=keys.prefix_once,
            between=tuple(keys.between),
            second=keys.second,
        )
        model: Algorithm
        subwords = vocab.model in SUBWORDS
        if keys.data is None:
            model = SentencePiece(vocab)
        else:
            model = (engine_of if subwords else BPE)(vocab, keys.data, keys.path / JSON)
        template = keys.metadata.get("tokenizer.chat_template")
        return cls(vocab, model, template, whole=subwords or (keys.of_bytes and not keys.pre))

    @classmethod
    def for_model(cls, model: Base, named: str | PathLike[str] | None = None) -> "Tokenizer":
        """Build the tokenizer of an open model: its own, or that of the file or folder ``named``.

        Raises ConfigError for one with more tokens than the model has rows, and what ``of`` does.
        """
        table = model.tensors.get(TABLE)
        if named is None or table is None:
            return cls.of(model if named is None else named)
        rows = table.shape[0]
        theirs = cls.of(named, rows)
        if theirs.vocab_size > rows:
            raise ConfigError(
                f"{named}: the tokenizer has {theirs.vocab_size:,} tokens, {model.path} rows for "
                f"{rows:,}: it is another model's"
            )
        return theirs

    def hf_files(self) -> dict[str, bytes]:
        """Return the tokenizer as files of a Hugging Face folder, by name.

        Raises DataError if tokenizer.json cannot express it.
        """
        if self._vocab.path.is_dir():  # it was read from these files
            return hf_files.copied(self._vocab.path)
        letters = replace(self._vocab, tokens=byte_letters(), kind=Kind(()))
        files = hf_files.written(letters if self.of_bytes else self._vocab, self._source)
        with TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            again = Tokenizer.of(folder)
        for text in (PROBE, f"\n {PROBE}"):
            if self.encode(text) != again.encode(text):
                raise DataError(
                    f"{self._vocab.path}: its vocabulary cannot be written as tokenizer.json: "
                    "the ids would differ"
                )
        return files

    def __repr__(self) -> str:
        kind = type(self._model).__name__.strip("_")
        return f"{type(self).__name__}({kind}, {self.vocab_size:,} tokens)"

    @property
    def unknown(self) -> int | None:
        """The id of the unknown token, or None."""
        return self._vocab.unknown

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of the tokens that are matched whole: BOS, EOS, CONTROL and USER_DEFINED."""
        kinds = (TokenType.CONTROL, TokenType.USER_DEFINED)
        named = {id for id in (self.bos, self.eos) if id is not None}
        ids = np.flatnonzero(np.isin(self._vocab.types, kinds)).tolist()
        return frozenset(ids) | self.eog | named

    def of_type(self, type: TokenType) -> NDArray[np.int64]:
        """Return the ids of tokens of a type, as the file has it."""
        return np.flatnonzero(self._vocab.declared == type)

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def encode(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = False,
        continues: bool = False,
    ) -> list[int]:
        """Return the ids of a text. Raises DataError for half a surrogate pair.

        Parameters
        ----------
        text
            The text.
        add_special
            Add BOS before and EOS after the text, if the file says so.
        parse_special
            Find CONTROL tokens in the text too: only for texts that do not come from a user.
        continues
            The text continues another one, so SentencePiece puts no space before it.
        """
        ids = self._cutter.encoded(self._model, text, parse_special, continues)
        if add_special and self.add_bos and self.bos is not None:
            ids.insert(0, self.bos)
        if add_special and self.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    def framed(
        self, ids: Sequence[int], second: Sequence[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """Return the ids of one text or of two with the tokens that a model expects around them.

        These are BOS and EOS, if the file says so, and separators between two texts. Also return
        the token types: 0, and for the second text what the tokenizer says, 0 or 1.
        """
        vocab = self._vocab
        before = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
        behind = [vocab.eos] if vocab.add_eos and vocab.eos is not None else []
        if second is None:
            whole = [*before, *ids, *behind]
            return whole, [0] * len(whole)
        first, last = [*before, *ids, *vocab.between], [*second, *behind]
        return first + last, [0] * len(first) + [vocab.second] * len(last)

    def encode_pair(self, text: str, second: str) -> tuple[list[int], list[int]]:
        """Return ids and token types of two texts; see ``framed``. Raises what ``encode`` does."""
        return self.framed(*(self.encode(each, add_special=False) for each in (text, second)))

    def encode_array(self, text: str) -> NDArray[np.int32]:
        """Return the ids of a long text, without BOS and EOS, as an array.

        Raises DataError for text that is not Unicode.
        """
        return np.concatenate([np.empty(0, np.int32), *self.encode_blocks([text])])

    def encode_many(self, texts: Sequence[Text]) -> list[list[int]]:
        """Return the ids of many texts, on all cores; a flag says whether one continues another.

        The ids are those of ``encode`` without BOS and EOS, and without parse_special. Raises
        DataError for text that is not Unicode.
        """
        cut = [list(self._cutter.of(text, False, continues)) for text, continues in texts]
        parts = [(part, more) for each in cut for part, more in each if isinstance(part, str)]
        ids = iter(self._model.encode_all(parts))
        joined = ([[p] if isinstance(p, int) else next(ids) for p, _ in each] for each in cut)
        return [list(chain.from_iterable(each)) for each in joined]

    def encode_blocks(self, blocks: Iterable[str]) -> Iterator[NDArray[np.int32]]:
        """Yield the ids of encode_array, some at a time, for a long text that comes in blocks.

        A block is cut where a cut changes no id, and the rest is put before the next block. If a
        token may cross any cut, the whole text is gathered first. Raises DataError for text that is
        not Unicode.
        """
        rest, continues, seen = "", False, 0
        for block in chain(blocks, (None,)):
            if block is None:
                head, rest = rest, ""
            else:
                rest += block
                cut = self._cutter.last_cut(rest, seen)
                head, rest = rest[:cut], rest[cut:]
                seen = max(0, len(rest) - 1)
            waiting: list[Text] = []
            length = 0
            for piece, follows in self._cutter.of(head, False, continues):
                continues = isinstance(piece, str)
                if isinstance(piece, str):
                    waiting.append((piece, follows))
                    length += len(piece)
                if length >= CHUNK or isinstance(piece, int):
                    yield from self._encoded(waiting)
                    waiting, length = [], 0
                if isinstance(piece, int):
                    yield np.array([piece], np.int32)
            yield from self._encoded(waiting)

    def _encoded(self, parts: list[Text]) -> Iterator[NDArray[np.int32]]:
        for ids in self._model.encode_all(parts) if parts else ():
            yield np.array(ids, np.int32)

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Return the text of ids; with ``special``, CONTROL tokens are shown too.

        decode(encode(text)) is the text, if every byte has a token. Bytes that are not valid UTF-8
        become U+FFFD. Raises DataError for an unknown id.
        """
        piece = Stream(self, special, begins=True)._piece
        return b"".join([piece(id) for id in ids]).decode("utf-8", "replace")

    def stream(self, special: bool = False) -> "Stream":
        """Return a decoder for ids that come one by one and continue a text."""
        return Stream(self, special, begins=False)

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """Render a conversation with the file's chat template. Raises GGUFError.

        A message has a role and a content. With add_generation_prompt the text ends with the
        beginning of an answer.
        """
        return self._chat_template().render(messages, add_generation_prompt)

    def _chat_template(self) -> ChatTemplate:
        """Return the file's chat template, compiled at the first call."""
        if self._template is None:
            if self._source is None:
                raise GGUFError(
                    f"{self._vocab.path}: tokenizer.chat_template: missing: the model has no "
                    f"template for conversations; use plain text"
                )
            names = ("" if id is None else self.tokens[id] for id in (self.bos, self.eos))
            self._template = ChatTemplate(self._vocab.path, self._source, *names)
        return self._template

    @cached_property
    def _conversations(self) -> Conversations:
        return Conversations(self._vocab, self._cutter, self._model, self._chat_template)

    def encode_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the ids of a conversation, by default with a generation prompt at the end.

        Raises DataError for text that is not Unicode, and for a role that neither toynn nor the
        template knows.
        """
        return self._conversations.prompt(messages, add_generation_prompt)

    def encode_turns(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> list[Turn]:
        """Return the ids of a whole conversation in parts; the assistant's parts are `trained`.

        An answer begins where its prompt ends: the template's text for the earlier messages, with
        a generation prompt. A prompt may open a thought that old answers do not have. Then the
        answer begins where the prompt and the whole text first differ. An answer ends where the
        template's text for the messages up to the answer ends. A template may write an answer
        differently when messages follow, for example without its thoughts. Then the answer ends
        after its first token that ends a turn. ``tools`` describe functions for the template.

        Raises GGUFError for a template in whose text an answer cannot be found. Raises DataError
        for text that is not Unicode, and for a role that neither toynn nor the template knows.
        """
        return self._conversations.turns((messages, tools))

    def encode_talks(self, talks: Iterable[Talk]) -> Iterator[list[Turn]]:
        """Yield what ``encode_turns`` returns for many conversations, computed on all cores.

        A talk is messages, and tools or None. Errors, also those of ``talks``, are raised after all
        earlier conversations were yielded.
        """
        return self._conversations.all_turns(talks)

    def piece(self, id: int) -> bytes:
        """Return the bytes of a token. Raises DataError for an unknown id."""
        piece = self._pieces.get(id)
        if piece is None:
            if not 0 <= id < len(self.tokens):
                raise DataError(f"decode: expected ids of 0..{len(self.tokens) - 1}; got {id}")
            piece = self._pieces[id] = self._vocab.piece(id)
        return piece

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of everything that ids depend on: equal ones mean equal ids."""
        facts = {name: value for name, value in vars(self._vocab).items() if name in VOCAB}
        whole = [type(self._model).__name__, self._model.told, self._source, facts]
        return hashlib.sha256(json.dumps(whole, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a part of a vocabulary as JSON can hold it."""
    if isinstance(value, np.ndarray):
        return value.tobytes().hex()
    if isinstance(value, Kind):
        return repr(value)
    return sorted(value) if isinstance(value, frozenset) else list(value)


class ByteTokenizer(Tokenizer):
    """The tokenizer of byte-level models: a token's id is its byte."""

    of_bytes = True

    def __init__(self, path: str | PathLike[str] = "a model on bytes") -> None:
        types = np.full(BYTES, TokenType.BYTE, np.int32)
        scores = np.zeros(BYTES, np.float32)
        super().__init__(Vocab(Path(path), list(SPELLED), types, types, scores), _Bytes())


class _Bytes:
    told = ""

    def encode_all(self, texts: Sequence[Text]) -> list[list[int]]:
        return [list(text.encode()) for text, _ in texts]


class Stream:
    """Decodes ids one by one; bytes of an incomplete character wait."""

    def __init__(self, tokenizer: Tokenizer, special: bool, begins: bool) -> None:
        self._tokenizer = tokenizer
        self._hidden = frozenset() if special else tokenizer._hidden
        self._drop_space = begins and tokenizer._vocab.add_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """Return the characters that an id completes, perhaps none."""
        return self._decoder.decode(self._piece(id))

    def end(self) -> str:
        """Return waiting bytes as U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def _piece(self, id: int) -> bytes:
        """Return the bytes of the next id, without the space that encode adds to a text.

        A text begins at the start, and after each special token.
        """
        piece, vocab = self._tokenizer.piece(id), self._tokenizer._vocab
        special = id in self._tokenizer._special_ids
        if self._drop_space and not special:
            piece = piece.removeprefix(b" ")
        begins = self._drop_space if vocab.prefix_once else vocab.add_space_prefix
        self._drop_space = special and begins
        return b"" if id in self._hidden else piece


def _without_vocab(file: GGUFFile) -> ByteTokenizer:
    """Return the ByteTokenizer of a file without vocabulary; it must have 256 tokens."""
    key = f"{file.architecture}.vocab_size"
    size = file.require(key, int) if key in file.metadata else None
    if size != BYTES:
        raise GGUFError(
            f"{file.path}: tokenizer.ggml.model: expected a vocabulary, or a model on "
            f"bytes with {key} = {BYTES}; got no vocabulary and "
            f"{size or 'an unknown number of'} tokens"
        )
    return ByteTokenizer(file.path)
