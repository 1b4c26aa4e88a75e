"""``toynn generate``: a model continues one text or many, or answers messages."""

from argparse import Namespace
from typing import Any

from toynn.cli._commands import add_command
from toynn.cli._flags import show_first
from toynn.cli._writing import add_flags
from toynn.options import typed_path, whole


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "generate")
    add_flags(parser, "--prompt")
    which = parser.add_mutually_exclusive_group(required=True)
    prompt = "text to continue; - reads standard input, and keeps the line breaks at its end"
    which.add_argument("-p", "--prompt", metavar="TEXT", help=prompt)
    prompts = (
        "file of prompts: a text per line, or .jsonl with prompt or messages; a pipe, or - for "
        "standard input, has texts. Prints a line of JSON for each."
    )
    which.add_argument("--prompts", type=typed_path, metavar="FILE", help=prompts)
    samples = "continuations of each prompt, the first with --seed, the next with --seed + 1"
    parser.add_argument(
        "--num-samples", type=whole(1), default=1, metavar="N", help=f"{samples}, ... (default 1)"
    )
    batch = "continuations to write at a time, for lines of JSON; 32 take memory (default 8)"
    parser.add_argument("--batch", type=whole(1), default=8, metavar="N", help=batch)
    chat = "format the prompt as a user's message by the chat template"
    parser.add_argument("--chat", action="store_true", help=chat)
    as_json = "print a line of JSON: completion, why it ended, numbers of tokens"
    parser.add_argument("--json", action="store_true", help=as_json)
    logprobs = "add the log probability of each token, and of the N likeliest, to the JSON"
    parser.add_argument("--logprobs", type=whole(0), metavar="N", help=logprobs)
    out = "new file for the lines of JSON"
    parser.add_argument("--out", type=typed_path, metavar="FILE", help=out)
    first = ("model", "adapter", "prompt", "prompts", "max_tokens", "temp", "chat")
    show_first(parser, first, 'toynn generate --adapter runs/chats --prompt "Once upon"')
    parser.set_defaults(run=run, saves="out")


def run(arguments: Namespace) -> int:
    """Print the model's text to stdout as it comes, then its speed to stderr."""
    from toynn.cli._generate import generate

    return generate(arguments)
