"""Models in Hugging Face's format: a folder with config.json and model.safetensors.

    with hf.open("folder") as model:
        model.metadata["llama.block_count"], model["blk.0.attn_q.weight"]
    hf.write("new", "llama", {"block_count": 2, ...}, {"token_embd.weight": array, ...})

Keys, names, shapes and the order of rows are GGUF's, so that what reads one reads the other.
Nothing is ignored in silence: what could change a number and is not known is refused by its name.
"""

import os
from math import pi
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from toynn.errors import DataError
from toynn.formats._gguf_tensors import TensorInfo
from toynn.formats._hf_files import SafeTensors, read_object
from toynn.formats._hf_names import (
    CONFIG,
    FAMILIES,
    IGNORED_KEYS,
    WEIGHTS,
    heads_of,
    pairs_together,
)
from toynn.formats._hf_write import write

__all__ = ["HFModel", "open", "write"]

Floats = NDArray[np.float32]

MAX_WHOLE, MAX_REAL = 1 << 63, 1e38
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
#: Weights of old files that are constants, or an input's: of no use.
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


class HFModel:
    """An open folder. `metadata` is by key, `tensors` by name; model[name] is an array."""

    error = DataError

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self._config = path, config
        architecture = config.get("model_type")
        if not isinstance(architecture, str) or architecture not in FAMILIES:
            self._refuse(f"model_type must be {', '.join(FAMILIES)}; got {architecture!r}")
        self.architecture = architecture
        self._family = FAMILIES[architecture]
        self._added: dict[str, Floats] = {}
        self.types: dict[str, str] = {}  # of metadata that is passed on: none is
        self.metadata = {"general.architecture": architecture} | {
            f"{architecture}.{key}": value for key, value in self._read_config().items()
        }
        weights, index = path / WEIGHTS, path / f"{WEIGHTS}.index.json"
        if not weights.exists() and index.exists():
            raise DataError(f"{index}: a model in several files is not supported; save it as one")
        self._stored = SafeTensors(weights, BUFFERS)
        self._sources = self._read_names()  # by GGUF name
        self.tensors = {name: self._info(name) for name in (*self._sources, *self._added)}

    def __enter__(self) -> "HFModel":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stored.close()

    def __getitem__(self, name: str) -> Floats:
        """Return a weight in float32, in GGUF's order."""
        if name in self._added:
            return self._added[name]
        values = self._stored[self._sources[name]]
        if self._is_transposed(name):
            return np.ascontiguousarray(values.T)
        heads = heads_of(self.architecture, self.metadata, name)
        return pairs_together(values, heads) if heads else values

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a weight, as float32."""
        return np.ascontiguousarray(self[name]).reshape(-1).view(np.uint8)

    def _refuse(self, what: str) -> NoReturn:
        raise DataError(f"{self.path / CONFIG}: {what}")

    # -- config.json ---------------------------------------------------------------------------

    def _read_config(self) -> dict[str, Any]:
        """Return the hyper-parameters by GGUF's keys; refuse what is not known."""
        config, family = self._config, self._family
        found = {}
        for key, spelled in family.keys.items():
            value = config.get(spelled)
            if value is not None and key != "rope.freq_base":
                real = key.endswith("epsilon")
                found[key] = self._number(spelled, value, real=real)
        if self.architecture == "gpt2":
            found.setdefault("feed_forward_length", 4 * found.get("embedding_length", 0))
        else:
            found["rope.freq_base"], rope = self._read_rope()
            self._add_factors(found, rope)
        for key, values in family.fixed.items():
            if key in config and config[key] not in values:
                self._refuse(f"{key} must be {values[0]!r}; got {config[key]!r}")
        kinds = config.get("layer_types") or []
        if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
            self._refuse(f"layer_types must be full_attention; got {kinds!r}")
        known = {*family.keys.values(), *family.fixed, *ROPE_KEYS, *IGNORED_KEYS}
        known |= {"tie_word_embeddings", "layer_types"}
        for key, value in config.items():
            if key not in known and value not in (None, False, [], {}):
                self._refuse(f"{key} = {value!r} is not known to toynn")
        for key, spelled in family.keys.items():
            optional = ("attention.head_count_kv", "attention.key_length")
            if key not in found and key not in optional:
                self._refuse(f"{spelled} is missing")
        return found

    def _number(self, key: str, value: object, *, real: bool) -> float:
        kinds = (int, float) if real else (int,)
        if isinstance(value, kinds) and not isinstance(value, bool):
            if real and 0 < value < MAX_REAL:
                return float(value)
            if not real and 1 <= value < MAX_WHOLE:
                return value
        self._refuse(
            f"{key} must be a {'number > 0' if real else 'whole number >= 1'}; got {value!r}"
        )

    def _read_rope(self) -> tuple[float, dict[str, Any]]:
        """Return the base of the frequencies, and the rest of what there is about RoPE."""
        config = self._config
        rope: dict[str, Any] = {}
        for key in ("rope_scaling", "rope_parameters"):  # of old and of new versions
            if not isinstance(config.get(key) or {}, dict):
                self._refuse(f"{key} must be an object; got {config[key]!r}")
            rope |= config.get(key) or {}
        base = rope.pop("rope_theta", config.get("rope_theta", 1e4))
        return self._number("rope_theta", base, real=True), rope

    def _add_factors(self, found: dict[str, Any], rope: dict[str, Any]) -> None:
        """Add rope_freqs.weight, by which the frequencies of a Llama 3.1 are divided."""
        kind = rope.pop("rope_type", rope.pop("type", "default"))
        rope.pop("type", None)
        if kind == "default" and not any(rope.values()):
            return
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        if kind != "llama3" or rope.keys() != set(keys):
            self._refuse(f"RoPE must be default or llama3; got {kind!r} with {rope}")
        factor, low, high, context = (self._number(key, rope[key], real=True) for key in keys)
        width, heads = found.get("embedding_length", 0), found.get("attention.head_count", 1)
        size = found.get("attention.key_length", width // heads)
        if not low < high or not size <= 1 << 16:
            self._refuse(f"RoPE of {size} channels is out of range: {rope}")
        waves = 2 * pi * found["rope.freq_base"] ** (np.arange(0, size, 2) / size)
        smooth = np.clip((context / waves - low) / (high - low), 0, 1)
        factors = 1 / ((1 - smooth) / factor + smooth)
        self._added["rope_freqs.weight"] = factors.astype(np.float32)

    # -- model.safetensors ---------------------------------------------------------------------

    def _read_names(self) -> dict[str, str]:
        """Return the name in the file of each weight, by its GGUF name."""
        sources, unknown = {}, []
        for name in self._stored.tensors:
            gguf_name = self._family.gguf_name(name)
            if gguf_name is None or gguf_name in sources:
                unknown += [] if name.endswith(BUFFERS) else [name]
            elif not self._is_zero_bias(gguf_name, name):
                sources[gguf_name] = name
        if unknown:
            raise DataError(f"{self.path / WEIGHTS}: unknown tensors: {', '.join(unknown[:5])}")
        tied = self._config.get("tie_word_embeddings")
        if self._family.tied if tied is None else tied:
            head = sources.pop("output.weight", None)
            table = sources.get("token_embd.weight")
            if head and table and not np.array_equal(self._stored[head], self._stored[table]):
                raise DataError(f"{self.path / WEIGHTS}: {head} is tied, and differs from {table}")
        elif "output.weight" not in sources:
            raise DataError(f"{self.path / WEIGHTS}: tensor lm_head.weight is missing")
        return sources

    def _is_zero_bias(self, gguf_name: str, name: str) -> bool:
        """Whether this is the bias that attention_bias gives the output too, and does nothing."""
        of_output = gguf_name.endswith("attn_output.bias") and self.architecture != "gpt2"
        return of_output and not self._stored[name].any()

    def _info(self, name: str) -> TensorInfo:
        if name in self._added:
            return TensorInfo(name, "F32", self._added[name].shape, 0, self._added[name].nbytes)
        info = self._stored.tensors[self._sources[name]]
        shape = info.shape[::-1] if self._is_transposed(name) else info.shape
        return TensorInfo(name, info.type, shape, info.offset, info.nbytes)

    def _is_transposed(self, name: str) -> bool:
        info = self._stored.tensors[self._sources[name]]
        return self._family.transposed and name.startswith("blk.") and len(info.shape) == 2


def open(path: str | os.PathLike[str]) -> HFModel:
    """Open a folder. Raises DataError for whatever is wrong with it."""
    path = Path(path)
    return HFModel(path, read_object(path / CONFIG))
