"""Read JSON objects from files, such as Hugging Face's and PEFT's settings."""

import json
from pathlib import Path
from typing import Any

from toynn.errors import DataError
from toynn.system.reading import read_bytes

#: The objects that tell what a folder is: a model of Hugging Face, an adapter of PEFT.
CONFIG, PEFT_CONFIG = "config.json", "adapter_config.json"
PEFT_WEIGHTS = "adapter_model.safetensors"


def read_object(path: Path, *, links: bool = True) -> dict[str, Any]:
    """Read a JSON object; without ``links``, refuse symbolic links. Raises DataError."""
    try:
        value = json.loads(read_bytes(path, links=links).decode("utf-8"))
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected an object; got {type(value).__name__}")
    return value
