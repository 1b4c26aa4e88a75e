"""Write a tokenizer as files of a Hugging Face folder, for AutoTokenizer.

A folder's own files are copied. The vocabulary of a GGUF file becomes a tokenizer.json. Byte-level
BPE keeps its merges and cuts. SentencePiece gets merges in the order of the scores, as in
transformers' converter of tokenizer.model. A byte-level model becomes a BPE without merges. The
result is read back, and must give the same ids for texts of many kinds.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from toynn.errors import DataError
from toynn.formats.tokenizer.bpe import byte_letters, pairs_of
from toynn.formats.tokenizer.folder import FILES, JSON
from toynn.formats.tokenizer.pre import Kind
from toynn.formats.tokenizer.spm import SPACE, SPELLED
from toynn.formats.tokenizer.vocab import TokenType, Vocab

__all__ = ["copied", "written"]

#: The kind of a byte-level model: a text is one piece, since there are no merges.
BYTES = Kind(())


def copied(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder's tokenizer, by name. Raises DataError."""
    try:
        return {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    except OSError as error:
        raise DataError(f"{folder}: cannot read: {error.strerror}") from error


def written(vocab: Vocab, template: str | None, *, of_bytes: bool) -> dict[str, bytes]:
    """Return the files for the vocabulary of a GGUF file, by name.

    Raises DataError for a vocabulary that tokenizer.json cannot express.
    """
    if of_bytes:
        data = _byte_level(vocab, dict(zip(byte_letters(), range(256), strict=True)), [], BYTES)
    elif vocab.kind is not None and vocab.kind.spaced:
        data = _spaced(vocab, {text: id for id, text in enumerate(vocab.tokens)}, pairs_of(vocab))
    elif vocab.kind is not None:
        ids = {text: id for id, text in enumerate(vocab.tokens)}
        if missing := [letter for letter in byte_letters() if letter not in ids]:
            _refuse(vocab, f"{len(missing)} bytes have no token")
        data = _byte_level(vocab, ids, list(pairs_of(vocab)), vocab.kind)
    else:
        data = _sentences(vocab)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": vocab.add_bos,
        "add_eos_token": vocab.add_eos,
    }
    for name, id in (("bos", vocab.bos), ("eos", vocab.eos), ("unk", vocab.unknown)):
        config |= {} if id is None else {f"{name}_token": vocab.tokens[id]}
    config |= {} if template is None else {"chat_template": template}
    files = {JSON: data, "tokenizer_config.json": config}
    if vocab.eog:
        files["generation_config.json"] = {"eos_token_id": sorted(vocab.eog)}
    return {
        name: json.dumps(each, ensure_ascii=False, indent=1).encode() + b"\n"
        for name, each in files.items()
    }


def _whole(vocab: Vocab, model: dict[str, Any], **steps: Any) -> dict[str, Any]:
    """Return a tokenizer.json with added tokens and a post-processor."""
    before, behind = (
        [id] if adds and id is not None else []
        for id, adds in ((vocab.bos, vocab.add_bos), (vocab.eos, vocab.add_eos))
    )
    processor = {
        "type": "TemplateProcessing",
        "single": _around(vocab, before, behind, "A"),
        "pair": _around(vocab, before, behind, "A") + _around(vocab, before, behind, "B"),
        "special_tokens": {
            vocab.tokens[id]: {"id": vocab.tokens[id], "ids": [id], "tokens": [vocab.tokens[id]]}
            for id in (*before, *behind)
        },
    }
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": id,
                "content": text,
                "single_word": False,
                "lstrip": id in vocab.strips_left,
                "rstrip": id in vocab.strips_right,
                "normalized": False,
                "special": bool(vocab.types[id] != TokenType.USER_DEFINED),
            }
            for text, id in sorted(vocab.specials, key=lambda each: each[1])
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": processor if before or behind else None,
        **steps,
        "model": model,
    }


def _around(vocab: Vocab, before: list[int], behind: list[int], text: str) -> list[dict[str, Any]]:
    """Return a template: tokens before a text, the text, tokens after it."""
    kind = {"A": 0, "B": 1}[text]
    tokens = [
        [{"SpecialToken": {"id": vocab.tokens[id], "type_id": kind}} for id in ids]
        for ids in (before, behind)
    ]
    return [*tokens[0], {"Sequence": {"id": text, "type_id": kind}}, *tokens[1]]


def _byte_level(
    vocab: Vocab, ids: dict[str, int], merges: list[tuple[str, str]], kind: Kind
) -> dict[str, Any]:
    bytes_: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    cuts: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in kind.regexes
    ]
    cuts.append({**bytes_, "use_regex": False})
    model = {
        "type": "BPE",
        "ignore_merges": kind.whole_words,
        "vocab": ids,
        "merges": [list(pair) for pair in merges],
    }
    cut = {"type": "Sequence", "pretokenizers": cuts}
    return _whole(vocab, model, pre_tokenizer=cut, decoder={**bytes_, "use_regex": True})


def _sentences(vocab: Vocab) -> dict[str, Any]:
    ids = {text: id for id, text in enumerate(vocab.tokens)}
    pairs = list(_merges(vocab, ids))
    scores = [vocab.scores[ids[left + right]] for left, right in pairs]
    merged = {left + right for left, right in pairs}
    if len(set(scores)) < len(merged):
        _refuse(vocab, "tokens share a score, so the order of their merges is unknown")
    order = sorted(zip(scores, pairs, strict=True), key=lambda each: _rank(*each), reverse=True)
    return _spaced(vocab, ids, [pair for _, pair in order])


def _spaced(vocab: Vocab, ids: dict[str, int], merges: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return a tokenizer.json that spells spaces as U+2581, and bytes without a token as <0x00>."""
    if not SPELLED.keys() <= ids.keys():
        _refuse(vocab, "not every byte has a token")
    if vocab.unknown is None:
        _refuse(vocab, "no token stands for what is unknown")
    model = {
        "type": "BPE",
        "unk_token": vocab.tokens[vocab.unknown],
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": ids,
        "merges": [list(pair) for pair in merges],
    }
    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    begins = [{"type": "Prepend", "prepend": SPACE}] if vocab.add_space_prefix else []
    ends = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins else []
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *ends]
    return _whole(
        vocab,
        model,
        normalizer={"type": "Sequence", "normalizers": [*begins, space]},
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _rank(score: Any, pair: tuple[str, str]) -> tuple[float, int, int]:
    """Return a merge's sort key, as generate_merges in transformers' converter."""
    return float(score), len(pair[0]), len(pair[1])


def _merges(vocab: Vocab, ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield each pair of plain tokens that together are a third plain token."""
    hidden = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE, TokenType.USER_DEFINED)
    plain = {vocab.tokens[id] for id in np.flatnonzero(~np.isin(vocab.types, hidden)).tolist()}
    for text in plain:
        for at in range(1, len(text)):
            if text[:at] in plain and text[at:] in plain:
                yield text[:at], text[at:]


def _refuse(vocab: Vocab, why: str) -> NoReturn:
    raise DataError(f"{vocab.path}: its vocabulary cannot be written as tokenizer.json: {why}")
