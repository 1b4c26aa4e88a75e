"""``toynn teach --model big.gguf --data D --out FILE``: a teacher's probabilities, written once."""

import time
from argparse import Namespace
from dataclasses import replace
from typing import Any

from toynn.cli._commands import add_command
from toynn.cli._flags import add, show_first
from toynn.errors import ConfigError
from toynn.jobs.lora_options import LoRAOptions
from toynn.jobs.options import PRECISION, THREADS
from toynn.jobs.text_options import TOKENIZER
from toynn.options import options_of, real, typed_path, whole
from toynn.system.platform import in_shell
from toynn.system.printing import fact, size

#: Options of `toynn train` that say how the data are read.
READ = (
    *("data", "seq", "batch", "columns", "no_mask_prompt", "truncation_mode"),
    *("document_separator", "holdout", "max_line", "max_unpacked"),
)


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "teach")
    known = options_of(LoRAOptions)
    model = replace(known["model"], help="the teacher: a GGUF file, folder or hf:OWNER/NAME")
    add(parser, model, required=True)
    out = "the file; FILE.partial until it is complete, from which the same command continues"
    parser.add_argument("--out", type=typed_path, required=True, metavar="FILE", help=out)
    more: dict[str, dict[str, Any]] = {"data": {"required": True}, "batch": {"default": 8}}
    for name in READ:
        add(parser, known[name], **more.get(name, {}))
    add(parser, replace(TOKENIZER, help="read the data with this tokenizer, which is the same one"))
    top_k = "likely tokens that are named of each token (default 64)"
    parser.add_argument("--top-k", type=whole(1), default=64, metavar="N", help=top_k)
    temperature = "divide logits by it; the file serves this temperature alone (default 1)"
    parser.add_argument(
        "--temperature", type=real(0, above=True), default=1.0, metavar="N", help=temperature
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out")
    for option in (THREADS, PRECISION):
        add(parser, option)
    first = ("model", "data", "out", "seq", "top_k", "temperature")
    show_first(parser, first, "toynn teach --model big.gguf --data chats --out chats.taught")
    parser.set_defaults(run=run, saves=True)


def run(arguments: Namespace) -> int:
    """Write the file; print how much, and how fast."""
    from tqdm import tqdm

    from toynn.jobs.lora import LoRAJob
    from toynn.jobs.teach import teach

    out, names = arguments.out, (*READ, "model", "tokenizer", "threads", "precision")
    if out.exists() and not arguments.overwrite:
        raise ConfigError(f"--out {out}: it exists: name a new file, or add --overwrite")
    typed = {name: getattr(arguments, name) for name in names}
    job = LoRAJob({name: value for name, value in typed.items() if value is not None})
    start = time.perf_counter()
    with tqdm(unit=" tokens", leave=False, disable=None) as bar:

        def tell(done: int, records: int) -> None:
            bar.total = records
            bar.update(done - bar.n)

        facts = teach(job, out, arguments.top_k, arguments.temperature, tell)
    for line in job.said:
        print(line)
    seconds, records = time.perf_counter() - start, facts["records"]
    said = f"{out}: {records:,} tokens with loss, {size(out.stat().st_size)}"
    print(fact("teacher", f"{said}, {facts['k']} tokens named of each"))
    print(fact("time", f"{seconds:.1f} s, {records / seconds:,.0f} tokens/s"))
    print(f"try it      toynn train from-scratch ... --teacher {in_shell(out)}")
    return 0
