"""Read and check the hyper-parameters of a model's file, and check its tensors."""

from collections.abc import Collection, Mapping
from math import isfinite
from reprlib import repr  # which shortens long arrays
from typing import Any, NoReturn

import numpy as np

from toynn.formats.bases import Base
from toynn.formats.gguf import Strings
from toynn.formats.hf.config import CLASSES, LABELS, PROBLEM
from toynn.formats.hf.name_mapping import NAME_MAPPINGS
from toynn.models.keys import EPS, KV

#: Hyper-parameters that change no result: at any value (None), or at the value given here.
_NEUTRAL = {
    "vocab_size": None,  # see Hyper.vocabulary
    "tensor_data_layout": None,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.finetuned": None,
    "rope.scale_linear": 1.0,
    "attention.causal": True,
    "attention.sliding_window": 0,
    "expert_count": 0,
    "expert_used_count": 0,
    "pooling_type": None,
    LABELS: None,
    PROBLEM: None,
}


#: An open file with a model, by GGUF's keys and names.
Source = Base


#: Sizes of every sequence model: GGUF's key, and the field of its configuration.
SIZES = {
    "context_length": "context",
    "embedding_length": "d_model",
    "feed_forward_length": "d_ff",
    "block_count": "n_layers",
    "attention.head_count": "n_heads",
}


#: Number of last blocks that predict tokens after the next one. toynn leaves them out.
_FURTHER = "nextn_predict_layers"


def sizes_of(cfg: Any) -> dict[str, Any]:
    """Return the sizes of a configuration by GGUF's keys."""
    return {key: getattr(cfg, name) for key, name in SIZES.items()}


class Hyper:
    """Hyper-parameters of a file's architecture, each checked as it is read."""

    def __init__(self, file: Source) -> None:
        self.file, self.tensors = file, file.tensors
        self.prefix = f"{file.architecture}."
        self._known: set[str] = set()

    def _get(self, key: str, default: Any) -> Any:
        self._known.add(key)
        value = self.file.metadata.get(self.prefix + key, default)
        if value is None:
            refuse(self.file, f"key not found in model: {self.prefix}{key}")
        return value

    @property
    def vocabulary(self) -> int:
        """Number of rows of the embedding; every count of tokens in the file must equal it."""
        metadata, rows = self.file.metadata, self.rows("token_embd.weight")
        size, tokens = f"{self.prefix}vocab_size", "tokenizer.ggml.tokens"
        listed = metadata.get(tokens)
        counts = {
            size: metadata.get(size, rows),
            tokens: len(listed) if isinstance(listed, Strings) else rows,
        }
        for what, count in counts.items():
            if not np.array_equal(count, rows):
                refuse(
                    self.file,
                    f"{what} counts {repr(count)} tokens; token_embd.weight has {rows} rows",
                )
        for key, value in metadata.items():
            if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
                is_id = isinstance(value, int) and 0 <= value < rows
                if not is_id:
                    refuse(self.file, f"{key} is {repr(value)}; there are {rows} tokens")
        return rows

    @property
    def layers(self) -> int:
        """Number of blocks, less the last ones that predict tokens after the next one.

        It is at most the number of tensors, so no loop over a wrong number takes long.
        """
        count, tensors = self.whole("block_count"), len(self.tensors)
        if count > tensors:
            refuse(self.file, f"{self.prefix}block_count is {count}; there are {tensors} tensors")
        further = self.count(_FURTHER)
        if further >= count:
            refuse(
                self.file,
                f"{self.prefix}{_FURTHER} must be less than block_count, {count}; got {further}",
            )
        return count - further

    def sizes(self, **known: int) -> dict[str, Any]:
        """Return the sizes that every configuration has, by the names of its fields.

        ``known`` sizes are not read. A mixture without dense blocks may lack the width of the MLP:
        an expert's width is used.
        """
        usual: dict[str, Any] = {
            "d_ff": self.file.metadata.get(f"{self.prefix}expert_feed_forward_length")
        }
        sizes = {
            name: known[name] if name in known else self.whole(key, usual.get(name))
            for key, name in SIZES.items()
        }
        return sizes | {"n_layers": self.layers, "vocab": self.vocabulary}

    def rows(self, name: str) -> int:
        """Return the number of rows of a tensor."""
        if name not in self.tensors:
            refuse(self.file, f"tensor {name} is missing")
        if not self.tensors[name].shape:
            refuse(self.file, f"tensor {name} has no rows: it is one number")
        return self.tensors[name].shape[0]

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            refuse(self.file, f"{self.prefix}{key} must be a whole number >= 1; got {repr(value)}")
        return value

    def known(self, *keys: str) -> None:
        """Take note of keys that others read."""
        self._known.update(keys)

    def has(self, key: str) -> bool:
        """Say whether a key is there."""
        return self.prefix + key in self.file.metadata

    def count(self, key: str, default: int = 0) -> int:
        """Return a whole number of at least 0."""
        return 0 if np.array_equal(self._get(key, default), 0) else self.whole(key, default)

    def counts(self, key: str, length: int) -> list[int]:
        """Return ``length`` whole numbers >= 0, one per block; a single one is repeated."""
        value = self._get(key, None)
        numbers = [value] * length if isinstance(value, int) else value
        numbers = numbers.tolist() if isinstance(numbers, np.ndarray) else numbers
        if not isinstance(numbers, list) or len(numbers) != length:
            refuse(self.file, f"{self.prefix}{key} must be {length} numbers; got {repr(value)}")
        if not all(isinstance(n, int) and 0 <= n < 1 << 31 for n in numbers):
            refuse(self.file, f"{self.prefix}{key} must be whole numbers >= 0; got {repr(value)}")
        return numbers

    def pattern(self, key: str, length: int, period: int) -> list[bool]:
        """Return ``length`` flags, one per block.

        The file may give a period instead: all but every period-th block are set; 0 sets all.
        """
        value = self._get(key, period)
        if isinstance(value, int) and not isinstance(value, bool):
            period = self.count(key, period)
            return [period == 0 or (n + 1) % period != 0 for n in range(length)]
        flags = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(flags, list) or [type(each) for each in flags] != [bool] * length:
            refuse(
                self.file,
                f"{self.prefix}{key} must be {length} booleans; got {repr(value)}",
            )
        return flags

    def real(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        value = self._get(key, default)
        if not isinstance(value, float) or not isfinite(value) or value <= 0:
            refuse(self.file, f"{self.prefix}{key} must be a number > 0; got {repr(value)}")
        return float(str(np.float32(value)))  # 1e-05, not 9.999999747378752e-06

    def reals(self, key: str, length: int) -> list[float]:
        """Return ``length`` numbers, one per block; -infinity is one, NaN is none."""
        value = self._get(key, None)
        numbers = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(numbers, list) or [type(each) for each in numbers] != [float] * length:
            refuse(self.file, f"{self.prefix}{key} must be {length} numbers; got {repr(value)}")
        if any(each != each for each in numbers):
            refuse(self.file, f"{self.prefix}{key} must be numbers; got {repr(value)}")
        return numbers

    def word(self, key: str, default: str) -> str:
        """Return a text."""
        value = self._get(key, default)
        if not isinstance(value, str):
            refuse(self.file, f"{self.prefix}{key} must be a text; got {repr(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            refuse(self.file, f"{self.prefix}{key} must be true or false; got {repr(value)}")
        return value

    def expect(self, key: str, value: int | str) -> None:
        """Refuse a file that has this key with another value."""
        if not np.array_equal(stored := self._get(key, value), value):
            refuse(self.file, f"{self.prefix}{key} must be {value!r} here; got {repr(stored)}")

    def refuse_others(self) -> None:
        """Refuse a file with a hyper-parameter that nobody read and that could change results."""
        for key, value in self.file.metadata.items():
            name = key.removeprefix(self.prefix)
            if not key.startswith(self.prefix) or name in self._known:
                continue
            if name not in _NEUTRAL:
                refuse(self.file, f"hyper-parameter {key} = {repr(value)} is not known to toynn")
            neutral = _NEUTRAL[name]
            if neutral is not None and not np.array_equal(value, neutral):
                refuse(self.file, f"{key} = {repr(value)} is not supported; only {neutral!r} is")


def refuse(file: Source, what: str) -> NoReturn:
    """Raise the error class of the file's format, with the file's path in the message."""
    raise file.error(f"{file.path}: {what}")


def shape_of(
    hyper: Hyper, queries: str, n_kv_heads: int | None = None, eps: str = EPS, **known: int
) -> tuple[dict[str, Any], int]:
    """Return the fields of a configuration that give its shape, and the width of a head.

    ``queries`` names a tensor with at least one row for each channel of q. The number of heads of k
    and v is read unless given; ``known`` sizes are not read. ``head_dim`` is None if a head is
    d_model / n_heads wide.
    """
    sizes = hyper.sizes(**known)
    d_model, n_heads = sizes["d_model"], sizes["n_heads"]
    d_head = hyper.whole("attention.key_length", max(1, d_model // n_heads))
    if d_head > hyper.rows(queries):
        refuse(
            hyper.file,
            f"a head of {d_head} channels needs as many rows in {queries}; got "
            f"{hyper.rows(queries)}",
        )
    sizes |= {
        "n_kv_heads": hyper.whole(KV, n_heads) if n_kv_heads is None else n_kv_heads,
        "rms_eps": hyper.real(eps),
        "head_dim": None if d_head * n_heads == d_model else d_head,
    }
    return sizes, d_head


def _further(file: Source) -> tuple[str, ...]:
    """Return the name prefixes of the blocks that predict tokens after the next one."""
    hyper = Hyper(file)
    further = hyper.count(_FURTHER)
    first = hyper.layers if further else 0
    return tuple(f"blk.{n}." for n in range(first, first + further))


def check_tensors(
    file: Source, shapes: Mapping[str, tuple[int, ...]], spare: Collection[str] = ()
) -> None:
    """Check that a file has exactly these tensors, with these shapes, and perhaps ``spare`` ones.

    A file with a tied head may still have output.weight, if it equals token_embd.weight; and
    tensors that its architecture does not read.
    """
    if CLASSES in file.tensors.keys() - shapes.keys() - set(spare):
        refuse(file, "it is a classifier of texts, for `toynn predict`, eval and train classify")
    for name, shape in shapes.items():
        if name not in file.tensors:
            refuse(file, f"tensor {name} is missing")
        stored = tuple(file.tensors[name].shape)
        if stored != shape:
            refuse(file, f"tensor {name} has the wrong shape: expected {shape}; got {stored}")
    unknown = file.tensors.keys() - shapes.keys() - set(spare)
    unknown -= {name for name in unknown if name.startswith(_further(file))}
    if mapping := NAME_MAPPINGS.get(file.architecture):
        unknown -= {name for name in unknown if mapping.passes_over(file.metadata, name)}
    if "output.weight" in unknown:
        embedding, output = (file.tensors[name] for name in ("token_embd.weight", "output.weight"))
        if (embedding.type, embedding.shape) != (output.type, output.shape) or not np.array_equal(
            file.raw("token_embd.weight"), file.raw("output.weight")
        ):
            refuse(file, "output.weight differs from token_embd.weight, to which it is tied here")
        unknown -= {"output.weight"}
    if unknown:
        refuse(file, f"unknown tensors: {', '.join(sorted(unknown))}")
