"""What every model declares, for text or for pictures."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.models.tables import Row, Shapes, Sizes, Weight, expand
from toynn.options import RecipeOptions


class Blocks(Protocol):
    """The field that all configurations have."""

    @property
    def n_layers(self) -> int:
        """Number of blocks."""


C = TypeVar("C", bound=Blocks)


class Model(ABC, Generic[C]):
    """An architecture: its configuration, its weights and their initial values.

    A model has no state: every method takes a configuration. Options say which weights there are
    (``untied``, ``qkv_bias``) and how they start (``init_scale``, ``seed``).
    """

    config_type: ClassVar[type[Any]]
    table: tuple[Row, ...]

    @abstractmethod
    def sizes(self, cfg: C, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return what the table's letters and conditions mean in block n, or outside of blocks."""

    def check(self, cfg: C, opts: RecipeOptions) -> None:
        """Refuse combinations of cfg and opts that make no model; raises ConfigError."""

    def weights(self, cfg: C, opts: RecipeOptions) -> dict[str, Weight]:
        """Return all weights by name, in the order of the optimizer."""
        weights = expand(self.table, cfg.n_layers, lambda n: self.sizes(cfg, opts, n))
        return {weight.name: weight for weight in weights}

    def shapes(self, cfg: C, opts: RecipeOptions) -> Shapes:
        """Return the shapes of all weights by name, in the order of the optimizer."""
        return {name: weight.shape for name, weight in self.weights(cfg, opts).items()}

    def start(self, cfg: C, opts: RecipeOptions) -> Iterable[tuple[str, NDArray[np.float32]]]:
        """Yield the initial values of all weights. Each weight draws from its own random stream."""
        for stream, (name, weight) in enumerate(self.weights(cfg, opts).items()):
            scale = opts.init_scale if "{n}" in weight.row.name else 1.0
            yield name, weight.start(cfg, scale, opts.seed, stream)

    def constants(self, cfg: C) -> dict[str, NDArray[np.float32]]:
        """Return the arrays that the forward pass reads beside weights and inputs, by name."""
        return {}

    def outward(self, cfg: C, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a weight in its shape in files."""
        return values

    def inward(self, cfg: C, name: str, values: ArrayLike) -> ArrayLike:
        """Return a weight in its shape on the tape."""
        return values
