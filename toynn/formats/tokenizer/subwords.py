r"""WordPiece and Unigram, with the tokenizers library: the tokenizers of encoders.

WordPiece (BERT): a text is cleaned and cut into words and signs. Each word is then cut from its
left: the longest token that fits, then the longest that continues a word. A word of which a part
has no token is unknown as a whole. A vocabulary of llama.cpp (`bert`) marks the beginning of a word
with U+2581, as SentencePiece does; one of Hugging Face marks its continuation, with "##".

Unigram (XLM-R, T5): of all ways to cut a word into tokens, the one with the largest sum of scores.
Its texts are normalized by a table in SentencePiece's own format (the "charsmap").

Sources: Devlin et al. 2018, arXiv:1810.04805, section 4.1; Wu et al. 2016, arXiv:1609.08144,
section 4.1; Kudo 2018, arXiv:1804.10959.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toynn.errors import DataError, GGUFError
from toynn.formats.tokenizer.bpe import BPE, STEPS
from toynn.formats.tokenizer.vocab import SPACE, TokenType, Vocab

CONTINUES = "##"  # how Hugging Face marks a token that continues a word
NOWHERE = "\ufdd1"  # a noncharacter: what begins with it is in no text
_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)


class WordPiece(BPE):
    """Turns texts without special tokens into ids; each begins with a new word."""

    settings: tuple[str, ...] = (
        "unk_token",
        "continuing_subword_prefix",
        "max_input_chars_per_word",
    )

    def made(self, models: Any, vocab: Vocab, ids: Any, merges: Any, settings: Any) -> Any:
        """Return the library's model."""
        return models.WordPiece(ids, **settings)

    def without_prefix(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the steps for a text that continues another one: the same."""
        return {step: data.get(step) for step in STEPS}


class Unigram(WordPiece):
    """The same, by scores. Tokens that are no part of a text are found in none."""

    settings = ("unk_id", "byte_fallback")

    def made(self, models: Any, vocab: Vocab, ids: Any, merges: Any, settings: Any) -> Any:
        """Return the library's model."""
        hidden = np.isin(vocab.types[: len(ids)], _HIDDEN)
        pairs = [
            (f"{NOWHERE}{id}" if hidden[id] else text, float(score))
            for id, (text, score) in enumerate(ids)
        ]
        return models.Unigram(pairs, **settings)


def engine_of(vocab: Vocab, data: Mapping[str, Any] | None = None, path: Path | None = None) -> BPE:
    """Return the engine of a vocabulary: by a tokenizer.json, or by what a GGUF file says.

    Raises DataError for a tokenizer.json that makes none, GGUFError for a vocabulary that does not.
    """
    kind = WordPiece if vocab.model == "bert" else Unigram
    if data is not None:
        return kind(vocab, data, path or vocab.path)
    wrong = "tokenizer.ggml.tokens and .scores do not make a tokenizer"
    return kind(vocab, described(vocab), vocab.path, GGUFError, wrong)


def described(vocab: Vocab) -> dict[str, Any]:
    """Return what a tokenizer.json holds for a GGUF file's vocabulary: its steps and its model."""
    if vocab.model == "bert":
        return _of_words(
            {_spelled(text, type): id for id, (text, type) in enumerate(_typed(vocab))},
            "" if vocab.unknown is None else vocab.tokens[vocab.unknown],
        )
    space = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": "always" if vocab.add_space_prefix else "never",
        "split": True,
    }
    words = [{"type": "WhitespaceSplit"}] if vocab.single_spaces else []
    table = base64.b64encode(vocab.charsmap).decode()
    model: dict[str, Any] = {
        "type": "Unigram",
        "vocab": [
            [text, score] for text, score in zip(vocab.tokens, vocab.scores.tolist(), strict=True)
        ],
        "unk_id": vocab.unknown,
        "byte_fallback": bool((vocab.types == TokenType.BYTE).any()),
    }
    return {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": table} if table else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*words, space]},
        "decoder": space,
        "model": model,
    }


def of_lines(path: Path, text: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tokenizer.json would hold for a vocab.txt and a tokenizer_config.json.

    Raises DataError for a token that is there twice, or without BERT's special tokens.
    """
    lines = text.removesuffix("\n").split("\n")
    ids = {line.rstrip("\r"): id for id, line in enumerate(lines)}
    if len(ids) < len(lines):
        raise DataError(f"{path}: expected each token once; {len(lines) - len(ids)} are repeated")
    usual = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    named: dict[str, str] = {}
    for key, name in usual.items():
        token = config.get(f"{key}_token", name)
        named[key] = str(token.get("content") if isinstance(token, dict) else token)
        if named[key] not in ids and key in ("unk", "cls", "sep"):
            raise DataError(f"{path}: expected {key}_token, {named[key]!r}; it is missing")
    data = _of_words(
        ids,
        named["unk"],
        lowercase=bool(config.get("do_lower_case", True)),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
    )
    cls, sep = ({"SpecialToken": {"id": named[key], "type_id": 0}} for key in ("cls", "sep"))
    first, second = ({"Sequence": {"id": name, "type_id": n}} for n, name in enumerate("AB"))
    ends = {"SpecialToken": {"id": named["sep"], "type_id": 1}}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [cls, first, sep],
        "pair": [cls, first, sep, second, ends],
        "special_tokens": {
            named[key]: {"id": named[key], "ids": [ids[named[key]]], "tokens": [named[key]]}
            for key in ("cls", "sep")
        },
    }
    data["added_tokens"] = [
        {"id": ids[name], "content": name, "special": True}
        for name in named.values()
        if name in ids
    ]
    return data


def phantom(text: str, prefix: str) -> str:
    """Return a token of Hugging Face's as llama.cpp spells it: its beginning is marked."""
    return text.removeprefix(prefix) if text.startswith(prefix) else SPACE + text


def _typed(vocab: Vocab) -> list[tuple[str, int]]:
    return list(zip(vocab.tokens, vocab.types.tolist(), strict=True))


def _spelled(text: str, type: int) -> str:
    """Undo ``phantom``; special tokens have their own texts."""
    if type in _HIDDEN:
        return text
    return text.removeprefix(SPACE) if text.startswith(SPACE) else CONTINUES + text


def _of_words(ids: Mapping[str, int], unknown: str, **normalizer: Any) -> dict[str, Any]:
    """Return the steps and the model of BERT's tokenizer."""
    usual = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    return {
        "normalizer": {"type": "BertNormalizer", **usual, "lowercase": True, **normalizer},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": CONTINUES, "cleanup": False},
        "model": {
            "type": "WordPiece",
            "vocab": dict(ids),
            "unk_token": unknown,
            "continuing_subword_prefix": CONTINUES,
            "max_input_chars_per_word": 100,
        },
    }
