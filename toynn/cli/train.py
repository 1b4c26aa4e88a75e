"""``toynn train RECIPE``: parse the options of a job; toynn/jobs/ carries it out."""

from argparse import Namespace
from collections.abc import Container, Sequence
from typing import Any

from toynn.cli._commands import add_command
from toynn.cli._flags import add_all, as_typed, show_first
from toynn.errors import ConfigError
from toynn.jobs.config_file import read_config
from toynn.jobs.job import Job
from toynn.jobs.made import JOBS, OPTIONS, made
from toynn.jobs.options import MOST_USED
from toynn.jobs.run import carried_out

#: Names of flags in mlx-lm and llama.cpp, and toynn's names for them.
ALSO = {each.also: each.flag for known in OPTIONS.values() for each in known.values() if each.also}


def add_parser(
    commands: Any, *, required: bool = True, recipes: Container[str] = tuple(JOBS)
) -> None:
    """Add the command to the parser's commands, with the options of some recipes.

    Without ``required``, required options may come from a file (--config, --resume).
    """
    parser = add_command(commands, "train", description=None)
    parsers = parser.add_subparsers(required=True, metavar="RECIPE", dest="recipe")
    for name, job in JOBS.items():
        subparser = parsers.add_parser(
            name, help=job.help, description=job.help, allow_abbrev=False
        )
        if name not in recipes:
            continue
        options = OPTIONS[name]
        add_all(subparser, options.values(), required=required)
        first = (each.name for each in options.values() if each.group == MOST_USED)
        show_first(subparser, first, f"toynn train {name} {job.example}".strip())
        subparser.set_defaults(run=train, saves=True)


def train(arguments: Namespace) -> int:
    """Train with these arguments; return the exit code."""
    try:
        job = job_of(arguments)
        # so that an error about memory can name smaller options
        vars(arguments).update(vars(job.options))
        return carried_out(job).code
    except ConfigError as error:
        error.args = (as_typed(str(error), OPTIONS[arguments.recipe].values()),)
        raise


def job_of(arguments: Namespace) -> Job:
    """Return the job of the arguments, and of the file that --config or --resume names."""
    values, recipe = vars(arguments), arguments.recipe
    typed = {name: values[name] for name in OPTIONS[recipe] if name in values}
    return made(recipe, typed, values.get("typed"))


def words_of(words: Sequence[str]) -> list[str]:
    """Return the words after ``toynn train``: the recipe first, then toynn's names of flags.

    If no recipe is typed, it comes from the file that --config or --resume names.
    """
    renamed = [_renamed(word) for word in words]
    config, resume = _value_of(renamed, "--config"), _value_of(renamed, "--resume")
    if (config or resume) is None:
        return renamed
    typed = renamed[0] if renamed and not renamed[0].startswith("-") else None
    recipe, _, _ = read_config(config, resume, typed, OPTIONS)
    return renamed if typed else [recipe, *renamed]


def _renamed(word: str) -> str:
    """Return a word with toynn's name of a flag in place of another program's name."""
    name, sign, value = word.partition("=")
    return f"{ALSO.get(name, name)}{sign}{value}"


def _value_of(words: Sequence[str], option: str) -> str | None:
    """Return an option's value as argparse takes it: the last one wins.

    Raises ConfigError if the option is the last word.
    """
    value = None
    for word, following in zip(words, [*words[1:], None], strict=False):
        if word == option:
            if following is None:
                wanted = "the folder of a run" if option == "--resume" else "a file"
                raise ConfigError(f"{option}: expected {wanted} after it; got none")
            value = following
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value
