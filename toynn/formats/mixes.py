"""Mixes of types, such as Q4_K_M, by the quantizer that they come from: llama.cpp's.

It chooses a type for each tensor, finds scales by search, and is used here as it is, through
llama-cpp-python (the extra llama-cpp), which hands on the functions of llama.h.
"""

import ctypes
import importlib
import os
from pathlib import Path
from types import ModuleType

from gguf import LlamaFileType

from toynn.errors import GGUFError

__all__ = ["MIXES", "quantize", "quantizer"]

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
