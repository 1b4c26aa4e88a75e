"""``toynn train RECIPE``: parse the options of a job; toynn/jobs/ carries it out."""

from argparse import Namespace
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toynn.cli._commands import add_command
from toynn.cli._flags import add_all, as_typed, show_first
from toynn.errors import ConfigError
from toynn.jobs.config_file import read_config
from toynn.jobs.made import OPTIONS, made
from toynn.jobs.options import MOST_USED

if TYPE_CHECKING:
    from toynn.jobs.job import Job
#: What `toynn train -h` says of each recipe, and words after its name, for --help.
HELP = {
    "gpt2": "train a small GPT-2 from scratch, on text",
    "from-scratch": "train a small Llama-like model from scratch, on text",
    "warm-start": "train a small Llama-like model from a donor's embeddings, on text",
    "lora": "train an adapter over a GGUF file or Hugging Face folder, which stays as it is",
    "grpo": "train an adapter by rewards that a program computes for samples (GRPO)",
    "vit": "train a small vision transformer on labelled pictures",
    "classify": "train an encoder to classify texts, or words in them",
    "embed": "train an encoder's vectors of texts, for search and likeness",
    "rerank": "train an encoder to score pairs of texts, such as questions and passages",
}
EXAMPLES = {
    "gpt2": "--data book.txt --steps 3000",
    "from-scratch": "--data book.txt --tokenizer model.gguf",
    "warm-start": "--donor model.gguf --data book.txt",
    "lora": "--model base.gguf --data chats --out runs/chats",
    "grpo": "--model base.gguf --data prompts.jsonl --reward rewards.py:score",
    "vit": "--data pictures --epochs 20",
    "classify": "--model all-MiniLM-L6-v2 --data reviews.csv --columns text=review,label=stars",
    "embed": "--model all-MiniLM-L6-v2 --data faq.csv --columns anchor=question,positive=answer",
    "rerank": "--model MiniLM-L6-H384 --data pairs.csv --columns query=question,passage=answer",
}


def add_parser(
    commands: Any, *, required: bool = True, recipes: Container[str] = tuple(HELP)
) -> None:
    """Add the command to the parser's commands, with the options of some recipes.

    Without ``required``, required options may come from a file (--config, --resume).
    """
    parser = add_command(commands, "train", description=None)
    parsers = parser.add_subparsers(required=True, metavar="RECIPE", dest="recipe")
    for name, line in HELP.items():
        subparser = parsers.add_parser(name, help=line, description=line, allow_abbrev=False)
        if name not in recipes:
            continue
        options = OPTIONS[name]
        add_all(subparser, options.values(), required=required)
        first = (each.name for each in options.values() if each.group == MOST_USED)
        show_first(subparser, first, f"toynn train {name} {EXAMPLES[name]}")
        subparser.set_defaults(run=train, saves=True)


def train(arguments: Namespace) -> int:
    """Train with these arguments; return the exit code."""
    from toynn.jobs.run import carried_out

    try:
        job = job_of(arguments)
        # so that an error about memory can name smaller options
        vars(arguments).update(vars(job.options))
        return carried_out(job).code
    except ConfigError as error:
        error.args = (as_typed(str(error), OPTIONS[arguments.recipe].values()),)
        raise


def job_of(arguments: Namespace) -> "Job":
    """Return the job of the arguments, and of the file that --config or --resume names."""
    values, recipe = vars(arguments), arguments.recipe
    typed = {name: values[name] for name in OPTIONS[recipe] if name in values}
    return made(recipe, typed, values.get("typed"))


def also(recipes: Iterable[str]) -> dict[str, str]:
    """Return names of flags in mlx-lm and llama.cpp, and toynn's names for them."""
    known = (each for name in recipes for each in OPTIONS[name].values())
    return {each.also: each.flag for each in known if each.also}


def words_of(words: Sequence[str]) -> list[str]:
    """Return the words after ``toynn train``: the recipe first, then toynn's names of flags.

    If no recipe is typed, it comes from the file that --config or --resume names.
    """
    recipes = words[:1] if words and words[0] in OPTIONS else tuple(OPTIONS) if words[1:] else ()
    names = also(recipes)
    renamed = [_renamed(word, names) for word in words]
    config, resume = _value_of(renamed, "--config"), _value_of(renamed, "--resume")
    if (config or resume) is None:
        return renamed
    typed = renamed[0] if renamed and not renamed[0].startswith("-") else None
    recipe, _, _ = read_config(config, resume, typed, OPTIONS)
    return renamed if typed else [recipe, *renamed]


def _renamed(word: str, names: Mapping[str, str]) -> str:
    """Return a word with toynn's name of a flag in place of another program's name."""
    name, sign, value = word.partition("=")
    return f"{names.get(name, name)}{sign}{value}"


def _value_of(words: Sequence[str], option: str) -> str | None:
    """Return an option's value as argparse takes it: the last one wins.

    Raises ConfigError if no value, or an empty one, is typed.
    """
    value = None
    for word, following in zip(words, [*words[1:], None], strict=False):
        name, sign, text = word.partition("=")
        if name == option:
            value = text if sign else following
            if not value:
                wanted = "the folder of a run" if option == "--resume" else "a file"
                raise ConfigError(f"{option}: expected {wanted} after it; got none")
    return value
