"""Folders in Hugging Face's format, with something changed."""

import json

from safetensors.numpy import load_file, save_file


def edit_object(path, **changes):
    """Change keys of a JSON file; ... takes one away."""
    keys = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in keys.items() if value is not ...}))


def edit_tensors(path, changes):
    """Change tensors of a safetensors file; None takes one away."""
    tensors = {**load_file(path), **changes}
    save_file({name: values for name, values in tensors.items() if values is not None}, path)
