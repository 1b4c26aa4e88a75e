"""Vocabularies made up for tests, nasty texts, and llama.cpp's tokenizer as the judge."""

import ctypes
import itertools
import random
import unicodedata
from collections import Counter
from functools import cache

import numpy as np

from toynn.formats import gguf
from toynn.formats.tokenizer import byte_letters

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

MODEL = {  # what llama.cpp wants of a model, if only its vocabulary is loaded
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}

#: What pre-tokenizers cut in different ways, and what is easily mistaken for something else.
SNIPPETS = [
    *["'s", "'S", "'Re", "'LL", "don't", "I'VE", "\u017f", "\u01c5", "\u00aa", "\u2177"],
    *[" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\t\t", "\x0b", "\x85", "\xa0", "\u3000"],
    *["123", "1234567", "\u2460\u2461\u2462", "\u0968\u0969", "1", "3.14", "0x1F"],
    *["a", "B", "Ab", "HELLO", "caf\u00e9", "e\u0301", "\u4e2d\u6587", "\u65e5\u672c\u8a9e"],
    *["\ud55c\uad6d\uc5b4", "\u30ab\u30bf", "\U0001f389", "\U0001f469\u200d\U0001f467", "\ufeff"],
    *["!", "!!", "?.", "//\n/", "\n/x", "$", "+=", "~", "`", "|", "@#", "_", "x_y", "(a)"],
    *["\x00", "\x01", "\x7f", "\u2581", "\u2581\u2581", "\u200b", "\u2028", "\u2014", "\u2026"],
    *["\u3002", "\uff0c", "<0x0A>", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_end|>"],
    *["the", " the", "ab\ncd", "x\n\ny", "def f(x):\n    return x\n"],
]


@cache
def old_characters():
    """Characters whose category no version of Unicode since 3.2 has changed."""
    old = unicodedata.ucd_3_2_0.category
    return [
        chr(code)
        for code in range(1, 0x2FA20)
        if (now := unicodedata.category(chr(code))) == old(chr(code)) and now not in ("Cn", "Cs")
    ]


def nasty_texts(count, seed=0, specials=()):
    """Texts of snippets, of any characters at all, and of special tokens' texts."""
    rng = random.Random(seed)
    kinds = [lambda: rng.choice(SNIPPETS)] * 6
    kinds += [lambda: "".join(rng.choices(old_characters(), k=3))] * 2
    kinds += [lambda: "".join(chr(rng.randint(32, 126)) for _ in range(5))]
    kinds += [lambda: rng.choice(specials)] * 2 if specials else []
    return ["".join(rng.choice(kinds)() for _ in range(rng.randint(1, 12))) for _ in range(count)]


@cache
def merges(count=400):
    """Merges learned over all of a nasty text: wherever a tokenizer fails to cut, it shows."""
    spelled = byte_letters()
    text = " ".join([*nasty_texts(60, seed=1), *SNIPPETS])
    word = [spelled[byte] for byte in text.encode()]
    learned = []
    while len(learned) < count:
        (left, right), _ = Counter(itertools.pairwise(word)).most_common(1)[0]
        learned.append((left, right))
        joined, at = [], 0
        while at < len(word):
            pair = word[at : at + 2] == [left, right]
            joined.append(left + right if pair else word[at])
            at += 2 if pair else 1
        word = joined
    return learned


def bpe_file(path, pre="gpt-2", specials=(), keys=None, missing=()):
    """Write a byte-level BPE vocabulary; specials: (text, type)."""
    apart = [*missing, *(text for text, _ in specials)]
    pairs = [pair for pair in merges() if not any(text in "".join(pair) for text in apart)]
    tokens = ["<bos>", "<eos>", *(letter for letter in byte_letters() if letter not in missing)]
    tokens += dict.fromkeys(left + right for left, right in pairs)
    types = [CONTROL, CONTROL] + [NORMAL] * (len(tokens) - 2) + [type for _, type in specials]
    tokens += [text for text, _ in specials]
    metadata = MODEL | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in pairs],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    return write(path, metadata, keys)


def spm_file(path, specials=(), keys=None, byte_tokens=True, tags=False):
    """Write a SentencePiece vocabulary, with ties among its scores."""
    texts = " ".join(nasty_texts(80, seed=2)).replace(" ", "\u2581")
    texts = "".join(letter for letter in texts if letter not in "\n\t\x00")
    pieces = Counter(texts[at : at + n] for n in range(1, 5) for at in range(len(texts) - n))
    apart = {"<unk>", "<s>", "</s>", *(text for text, _ in specials)}
    pieces = [piece for piece, _ in pieces.most_common(600) if piece not in apart]
    if not tags:  # else merges can spell a special token
        pieces = [piece for piece in pieces if len(piece) == 1 or not set("<>") & set(piece)]
    tokens, types = ["<unk>", "<s>", "</s>"], [UNKNOWN, CONTROL, CONTROL]
    if byte_tokens:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        types += [BYTE] * 256
    scores = [0.0] * len(tokens) + [-float(rank // 3) for rank in range(len(pieces))]
    types += [NORMAL] * len(pieces) + [type for _, type in specials]
    tokens += pieces + [text for text, _ in specials]
    metadata = MODEL | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": np.array(scores + [0.0] * len(specials), np.float32),
    }
    return write(path, metadata, keys)


def write(path, metadata, keys=None):
    """Write a file without tensors; keys with the value None are left out."""
    metadata = {k: v for k, v in (metadata | (keys or {})).items() if v is not None}
    gguf.write(path, metadata, {}, overwrite=True)
    return path


_quiet = []


class Judge:
    """llama.cpp's tokenizer of a file."""

    def __init__(self, llama_cpp, path):
        self.lib = llama_cpp
        if not _quiet:  # llama.cpp calls it for as long as it is loaded
            _quiet.append(llama_cpp.llama_log_callback(lambda *_: None))
        llama_cpp.llama_log_set(_quiet[0], ctypes.c_void_p())
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def encode(self, text, add_special=True, parse_special=False):
        raw = text.encode()
        ids = (self.lib.llama_token * (len(raw) + 16))()
        options = (add_special, parse_special)
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), *options)
        assert count >= 0
        return list(ids[:count])

    def ends(self, size):
        return {id for id in range(size) if self.lib.llama_vocab_is_eog(self.vocab, id)}

    def close(self):
        self.lib.llama_model_free(self.model)
