"""The weights of an engine: in its own memory, or in a file that stays mapped.

OwnWeights are float32, and trained unless the model freezes them. FileWeights are frozen in a GGUF
file or a Hugging Face folder. Products read them in their own type: a matrix has no float32 copy
and no gradient. Only adapters of them can be trained.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import numpy as np

from toynn.engines.adapters import Adapters
from toynn.engines.targets import AdapterOptions
from toynn.errors import ConfigError, LifecycleError
from toynn.formats import quants
from toynn.graph.tape import Tensor
from toynn.models import Shapes, Source, check_tensors, refuse
from toynn.models.sequence import TABLE
from toynn.models.table import Weight
from toynn.session import Session

__all__ = ["FileWeights", "OwnWeights", "Weights"]


class Weights(ABC):
    """Weights by name: all ``tensors``, and the trained ones, ``parameters``."""

    file: Source | None = None  # the file that they are stored in
    adapters: Adapters | None = None
    #: Whether the rows of q and k that RoPE rotates together are half a head apart.
    pairs_apart = False

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.parameters: dict[str, Tensor] = {}  # in the order of the optimizer

    @abstractmethod
    def declare(self, session: Session, weights: Mapping[str, Weight], beside: Shapes) -> None:
        """Declare a model's weights; ``beside``: tensors of its files that are not weights."""

    @abstractmethod
    def replaceable(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return all tensors that ``load_weights`` replaces. ConfigError for a frozen name."""

    @abstractmethod
    def check_trained(self, engine: str) -> None:
        """Raise LifecycleError if there is nothing to train."""

    @abstractmethod
    def check_exported(self, call: str) -> None:
        """Raise ConfigError if the engine does not own the weights."""


class OwnWeights(Weights):
    """Float32 weights in the engine's own memory."""

    def declare(self, session: Session, weights: Mapping[str, Weight], beside: Shapes) -> None:
        """Declare parameters, and constants where the model freezes a weight."""
        for name, weight in weights.items():
            if weight.is_frozen:
                self.tensors[name] = session.constant(name, weight.shape)
            else:
                w = session.parameter(name, weight.shape)
                self.tensors[name] = self.parameters[name] = w

    def replaceable(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return all weights."""
        return self.tensors

    def check_trained(self, engine: str) -> None:
        """Do nothing: there are always parameters."""

    def check_exported(self, call: str) -> None:
        """Do nothing: the engine owns the weights."""


class FileWeights(Weights):
    """The weights of a mapped file or folder, and the requested adapters, zero at first."""

    def __init__(self, file: Source, options: AdapterOptions | None, *, trained: bool) -> None:
        super().__init__()
        self.file: Source = file
        self.pairs_apart = file.pairs_apart
        self._options, self._trained = options, trained
        self._dequantized: list[str] = []  # weights in memory, in float32
        self._copied: list[str] = []  # weights in memory, in the file's type

    def declare(self, session: Session, weights: Mapping[str, Weight], beside: Shapes) -> None:
        """Map the file's weights, which must match the model's; declare the adapters.

        Raises GGUFError for a type that toynn cannot read.
        """
        shapes = {name: weight.shape for name, weight in weights.items()}
        check_tensors(self.file, shapes | beside)
        for name, weight in weights.items():
            self.tensors[name] = self._declare_frozen(session, name, weight)
        if self._options is not None:
            chosen = self._options.resolve(self.file.architecture, shapes)
            # A tied head is the embedding table.
            matrices = {name: self.tensors.get(name, self.tensors[TABLE]) for name in chosen}
            found = Adapters(session, self.file, self._options, matrices, trained=self._trained)
            self.adapters = found
            self.tensors |= found.tensors
            self.parameters |= found.parameters

    def _declare_frozen(self, s: Session, name: str, weight: Weight) -> Tensor:
        """Declare a weight of the file: mapped if a matrix or float32, else dequantized later.

        A weight whose layout in the file is not the kernels' is copied later.
        """
        type, shape = self.file.tensors[name].type, weight.shape
        is_copied = self.file.is_copied(name)
        if type == "F32" and not is_copied:
            return s.mapped(name, self.file.stored(name))
        if type != "F32" and (len(shape) == 1 or weight.is_bias or weight.row.kind == "taps"):
            self._dequantized.append(name)
            return s.constant(name, shape)
        if is_copied and type in quants.BLOCKS:
            self._copied.append(name)
            return s.constant(name, shape, type.lower())
        if type not in quants.BLOCKS:
            refuse(
                self.file,
                f"{name}: expected a type of {', '.join(quants.BLOCKS)}; got {type}",
            )
        return s.mapped(name, self.file.stored(name), type.lower(), shape)

    def fill(self, session: Session) -> None:
        """Copy and dequantize weights that are not mapped; set adapters to change nothing."""
        for name in self._copied:
            session.upload(self.tensors[name], self.file.stored(name))
        for name in self._dequantized:
            session.upload(self.tensors[name], np.asarray(self.file[name], np.float32))
        if self.adapters is not None:
            self.adapters.zero()

    def replaceable(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the adapters. Raises ConfigError for the name of a frozen weight."""
        own = {} if self.adapters is None else self.adapters.tensors
        frozen = sorted((set(names) & self.tensors.keys()) - own.keys())
        if frozen:
            more = f" and {len(frozen) - 1} more are" if frozen[1:] else " is"
            raise ConfigError(
                f"load_weights: {frozen[0]!r}{more} frozen in {self.file.path}: give only "
                "adapters, as adapter_weights() returns them"
            )
        return own

    def check_trained(self, engine: str) -> None:
        """Raise LifecycleError if there are no adapters to train."""
        if not self.parameters:
            raise LifecycleError(
                f"{engine}.build_training_step: all weights are frozen: "
                "enable_lora_q() and enable_lora_q_adamw() come before realize_for_mmap()"
            )

    def check_exported(self, call: str) -> None:
        """Raise ConfigError: the weights are in a file already."""
        raise ConfigError(
            f"{call}: the weights are in {self.file.path}, "
            "unchanged; write the adapter (LoRA.export_adapter) or both in one file (LoRA.save)"
        )
