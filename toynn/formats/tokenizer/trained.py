"""Train a byte-level BPE with the tokenizers library.

The tokens are the 256 bytes, then merges, then special tokens. Starting from bytes, the most
frequent adjacent pair of tokens becomes a token, again and again; a pair that occurs once does not.
Texts are cut into words first, as Qwen2 does: a merge crosses no cut. Of the least size, tokens are
bytes: files need a merge, and that one is of two bytes that no text has.

Source: Sennrich et al. 2016, arXiv:1508.07909, algorithm 1.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from toynn.errors import ConfigError, DataError
from toynn.formats.folders import new_folder
from toynn.formats.tokenizer import hf_files
from toynn.formats.tokenizer.bpe import cuts, steps_of
from toynn.formats.tokenizer.chat import needed
from toynn.formats.tokenizer.panics import refused
from toynn.formats.tokenizer.pre import KINDS
from toynn.formats.tokenizer.vocab import TokenType, Vocab, byte_letters

END, *TURN = SPECIAL = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
LEAST = 257 + len(SPECIAL)
CUT = KINDS["qwen2"]
#: ChatML, with the tokens of TURN around each message.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}"
)


def train_tokenizer(texts: Iterable[str], size: int, folder: Path) -> None:
    """Write a tokenizer of ``size`` tokens, trained on texts, as a new Hugging Face folder.

    Texts end with <|endoftext|>; <|im_start|> and <|im_end|> are around the messages of a
    conversation. Raises ConfigError for fewer tokens than LEAST, and if the library is missing.
    Raises DataError for texts that give fewer tokens, and if the folder exists.
    """
    if size < LEAST:
        raise ConfigError(
            f"a tokenizer has at least {LEAST} tokens, 256 bytes, a merge and "
            f"{', '.join(SPECIAL)}; got {size:,}"
        )
    library, letters = needed("tokenizers"), byte_letters()
    tokenizer = steps_of({"pre_tokenizer": cuts(CUT)})
    trainer = library.trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL),
        min_frequency=2,
        initial_alphabet=letters,
        show_progress=False,
    )
    with refused("cannot train a tokenizer", DataError):
        tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].__getitem__), *SPECIAL]
    if size == LEAST:
        model["merges"] = [letters[-2:]]
        tokens = [*letters, "".join(letters[-2:]), *SPECIAL]
    if len(tokens) < size:
        raise DataError(
            f"the texts are too short for {size:,} tokens: their pairs that occur twice give "
            f"{len(tokens):,}; use more text, or ask for fewer tokens"
        )
    types = np.full(size, TokenType.NORMAL, np.int32)
    types[-len(SPECIAL) :] = TokenType.CONTROL
    end, turn = tokens.index(END), tokens.index(TURN[1])
    vocab = Vocab(
        folder,
        tokens,
        types,
        types,
        np.zeros(size, np.float32),
        [" ".join(pair) for pair in model["merges"]],
        CUT,
        eos=end,
        eog=frozenset((end, turn)),
    )
    with new_folder(folder, DataError) as new:
        for name, content in hf_files.written(vocab, TEMPLATE).items():
            new.write(name, content)
