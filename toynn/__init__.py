"""toynn: train and fine-tune transformers on the CPU you have, with kernels you can read.

A recipe (``toynn.recipes.GPT2``) records one training step on a tape, once; the tape is planned and
compiled; after that a step uploads a few small inputs, runs one program and reads one float.
"""

import os
import sys
from contextlib import suppress
from importlib import import_module
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

from toynn import distributed, engines, errors, ops, recipes
from toynn.backends.config import automatic_precision, release, show_config
from toynn.backends.threads import get_num_threads, set_num_threads
from toynn.engines import (
    GPT2Config,
    GPT2SeqEngine,
    LlamaConfig,
    LlamaSeqEngine,
    ViTConfig,
    ViTEngine,
)
from toynn.errors import *  # noqa: F403  # each is for users, too
from toynn.numerics.precision import get_float32_matmul_precision, set_float32_matmul_precision
from toynn.optim import AdamW, adamw, schedule
from toynn.options import RecipeOptions
from toynn.session import Session

if TYPE_CHECKING:  # what __getattr__ imports when it is first asked for
    from toynn import explorer as explorer
    from toynn import testing as testing
    from toynn.jobs import Run as Run
    from toynn.jobs import finetune as finetune

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

__version__ = release()


def __dir__() -> list[str]:
    """Name what is for users."""
    return sorted([*__all__, "Run", "__version__", "explorer", "finetune", "testing"])


def __getattr__(name: str) -> Any:
    """Import ``toynn.explorer``, ``testing`` or ``finetune`` when it is first asked for."""
    if name == "explorer":
        return import_module("toynn.explorer")
    if name == "testing":
        return import_module("toynn.testing")
    if name in ("finetune", "Run"):
        return getattr(import_module("toynn.jobs"), name)
    raise AttributeError(f"module 'toynn' has no attribute {name!r}")
