"""Adapters beside the frozen matrices of a file.

y = W x + b + s B A dropout(x)      W (out, in) in the file; A (r, in), B (out, r)

Each expert of a stack W (E, out, in) has its own: A (E, r, in), B (E, out, r).
"""

from collections.abc import Callable, Iterable, Mapping
from math import isclose, sqrt
from os import fspath

import numpy as np
from numpy.typing import NDArray

from toynn._kernels import random
from toynn.engines.targets import AdapterOptions
from toynn.errors import AdapterError, ConfigError
from toynn.formats import adapters
from toynn.formats.adapters import LORA_A, LORA_B, Adapter
from toynn.formats.adapters.peft import heads_in
from toynn.formats.hf.spelling import pairs_apart, pairs_together
from toynn.graph.tape import Tensor
from toynn.models import Source
from toynn.nn import LoRA
from toynn.session import Session

__all__ = ["INITS", "Adapters"]

Floats = NDArray[np.float32]

#: How A can be drawn: from N(0, init_scale); from U(-1/sqrt(in), 1/sqrt(in)), as PEFT does.
INITS = ("normal", "peft")


class Adapters:
    """Adapters of some matrices: ``layers`` by the name of their matrix, ``tensors`` by their own.

    Untrained ones only add to y.
    """

    def __init__(
        self,
        session: Session,
        file: Source,
        options: AdapterOptions,
        matrices: Iterable[Tensor],
        *,
        trained: bool,
    ) -> None:
        self.options, self._session, self._file = options, session, file
        self.layers: dict[str, LoRA] = {}
        self.tensors: dict[str, Tensor] = {}
        declare = session.parameter if trained else session.constant
        for w in matrices:
            (*experts, rows, columns), rank = w.shape, options.rank_of(w.name)
            a = declare(f"{w.name}{LORA_A}", (*experts, rank, columns))
            b = declare(f"{w.name}{LORA_B}", (*experts, rows, rank))
            self.layers[w.name] = LoRA(a, b, options.scale(w.name))
            self.tensors |= {a.name: a, b.name: b}

    def zero(self) -> None:
        """Make all adapters zero."""
        for tensor in self.tensors.values():
            self._session.upload(tensor, np.zeros(tensor.shape, np.float32))

    def start(self, init: str, seed: int, init_scale: float) -> None:
        """Draw every A, each with a stream of its own, as ``init`` says; set every B to zero."""
        check_init(init)
        for stream, layer in enumerate(self.layers.values()):
            a = np.empty(layer.a.size, np.float32)
            if init == "normal":
                random.normal(a, seed, stream, init_scale)
            else:
                random.uniform(a, seed, stream, 1 / sqrt(layer.a.shape[-1]))
            self._session.upload(layer.a, a.reshape(layer.a.shape))
            self._session.upload(layer.b, np.zeros(layer.b.shape, np.float32))

    def weights(self) -> dict[str, Floats]:
        """Return copies: `<weight>.lora_a` (r, in), `<weight>.lora_b` (out, r); of each expert.

        Rows are in the order of the file.
        """
        return {name: self._session.download(t) for name, t in self.tensors.items()}

    def copy(self) -> Adapter:
        """Return what ``toynn.formats.adapters`` writes: rows are in GGUF's order."""
        alpha, rslora = self.options.alpha, self.options.use_rslora
        assert alpha is not None
        metadata = adapters.base_metadata(self._file)
        tensors = self._with_rows(self.weights(), pairs_together)
        return Adapter(self._file.architecture, alpha, tensors, rslora, metadata)

    def rows_here(self, adapter: Adapter) -> dict[str, Floats]:
        """Return the tensors of one that was read, with rows in the order of the file."""
        return self._with_rows(adapter.tensors, pairs_apart)

    def _with_rows(
        self, tensors: Mapping[str, Floats], move: Callable[[Floats, int], Floats]
    ) -> dict[str, Floats]:
        """Move the rows of B where the file has those of its matrix in another order than GGUF."""
        found = dict(tensors)
        for name, values in tensors.items() if self._file.pairs_apart else ():
            if name.endswith(LORA_B):
                heads = heads_in(self._file, name.removesuffix(LORA_B))
                found[name] = np.ascontiguousarray(move(values, heads)) if heads else values
        return found

    def check_alike(self, adapter: Adapter) -> None:
        """Raise AdapterError unless one that was read has these targets, ranks and scales."""
        adapters.check(adapter, self._file)
        path, pairs = fspath(adapter.path), adapter.pairs
        for name in sorted(self.layers.keys() ^ pairs.keys()):
            raise AdapterError(
                f"{path}: {name} is adapted {'there' if name in pairs else 'here'} only; realize "
                "with the targets of the adapter (LoRA.realize_from_adapter)"
            )
        for name, layer in self.layers.items():
            rank = layer.a.shape[-2]
            if (found := adapter.rank_of(name)) != rank:
                raise AdapterError(f"{path}: {name}: expected rank {rank}, as here; got {found}")
            if not isclose(layer.scale, adapter.scale(name), rel_tol=1e-6):  # its alpha is float32
                raise AdapterError(
                    f"{path}: {name}: expected a scale of {layer.scale:g}, as here; got "
                    f"{adapter.scale(name):g} (alpha {adapter.alpha:g})"
                )


def check_init(init: str) -> None:
    """Raise ConfigError for an ``init`` that there is not."""
    if init not in INITS:
        raise ConfigError(f"init must be one of {', '.join(INITS)}; got {init!r}")
