"""A model of token sequences: its keys, its names, its forward pass."""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any, Protocol, Self, TypeVar

from toynn.formats.gguf.tensors import HEAD, TABLE
from toynn.formats.hf.config import CLASSES, Config
from toynn.formats.hf.name_mapping import Folder, NameMapping, module_of
from toynn.graph.tape import Tensor
from toynn.models.hyper import Hyper
from toynn.models.model import Blocks, Model
from toynn.models.tables import Floats, Weight, matrix
from toynn.nn import Layers
from toynn.options import RecipeOptions

__all__ = ["HEAD", "TABLE", "Folder", "SequenceConfig", "SequenceModel"]


class SequenceConfig(Blocks, Protocol):
    """The fields that the configurations of all architectures have."""

    @property
    def arch(self) -> str:
        """The architecture, as GGUF files call it."""

    @property
    def vocab(self) -> int:
        """Number of tokens in the vocabulary."""

    @property
    def context(self) -> int:
        """Most tokens that the model sees."""


S = TypeVar("S", bound=SequenceConfig)
#: A decoder's head of classes, and its name at Hugging Face.
_CLASSES = matrix(CLASSES.removesuffix(".weight"), "K C", "score", std=0.02)


class SequenceModel(Model[S]):
    """An architecture of GGUF files.

    Names, keys, shapes and the order of rows are GGUF's. ``hf`` and the second names in the table
    map them to a Hugging Face folder.
    """

    architecture: str
    hf: Folder
    #: Whether RoPE rotates interleaved channels; rows with ``pairs`` are then in that order.
    interleaved: bool = False
    #: Whether ``forward`` skips rows that nobody wants: it adds attention's result to x by
    #: ``Layers.residual``. The class that defines ``forward`` sets this.
    narrows: bool = False
    #: Whether llama.cpp wants an output.weight even if the head is tied.
    needs_head: bool = False
    #: Whether it is an encoder, whose rows say what a text is and not what comes next.
    encodes: bool = False
    #: Classes of a decoder's head that reads a text's last row; 0: it predicts tokens.
    classes: int = 0
    #: Modules of ``beside`` that ``folder`` writes.
    config_says: frozenset[str] = frozenset()

    def new_config(self, **shape: Any) -> S:
        """Return the configuration of a new model; an architecture may add its own defaults."""
        config: S = self.config_type(**shape)
        return config

    # -- Files ---------------------------------------------------------------------------------

    @abstractmethod
    def read(self, hyper: Hyper) -> S:
        """Return a file's configuration."""

    def options(self, hyper: Hyper) -> dict[str, Any]:
        """Return the options that a file implies."""
        return {}

    def check_gguf(self, cfg: S) -> None:
        """Raise ConfigError for a model that GGUF cannot express or llama.cpp does not read."""

    def filed_as(self, hyper: Mapping[str, Any]) -> str:
        """Return the architecture of a model's GGUF file, if it has another there; else ""."""
        return ""

    def filed(self, cfg: S) -> tuple["SequenceModel[Any]", Any]:
        """Return the architecture and the configuration that a GGUF file of a model names."""
        return self, cfg

    def unlike(self, cfg: S) -> list[str]:
        """Return how llama.cpp's results differ for a file that it reads."""
        return []

    @abstractmethod
    def write(self, cfg: S) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""

    def beside(self, cfg: S) -> dict[str, Floats]:
        """Return the tensors of a file that are not weights but come from the configuration."""
        return {}

    def exported(self, cfg: S, weights: dict[str, Floats]) -> dict[str, Floats]:
        """Return the weights as files of the architecture store them."""
        return weights

    def unread(self, hyper: Mapping[str, Any], name: str) -> bool:
        """Say whether files may have a tensor of this name which the model ignores."""
        return False

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Add config.json's keys beside ``hf.keys`` to ``hyper``; return tensors made from them."""
        return {}

    def claims(self, config: Config) -> bool:
        """Say whether a folder is of this architecture, where others have its model_type, too."""
        return True

    def spare(self, hyper: Mapping[str, Any]) -> Collection[str]:
        """Return modules that a model does not have, whose names in a folder another has."""
        return ()

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return further keys of config.json for a Hugging Face folder."""
        return {}

    def padded(self, tensors: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the tables that have more rows in a folder."""
        return {}

    def apart(self) -> Self:
        """Return the model for Hugging Face's order of q's and k's rows.

        RoPE then rotates channels half a head apart; the results are the same.
        """
        model = copy(self)
        model.interleaved = False
        return model

    def classifying(self, classes: int) -> Self:
        """Return a decoder with a head of classes instead of its own."""
        model = copy(self)
        model.classes = classes
        return model

    def weights(self, cfg: S, opts: RecipeOptions) -> dict[str, Weight]:
        """Return all weights by name, in the order of the optimizer."""
        weights = super().weights(cfg, opts)
        if self.classes:
            weights.pop(HEAD, None)
            shape = self.classes, weights[TABLE].shape[1]
            weights[CLASSES] = Weight(CLASSES, shape, _CLASSES, False, False)
        return weights

    def name_mapping(self) -> NameMapping:
        """Return the name mapping between GGUF and Hugging Face."""
        rows = [row for row in self.table if row.elsewhere]
        return NameMapping(
            self.architecture,
            self,
            **vars(self.hf),
            modules={row.name: row.elsewhere for row in rows}
            | ({} if self.encodes else {_CLASSES.name: _CLASSES.elsewhere}),
            transposed=frozenset(row.name for row in rows if row.transposed),
            pairs={row.name: row.pairs for row in rows if row.pairs and self.interleaved},
            spread=frozenset(row.name for row in rows if row.spread),
            more={row.name: row.more for row in rows if row.more},
            has_head=any(row.name == "output" and row.when is not False for row in rows),
            logarithms=frozenset(row.name for row in rows if row.logarithm),
            whole=frozenset(row.name for row in rows if row.bare),
            orders={row.name: row.order for row in rows if row.order},
            flat={row.name: row.flat for row in rows if row.flat},
            encodes=self.encodes,
        )

    def matrices(self, names: Iterable[str]) -> dict[str, str]:
        """Return the weights that can have an adapter, and their names at Hugging Face.

        A tied head has an entry too: an adapter of the head is not one of the embeddings.
        """
        mapping, rows = self.name_mapping(), {row.name: row for row in self.table}
        adapted = {}
        names = dict.fromkeys(names)
        if {TABLE, HEAD} & names.keys() and "output" in rows:
            names[HEAD] = None
        for name in names:
            row = rows.get(module_of(name))
            if row is None or not row.elsewhere or not name.endswith(".weight"):
                continue
            if row.kind == "matrix" or name == TABLE:
                adapted[name] = f"{mapping.module(name)}.weight"
            elif row.kind == "experts":  # in a folder: several weights, or a part of one
                adapted[name] = name
        return adapted

    def used(self, cfg: S) -> float:
        """Return the fraction of a block's experts that a token uses; 1 without experts."""
        return 1.0

    def active(self, cfg: S, opts: RecipeOptions) -> int:
        """Return the number of parameters that each token uses."""
        return sum(
            round(prod(weight.shape) * (self.used(cfg) if weight.row.kind == "experts" else 1))
            for weight in self.weights(cfg, opts).values()
        )

    # -- Forward -------------------------------------------------------------------------------

    def is_long(self, cfg: S, length: int) -> bool:
        """Say whether sequences of ``length`` tokens count as long: see ``Layers.long``."""
        return False

    @abstractmethod
    def forward(self, layers: Layers, cfg: S, tokens: Tensor, positions: Tensor) -> Tensor:
        """Record the blocks of the model for tokens (B T,) at positions (B T,); x (B T, C)."""

    def rows(
        self, layers: Layers, cfg: S, tokens: Tensor, positions: Tensor, wanted: Tensor
    ) -> Tensor:
        """Record ``forward``'s rows (R, C) whose indices are wanted (R,)."""
        owner = next(kind for kind in type(self).__mro__ if "forward" in vars(kind))
        if vars(owner).get("narrows", False):
            return self.forward(replace(layers, wanted=wanted), cfg, tokens, positions)
        return layers.rows(self.forward(layers, cfg, tokens, positions), wanted)

    @abstractmethod
    def last(self, layers: Layers, cfg: S, x: Tensor) -> Tensor:
        """Record the head's input from x (N, C): the last norm, row by row."""

    @abstractmethod
    def head(self, cfg: S, opts: RecipeOptions) -> str:
        """Return the name of the head's matrix, without ``.weight``."""

    def logits(self, layers: Layers, cfg: S, opts: RecipeOptions, x: Tensor) -> Tensor:
        """Record the logits (N, V) of ``last``'s result x (N, C)."""
        return layers.softcap(layers.linear(x, self.head(cfg, opts)), self.cap(cfg))

    def pooling(self, cfg: S) -> str:
        """Return which row of a text a head of classes reads: "last", "cls" or "mean"."""
        return "last"

    def outputs(self, layers: Layers, cfg: S, x: Tensor) -> Tensor:
        """Record the logits (N, K) of a head of classes from x (N, C)."""
        return layers.linear(x, _CLASSES.name)

    def cap(self, cfg: S) -> float:
        """Return the bound of logits, which are cap tanh(logits / cap); 0 means none."""
        return 0.0

    def loss(
        self, layers: Layers, cfg: S, opts: RecipeOptions, x: Tensor, labels: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Record the loss of ``last``'s result; return logits (None if made in chunks) and loss.

        A model that overrides ``logits`` must override this, too.
        """
        return layers.head(x, self.head(cfg, opts), labels, self.cap(cfg))
