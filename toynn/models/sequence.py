"""A model of token sequences: its keys, its names, its forward pass."""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.formats.hf.config import Config
from toynn.formats.hf.name_mapping import Folder, NameMapping, module_of
from toynn.graph.tape import Tensor
from toynn.models.hyper import Hyper
from toynn.models.model import Blocks, Model
from toynn.nn import Layers
from toynn.options import RecipeOptions

__all__ = ["HEAD", "TABLE", "Folder", "SequenceConfig", "SequenceModel"]

Floats = NDArray[np.float32]


class SequenceConfig(Blocks, Protocol):
    """What the configurations of all architectures have."""

    @property
    def arch(self) -> str:
        """The architecture, as GGUF files call it."""

    @property
    def vocab(self) -> int:
        """Tokens that there are."""

    @property
    def context(self) -> int:
        """Tokens that the model sees at most."""


S = TypeVar("S", bound=SequenceConfig)
TABLE, HEAD = "token_embd.weight", "output.weight"


class SequenceModel(Model[S]):
    """An architecture of GGUF files.

    Names, keys, shapes and the order of rows are GGUF's throughout; ``hf`` and the second names of
    the table say what they are at Hugging Face.
    """

    architecture: str
    hf: Folder
    #: Whether RoPE rotates interleaved channels, so that the rows with ``pairs`` are in that order.
    interleaved: bool = False
    #: Whether ``forward`` leaves out rows that nobody wants: its first sum of a block, of what
    #: came of attention, is ``Layers.residual``. Said by the class that has ``forward``.
    narrows: bool = False
    #: Whether llama.cpp wants an output.weight, also of a model whose head is tied.
    needs_head: bool = False
    #: Tensors of ``beside`` that ``folder`` puts into config.json.
    config_says: frozenset[str] = frozenset()

    def new_config(self, **shape: Any) -> S:
        """Return the configuration of a new model of a shape, with what the config type demands."""
        config: S = self.config_type(**shape)
        return config

    # -- Files ---------------------------------------------------------------------------------

    @abstractmethod
    def read(self, hyper: Hyper) -> tuple[S, dict[str, Any]]:
        """Return the configuration of a file's model, and the options that it calls for."""

    def check_gguf(self, cfg: S) -> None:
        """Refuse what GGUF files have no place for, or llama.cpp does not read of them.

        Raises ConfigError.
        """

    def unlike(self, cfg: S) -> list[str]:
        """Return what llama.cpp computes otherwise of a file that it reads."""
        return []

    @abstractmethod
    def write(self, cfg: S) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""

    def beside(self, cfg: S) -> dict[str, Floats]:
        """Return the tensors of a file that are no weights; they come from the configuration."""
        return {}

    def exported(self, cfg: S, weights: dict[str, Floats]) -> dict[str, Floats]:
        """Return the weights as files of the architecture have them."""
        return weights

    def complete(self, config: Config, found: dict[str, Any]) -> dict[str, Floats]:
        """Add what config.json says in other ways than by ``keys``; return tensors of it."""
        return {}

    def spare(self, hyper: Mapping[str, Any]) -> Collection[str]:
        """Return modules that a model does not have, whose names in a folder another has."""
        return ()

    def folder(
        self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]
    ) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Return what else a Hugging Face folder needs: keys of config.json, and tensors."""
        return {}, {}

    def apart(self) -> Self:
        """Return the model for rows of q and k as Hugging Face has them: pairs half a head apart.

        RoPE rotates those then, and the numbers are the same.
        """
        model = copy(self)
        model.interleaved = False
        return model

    def name_mapping(self) -> NameMapping:
        """Return Hugging Face's name mapping of the architecture."""
        rows = [row for row in self.table if row.elsewhere]
        return NameMapping(
            self.architecture,
            **vars(self.hf),
            modules={row.name: row.elsewhere for row in rows},
            transposed=frozenset(row.name for row in rows if row.transposed),
            pairs={row.name: row.pairs for row in rows if row.pairs and self.interleaved},
            spread=frozenset(row.name for row in rows if row.spread),
            more={row.name: row.more for row in rows if row.more},
            has_head=any(row.name == "output" and row.when is not False for row in rows),
            logarithms=frozenset(row.name for row in rows if row.logarithm),
            whole=frozenset(row.name for row in rows if row.bare),
            orders={row.name: row.order for row in rows if row.order},
            flat={row.name: row.flat for row in rows if row.flat},
            spare=self.spare,
            complete=self.complete,
            beside=self.folder,
        )

    def matrices(self, names: Iterable[str]) -> dict[str, str]:
        """Return those weights that can have an adapter, and their names at Hugging Face.

        A model whose head is tied has the head's all the same: adapters tell the two apart.
        """
        mapping, rows = self.name_mapping(), {row.name: row for row in self.table}
        found = {}
        names = dict.fromkeys(names)
        if {TABLE, HEAD} & names.keys() and "output" in rows:
            names[HEAD] = None
        for name in names:
            row = rows.get(module_of(name))
            if row is None or not row.elsewhere or not name.endswith(".weight"):
                continue
            if row.kind == "matrix" or name == TABLE:
                found[name] = f"{mapping.module(name)}.weight"
            elif row.kind == "experts":  # which is several there, or a part of one
                found[name] = name
        return found

    def used(self, cfg: S) -> float:
        """Return which part of its experts a token uses; 1, if there are none."""
        return 1.0

    def active(self, cfg: S, opts: RecipeOptions) -> int:
        """Return the number of parameters that a token is computed with."""
        return sum(
            round(prod(weight.shape) * (self.used(cfg) if weight.row.kind == "experts" else 1))
            for weight in self.weights(cfg, opts).values()
        )

    # -- Forward -------------------------------------------------------------------------------

    def is_long(self, cfg: S, length: int) -> bool:
        """Say whether sequences of so many tokens are long ones: see ``Layers.long``."""
        return False

    @abstractmethod
    def forward(self, layers: Layers, cfg: S, tokens: Tensor, positions: Tensor) -> Tensor:
        """Record the blocks of the model for tokens (B T,) at positions (B T,); x (B T, C)."""

    def rows(
        self, layers: Layers, cfg: S, tokens: Tensor, positions: Tensor, wanted: Tensor
    ) -> Tensor:
        """Record the rows (R, C) of ``forward`` that wanted (R,) names."""
        owner = next(kind for kind in type(self).__mro__ if "forward" in vars(kind))
        if vars(owner).get("narrows", False):
            return self.forward(replace(layers, wanted=wanted), cfg, tokens, positions)
        return layers.rows(self.forward(layers, cfg, tokens, positions), wanted)

    @abstractmethod
    def last(self, layers: Layers, cfg: S, x: Tensor) -> Tensor:
        """Record what the head reads of x (N, C), row by row: the last norm."""

    @abstractmethod
    def head(self, cfg: S, opts: RecipeOptions) -> str:
        """Return the name of the matrix that makes logits, without ``.weight``."""

    def logits(self, layers: Layers, cfg: S, opts: RecipeOptions, x: Tensor) -> Tensor:
        """Record the logits (N, V) of what ``last`` returned."""
        return layers.linear(x, self.head(cfg, opts))

    def loss(
        self, layers: Layers, cfg: S, opts: RecipeOptions, x: Tensor, labels: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Record the loss of what ``last`` returned; return the logits too, if all exist at once.

        A model whose ``logits`` are more than the head's product has to say this one too.
        """
        return layers.head(x, self.head(cfg, opts), labels)
