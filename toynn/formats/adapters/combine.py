"""Combine several adapters of one model into one.

    cat:     sum_i w_i s_i B_i A_i = [B_1 ... B_n] [c_1 A_1; ...; c_n A_n],  c_i = w_i s_i r / alpha
    linear:  (sum_i sqrt|w_i s_i| B_i) (sum_i +-sqrt|w_i s_i| A_i), which is not that sum

w_i is the weight of an adapter, s_i its own scale. "cat" is exact; its rank is the sum of the
ranks. "linear" keeps the rank, but also has products of one adapter's A with another's B; many call
it a merge. Source: PEFT's add_weighted_adapter, combination types cat and linear.
"""

import os
from collections.abc import Sequence
from math import copysign, isfinite, sqrt
from typing import Any, NamedTuple, get_args

import numpy as np

from toynn.errors import AdapterError, ConfigError
from toynn.formats.adapters.adapter import BASE_NAME, LORA_A, LORA_B, Adapter, Floats, is_embedding
from toynn.formats.adapters.identity import KEYS, Identity, called, tell
from toynn.formats.methods import Method

METHODS: tuple[str, ...] = get_args(Method)


class _Pair(NamedTuple):
    a: Floats  # (r, in)
    b: Floats  # (out, r)
    scale: float


def combine(
    adapters: Sequence[Adapter],
    weights: Sequence[float],
    method: Method = "cat",
    *,
    strict: bool = False,
) -> Adapter:
    """Return one adapter that adds the weighted sum of all. See the module.

    Raises AdapterError for different architectures, for magnitudes (DoRA), and, with "linear", for
    different ranks. Raises ConfigError unless each adapter has one finite weight. Warns if the
    adapters were trained on different models; with ``strict``, raises AdapterError.
    """
    if method not in METHODS:
        raise ConfigError(f"combine: method must be one of {', '.join(METHODS)}; got {method!r}")
    if not adapters or len(adapters) != len(weights) or not all(map(isfinite, weights)):
        raise ConfigError(
            f"combine: expected a finite weight for each of {len(adapters)} adapters, at least "
            f"one; got {list(weights)}"
        )
    first = adapters[0]
    for other in adapters[1:]:
        if other.architecture != first.architecture:
            raise AdapterError(
                f"{os.fspath(other.path)}: expected an adapter of a {first.architecture}, as "
                f"{os.fspath(first.path)} is; got one of a {other.architecture}"
            )
    for adapter in adapters:
        if adapter.use_dora:
            raise AdapterError(
                f"{os.fspath(adapter.path)}: DoRA's magnitudes fit only this adapter, so it "
                "cannot be added to others: merge it into the model (toynn fuse), and use the "
                "others with the merged model"
            )
    names = list(dict.fromkeys(weight for adapter in adapters for weight in adapter.pairs))
    join = _concatenated if method == "cat" else _linear
    pairs = {name: join(name, _pairs(name, adapters, weights)) for name in names}
    # One alpha must express all scales: it fits the most common rank; B absorbs the rest.
    ranks = [pair.a.shape[-2] for pair in pairs.values()]
    alpha = float(max(set(ranks), key=lambda rank: (ranks.count(rank), rank)))
    tensors: dict[str, Floats] = {}
    for name, (a, b, scale) in pairs.items():
        b = b * np.float32(scale * a.shape[-2] / alpha)
        transposed = is_embedding(name)
        tensors[name + LORA_A] = np.ascontiguousarray(a.T if transposed else a, np.float32)
        tensors[name + LORA_B] = np.ascontiguousarray(b, np.float32)
    path = " + ".join(os.fspath(adapter.path) for adapter in adapters)
    metadata = {**_of_one_base(adapters, strict), **first.metadata}
    return Adapter(first.architecture, alpha, tensors, False, metadata, path)


def _of_one_base(adapters: Sequence[Adapter], strict: bool) -> dict[str, Any]:
    """Return the first known description of the base; compare it with the other adapters'."""
    described = [(each, Identity.read(each.metadata, os.fspath(each.path))) for each in adapters]
    described = [(each, identity) for each, identity in described if identity]
    for other, identity in described[1:]:
        first, expected = described[0]
        if why := identity.unlike(expected):
            tell(
                f"{os.fspath(other.path)}: made for {called(other.metadata)}; "
                f"{os.fspath(first.path)} for another model, {called(first.metadata)}: {why}. "
                "Combine adapters of one model",
                strict,
            )
    kept = described[0][0].metadata if described else {}
    return {key: kept[key] for key in (BASE_NAME, *KEYS) if key in kept}


def _pairs(name: str, adapters: Sequence[Adapter], weights: Sequence[float]) -> list[_Pair]:
    """Return A, B and scale of a matrix from each adapter that has it; the table's A as (r, V)."""
    pairs = []
    for adapter, weight in zip(adapters, weights, strict=True):
        if name in adapter.pairs:
            a, b = adapter.pairs[name]
            scale = weight * adapter.scale(name)
            pairs.append(_Pair(a.T if is_embedding(name) else a, b, scale))
    shapes = {(pair.a.shape[-1], pair.b.shape[-2]) for pair in pairs}
    if len(shapes) > 1:
        raise AdapterError(f"combine: {name}: expected adapters of one matrix; got {shapes}")
    return pairs


def _concatenated(name: str, pairs: Sequence[_Pair]) -> _Pair:
    a = np.concatenate([pair.a * np.float32(pair.scale) for pair in pairs], axis=-2)
    return _Pair(a, np.concatenate([pair.b for pair in pairs], axis=-1), 1.0)


def _linear(name: str, pairs: Sequence[_Pair]) -> _Pair:
    ranks = sorted({pair.a.shape[-2] for pair in pairs})
    if len(ranks) > 1:
        raise AdapterError(
            f"combine: {name}: linear needs adapters of one rank; got {', '.join(map(str, ranks))}:"
            f" combine them with cat"
        )
    roots = [sqrt(abs(pair.scale)) for pair in pairs]
    a = sum(
        pair.a * np.float32(copysign(r, pair.scale)) for pair, r in zip(pairs, roots, strict=True)
    )
    b = sum(pair.b * np.float32(root) for pair, root in zip(pairs, roots, strict=True))
    return _Pair(np.asarray(a), np.asarray(b), 1.0)
