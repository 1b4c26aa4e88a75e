"""What every model declares, whatever it reads."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.models.table import Row, Shapes, Sizes, Weight, expand
from toynn.options import RecipeOptions

__all__ = ["Blocks", "C", "Model"]


class Blocks(Protocol):
    """What the configurations of all models have."""

    @property
    def n_layers(self) -> int:
        """Number of blocks."""


C = TypeVar("C", bound=Blocks)


class Model(ABC, Generic[C]):
    """An architecture: its configuration, its weights and how they start.

    It has no state: what it is asked it answers from a configuration, and the options that say what
    is part of the model (``untied``, ``qkv_bias``) or of its start (``init_scale``, ``seed``).
    """

    config_type: ClassVar[type[Any]]
    table: ClassVar[tuple[Row, ...]]

    @abstractmethod
    def sizes(self, cfg: C, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return what the table's letters and conditions mean in block n, or outside of blocks."""

    def check(self, cfg: C, opts: RecipeOptions) -> None:
        """Refuse what only fails together; raises ConfigError."""

    def weights(self, cfg: C, opts: RecipeOptions) -> dict[str, Weight]:
        """Return all weights by name, in the order of the optimizer."""
        found = expand(self.table, cfg.n_layers, lambda n: self.sizes(cfg, opts, n))
        return {weight.name: weight for weight in found}

    def shapes(self, cfg: C, opts: RecipeOptions) -> Shapes:
        """Return the shapes of all weights by name, in the order of the optimizer."""
        return {name: weight.shape for name, weight in self.weights(cfg, opts).items()}

    def start(self, cfg: C, opts: RecipeOptions) -> Iterable[tuple[str, NDArray[np.float32]]]:
        """Yield the initial values of all weights. Each weight draws from its own random stream."""
        for stream, (name, weight) in enumerate(self.weights(cfg, opts).items()):
            scale = opts.init_scale if "{n}" in weight.row.name else 1.0
            yield name, weight.start(cfg, scale, opts.seed, stream)

    def constants(self, cfg: C) -> dict[str, NDArray[np.float32]]:
        """Return what the forward pass reads beside weights and inputs."""
        return {}
