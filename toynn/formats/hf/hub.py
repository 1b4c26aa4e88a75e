"""The name of a folder's model on the Hugging Face hub."""

import re
from pathlib import Path

from toynn.formats.hf.config import CONFIG
from toynn.formats.objects import read_object

__all__ = ["hub_name"]

#: Where transformers and huggingface_hub put what they download.
_CACHED = re.compile(r"models--(.+)")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
#: Files that may name a model, and the keys that do.
_SAID = {CONFIG: "_name_or_path", "tokenizer_config.json": "name_or_path"}


def hub_name(folder: Path) -> tuple[str | None, str | None]:
    """Return by what name transformers loads a folder, and the revision, if that is known.

    In the hub's cache (models--ORG--NAME/snapshots/REVISION) the path says both. Else config.json
    or tokenizer_config.json may name it. A fine-tuned model's name its parent, so a name counts
    only where the folder is called so. Without a name it is the absolute path; of a file, None.
    """
    if not folder.is_dir():
        return None, None
    whole = folder.absolute()
    kept = _CACHED.fullmatch(whole.parents[1].name) if len(whole.parents) > 1 else None
    if kept is not None and whole.parent.name == "snapshots":
        return kept[1].replace("--", "/", 1), whole.name
    for file, key in _SAID.items():
        said = read_object(folder / file).get(key) if (folder / file).is_file() else None
        if not isinstance(said, str) or not _NAME.fullmatch(said):
            continue
        if whole.name in (said.partition("/")[2], said.replace("/", "--"), said.replace("/", "_")):
            return said, None
    return str(whole), None
