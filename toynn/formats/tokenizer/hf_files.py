"""Write a tokenizer as files of a Hugging Face folder, for AutoTokenizer.

A folder's own files are copied. The vocabulary of a GGUF file becomes a tokenizer.json. Byte-level
BPE keeps its merges and cuts. SentencePiece gets merges in the order of the scores, as in
transformers' converter of tokenizer.model. A byte-level model becomes a BPE without merges. The
result is read back, and must give the same ids for texts of many kinds.
"""

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from toynn.errors import DataError
from toynn.formats.tokenizer import subwords
from toynn.formats.tokenizer.bpe import cuts, described, pairs_of
from toynn.formats.tokenizer.folder import FILES, JSON
from toynn.formats.tokenizer.vocab import SPELLED, SUBWORDS, TokenType, Vocab, byte_letters


def copied(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder's tokenizer, by name. Raises DataError."""
    try:
        return {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    except OSError as error:
        raise DataError(f"{folder}: cannot read: {error.strerror}") from error


def written(vocab: Vocab, template: str | None) -> dict[str, bytes]:
    """Return the files for the vocabulary of a GGUF file, by name.

    Raises DataError for a vocabulary that tokenizer.json cannot express.
    """
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": vocab.add_bos,
        "add_eos_token": vocab.add_eos,
    }
    named = {"bos": vocab.bos, "eos": vocab.eos, "unk": vocab.unknown}
    if vocab.model in SUBWORDS or vocab.between[1:]:
        del config["add_bos_token"], config["add_eos_token"]  # the template says it, for two texts
        named |= {"cls": vocab.bos, "sep": (None, *vocab.between)[-1], "pad": vocab.pad}
    for name, id in named.items():
        config |= {} if id is None else {f"{name}_token": vocab.tokens[id]}
    config |= {} if template is None else {"chat_template": template}
    files = {JSON: _whole(vocab), "tokenizer_config.json": config}
    if vocab.eog:
        files["generation_config.json"] = {"eos_token_id": sorted(vocab.eog)}
    return {
        name: json.dumps(each, ensure_ascii=False, indent=1).encode() + b"\n"
        for name, each in files.items()
    }


def _whole(vocab: Vocab) -> dict[str, Any]:
    """Return a tokenizer.json: the steps and the model, added tokens and a post-processor."""
    if vocab.kind is not None and not vocab.kind.spaced:
        data = described(vocab, pairs_of(vocab))
        without = [letter for letter in byte_letters() if letter not in data["model"]["vocab"]]
        data["pre_tokenizer"] = cuts(vocab.kind, removed=without)
    elif vocab.model in SUBWORDS:
        data = subwords.described(vocab)
    else:
        if not set(vocab.tokens) >= SPELLED.keys():
            _refuse(vocab, "not every byte has a token")
        if vocab.unknown is None:
            _refuse(vocab, "no token stands for what is unknown")
        data = described(vocab, pairs_of(vocab) if vocab.kind else _merges_by_score(vocab))
        data["model"] |= {"unk_token": vocab.tokens[vocab.unknown], "fuse_unk": True}
    before, behind = (
        [vocab.tokens[id]] if adds and id is not None else []
        for id, adds in ((vocab.bos, vocab.add_bos), (vocab.eos, vocab.add_eos))
    )
    between, other = [vocab.tokens[id] for id in vocab.between], vocab.second
    ids = {text: id for id, text in enumerate(vocab.tokens)}

    def put(names: list[str], kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": kind}} for name in names]

    first, second = ({"Sequence": {"id": n, "type_id": k}} for n, k in (("A", 0), ("B", other)))
    processor = {
        "type": "TemplateProcessing",
        "single": [*put(before, 0), first, *put(behind, 0)],
        "pair": [*put(before, 0), first, *put(between, 0), second, *put(behind, other)],
        "special_tokens": {
            text: {"id": text, "ids": [ids[text]], "tokens": [text]}
            for text in dict.fromkeys((*before, *between, *behind))
        },
    }
    added = [
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
    ]
    begin = {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None}
    return begin | {"post_processor": processor if before or behind else None} | data


def _merges_by_score(vocab: Vocab) -> list[tuple[str, str]]:
    """Return each pair of plain tokens that together are a third, the highest score first.

    Of one token's pairs the longest first text leads, as in transformers' converter. Raises
    DataError for scores that are equal.
    """
    hidden = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE, TokenType.USER_DEFINED)
    ids = np.flatnonzero(~np.isin(vocab.types, hidden)).tolist()
    plain = {vocab.tokens[id]: float(vocab.scores[id]) for id in ids}
    splits = [
        (score, at, text)
        for text, score in plain.items()
        for at in range(1, len(text))
        if text[:at] in plain and text[at:] in plain
    ]
    if len({score for score, _, _ in splits}) < len({text for _, _, text in splits}):
        _refuse(vocab, "tokens share a score, so the order of their merges is unknown")
    return [(text[:at], text[at:]) for _, at, text in sorted(splits, reverse=True)]


def _refuse(vocab: Vocab, why: str) -> NoReturn:
    raise DataError(f"{vocab.path}: its vocabulary cannot be written as tokenizer.json: {why}")
