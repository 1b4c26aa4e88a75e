"""Write mixes of quantized types, such as Q4_K_M, with llama.cpp's quantizer.

The quantizer chooses a type for each tensor and searches for scales. toynn calls it through
llama-cpp-python (the extra llama-cpp), which exposes the functions of llama.h.
"""

import ctypes
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from toynn.errors import ConfigError, GGUFError
from toynn.formats import gguf
from toynn.formats.files import replacing
from toynn.formats.folders import temporary_folder


@contextmanager
def quantized(
    out: Path, mix: str, write: Callable[[Path], Any], *, overwrite: bool, who: str, instead: str
) -> Iterator[tuple[Path, Path]]:
    """Let ``write`` write a model in float32 next to ``out``, and llama.cpp quantize it to a mix.

    Yields the paths of both files. At the end the mix becomes ``out`` and the float32 file is
    removed. ``instead`` is a command or call, for messages, that writes only the float32 file.

    Raises ConfigError if llama-cpp-python is not installed. Raises GGUFError if ``out`` exists
    (unless ``overwrite``), if it cannot be written, or if llama.cpp fails.
    """
    library = quantizer()
    if library is None:
        raise ConfigError(
            f"{who}: {mix} needs llama.cpp's quantizer, but llama-cpp-python is not "
            f"installed: pip install llama-cpp-python; or run `{instead}`, then `llama-quantize "
            f"whole.gguf {out} {mix.upper()}`"
        )
    gguf.check_target(out, overwrite=overwrite)
    with replacing(out, f"a {mix} file", GGUFError) as file, temporary_folder(out) as folder:
        whole, quantized_path = folder / "whole.gguf", Path(file.name)
        write(whole)
        quantize(library, whole, quantized_path, mix)
        yield whole, quantized_path


def quantizer() -> ModuleType | None:
    """Return llama-cpp-python, or None if it is not installed."""
    try:
        return importlib.import_module("llama_cpp")
    except ImportError:
        return None


def quantize(library: ModuleType, source: Path, out: Path, mix: str) -> None:
    """Quantize a GGUF file of floats to a mix, on all cores. Raises GGUFError if llama.cpp fails.

    ``library`` is what `quantizer` returned. ``out`` is overwritten.
    """
    library.llama_backend_init()
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = int(importlib.import_module("gguf").LlamaFileType[f"MOSTLY_{mix.upper()}"])
    parameters.nthread = 0  # all cores
    log = logging.getLogger("llama-cpp-python")  # prints a line or two for each tensor
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        failed = library.llama_model_quantize(
            os.fsencode(source), os.fsencode(out), ctypes.byref(parameters)
        )
    finally:
        log.setLevel(level)
    if failed:
        raise GGUFError(
            f"{source}: llama.cpp's quantizer could not make a {mix} of it (it returned {failed}); "
            f"its own message is above"
        )
