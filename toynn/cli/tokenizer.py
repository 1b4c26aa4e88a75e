"""``toynn tokenizer train --data TEXT --out FOLDER``: a byte-level BPE of one's own."""

import time
from argparse import Namespace
from itertools import chain
from pathlib import Path
from typing import Any

from toynn.cli._commands import add_command
from toynn.errors import ConfigError
from toynn.jobs.paths import data_name, local_data
from toynn.jobs.text_options import DATA
from toynn.options import typed_path, whole
from toynn.system.printing import fact


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "tokenizer")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    help_ = "train a byte-level BPE on texts; for `toynn train RECIPE --tokenizer FOLDER`"
    parser = actions.add_parser("train", help=help_, description=help_, allow_abbrev=False)
    add_ = parser.add_argument
    data = f"{DATA.partition('; ')[0].replace(' tokens (.bin),', '')}"
    data += " (default: the language reference that ships with Python)"
    add_("--data", type=data_name, nargs="+", default=[], metavar="PATH", help=data)
    size = "number of tokens: bytes, merges and special tokens (default 4096)"
    add_("--vocab-size", type=whole(1), default=4096, metavar="N", help=size)
    out = "new folder, which AutoTokenizer loads"
    add_("--out", type=typed_path, required=True, metavar="FOLDER", help=out)
    parser.set_defaults(run=run, saves=True)


def run(arguments: Namespace) -> int:
    """Train and write the tokenizer; print its size."""
    from toynn.data.text import Corpus
    from toynn.data.texts import contents
    from toynn.formats.tokenizer.trained import train_tokenizer

    out, start = arguments.out, time.perf_counter()
    if out.exists():
        raise ConfigError(f"--out {out}: it exists: name a new folder")
    paths = [_text_of(Path(local_data(each))) for each in arguments.data]
    named = chain.from_iterable(map(contents, paths))
    texts = named if paths else [Corpus.embedded().text.decode()]
    train_tokenizer(texts, arguments.vocab_size, out)
    seconds = time.perf_counter() - start
    print(fact("tokenizer", f"{arguments.vocab_size:,} tokens in {out}, {seconds:.1f} s"))
    return 0


def _text_of(path: Path) -> Path:
    """Return the training part of a folder, or the path itself."""
    from toynn.data.jsonl import parts_of

    return parts_of(path)["train"] if path.is_dir() else path
