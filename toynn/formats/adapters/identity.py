"""The identity of an adapter's base model: what all copies of a model share, in any type.

    adapter.base.norms       the number of all norms' gains, and 64 of the gains, as float32
    adapter.base.tokenizer   check sums of the texts of some tokens, and the stride of their ids
    adapter.base.file        the name of the file or folder, for people

These keys are in adapter.gguf and in the metadata of PEFT's safetensors, next to
general.architecture. Quantizing a model or converting its format does not change the gains. Only a
copy in float16 or bfloat16 rounds them. That is why gains are stored, not a digest: two gains are
equal if one number rounds to both. A converter may write some added tokens differently, so a few
tokens may differ.

Two models with the same norms and tokens count as the same. For example, two untrained models do,
or a model with and without a merged adapter.
"""

import base64
import binascii
import re
import warnings
import zlib
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from toynn.errors import AdapterError, DataError
from toynn.formats.adapters.adapter import BASE_NAME, Base, Floats, text_of
from toynn.formats.gguf import Strings
from toynn.formats.tokenizer.folder import FolderKeys, has_tokenizer

FILE, NORMS, TOKENS = KEYS = ("adapter.base.file", "adapter.base.norms", "adapter.base.tokenizer")
GAINS = 64  # gains that are stored
SUMS = 128  # the most check sums
ALIKE = 15 / 16  # the share of tokens that must be equal
BFLOAT16, FLOAT16, FLOAT32 = 8, 11, 24  # significant bits


@dataclass(frozen=True, eq=False)
class Identity:
    """An identity: gains (N,) of ``count`` in all, check sums of every ``stride``-th token.

    ``gains`` is empty for an unknown model or one without norms, ``sums`` without a tokenizer.
    """

    count: int = 0
    gains: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    stride: int = 1
    sums: bytes = b""

    @classmethod
    def read(cls, metadata: Mapping[str, Any], path: object) -> "Identity":
        """Read an adapter's metadata. Raises AdapterError, which names ``path``, if damaged.

        An adapter that another program wrote has no identity.
        """
        norms, tokens = text_of(metadata, NORMS), text_of(metadata, TOKENS)
        count, gains = 0, np.empty(0, np.float32)
        stride, sums = 1, b""
        if norms:
            count, raw = _parted(path, NORMS, norms, base64.b64decode)
            if len(raw) != 4 * min(count, GAINS):
                raise _damaged(path, NORMS, norms)
            gains = np.frombuffer(raw, "<f4").astype(np.float32)
            if not np.isfinite(gains).all():
                raise _damaged(path, NORMS, norms)
        if tokens:
            stride, sums = _parted(path, TOKENS, tokens, bytes.fromhex)
            if stride & (stride - 1) or not 0 < len(sums) <= SUMS:
                raise _damaged(path, TOKENS, tokens)
        return cls(count, gains, stride, sums)

    def written(self) -> dict[str, str]:
        """Return the metadata that ``read`` reads."""
        metadata = {}
        if self.count:
            gains = base64.b64encode(self.gains.astype("<f4").tobytes()).decode()
            metadata[NORMS] = f"{self.count}:{gains}"
        if self.sums:
            metadata[TOKENS] = f"{self.stride}:{self.sums.hex()}"
        return metadata

    def __bool__(self) -> bool:
        return bool(self.count or self.sums)

    def unlike(self, other: "Identity") -> str:
        """Return how two models differ; "" if no difference is known."""
        if self.count and other.count:
            if self.count != other.count:
                return f"their norms have {self.count:,} and {other.count:,} gains"
            far = np.count_nonzero(~_one_number(self.gains, other.gains))
            if far:
                return f"{far} of {len(self.gains)} compared gains of their norms differ"
        if self.sums and other.sums:
            stride = max(self.stride, other.stride)
            pairs = [each.sums[:: stride // each.stride] for each in (self, other)]
            same = [one == two for one, two in zip(*pairs, strict=False)]
            if sum(same) < ALIKE * len(same):
                return f"{same.count(False)} of {len(same)} compared tokens differ"
        return ""


def _parted(path: object, key: str, text: str, decode: Any) -> tuple[int, bytes]:
    """Split a text into its number and its bytes. Raises AdapterError."""
    match = re.fullmatch(r"([1-9][0-9]{0,17}):([0-9A-Za-z+/=]+)", text)
    if match is None:
        raise _damaged(path, key, text)
    try:
        return int(match[1]), decode(match[2])
    except (binascii.Error, ValueError):
        raise _damaged(path, key, text) from None


def _damaged(path: object, key: str, text: str) -> AdapterError:
    return AdapterError(
        f"{path}: {key}: expected a number, a colon and bytes, as toynn writes; got {text:.60}"
    )


def _one_number(a: Floats, b: Floats) -> NDArray[np.bool_]:
    """Return which pairs of gains can be one number, rounded to each model's float type."""
    # A folder may store gain - 1: float32 rounds when 1 is subtracted and when it is added.
    largest = np.maximum(np.maximum(np.abs(a), np.abs(b)), 1).astype(np.float64)
    room = 2 * np.ldexp(1.0, np.frexp(largest)[1] - FLOAT32)
    (bits, half), (others, others_half) = _format(a), _format(b)
    if bits != others:
        room += half + others_half
    near: NDArray[np.bool_] = np.abs(a.astype(np.float64) - b) <= room
    return near


def _format(values: Floats) -> tuple[int, NDArray[np.float64]]:
    """Return the bits of the coarsest float type with all values, and its rounding of each.

    A folder may store gain - 1, so a value also fits if the type has value - 1.
    """
    for bits in (BFLOAT16, FLOAT16):
        far = np.zeros((2, len(values)))
        for less in (0, 1):
            kept = values - np.float32(less)
            half = np.ldexp(0.5, np.frexp(kept.astype(np.float64))[1] - bits)
            near = np.rint(kept / (2 * half)) * (2 * half)
            far[less] = np.where((near + less).astype(np.float32) == values, half, 0)
        if far.any(0).all():
            return bits, far.max(0)
    return FLOAT32, np.zeros(len(values))


#: Identities by open base: reading the tokens of a folder takes a while.
_KNOWN: MutableMapping[Base, Identity] = WeakKeyDictionary()


def identity_of(base: Base) -> Identity:
    """Return the identity of an open base model. Raises what reading its norms raises."""
    if base not in _KNOWN:
        _KNOWN[base] = Identity(*_gains(base), *_sums(base))
    return _KNOWN[base]


def _gains(base: Base) -> tuple[int, Floats]:
    """Return the number of all gains, and GAINS evenly spaced ones."""
    norms = sorted(n for n, i in base.tensors.items() if n.endswith("_norm.weight") and i.shape)
    count = sum(base.tensors[name].shape[0] for name in norms)
    if not count:
        return 0, np.empty(0, np.float32)
    gains = np.concatenate([np.asarray(base[name], np.float32).reshape(-1) for name in norms])
    places = (2 * np.arange(GAINS) + 1) * count // (2 * GAINS) if count > GAINS else slice(None)
    return count, gains[places]


def _sums(base: Base) -> tuple[int, bytes]:
    """Return a stride of token ids, a power of 2, and check sums of those tokens' texts."""
    listed, path = base.metadata.get("tokenizer.ggml.tokens"), Path(base.path)
    if listed is None and path.is_dir() and has_tokenizer(path):
        with suppress(DataError):  # a kind of tokenizer that toynn does not know
            listed = FolderKeys(path).metadata["tokenizer.ggml.tokens"]
    if not isinstance(listed, Strings | list) or not listed:
        return 1, b""
    stride = 1 << max(0, (len(listed) - 1) // SUMS).bit_length()
    texts = (text.encode("utf-8", "surrogatepass") for text in listed[::stride])
    return stride, bytes(zlib.crc32(text) & 0xFF for text in texts)


def base_metadata(base: Base) -> dict[str, str]:
    """Return a base model's description for an adapter's metadata: its name and identity."""
    name, file = text_of(base.metadata, "general.name"), Path(base.path).resolve().name
    description = {BASE_NAME: name, FILE: file, **identity_of(base).written()}
    return {key: text for key, text in description.items() if text}


def called(metadata: Mapping[str, Any], name: str = BASE_NAME, file: str = "") -> str:
    """Return a model's name in messages: its name and its file, if known."""
    title = text_of(metadata, name)
    file = file or text_of(metadata, FILE)
    return f"{title} ({file})" if title and file else title or file


def tell(message: str, strict: bool) -> None:
    """Warn, once for each message; raise AdapterError if ``strict``."""
    if strict:
        raise AdapterError(message)
    warnings.warn_explicit(message, UserWarning, __file__, 1, __name__, _TOLD)


_TOLD: dict[Any, Any] = {}
