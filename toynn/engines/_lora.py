"""An engine over the frozen weights of a GGUF file, which stay where they are, and LoRA on top.

    y = W x + b + s B A dropout(x)      W (out, in) in the file; A (r, in), B (out, r) trained

The file is mapped, and its matrices are multiplied by in the type that they have: no float32 copy
of one exists, and no gradient of one is computed. Memory of the engine's own is that of the
adapters, their gradients and moments, and the activations.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from math import isclose, sqrt
from os import fspath
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import nn, ops
from toynn._kernels import random
from toynn.engines._gguf import GGUFEngine, StrPath, check_tensors
from toynn.engines._sequence import C
from toynn.engines._targets import AdapterOptions
from toynn.errors import AdapterError, ConfigError, GGUFError, LifecycleError
from toynn.formats import adapters, quants
from toynn.formats.adapters import Adapter
from toynn.formats.gguf import GGUFFile
from toynn.options import RecipeOptions
from toynn.session import Session
from toynn.tape import Tensor

__all__ = ["INITS", "LoRAEngine"]

#: How A can be drawn: from N(0, init_scale); from U(-1/sqrt(in), 1/sqrt(in)), as PEFT does.
INITS = ("normal", "peft")


class LoRAEngine(GGUFEngine[C]):
    """A GGUF engine whose weights can stay in their file, frozen, with adapters beside them.

    The order of calls: ``enable_lora``, ``realize_for_mmap``, ``init_adapters`` or
    ``load_weights``, ``build_training_step``. Without adapters such an engine does all but train.
    """

    adapters: dict[str, nn.LoRA]  # by the GGUF name of their matrix

    def __init__(self, backend: str = "cpu", n_threads: int | None = None) -> None:
        super().__init__(backend, n_threads)
        self.lora: AdapterOptions | None = None  # as it was asked for
        self._trains_adapters = False
        self.file: GGUFFile | None = None  # that the frozen weights lie in
        self._expanded: list[str] = []  # those that are not mapped
        self.adapters = {}

    # -- Before the weights --------------------------------------------------------------------

    def enable_lora(self, options: AdapterOptions, *, train: bool = True) -> None:
        """Ask for adapters; comes before ``realize_for_mmap``. Untrained ones only add to y."""
        self._check_undeclared("enable_lora")
        self.lora, self._trains_adapters = options, train

    def enable_lora_q(self, rank: int) -> None:
        """Ask for adapters of rank ``rank``, scale 1, on the projections to q."""
        self.enable_lora(AdapterOptions(rank), train=False)

    def enable_lora_q_adamw(self) -> None:
        """Have the adapters trained; comes after ``enable_lora_q``."""
        self._check_undeclared("enable_lora_q_adamw")
        if self.lora is None:
            raise LifecycleError(
                f"{type(self).__name__}.enable_lora_q_adamw before enable_lora_q()"
            )
        self._trains_adapters = True

    def _check_undeclared(self, call: str) -> None:
        if self._session is not None:
            raise LifecycleError(
                f"{type(self).__name__}.{call} after the weights were declared: make a new engine"
            )

    # -- The weights ---------------------------------------------------------------------------

    def declare_for_mmap(self, file: GGUFFile, cfg: C | None, opts: RecipeOptions) -> None:
        """Declare a file's weights, frozen, where they lie, and the adapters; takes no memory.

        ``cfg``, ``opts.untied`` and ``opts.qkv_bias`` come from the file: what is given must agree
        with it. The file stays mapped as long as the session lives, and is never written.
        """
        self._check_undeclared("realize_for_mmap")
        found, options = self._config_of(file)
        if cfg is not None:
            _check_agrees(file, cfg, found)
        for name in ("untied", "qkv_bias"):
            if getattr(opts, name) and not options.get(name, False):
                raise ConfigError(f"{name}: expected False, as in {file.path}; got True")
        if opts.weight_dtype != "f32":
            raise ConfigError(
                "weight_dtype: expected f32, which here means: as the file has them; got "
                f"{opts.weight_dtype!r}, but frozen weights are not rounded again"
            )
        self.file = file
        self.declare(found, replace(opts, **options))

    def realize_for_mmap(self, file: GGUFFile, cfg: C | None, opts: RecipeOptions) -> None:
        """Take a file's weights as they lie there, frozen; all adapters are zero yet.

        See ``declare_for_mmap``. Norms and biases of another type than F32 are expanded.
        """
        self.declare_for_mmap(file, cfg, opts)
        self.session.finalize_weights()
        for name in self._expanded:
            self.session.upload(self.tensors[name], np.asarray(file[name], np.float32))
        for tensor in self._adapter_tensors().values():
            self.session.upload(tensor, np.zeros(tensor.shape, np.float32))

    def _declare_weights(self, s: Session) -> None:
        if self.file is None:
            super()._declare_weights(s)
            return
        shapes = self._shapes()
        check_tensors(
            self.file, shapes | {name: array.shape for name, array in self._beside().items()}
        )
        for name, shape in shapes.items():
            self._tensors[name] = self._declare_frozen(s, name, shape)
        if self.lora is not None:
            for name in self.lora.resolve(self.file.architecture, shapes):
                self._declare_adapter(s, name, self.lora)

    def _declare_frozen(self, s: Session, name: str, shape: tuple[int, ...]) -> Tensor:
        """Declare a weight of the file: mapped if a matrix or float32, else expanded later."""
        assert self.file is not None
        type = self.file.tensors[name].type
        if type == "F32":
            return s.mapped(name, self.file[name])
        if len(shape) == 1:
            self._expanded.append(name)
            return s.constant(name, shape)
        if type not in quants.BLOCKS:
            raise GGUFError(
                f"{self.file.path}: {name}: expected a type of {', '.join(quants.BLOCKS)}; "
                f"got {type}"
            )
        return s.mapped(name, self.file.raw(name), type.lower(), shape)

    def _declare_adapter(self, s: Session, name: str, options: AdapterOptions) -> None:
        declare = s.parameter if self._trains_adapters else s.constant
        (rows, columns), rank = self._tensors[name].shape, options.rank_of(name)
        a = declare(f"{name}.lora_a", (rank, columns))
        b = declare(f"{name}.lora_b", (rows, rank))
        self.adapters[name] = nn.LoRA(a, b, options.scale(name))
        self._tensors |= {a.name: a, b.name: b}
        if self._trains_adapters:
            self.parameters |= {a.name: a, b.name: b}

    # -- The adapters --------------------------------------------------------------------------

    def _adapter_tensors(self) -> dict[str, Tensor]:
        return {
            name: t for name, t in self.tensors.items() if name.endswith((".lora_a", ".lora_b"))
        }

    def init_adapters(self, init: str, seed: int, init_scale: float) -> None:
        """Draw every A, each with a stream of its own, as ``init`` says; set every B to zero."""
        self._session_for("init_adapters()")
        if init not in INITS:
            raise ConfigError(f"init must be one of {', '.join(INITS)}; got {init!r}")
        for stream, adapter in enumerate(self.adapters.values()):
            a = np.empty(adapter.a.size, np.float32)
            if init == "normal":
                random.normal(a, seed, stream, init_scale)
            else:
                random.uniform(a, seed, stream, 1 / sqrt(adapter.a.shape[1]))
            self.session.upload(adapter.a, a.reshape(adapter.a.shape))
            self.session.upload(adapter.b, np.zeros(adapter.b.shape, np.float32))

    def upload_lora_q_init(self, seed: int, init_scale: float) -> None:
        """Draw every A from N(0, init_scale); set every B to zero."""
        self.init_adapters("normal", seed, init_scale)

    def adapter(self) -> Adapter:
        """Return a copy of the adapters, for ``toynn.formats.adapters`` to write."""
        self._session_for("adapter()")
        if self.file is None or self.lora is None:
            raise LifecycleError(f"{type(self).__name__}.adapter: it was realized without adapters")
        assert self.lora.alpha is not None
        return Adapter(
            self.file.architecture,
            self.lora.alpha,
            self.adapter_weights(),
            self.lora.use_rslora,
            adapters.base_metadata(self.file),
        )

    def load_adapter(self, adapter: Adapter) -> None:
        """Replace all adapters by those that were read; AdapterError unless they are alike."""
        own = {name: layer.scale for name, layer in self.adapters.items()}
        if self.file is None or not own:
            raise LifecycleError(
                f"{type(self).__name__}.load_adapter: it was realized without adapters"
            )
        adapters.check(adapter, self.file)
        path, pairs = fspath(adapter.path), adapter.pairs
        for name in sorted(own.keys() ^ pairs.keys()):
            raise AdapterError(
                f"{path}: {name} is adapted {'there' if name in pairs else 'here'} only; realize "
                "with the targets of the adapter (LoRA.realize_from_adapter)"
            )
        for name, scale in own.items():
            rank = self.adapters[name].a.shape[0]
            if (found := adapter.rank_of(name)) != rank:
                raise AdapterError(f"{path}: {name}: expected rank {rank}, as here; got {found}")
            if not isclose(scale, adapter.scale(name), rel_tol=1e-6):  # a file's alpha is float32
                raise AdapterError(
                    f"{path}: {name}: expected a scale of {scale:g}, as here; got "
                    f"{adapter.scale(name):g} (alpha {adapter.alpha:g})"
                )
        self.load_weights(adapter.tensors)

    def build_training_step(self) -> None:
        """Record and compile the training step."""
        if self.file is not None and not self.parameters:
            raise LifecycleError(
                f"{type(self).__name__}.build_training_step: all weights are frozen: "
                "enable_lora_q() and enable_lora_q_adamw() come before realize_for_mmap()"
            )
        super().build_training_step()

    # -- Files ---------------------------------------------------------------------------------

    def export_gguf(self, path: StrPath, outtype: str = "f32", *, overwrite: bool = False) -> None:
        """Write the model; see GGUFEngine. Refused over a mapped file, which is there already."""
        self._check_owned("export_gguf")
        super().export_gguf(path, outtype, overwrite=overwrite)

    def export_hf(self, path: StrPath) -> None:
        """Write the model; see GGUFEngine. Refused over a mapped file, which is there already."""
        self._check_owned("export_hf")
        super().export_hf(path)

    def _check_owned(self, call: str) -> None:
        if self.file is not None:
            raise ConfigError(
                f"{type(self).__name__}.{call}: the weights are those of {self.file.path}, "
                "unchanged; write its adapter (LoRA.export_adapter) or both as one (LoRA.save)"
            )

    # -- Weights by name -----------------------------------------------------------------------

    def adapter_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the adapters: `<weight>.lora_a` (r, in), `<weight>.lora_b` (out, r)."""
        return {name: self.session.download(t) for name, t in self._adapter_tensors().items()}

    def load_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Replace all weights; over a mapped file, all adapters, and nothing else."""
        if self.file is None:
            super().load_weights(weights)
            return
        own = self._adapter_tensors()
        frozen = sorted((weights.keys() & self.tensors.keys()) - own.keys())
        if frozen:
            more = f" and {len(frozen) - 1} more are" if frozen[1:] else " is"
            raise ConfigError(
                f"load_weights: {frozen[0]!r}{more} frozen in {self.file.path}: give the adapters "
                "alone, as adapter_weights() returns them"
            )
        self._load(weights, own)

    # -- Forward -------------------------------------------------------------------------------

    def _drops(self) -> bool:
        return self.lora is not None and self._trains_adapters and self.lora.dropout > 0

    def _project(self, x: Tensor, name: str, activation: str | None = None) -> Tensor:
        """Record f(W x + b), with what an adapter of W adds; every product with weights is here."""
        s, bias = self.session, self.tensors.get(f"{name}.bias")
        adapter = self.adapters.get(f"{name}.weight")
        seen = x
        if adapter is not None and self._dropout is not None and self.lora is not None:
            site = list(self.adapters).index(f"{name}.weight")
            seen = ops.dropout(s, x, self.lora.dropout, self._dropout, site)
        return nn.linear(s, x, self._matrix(name), bias, activation, adapter, seen)

    @abstractmethod
    def _head(self) -> str:
        """Return the name of the matrix that makes logits."""

    def _record_head(self, x: Tensor) -> Tensor:
        return self._project(x, self._head())

    def _record_head_loss(self, x: Tensor, labels: Tensor) -> tuple[Tensor | None, Tensor]:
        head, N = self._head(), x.shape[0]
        adapted = f"{head}.weight" in self.adapters
        if adapted or labels.dtype == "f32" or ops.chunk_rows(N, self.vocab) == N:
            return super()._record_head_loss(x, labels)
        bias = self.tensors.get(f"{head}.bias")
        return None, ops.linear_cross_entropy(self.session, x, self._matrix(head), labels, bias)

    def _matrix(self, name: str) -> Tensor:
        """Return a matrix as it is multiplied: rounded, if the weights' type is not float32."""
        w, dtype = self.tensors[f"{name}.weight"], str(self.options.weight_dtype)
        return w if dtype == "f32" else ops.rounded(self.session, w, dtype)


def _check_agrees(file: GGUFFile, cfg: Any, found: Any) -> None:
    """Raise ConfigError unless a configuration is that of a file."""
    if type(cfg) is not type(found):
        raise ConfigError(
            f"cfg: expected a {type(found).__name__}, as {file.path} is {file.architecture}; got "
            f"{cfg!r}"
        )
    names = [field.name for field in fields(found) if field.name not in ("init", "head_dim")]
    differing = [
        f"{name}: expected {getattr(found, name)!r}; got {getattr(cfg, name)!r}"
        for name in (*names, "d_head")
        if not _alike(getattr(found, name), getattr(cfg, name))
    ]
    if differing:
        raise ConfigError(f"cfg is not that of {file.path}: {'; '.join(differing)}")


def _alike(a: Any, b: Any) -> bool:
    """Say whether two values are equal, numbers as float32, which is what a file has."""
    if isinstance(a, str):
        return bool(a == b)
    return np.array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
