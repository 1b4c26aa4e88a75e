"""Make a job from options that Python gives or a config.toml holds."""

from collections.abc import Mapping
from dataclasses import MISSING
from importlib import import_module
from typing import TYPE_CHECKING, Any

from toynn.errors import ConfigError
from toynn.jobs.config_file import read_config
from toynn.jobs.options import arranged, checked
from toynn.options import Option
from toynn.system.later import Later
from toynn.system.platform import in_shell

if TYPE_CHECKING:
    from toynn.jobs.job import Job


#: The classes of each recipe's job and options, by their modules in toynn.jobs.
RECIPES = {
    "gpt2": ("models.GPT2Job", "model_options.ModelOptions"),
    "from-scratch": ("models.FromScratchJob", "llama_options.FromScratchOptions"),
    "warm-start": ("models.WarmStartJob", "llama_options.WarmStartOptions"),
    "lora": ("lora.LoRAJob", "lora_options.LoRAOptions"),
    "grpo": ("grpo.GRPOJob", "grpo_options.GRPOOptions"),
    "vit": ("vit.ViTJob", "vit_options.ViTOptions"),
    "classify": ("classify.ClassifyJob", "encoder_options.ClassifyOptions"),
    "embed": ("embed.EmbedJob", "encoder_options.EmbedOptions"),
    "rerank": ("embed.RerankJob", "encoder_options.RerankOptions"),
}
LENGTH = ("steps", "epochs")  # if one of them is given, the file's steps and epochs are ignored


def _found(name: str) -> Any:
    """Return a class of a module of toynn.jobs; the module is imported now."""
    module, _, of = name.partition(".")
    return getattr(import_module(f"toynn.jobs.{module}"), of)


#: The job of each recipe, and its options.
JOBS: "Later[type[Job]]" = Later(RECIPES, lambda name: _found(RECIPES[name][0]))
OPTIONS = Later(RECIPES, lambda name: arranged(_found(RECIPES[name][1])))


def without_file() -> tuple[str, ...]:
    """Return the recipes that need no file."""
    return tuple(
        name
        for name, known in OPTIONS.items()
        if not any(each.default is MISSING for each in known.values())
    )


def made(recipe: str, typed: Mapping[str, Any], command: str | None = None) -> "Job":
    """Return a job of a recipe. Options that are not given have the recipe's defaults.

    The options ``config`` and ``resume`` name a file with defaults for the others. ``command`` is
    the command that started the job; None: the command line with the same effect.

    Raises ConfigError for options that are unknown, missing, out of range, or that contradict one
    another.
    """
    options = OPTIONS[recipe]
    values = checked(options, typed, recipe)
    if command is None:
        words = [word for name, value in values.items() for word in options[name].typed(value)]
        command = in_shell("toynn", "train", recipe, *words)
    config, resume = values.get("config"), values.get("resume")
    if config is not None or resume is not None:
        _, from_file, directory = read_config(config, resume, recipe, OPTIONS)
        if values.keys() & set(LENGTH):
            from_file = {name: value for name, value in from_file.items() if name not in LENGTH}
        if resume is None:
            _check_programs(config, options, from_file, values)
        else:
            of_run = {name for name in values if options[name].in_config}
            values |= {name: directory.typed(options[name], values[name]) for name in of_run}
        values = from_file | values
    job = JOBS[recipe](values, command)
    if values.keys() >= set(LENGTH):
        job.limit = values["steps"]
    if resume is not None:
        job.directory = directory
    return job


def _check_programs(
    config: Any, options: Mapping[str, Option], given: Mapping[str, Any], typed: Mapping[str, Any]
) -> None:
    """Raise ConfigError for a program that a config.toml names, and that was not typed."""
    for name in given.keys() - typed.keys():
        words = options[name].typed(given[name])
        if options[name].program and any(".py:" in word for word in words):
            raise ConfigError(
                f"--config {config}: {name}: it names a program; to run it, type {in_shell(*words)}"
            )
