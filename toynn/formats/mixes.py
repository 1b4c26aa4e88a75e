"""Mixes of types, such as Q4_K_M, by the quantizer that they come from: llama.cpp's.

It chooses a type for each tensor and searches for scales. toynn calls it through llama-cpp-python
(the extra llama-cpp), which exposes the functions of llama.h.
"""

import ctypes
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from gguf import LlamaFileType

from toynn.errors import ConfigError, GGUFError
from toynn.formats import gguf
from toynn.formats.files import replacing
from toynn.formats.folders import temporary_folder

__all__ = ["KINDS", "MIXES", "check_kind", "quantize", "quantized", "quantizer"]

#: The mixes that need no importance matrix.
MIXES = (
    "q2_k",
    "q3_k_s",
    "q3_k_m",
    "q3_k_l",
    "q4_0",
    "q4_1",
    "q4_k_s",
    "q4_k_m",
    "q5_0",
    "q5_1",
    "q5_k_s",
    "q5_k_m",
    "q6_k",
    "iq3_s",
    "iq3_m",
    "iq4_nl",
    "iq4_xs",
    "tq1_0",
    "tq2_0",
)
#: All that a model can be written as: the type of all its matrices, or a mix.
KINDS = (*gguf.OUTTYPES, *MIXES)


def check_kind(outtype: str, who: str) -> None:
    """Raise ConfigError for what a model cannot be written as; ``who`` was asked to."""
    if outtype not in KINDS:
        raise ConfigError(f"{who}: outtype must be {', '.join(KINDS)}; got {outtype!r}")


@contextmanager
def quantized(
    out: Path, mix: str, write: Callable[[Path], Any], *, overwrite: bool, who: str, instead: str
) -> Iterator[tuple[Path, Path]]:
    """Let ``write`` write a model in float32 beside ``out``, and llama.cpp make a mix of it.

    Yields where both files are, which only then take the place of ``out``, or go away. ``instead``
    is the command, or the call, that writes the first of them alone as whole.gguf.

    Raises ConfigError where llama-cpp-python is not installed, GGUFError if ``out`` exists (unless
    ``overwrite``) or cannot be written, or llama.cpp fails.
    """
    library = quantizer()
    if library is None:
        raise ConfigError(
            f"{who}: {mix} is made by llama.cpp's quantizer, and llama-cpp-python is not "
            f"installed: pip install llama-cpp-python; or run `{instead}`, then `llama-quantize "
            f"whole.gguf {out} {mix.upper()}`"
        )
    gguf.check_target(out, overwrite=overwrite)
    with replacing(out, f"a {mix} file", GGUFError) as file, temporary_folder(out) as folder:
        whole, made = folder / "whole.gguf", Path(file.name)
        write(whole)
        quantize(library, whole, made, mix)
        yield whole, made


def quantizer() -> ModuleType | None:
    """Return llama-cpp-python, or None where it is not installed."""
    try:
        return importlib.import_module("llama_cpp")
    except ImportError:
        return None


def quantize(library: ModuleType, source: Path, out: Path, mix: str) -> None:
    """Write a GGUF file of floats as a mix, on all cores. Raises GGUFError where llama.cpp fails.

    ``library`` is what `quantizer` returned. What is at out is overwritten.
    """
    library.llama_backend_init()
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = int(LlamaFileType[f"MOSTLY_{mix.upper()}"])
    parameters.nthread = 0  # as many as there are
    failed = library.llama_model_quantize(
        os.fsencode(source), os.fsencode(out), ctypes.byref(parameters)
    )
    if failed:
        raise GGUFError(
            f"{source}: llama.cpp's quantizer could not make a {mix} of it (it returned {failed}); "
            f"what it says about it is above"
        )
