"""toynn: train and fine-tune transformers on the CPU you have, with kernels you can read.

A recipe (``toynn.recipes.GPT2``) records one training step on a tape, once; the tape is planned and
compiled; after that a step uploads a few small inputs, runs one program and reads one float.
"""

import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import_module("toynn._kernels")
except ImportError as error:  # none were built, or TOYNN_ISA asks for what there is not
    # `python -m toynn` and the script `toynn` are here before any module of theirs is.
    program = "".join(sys.orig_argv[-len(sys.argv) :][:1])
    if Path(program).stem not in ("toynn", "-mtoynn"):
        raise
    if sys.stderr is not None:
        with suppress(OSError):  # behind Python's buffer: its flush at exit can fail no more
            os.write(2, f"toynn: error: {error}\n".encode(errors="backslashreplace"))
    sys.exit(2)

from toynn import errors
from toynn.errors import *  # noqa: F403  # each is for users, too

if TYPE_CHECKING:  # for editors and mypy: what __getattr__ imports when it is first asked for
    from toynn import distributed as distributed
    from toynn import engines as engines
    from toynn import explorer as explorer
    from toynn import ops as ops
    from toynn import recipes as recipes
    from toynn import testing as testing
    from toynn.backends.config import automatic_precision as automatic_precision
    from toynn.backends.config import show_config as show_config
    from toynn.backends.threads import get_num_threads as get_num_threads
    from toynn.backends.threads import set_num_threads as set_num_threads
    from toynn.engines import GPT2Config as GPT2Config
    from toynn.engines import GPT2SeqEngine as GPT2SeqEngine
    from toynn.engines import LlamaConfig as LlamaConfig
    from toynn.engines import LlamaSeqEngine as LlamaSeqEngine
    from toynn.engines import ViTConfig as ViTConfig
    from toynn.engines import ViTEngine as ViTEngine
    from toynn.jobs.finetuning import Run as Run
    from toynn.jobs.finetuning import finetune as finetune
    from toynn.numerics.precision import (
        get_float32_matmul_precision as get_float32_matmul_precision,
    )
    from toynn.numerics.precision import (
        set_float32_matmul_precision as set_float32_matmul_precision,
    )
    from toynn.optim import AdamW as AdamW
    from toynn.optim import adamw as adamw
    from toynn.optim import schedule as schedule
    from toynn.options import RecipeOptions as RecipeOptions
    from toynn.session import Session as Session

#: The modules of public names; a name that is not here is a package's.
_HOMES = {
    **dict.fromkeys(("automatic_precision", "show_config"), "backends.config"),
    **dict.fromkeys(("get_num_threads", "set_num_threads"), "backends.threads"),
    **dict.fromkeys(("GPT2Config", "GPT2SeqEngine", "LlamaConfig", "LlamaSeqEngine"), "engines"),
    **dict.fromkeys(("ViTConfig", "ViTEngine"), "engines"),
    **dict.fromkeys(("Run", "finetune"), "jobs.finetuning"),
    "get_float32_matmul_precision": "numerics.precision",
    "set_float32_matmul_precision": "numerics.precision",
    **dict.fromkeys(("AdamW", "adamw", "schedule"), "optim"),
    "RecipeOptions": "options",
    "Session": "session",
}

__all__ = [
    "AdamW",
    "GPT2Config",
    "GPT2SeqEngine",
    "LlamaConfig",
    "LlamaSeqEngine",
    "RecipeOptions",
    "Session",
    "ViTConfig",
    "ViTEngine",
    "adamw",
    "automatic_precision",
    "distributed",
    "engines",
    "errors",
    "get_float32_matmul_precision",
    "get_num_threads",
    "ops",
    "recipes",
    "schedule",
    "set_float32_matmul_precision",
    "set_num_threads",
    "show_config",
]
__all__ += [name for name in errors.__all__ if name[0].isupper()]


def __dir__() -> list[str]:
    """Name what is for users."""
    return sorted([*__all__, "Run", "__version__", "explorer", "finetune", "testing"])


def __getattr__(name: str) -> Any:
    """Import what has a public name, or a package, when it is first asked for.

    So a program that uses little of toynn starts fast.
    """
    if name == "__version__":
        attribute: Any = import_module("toynn.backends.config").release()
    elif name in _HOMES:
        attribute = getattr(import_module(f"toynn.{_HOMES[name]}"), name)
    elif find_spec(f"toynn.{name}"):
        attribute = import_module(f"toynn.{name}")
    else:
        raise AttributeError(f"module 'toynn' has no attribute {name!r}")
    globals()[name] = attribute
    return attribute
