"""Read and check a GGUF file's vocabulary (`tokenizer.ggml.*`), with llama.cpp's defaults."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.errors import GGUFError, ToynnError
from toynn.formats.gguf import Strings
from toynn.formats.tokenizer.pre import GEMMA4, KINDS, Kind

Scalar = TypeVar("Scalar", bool, int, float, str)

PREFIX = "tokenizer.ggml."
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how SentencePiece spells a space
#: The texts of byte tokens.
SPELLED = {f"<0x{byte:02X}>": byte for byte in range(256)}
MODELS = {
    "gpt2": "byte-level BPE",
    "llama": "SentencePiece",
    "gemma4": "BPE over spaces",
    "bert": "WordPiece",
    "t5": "Unigram",
}
SUBWORDS = ("bert", "t5")
#: Ids of named tokens where a file does not say: those of llama.cpp.
_USUAL = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"bos": 101, "seperator": 102, "unknown": 100, "padding": 0},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}


def byte_letters() -> list[str]:
    """Return the letter that byte-level BPE writes for each byte: all are printable.

    Source: bytes_to_unicode of github.com/openai/gpt-2, src/encoder.py.
    """
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) if byte in seen else chr(256 + others.index(byte)) for byte in range(256)]


@cache
def _bytes() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(byte_letters())}


class Keys(Protocol):
    """The source of a vocabulary: an open GGUF file, or a folder's tokenizer with GGUF's keys."""

    path: Path
    types: dict[str, str]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values by key."""

    def require(self, key: str, kind: type[Scalar]) -> Scalar:
        """Return the value of a key, which must be there and of a kind."""


class Given:
    """Keys with values and types for a new file. Raises GGUFError as a file does."""

    error: type[ToynnError] = GGUFError

    def __init__(self, path: Path, typed: Mapping[str, Any]) -> None:
        pairs = {
            key: each if isinstance(each, tuple) else (each, "") for key, each in typed.items()
        }
        self.path = path
        self.types = {key: type for key, (_, type) in pairs.items()}
        self.metadata: dict[str, Any] = {key: value for key, (value, _) in pairs.items()}

    def require(self, key: str, kind: type[Scalar]) -> Scalar:
        """Return the value of a key, which must be there and of a kind."""
        value = self.metadata.get(key)
        if type(value) is not kind:
            raise self.error(f"{self.path}: {key}: expected {kind.__name__}; got {value!r:.80}")
        return value


class TokenType(IntEnum):
    """The types of tokens, with the numbers of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2  # stands for characters without a token
    CONTROL = 3  # begins, ends and separates texts; not matched in a user's text
    USER_DEFINED = 4  # matched in a text before anything else
    UNUSED = 5
    BYTE = 6  # a byte; its text is <0x00> to <0xFF>


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


#: Texts of tokens that end a generation, whatever type the file gives them.
ENDS = _words(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> </s>",
    "<|endoftext|> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos>",
    "<turn|> <|tool_response> <\uff5cend\u2581of\u2581sentence\uff5c> [e~[",
)
#: Texts of tokens for filling in the middle of a text.
FRAMES = _words(
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <PRE> \u2581<PRE> <|code_prefix|> <|prefix|>",
    "<|fim_suffix|> <fim-suffix> <fim_suffix> <SUF> \u2581<SUF> <|code_suffix|> <|suffix|>",
    "<|fim_middle|> <fim-middle> <fim_middle> <MID> \u2581<MID> <|code_middle|> <|middle|>",
    "<\uff5cfim\u2581begin\uff5c> <\uff5cfim\u2581hole\uff5c> <\uff5cfim\u2581end\uff5c>",
)
#: Texts of tokens that pad such texts or separate files; the first one found of each ends too.
FRAME_ENDS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}


@dataclass(frozen=True)
class Vocab:
    """Tokens by id, and how texts begin and end."""

    path: Path
    tokens: list[str]
    types: NDArray[np.int32]  # TokenType; some are CONTROL because of their texts
    declared: NDArray[np.int32]  # the file's types
    scores: NDArray[np.float32]
    merges: Sequence[str] = ()
    kind: Kind | None = None  # of BPE, on bytes or over spaces; None: SentencePiece, or bytes
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    eog: frozenset[int] = frozenset()
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    strips_right: frozenset[int] = frozenset()  # these strip spaces after them
    strips_left: frozenset[int] = frozenset()  # these strip spaces before them
    prefix_once: bool = False  # a space is added only at a text's start, not after special tokens
    model: str = "llama"  # the kind, a key of MODELS
    between: tuple[int, ...] = ()  # what separates two texts
    second: int = 0  # the token type of the second of two texts
    pad: int | None = None
    charsmap: bytes = b""  # of Unigram: the table that normalizes texts
    single_spaces: bool = False  # of Unigram: white space only separates words

    @cached_property
    def specials(self) -> list[tuple[str, int]]:
        """Text and id of the tokens that are matched whole, longest (in bytes) first."""
        whole = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        ids = np.flatnonzero(np.isin(self.types, whole)).tolist()
        ids.sort(key=lambda id: -len(self.tokens[id].encode("utf-8", "surrogateescape")))
        return [(self.tokens[id], id) for id in ids]

    def piece(self, id: int) -> bytes:
        """Return the bytes that a token stands for."""
        text, type = self.tokens[id], self.declared[id]
        if self.kind is not None and not self.kind.spaced and type == TokenType.NORMAL:
            of = _bytes()
            return b"".join(bytes((of[c],)) if c in of else c.encode() for c in text)
        if type == TokenType.BYTE and text in SPELLED:
            return bytes((SPELLED[text],))
        text = text.replace(SPACE, " ") if type == TokenType.NORMAL else text
        return text.encode("utf-8", "surrogateescape")


def read_vocab(file: Keys, kind: Kind | None = None) -> Vocab:
    """Read the vocabulary of a file. Raises GGUFError.

    ``kind`` is how byte-level BPE cuts texts, if the file does not say it.
    """
    model = file.require(f"{PREFIX}model", str)
    if model not in MODELS:
        kinds = ", ".join(f"{name} ({what})" for name, what in MODELS.items())
        raise GGUFError(f"{file.path}: {PREFIX}model: expected one of {kinds}; got {model!r}")
    bpe = model in ("gpt2", "gemma4")
    kind = (GEMMA4 if model == "gemma4" else kind or _kind(file)) if bpe else None
    texts = _texts(file, "tokens")
    tokens = [text or f"[EMPTY_{id}]" for id, text in enumerate(texts)]
    ids = {text: id for id, text in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(id for id, text in enumerate(tokens) if ids[text] != id)
        raise GGUFError(
            f"{file.path}: {PREFIX}tokens: expected each text once; "
            f"{tokens[twice]!r} is token {twice} and token {ids[tokens[twice]]}"
        )
    declared = _numbers(file, "token_type", "i", len(tokens), int(TokenType.NORMAL))
    types = declared.astype(np.int32)
    scores = _numbers(file, "scores", "fi", len(tokens), 0).astype(np.float32)
    names = ("bos", "eos", "unknown", "seperator", "padding")
    usual = _USUAL.get(model, {})
    named = {name: _id(file, name, len(tokens), usual.get(name)) for name in names}
    bos, eos, sep = named["bos"], named["eos"], named["seperator"]
    if bos is None or (model == "bert" and f"{PREFIX}bos_token_id" not in file.metadata):
        bos = _id(file, "cls", len(tokens), bos)  # as old files have it
    eos = sep if model == "bert" else eos
    eog = _mark_specials(file, ids, types, eos)
    add_bos = _flag(file, "add_bos_token", kind.add_bos if kind else model == "llama")
    add_eos = _flag(file, "add_eos_token", model == "t5")
    if model == "bert":
        add_bos = add_eos = True
    between = [id for id in (eos if add_eos else None,) if id is not None]
    if model != "bert" and sep is not None and _flag(file, "add_sep_token", False):
        between.append(sep)
    for name, add, id in (("bos", add_bos, bos), ("eos", add_eos, eos)):
        if add and id is None:
            raise GGUFError(
                f"{file.path}: {PREFIX}{name}_token_id: missing or out of range, but "
                f"{PREFIX}add_{name}_token asks for it in each text"
            )
    return Vocab(
        path=file.path,
        tokens=tokens,
        types=types,
        declared=declared.astype(np.int32),
        scores=scores,
        merges=_texts(file, "merges") if bpe else [],
        kind=kind,
        bos=bos,
        eos=eos,
        unknown=named["unknown"],
        eog=eog,
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=model == "bert" or (not bpe and _flag(file, "add_space_prefix", True)),
        strips_right=_strips_right(file, ids, types),
        model=model,
        between=tuple(between),
        second=int(model == "bert"),
        pad=named["padding"],
        charsmap=_table(file) if model == "t5" else b"",
        single_spaces=model == "t5" and _flag(file, "remove_extra_whitespaces", False),
    )


def _table(file: Keys) -> bytes:
    """Return Unigram's table of characters."""
    key = f"{PREFIX}precompiled_charsmap"
    table = file.metadata.get(key, np.empty(0, np.uint8))
    if not isinstance(table, np.ndarray) or table.dtype.itemsize != 1:
        raise GGUFError(f"{file.path}: {key}: expected [UINT8]; got {file.types.get(key)}")
    return table.tobytes()


def _kind(file: Keys) -> Kind:
    key = f"{PREFIX}pre"
    if key not in file.metadata:
        warnings.warn(
            f"{file.path}: {key} is missing, as in files of early 2024: texts are cut as with "
            f"'default', and ids may differ from those that the model was trained with",
            stacklevel=4,
        )
        return KINDS["default"]
    name = file.require(key, str)
    if name not in KINDS:
        raise GGUFError(
            f"{file.path}: {key}: expected one of {', '.join(sorted(KINDS))}; got {name!r}, "
            f"whose rules toynn does not know"
        )
    return KINDS[name]


def _texts(file: Keys, name: str) -> Sequence[str]:
    key = f"{PREFIX}{name}"
    texts = file.metadata.get(key)
    if not isinstance(texts, Strings | list) or (name == "tokens" and not texts):
        got = file.types.get(key, "nothing")
        raise GGUFError(f"{file.path}: {key}: expected [STRING] with at least one entry; got {got}")
    return texts


def _numbers(file: Keys, name: str, kinds: str, count: int, default: int) -> NDArray[Any]:
    """Return the numbers of a key, one for each token."""
    key = f"{PREFIX}{name}"
    if key not in file.metadata:
        return np.full(count, default)
    values = file.metadata[key]
    if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds or len(values) < count:
        got = file.types[key]
        if isinstance(values, np.ndarray):
            got += f" of {len(values)}"
        raise GGUFError(f"{file.path}: {key}: expected a number for each of {count} tokens; {got}")
    return values[:count]


def _id(file: Keys, name: str, count: int, default: int | None) -> int | None:
    """Return a named token's id; an id out of range counts as missing."""
    key = f"{PREFIX}{name}_token_id"
    id = file.require(key, int) if key in file.metadata else default
    if id is not None and not 0 <= id < count:
        id = default
    return id if id is not None and id < count else None


def _flag(file: Keys, name: str, default: bool) -> bool:
    key = f"{PREFIX}{name}"
    return file.require(key, bool) if key in file.metadata else default


def _mark_specials(
    file: Keys, ids: dict[str, int], types: NDArray[np.int32], eos: int | None
) -> frozenset[int]:
    """Mark tokens as CONTROL by their texts; return those that end a generation.

    Files often have wrong types, and llama.cpp goes by the texts too.
    """
    ends = {ids[text] for text in ENDS if text in ids}
    frames = {ids[text] for text in FRAMES if text in ids}
    for name, texts in FRAME_ENDS.items():
        present = [ids[text] for text in texts if text in ids]
        id = _id(file, name, len(types), present[0] if present else None)
        ends |= {id} if id is not None else set()
    types[sorted(ends | frames)] = TokenType.CONTROL
    named = (_id(file, name, len(types), None) for name in ("eot", "eom"))
    return frozenset(ends | {id for id in (eos, *named) if id is not None})


def _strips_right(file: Keys, ids: dict[str, int], types: NDArray[np.int32]) -> frozenset[int]:
    """Return the tokens that strip white space after them: only Phi-3, known by name, has them.

    Its chat template writes a line break after each of them, which the model never saw.
    """
    name = str(file.metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    whole = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    strips = set(np.flatnonzero(np.isin(types, whole)).tolist())
    return frozenset(strips - {ids.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")})
