"""The commands: their modules, and what they do in a line."""

from argparse import ArgumentParser
from typing import Any

#: The commands, the module of each, and what `toynn -h` says of it.
COMMANDS = {
    "train": ("train", "train a model"),
    "generate": ("generate", "continue a text, or answer, with a model"),
    "chat": ("chat", "talk with a model"),
    "eval": ("evaluate", "evaluate a model: perplexity, loss, accuracy, divergence from another"),
    "check": ("check", "check data before training: forms, lengths, masks, repeats, leaks"),
    "fuse": ("adapters", "write a model and its adapter as one GGUF file"),
    "export": (
        "adapters",
        "write an adapter for llama.cpp or for PEFT, or a model for transformers",
    ),
    "convert": ("convert", "convert a Hugging Face folder to a GGUF file, for llama.cpp"),
    "bench": ("bench", "time every kernel beside the limits of this machine"),
    "info": ("info", "describe a file or folder, and the memory to train it"),
    "runs": ("runs", "list run folders in a table"),
    "plot": ("runs", "plot the curves of runs in the terminal"),
    "report": ("runs", "write report.html of a run again, even of a killed run"),
    "tape": (
        "tape",
        "show the training step of a model: every kernel call, its memory, its numbers",
    ),
    "predict": ("predict", "classify pictures, texts, or words in texts"),
    "tokenizer": ("tokenizer", "train a tokenizer"),
    "teach": ("teach", "write what a large model says of data, for `toynn train --teacher`"),
    "embed": ("embed", "write the vectors of texts"),
    "config": ("config", "print version, ISA levels, threads, backends"),
    "selftest": (
        "selftest",
        "check this installation in a minute, and print a report to paste into an issue",
    ),
    "puzzles": ("puzzles", "learn how training works: programs with a blank, which you fill in"),
    "completion": (
        "completion",
        'print a script for Tab completion: eval "$(toynn completion bash)"',
    ),
}


def add_command(commands: Any, name: str, **options: Any) -> ArgumentParser:
    """Add a command to the parser's commands, described by its line unless ``options`` say more."""
    line = COMMANDS[name][1]
    described = {"help": line, "description": line, "allow_abbrev": False}
    return commands.add_parser(name, **described | options)  # type: ignore[no-any-return]
