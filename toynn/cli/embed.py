"""``toynn embed --data FILE --out FILE``: the vectors of texts, in the file's order."""

import json
import time
from argparse import Namespace
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from toynn.cli._commands import add_command
from toynn.cli._flags import add
from toynn.data.texts import TOKENS, read_texts
from toynn.errors import ConfigError, DataError
from toynn.jobs.options import BACKEND, PRECISION, THREADS
from toynn.jobs.paths import local_path, path_or_name, text_model
from toynn.jobs.text_options import RowOptions, columns_of
from toynn.options import RecipeOptions, options_of, typed_path, whole
from toynn.system.printing import fact

FORMS = (".npy", ".jsonl", ".parquet")


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "embed")
    model = "a Hugging Face or sentence-transformers folder, a .gguf file or hf:OWNER/NAME"
    add_ = parser.add_argument
    add_("-m", "--model", type=path_or_name, required=True, metavar="PATH", help=model)
    data = "texts: a line each (.txt), or the field text of .jsonl, .csv, .parquet, ..."
    add_("--data", type=typed_path, required=True, metavar="FILE", help=data)
    out = f"the vectors: {', '.join(FORMS)}; the last two have the texts, too"
    add_("--out", type=typed_path, required=True, metavar="FILE", help=out)
    columns = "map the field text to a column of the data: text=answer"
    add(parser, replace(options_of(RowOptions)["columns"], help=columns))
    prompt = "put TEXT before each text, such as 'query: '; or the name of a prompt of the model"
    add_("--prompt", default="", metavar="TEXT", help=prompt)
    batch = f"most tokens that are computed at once (default {TOKENS})"
    add_("--batch", type=whole(1), default=TOKENS, metavar="N", help=batch)
    add_("--overwrite", action="store_true", help="replace an existing --out")
    for option in (THREADS, BACKEND, PRECISION):
        add(parser, option)
    parser.set_defaults(run=run, saves=True)


def run(arguments: Namespace) -> int:
    """Write the vectors; print how many, and how fast they came."""
    from tqdm import tqdm

    from toynn.engines.encoder import Encoder
    from toynn.formats.files import replacing

    out: Path = arguments.out
    if out.suffix not in FORMS:
        raise ConfigError(f"--out {out}: expected one of {', '.join(FORMS)}; got {out.suffix!r}")
    if out.exists() and not arguments.overwrite:
        raise ConfigError(f"--out {out}: it exists: name a new file, or add --overwrite")
    arrow = _pyarrow(out) if out.suffix == ".parquet" else None
    options = RecipeOptions(n_threads=arguments.threads, precision=arguments.precision)
    model = text_model(local_path(arguments.model))
    encoder = Encoder.load(model, None, options, backend=arguments.backend)
    if encoder.task.kind != "vectors":
        raise ConfigError(f"--model {model}: it has a head of classes or scores, not vectors")
    prompt = encoder.sentences.prompts.get(arguments.prompt, arguments.prompt)
    try:
        texts = read_texts(arguments.data, columns_of(arguments.columns))
    except DataError as error:
        missing = "expected a column" in str(error) and "--columns" not in str(error)
        raise DataError(f"{error}{'; --columns text=... names another' * missing}") from error
    start = time.perf_counter()
    parts = []
    with tqdm(total=len(texts), unit=" texts", leave=False, disable=None) as bar:
        for part in encoder.vectors(texts, prompt=prompt, tokens=arguments.batch):
            parts.append(part)
            bar.update(len(part))
    seconds, vectors = time.perf_counter() - start, np.concatenate(parts)
    with replacing(out, f"{vectors.nbytes} bytes", DataError) as file:
        if out.suffix == ".npy":
            np.save(file, vectors)
        elif arrow is None:
            for text, row in zip(texts, vectors, strict=True):
                numbers = ", ".join(map(str, row))  # the shortest that float32 reads the same from
                file.write(f'{{"text": {json.dumps(text)}, "vector": [{numbers}]}}\n'.encode())
        else:
            lists = arrow.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
            table = arrow.table({"text": texts, "vector": lists})
            import_module("pyarrow.parquet").write_table(table, file)
    if prompt:
        print(fact("prompt", f"{prompt!r} before each text"))
    print(fact("vectors", f"{len(vectors):,} of {vectors.shape[1]:,} numbers in {out}"))
    if encoder.cut:
        print(fact("cut", f"{encoder.cut:,} texts, to {encoder.longest:,} tokens"))
    print(fact("time", f"{seconds:.1f} s, {len(texts) / seconds:,.1f} texts/s"))
    return 0


def _pyarrow(out: Path) -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(f"--out {out}: it needs pyarrow: pip install pyarrow") from error
