"""Adapters of the frozen matrices of a file: see toynn/nn/lora.py for what they compute.

Shapes:

    a matrix (out, in)              A (r, in), B (out, r), DoRA's magnitudes (out,)
    a stack of experts (E, out, in) A (E, r, in), B (E, out, r)
    the embedding table (V, C)      A (V, r), whose rows are looked up, B (C, r)
"""

from collections.abc import Callable, Iterator, Mapping
from math import isclose, sqrt
from os import fspath

import numpy as np
from numpy.typing import NDArray

from toynn._kernels import random
from toynn.engines.targets import AdapterOptions, principal_passes
from toynn.errors import AdapterError, ConfigError
from toynn.formats import adapters, quants
from toynn.formats.adapters import LORA_A, LORA_B, LORA_M, Adapter, is_embedding
from toynn.formats.adapters.peft import heads_in
from toynn.formats.hf.name_mapping import pairs_apart, pairs_together
from toynn.graph.tape import Role, Tape, Tensor
from toynn.models import Source
from toynn.nn import LoRA, Magnitude
from toynn.session import Session

Floats = NDArray[np.float32]
CHUNK = 1 << 20  # elements of a matrix that are dequantized at a time


class Adapters:
    """Adapters of some matrices: ``layers`` by the matrix's name, ``tensors`` by their own.

    There are none before ``declare``. ``starts`` are frozen copies of the initial A and B, where
    s B0 A0 is subtracted (PiSSA). ``parameters`` are trained; a checkpoint needs the ``frozen``
    tensors, too: starts, LoRA-FA's A.
    """

    def __init__(self) -> None:
        self.layers: dict[str, LoRA] = {}
        self.tensors: dict[str, Tensor] = {}
        self.starts: dict[str, Tensor] = {}
        self.frozen: dict[str, Tensor] = {}

    def declare(
        self,
        session: Session,
        file: Source,
        options: AdapterOptions,
        matrices: Mapping[str, Tensor],
        *,
        trained: bool,
    ) -> None:
        """Declare an adapter of each of the ``matrices``.

        Adapters that are not ``trained`` only add to y; LoRA-FA trains all but A. Raises
        ConfigError where no file could hold the adapters.
        """
        self.options, self._session, self._file = options, session, file
        self._matrices = matrices
        self._metadata = adapters.base_metadata(file)  # the file may be closed before ``copy``
        self._measured = -1  # session.changes when norms were computed
        frozen = session.constant
        declare = session.parameter if trained else frozen
        declare_a = frozen if options.use_lorafa else declare
        for name, w in matrices.items():
            (*experts, rows, columns), rank = w.shape, options.rank_of(name)
            shapes = (*experts, rank, columns), (*experts, rows, rank)
            if is_embedding(name):
                shapes = (rows, rank), (columns, rank)
            a, b = declare_a(f"{name}{LORA_A}", shapes[0]), declare(f"{name}{LORA_B}", shapes[1])
            self.tensors |= {a.name: a, b.name: b}
            start = magnitude = None
            if options.is_principal and not is_embedding(name):
                start = frozen(f"{a.name}0", a.shape), frozen(f"{b.name}0", b.shape)
                self.starts |= {tensor.name: tensor for tensor in start}
            if options.use_dora:
                m = self.tensors[f"{name}{LORA_M}"] = declare(f"{name}{LORA_M}", (rows,))
                squares = frozen(f"{name}.squares", (rows,))
                inverse = frozen(f"{name}.inverse_norms", (rows,))
                magnitude = Magnitude(m, squares, inverse)
            self.layers[name] = LoRA(a, b, options.scale(name), start, magnitude)
        self.parameters = {n: t for n, t in self.tensors.items() if t.role is Role.PARAMETER}
        fixed = {n: t for n, t in self.tensors.items() if t.role is not Role.PARAMETER}
        self.frozen = self.starts | fixed
        if all(self.unwritten.values()):
            raise ConfigError(
                f"targets: no file could hold these adapters; {'; '.join(self.unwritten.values())}"
            )

    @property
    def unwritten(self) -> dict[str, str]:
        """Why the adapters cannot be written as "gguf" and as "peft"; "" if they can be."""
        if not self.layers:
            return {"gguf": "", "peft": ""}
        peft = adapters.no_peft(self.tensors, self._file.architecture)
        return {"gguf": adapters.no_gguf(self.tensors, self._file), "peft": peft}

    # -- Values --------------------------------------------------------------------------------

    def zero(self) -> None:
        """Set all adapters so that they change nothing: zero, and magnitudes to the norms."""
        for tensor in (*self.tensors.values(), *self.starts.values()):
            self._session.upload(tensor, np.zeros(tensor.shape, np.float32))
        for name, layer in self.layers.items():
            if layer.magnitude is not None:
                squares = self._squares(self._matrices[name].name)
                self._session.upload(layer.magnitude.squares, squares)
                self._session.upload(layer.magnitude.m, np.sqrt(squares))

    def _rows(self, weight: str, step: int) -> Iterator[Floats]:
        """Yield the rows of a matrix in float32, ``step`` at a time, in the file's order."""
        info, stored = self._file.tensors[weight], self._file.stored(weight)  # which may be a copy
        for first in range(0, info.shape[0], step):
            yield quants.rows(stored, info.type, info.shape, slice(first, first + step))

    def _squares(self, weight: str) -> NDArray[np.float64]:
        """Return the squared norms of a matrix's rows; only a few rows are dequantized at once."""
        step = max(1, CHUNK // self._file.tensors[weight].shape[1])
        norms = [
            np.einsum("ij,ij->i", rows, rows, dtype=np.float64) for rows in self._rows(weight, step)
        ]
        return np.concatenate(norms)

    def start(self, init: str, seed: int, init_scale: float) -> None:
        """Draw every A as ``init`` says, each from its own random stream; set every B to zero.

        For the embedding table, B is drawn and A is zero. Raises ConfigError for an unknown
        ``init``, or one that contradicts the options.
        """
        passes = principal_passes(init)
        if self.layers and (passes is None) != (not self.options.is_principal):
            raise ConfigError(
                f"init_adapters: expected init {self.options.init!r}, as the options have it; got "
                f"{init!r}"
            )
        self.zero()
        for stream, (name, layer) in enumerate(self.layers.items()):
            if layer.start is not None and passes is not None:
                w = next(self._rows(self._matrices[name].name, layer.b.shape[0]))
                parts = principal(w, layer.b.shape[-1], layer.scale, passes, seed, stream)
                for tensor, values in zip((layer.a, layer.b, *layer.start), parts * 2, strict=True):
                    self._session.upload(tensor, values)
                continue
            drawn = layer.b if is_embedding(name) else layer.a
            values = np.empty(drawn.size, np.float32)
            if init == "normal" or is_embedding(name):
                random.normal(values, seed, stream, init_scale if init == "normal" else 1.0)
            else:
                random.uniform(values, seed, stream, 1 / sqrt(drawn.shape[-1]))
            self._session.upload(drawn, values.reshape(drawn.shape))

    def measure(self) -> None:
        """Store 1 / |W + s B A| of each row, for tapes that do not compute it (generation).

        It is computed again only after a weight has changed.
        """
        layers = {name: layer for name, layer in self.layers.items() if layer.magnitude}
        if not layers or self._measured == self._session.changes:
            return
        s = self._session

        def build() -> tuple[Tape, list[Tensor]]:
            norms = (layer.inverse_norms(s, self._matrices[name]) for name, layer in layers.items())
            return s.tape, [s.output(norm) for norm in norms]

        tape, norms = s.record("norms", build)
        s.run("loss", tape=tape)
        for layer, norm in zip(layers.values(), norms, strict=True):
            assert layer.magnitude is not None
            s.upload(layer.magnitude.inverse, s.download(norm))
        self._measured = s.changes

    def weights(self) -> dict[str, Floats]:
        """Return copies: `<weight>.lora_a` (r, in), `<weight>.lora_b` (out, r); experts' stacked.

        With DoRA also `<weight>.lora_magnitude` (out,). Rows are in the file's order.
        """
        return {name: self._session.download(t) for name, t in self.tensors.items()}

    # -- Files ---------------------------------------------------------------------------------

    def copy(self) -> Adapter:
        """Return a copy for ``toynn.formats.adapters`` to write, with rows in GGUF's order.

        If the initial B0 A0 is subtracted, the adapter includes it and has twice the rank:
        s (B A - B0 A0) = s [B, -B0] [A; A0].
        """
        alpha, rslora = self.options.alpha, self.options.use_rslora
        assert alpha is not None
        tensors = self.weights()
        if self.starts:
            alpha *= sqrt(2) if rslora else 2
        for name, layer in self.layers.items():
            a, b = tensors[name + LORA_A], tensors[name + LORA_B]
            if layer.start is not None:
                first_a, first_b = (self._session.download(t) for t in layer.start)
                tensors[name + LORA_A] = np.concatenate([a, first_a])
                tensors[name + LORA_B] = np.concatenate([b, -first_b], axis=1)
        tensors = self._with_rows(tensors, pairs_together)
        architecture = adapters.gguf_architecture(self._file)
        adapter = Adapter(architecture, alpha, tensors, rslora, self._metadata)
        for name, layer in self.layers.items():  # the embedding table, which has no start
            if self.starts and layer.start is None:
                tensors[name + LORA_B] *= np.float32(layer.scale / adapter.scale(name))
        return adapter

    def _with_rows(
        self, tensors: Mapping[str, Floats], move: Callable[[Floats, int], Floats]
    ) -> dict[str, Floats]:
        """Reorder the rows of B and magnitudes if the file orders outputs differently than GGUF.

        ``move`` takes the rows and the number of heads.
        """
        moved = dict(tensors)
        for name, values in tensors.items() if self._file.pairs_apart else ():
            weight, _, kind = name.rpartition(".")
            if f".{kind}" != LORA_A and not is_embedding(weight):
                heads = heads_in(self._file, weight)
                moved[name] = np.ascontiguousarray(move(values, heads)) if heads else values
        return moved

    def taken(self, adapter: Adapter) -> dict[str, Floats]:
        """Return the values for ``tensors`` from an adapter, with rows in the file's order.

        Raises AdapterError unless the adapter has these targets, ranks, scales and, if the start is
        subtracted, this start.
        """
        self._check_alike(adapter)
        tensors = self._with_rows(adapter.tensors, pairs_apart)
        for name, layer in self.layers.items() if self.starts else ():
            a, b = tensors[name + LORA_A], tensors[name + LORA_B]
            rank = layer.b.shape[-1]
            if layer.start is None:
                tensors[name + LORA_B] = b * np.float32(adapter.scale(name) / layer.scale)
                continue
            starts = (self._session.download(tensor) for tensor in layer.start)
            for start, other in zip(starts, (a[rank:], -b[:, rank:]), strict=True):
                if not np.allclose(start, other, rtol=1e-4, atol=1e-5 * np.abs(start).max()):
                    raise AdapterError(
                        f"{fspath(adapter.path)}: {name}: expected the start of these adapters as "
                        "its second half; got another: continue with it as it is "
                        "(LoRA.realize_from_adapter)"
                    )
            tensors[name + LORA_A], tensors[name + LORA_B] = a[:rank], b[:, :rank]
        return tensors

    def _check_alike(self, adapter: Adapter) -> None:
        """Raise AdapterError unless the adapter has these targets, ranks and scales."""
        adapters.check(adapter, self._file)
        path, pairs = fspath(adapter.path), adapter.pairs
        for name in sorted(self.layers.keys() ^ pairs.keys()):
            raise AdapterError(
                f"{path}: {name} is adapted {'there' if name in pairs else 'here'} only; realize "
                "with the targets of the adapter (LoRA.realize_from_adapter)"
            )
        if adapter.use_dora != self.options.use_dora:
            which = ("without", "with")
            raise AdapterError(
                f"{path}: expected an adapter {which[self.options.use_dora]} magnitudes (DoRA), as "
                f"here; got one {which[adapter.use_dora]}"
            )
        for name, layer in self.layers.items():
            rank = layer.b.shape[-1] * (1 if layer.start is None else 2)
            if (got := adapter.rank_of(name)) != rank:
                raise AdapterError(f"{path}: {name}: expected rank {rank}, as here; got {got}")
            alike = isclose(layer.scale, adapter.scale(name), rel_tol=1e-6)  # alpha is float32
            if not alike and not (self.starts and layer.start is None):
                raise AdapterError(
                    f"{path}: {name}: expected a scale of {layer.scale:g}, as here; got "
                    f"{adapter.scale(name):g} (alpha {adapter.alpha:g})"
                )


def principal(
    w: Floats, rank: int, scale: float, passes: int, seed: int, stream: int
) -> tuple[Floats, Floats]:
    """Return the principal part of w (out, in) as A0 (r, in) and B0 (out, r): PiSSA's start.

        W = U S V^T      s B0 A0 = U_r S_r V_r^T:  A0 = sqrt(S_r / s) V_r^T,  B0 = U_r sqrt(S_r / s)

    The SVD is exact if ``passes`` is 0; else a randomized search of the range of W in some passes
    over it. A rank above the smaller side of w is filled up with zeros.
    Sources: Meng et al. 2024, PiSSA, arXiv:2404.02948. Halko et al. 2011, arXiv:0909.4061,
    algorithm 4.4, with as many columns as the rank, as in PEFT.
    """
    most = min(rank, *w.shape)
    if passes:
        q = _range(w, most, passes, seed, stream)
        left, values, right = np.linalg.svd(q.T @ w, full_matrices=False)
        left = q @ left
    else:
        left, values, right = np.linalg.svd(w, full_matrices=False)
    roots = np.sqrt(values[:most] / scale)
    a, b = np.zeros((rank, w.shape[1]), np.float32), np.zeros((w.shape[0], rank), np.float32)
    a[:most], b[:, :most] = roots[:, None] * right[:most], left[:, :most] * roots
    return a, b


def _range(w: Floats, columns: int, passes: int, seed: int, stream: int) -> Floats:
    """Return an orthonormal basis (out, columns) of approximately the range of w."""
    drawn = np.empty(w.shape[1] * columns, np.float32)
    random.normal(drawn, seed, stream, 1.0)
    q = np.linalg.qr(w @ drawn.reshape(w.shape[1], columns))[0]
    for _ in range(passes):
        q = np.linalg.qr(w.T @ q)[0]
        q = np.linalg.qr(w @ q)[0]
    return q
