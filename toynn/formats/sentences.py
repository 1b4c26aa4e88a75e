"""What a sentence-transformers folder says beside its model: pooling, normalization, prompts.

modules.json                            the modules in order: Transformer, Pooling, Normalize
1_Pooling/config.json                   which rows become the vector
sentence_bert_config.json               the longest text, in tokens
config_sentence_transformers.json       prompts by name
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toynn.errors import DataError
from toynn.formats.objects import read_object
from toynn.system.reading import read_bytes

#: By llama.cpp's number, `pooling_type`: what becomes a text's vector; "": nothing said.
POOLINGS = ("", "mean", "cls", "last", "rank")
MODULES, _POOLING = "modules.json", "1_Pooling/config.json"
_LENGTH, _PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True)
class Sentences:
    """How a model's rows become a text's vector; ``pooling`` "" if nothing is said.

    ``length`` is the longest text in tokens, or None; ``prompts`` are put before texts.
    """

    pooling: str = ""
    normalize: bool = False
    length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)

    def files(self, width: int) -> dict[str, bytes]:
        """Return the files of a folder, by name, for vectors of ``width`` numbers."""
        kinds = ["Transformer", "Pooling", *(["Normalize"] * self.normalize)]
        modules = [
            {
                "idx": n,
                "name": str(n),
                "path": f"{n}_{kind}" if n else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for n, kind in enumerate(kinds)
        ]
        pooling: dict[str, Any] = {"word_embedding_dimension": width}
        pooling |= {mode: mode_is == self.pooling for mode, mode_is in _MODES.items()}
        prompts = {"prompts": dict(self.prompts), "similarity_fn_name": "cosine"}
        length = {"max_seq_length": self.length, "do_lower_case": False}
        named = {MODULES: modules, _POOLING: pooling, _PROMPTS: prompts, _LENGTH: length}
        return {name: json.dumps(each, indent=2).encode() + b"\n" for name, each in named.items()}


def read(folder: Path) -> Sentences:
    """Return what a folder says; nothing without modules.json.

    Raises DataError for a module or a pooling that toynn does not have.
    """
    path = folder / MODULES
    if not path.exists():
        return Sentences()
    try:
        modules = json.loads(read_bytes(path))
        kinds = [str(each["type"]).rpartition(".")[2] for each in modules]
        places = [str(each.get("path", "")) for each in modules]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: expected modules with a type and a path; got {error}") from error
    if unknown := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]:
        raise DataError(f"{path}: {unknown[0]} is not known to toynn")
    if "Pooling" not in kinds:
        raise DataError(f"{path}: expected Pooling; got {', '.join(kinds)}")
    where = folder / places[kinds.index("Pooling")] / "config.json"
    told = read_object(where)
    if told.get("include_prompt") is False:
        raise DataError(f"{where}: include_prompt false: toynn pools a prompt's tokens, too")
    modes = [mode for mode, on in told.items() if mode.startswith("pooling_mode_") and on is True]
    if isinstance(told.get("pooling_mode"), str):  # since version 5.4
        pooling = {"lasttoken": "last"}.get(told["pooling_mode"], told["pooling_mode"])
        modes = [mode for mode, name in _MODES.items() if name == pooling] or [pooling]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise DataError(
            f"{where}: expected one of {', '.join(_MODES)}; got {', '.join(modes) or 'none'}"
        )
    length, prompts = (
        read_object(folder / name) if (folder / name).exists() else {}
        for name in (_LENGTH, _PROMPTS)
    )
    longest, named = length.get("max_seq_length"), prompts.get("prompts")
    if longest is not None and (type(longest) is not int or longest < 3):
        raise DataError(f"{folder / _LENGTH}: max_seq_length must be at least 3; got {longest!r}")
    return Sentences(
        _MODES[modes[0]],
        "Normalize" in kinds,
        longest,
        {k: v for k, v in named.items() if isinstance(v, str)} if isinstance(named, dict) else {},
    )
