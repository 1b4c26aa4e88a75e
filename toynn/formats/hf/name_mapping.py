"""Map GGUF's keys, weight names and order of rows to Hugging Face's.

This file knows no architecture: `toynn.models` registers each architecture's name mapping with its
model.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.formats.hf.config import Config
from toynn.formats.hf.mxfp4 import BLOCKS
from toynn.formats.hf.pieces import is_cut, layout_of, pieces_of, rows_of

Floats = NDArray[np.float32]
Hyper = Mapping[str, Any]  # by GGUF's keys without the architecture
Weights = Mapping[str, Floats]  # by GGUF name

#: Prefixes of weight names, after "model.", in folders that also read pictures: of the text part,
#: and of other parts, which toynn leaves out.
_TEXT = "language_model."
_BESIDE_TEXT = (
    "vision_tower.", "multi_modal_projector.", "visual.", "audio_tower.", "embed_vision.",
    "embed_audio.", "mtp.",
)  # fmt: skip
#: Endings of norms in the first BERTs, and what they are now.
_OLD_NORMS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
MAX_DIGITS = 10  # of a block's number
V = TypeVar("V")


class Registry(MutableMapping[str, V]):
    """Values by name. A value may be set by a module, which is imported once it is asked for."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}  # by name; "" once a value is set
        self._values: dict[str, V] = {}

    def __getitem__(self, name: str) -> V:
        if self.modules.get(name):
            import_module(self.modules[name])
        return self._values[name]

    def __setitem__(self, name: str, value: V) -> None:
        self.modules[name], self._values[name] = "", value

    def __delitem__(self, name: str) -> None:
        del self.modules[name], self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.modules

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


#: By general.architecture.
NAME_MAPPINGS: Registry["NameMapping"] = Registry()


class Rules(Protocol):
    """What a model's hyper-parameters decide."""

    def filed_as(self, hyper: Hyper) -> str:
        """Return the architecture of a model's GGUF file, if it has another there; else ""."""

    def spare(self, hyper: Hyper) -> Collection[str]:
        """Return the modules that a model lacks: needed where two share a name in folders."""

    def unread(self, hyper: Hyper, name: str) -> bool:
        """Return whether a model ignores a weight, if a folder has it."""

    def claims(self, config: Config) -> bool:
        """Return whether a folder is of this architecture: several may share a model_type."""

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Add hyper-parameters that are not plain numbers; return tensors made from config.json."""

    def folder(self, hyper: Hyper, tensors: Weights) -> dict[str, Any]:
        """Return further keys of config.json for a new folder."""

    def padded(self, tensors: Weights) -> dict[str, Floats]:
        """Return the tables that have more rows in a folder."""


@dataclass(frozen=True)
class Order:
    """A different order of the rows (axis 0) or columns (axis 1) of a weight.

    ``index`` takes hyper-parameters and the length of Hugging Face's axis. It returns, for each of
    GGUF's rows (or columns), the index of Hugging Face's; fewer, if GGUF's weight is a part. It
    raises KeyError for a missing hyper-parameter, ValueError if they do not fit.
    """

    axis: int
    index: Callable[[Hyper, int], NDArray[np.intp]]


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The config.json of an architecture's Hugging Face folders.

    Attributes
    ----------
    keys, real, optional
        config.json's names by GGUF's hyper-parameter (without the architecture); the GGUF keys
        that are real numbers; those that may be missing.
    fixed, shown
        Keys of config.json: the values that toynn supports, and the values that it writes.
    tied
        Whether the head is tied if config.json does not say.
    biases
        Keys of config.json that say whether modules have biases: the default, and the modules.
    zero_biases
        Modules whose biases are left out if all are zero.
    bare
        Suffixes of modules whose weight has the module's name, without ".weight".
    model_type
        The architecture's name in config.json; empty: GGUF's.
    also
        Other values of model_type whose models compute the same.
    begins
        Prefixes of names that a folder may have, and the prefixes that toynn expects instead.
    unadapted
        Modules whose adapters a program does not apply: "gguf", llama.cpp; or "peft".
    unheaded
        Prefix of names that a folder of an encoder without a head leaves out.
    without
        Prefixes of names in folders that belong to other heads, which are left out.
    aliases
        Names of an encoder's head of tokens that differ from those of its head of sequences.
    """

    keys: Mapping[str, str]
    real: frozenset[str]
    fixed: Mapping[str, tuple[object, ...]]
    shown: Mapping[str, object]
    optional: frozenset[str] = frozenset()
    tied: bool = False
    biases: Mapping[str, tuple[bool, tuple[str, ...]]] = field(default_factory=dict)
    zero_biases: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    model_type: str = ""
    also: tuple[str, ...] = ()
    begins: Mapping[str, str] = field(default_factory=dict)
    unadapted: Mapping[str, str] = field(default_factory=dict)
    unheaded: str = ""
    without: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NameMapping(Folder):
    """Hugging Face's names for an architecture: config.json, and the weights.

    Attributes
    ----------
    modules
        Modules with weights: "blk.{n}.attn_q" -> "model.layers.{n}.self_attn.q_proj".
    transposed
        Modules whose matrices are (in, out) at Hugging Face.
    pairs
        Modules whose rows RoPE rotates in pairs. A pair is adjacent in GGUF files, half a head
        apart at Hugging Face. The values are keys of the number of heads; the first found counts.
    spread
        Modules whose weights have an axis of one before their last at Hugging Face.
    more
        Modules whose GGUF values are the folder's values plus this number.
    logarithms
        Modules whose GGUF values are -e^x of the folder's values x.
    whole
        Entries of ``modules`` that are full names of weights, in both formats.
    orders
        Modules whose rows or columns are ordered differently in a folder.
    flat
        Weights with one axis in a folder and two in GGUF files. The values are keys of the number
        of rows.
    rules
        The model, which says what its hyper-parameters decide.
    has_head
        Whether a model can have a head that is not its embedding table.
    encodes
        Whether the model is an encoder.
    """

    architecture: str
    rules: Rules
    modules: Mapping[str, str]
    transposed: frozenset[str] = frozenset()
    pairs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spread: frozenset[str] = frozenset()
    more: Mapping[str, float] = field(default_factory=dict)
    logarithms: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    orders: Mapping[str, Order] = field(default_factory=dict)
    has_head: bool = True
    encodes: bool = False
    flat: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_types(self) -> tuple[str, ...]:
        """The names of the architecture at Hugging Face; the first is written."""
        return (self.model_type or self.architecture, *self.also)

    def name(self, gguf_name: str) -> str:
        """Return a weight's name at Hugging Face. Raises KeyError for an unknown one."""
        module, number, kind = _parted(gguf_name)
        if (whole := self._whole(gguf_name)) in self.whole:
            return self.modules[whole].replace("{n}", number)
        return f"{self.modules[module].replace('{n}', number)}.{kind}"

    def gguf_name(self, name: str) -> str | None:
        """Return the GGUF name of a Hugging Face weight, or None.

        Folders of models without a head omit the first part of the names.
        """
        prefix = f"{self._block.partition('.')[0]}."
        heads = (hf for hf in self.modules.values() if not hf.startswith(prefix))
        if not name.startswith((prefix, "lm_head.", *heads)):
            name = f"{prefix}{name}"
        hf_name, _, kind = name.rpartition(".")
        number, _, part = hf_name.removeprefix(self._block).partition(".")
        in_block = hf_name.startswith(self._block) and number.isdecimal()
        if in_block and len(number) < MAX_DIGITS:
            hf_name = f"{self._block}{{n}}.{part}".removesuffix(".")
            for module in self.whole:
                if self.modules[module] == f"{hf_name}.{kind}":
                    return module.replace("{n}", str(int(number)))
        for module, hf_module in self.modules.items():
            if hf_name == hf_module and module not in self.whole and ("{n}" in module) == in_block:
                return f"{module.replace('{n}', str(int(number)) if in_block else '')}.{kind}"
        return None

    def block_of(self, name: str) -> int | None:
        """Return the block number of a folder's weight; None if it is in no block."""
        number = name.removeprefix(self._block).partition(".")[0]
        inside = name.startswith(self._block) and number.isdecimal() and len(number) < MAX_DIGITS
        return int(number) if inside else None

    def bare_name(self, name: str) -> str:
        """Return a weight's name in a folder, where modules in ``bare`` have no suffix."""
        module, _, kind = name.rpartition(".")
        if not module.endswith(tuple(self.bare)):
            return name
        return module if kind == "weight" else f"{module}_{kind}"

    def plain_name(self, name: str) -> str:
        """Undo ``bare_name`` and other beginnings; blocks of MXFP4 are weights."""
        name = self.aliases.get(name, name)
        for old, new in _OLD_NORMS.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        for begin, usual in self.begins.items():
            name = usual + name.removeprefix(begin) if name.startswith(begin) else name
        for ending, kind in (("", "weight"), ("_bias", "bias"), (BLOCKS, "weight")):
            module = name.removesuffix(ending)
            if name.endswith(ending) and self.bare and module.endswith(tuple(self.bare)):
                return f"{module}.{kind}"
        return name

    def headed(self, name: str, head: str) -> str:
        """Return a weight's name in a new folder of an encoder with this kind of head, or none."""
        plain = {hf: alias for alias, hf in self.aliases.items()} if head == "tokens" else {}
        return plain.get(name, name) if head else name.removeprefix(self.unheaded)

    @staticmethod
    def _whole(gguf_name: str) -> str:
        """Return a weight's name with "{n}" instead of its block number."""
        module, _, kind = _parted(gguf_name)
        return f"{module}.{kind}" if kind else module

    def _row(self, gguf_name: str) -> str:
        """Return the name of a weight's module, or its full name if it is in ``whole``."""
        whole = self._whole(gguf_name)
        return whole if whole in self.whole else module_of(gguf_name)

    def has(self, gguf_name: str) -> bool:
        """Return whether a weight has a name in a folder."""
        return self._row(gguf_name) in self.modules

    def is_spread(self, gguf_name: str) -> bool:
        """Return whether a weight has an axis of one before its last in a folder."""
        row = self._row(gguf_name)
        return row in self.spread and (row in self.whole or gguf_name.endswith(".weight"))

    def is_flat(self, gguf_name: str) -> bool:
        """Return whether a weight has one axis in a folder and two in GGUF files."""
        return self._row(gguf_name) in self.flat

    def suited(self, metadata: Mapping[str, Any]) -> "NameMapping":
        """Return the mapping without the modules that a model of these metadata lacks."""
        spare = self.rules.spare(self._hyper(metadata))
        modules = {name: hf_name for name, hf_name in self.modules.items() if name not in spare}
        return replace(self, modules=modules) if spare else self

    def unflattened(
        self, metadata: Mapping[str, Any], gguf_name: str, shape: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return a weight's GGUF shape from its shape in a folder.

        Raises ValueError if the metadata do not fit the shape.
        """
        key = self.flat.get(self._row(gguf_name))
        if key is None or len(shape) != 1:
            return shape
        rows = metadata.get(f"{self.architecture}.{key}")
        if not isinstance(rows, int) or rows < 1 or shape[0] % rows:
            raise ValueError(f"{key} = {rows}")
        return rows, shape[0] // rows

    @property
    def _block(self) -> str:
        """The prefix of the names of blocks' modules, before the number."""
        return next(name for name in self.modules.values() if "{n}" in name).partition("{n}")[0]

    @property
    def parts(self) -> dict[str, str]:
        """The modules of a block, without the prefix of the block."""
        cut = f"{self._block}{{n}}."
        return {
            module.removeprefix("blk.{n}."): layout_of(hf_name)[0].removeprefix(cut)
            for module, hf_name in self.modules.items()
            if "{n}" in module
        }

    def is_transposed(self, gguf_name: str, dimensions: int) -> bool:
        """Return whether a weight is stored transposed in a folder."""
        return dimensions == 2 and module_of(gguf_name) in self.transposed

    def biases_of(self, weights: Iterable[str], modules: Collection[str]) -> list[str]:
        """Return the names of the possible biases of ``modules`` among these weights."""
        matrices = (name for name in weights if name.endswith(".weight"))
        return [f"{name[:-6]}bias" for name in matrices if module_of(name) in modules]

    def order(
        self, metadata: Mapping[str, Any], gguf_name: str, shape: tuple[int, ...]
    ) -> tuple[int, NDArray[np.intp]] | None:
        """Return the axis of a weight that a folder orders differently, and the order; or None.

        ``shape`` is the folder's. Raises KeyError for missing metadata, ValueError if they do not
        fit.
        """
        order = self.orders.get(self._row(gguf_name))
        if order is None:
            return None
        index = order.index(self._hyper(metadata), shape[order.axis])
        same = np.array_equal(index, np.arange(shape[order.axis]))
        return None if same else (order.axis, index)

    def module(self, gguf_name: str) -> str:
        """Return a weight's module at Hugging Face, or the one it is part of. Raises KeyError."""
        return layout_of(self.name(gguf_name))[0].removesuffix(".weight")

    def parts_of(self, gguf_name: str) -> list[str]:
        """Return all matrices that a folder joins with this one; none if it is whole there."""
        if not is_cut(self.name(gguf_name)) or "_exps." in gguf_name:
            return []
        return [p.name for p in pieces_of(self.modules, f"{self.module(gguf_name)}.weight")]

    def rows(self, metadata: Mapping[str, Any], gguf_name: str, total: int) -> NDArray[np.intp]:
        """Return the indices of a part's rows among the ``total`` of a folder's weight.

        Raises what ``order`` raises.
        """
        order = self.order(metadata, gguf_name, (total,))
        _, part, parts, interleaved = layout_of(self.name(gguf_name))
        return order[1] if order else np.arange(total)[rows_of(part, parts, interleaved, total)]

    def passes_over(self, metadata: Mapping[str, Any], gguf_name: str) -> bool:
        """Return whether a model of these metadata ignores a weight."""
        return self.rules.unread(self._hyper(metadata), gguf_name)

    def gguf_architecture(self, metadata: Mapping[str, Any]) -> str:
        """Return the architecture that a GGUF file of a model of these metadata has."""
        return self.rules.filed_as(self._hyper(metadata)) or self.architecture

    def _hyper(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return metadata without the prefix, which is another's if its file has another name."""
        prefix = f"{metadata.get('general.architecture', self.architecture)}."
        return {key.removeprefix(prefix): value for key, value in metadata.items()}

    def heads(self, metadata: Mapping[str, Any], gguf_name: str) -> int:
        """Return the number of heads of a weight whose rows are ordered differently, else 0.

        A value that is not a number of heads is returned unchanged.

        Raises KeyError for missing metadata.
        """
        keys = [f"{self.architecture}.{key}" for key in self.pairs.get(module_of(gguf_name), ())]
        if not keys:
            return 0
        heads: int = metadata[next((key for key in keys if key in metadata), keys[-1])]
        if isinstance(heads, list | np.ndarray):  # 0 in blocks without any
            some = {int(each) for each in heads} - {0}
            heads = some.pop() if len(some) == 1 else heads
        return heads


def name_mapping_for(config: Config) -> NameMapping | None:
    """Return the name mapping of a folder's model; None if its model_type is not known."""
    kind = config.get("model_type")
    fitting = [mapping for mapping in NAME_MAPPINGS.values() if kind in mapping.model_types]
    return next(
        (mapping for mapping in fitting if len(fitting) == 1 or mapping.rules.claims(config)),
        None,
    )


def text_name_of(name: str) -> str | None:
    """Return a weight's name in a text-only model; None if it belongs to another part.

    For example, language_model.model.norm.weight and model.language_model.norm.weight both become
    model.norm.weight.
    """
    whole = name.removeprefix("model.")
    if whole.startswith(_BESIDE_TEXT):
        return None
    if whole.startswith(_TEXT):
        rest = whole.removeprefix(_TEXT)
        return rest if rest.startswith(("model.", "lm_head.")) else f"model.{rest}"
    return name


def module_of(gguf_name: str) -> str:
    """Return a weight's module, with "{n}" instead of its block number."""
    return _parted(gguf_name)[0]


def _parted(gguf_name: str) -> tuple[str, str, str]:
    """Split a name into its module, its block number, and "weight" or "bias"."""
    module, _, kind = gguf_name.rpartition(".")
    first, _, rest = module.partition(".")
    number, _, part = rest.partition(".")
    if first == "blk" and part:
        return f"blk.{{n}}.{part}", number, kind
    if first == "blk":  # a weight without a module, by its whole name
        return f"blk.{{n}}.{kind}", number, ""
    return module, "", kind


def pairs_together(w: Floats, heads: int) -> Floats:
    """Return rows of q or k in GGUF's order: the two rows of a RoPE pair are adjacent.

    At Hugging Face they are half a head apart.
    """
    return w.reshape(heads, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def pairs_apart(w: Floats, heads: int) -> Floats:
    """Return rows of q or k in Hugging Face's order: the inverse of ``pairs_together``."""
    return w.reshape(heads, -1, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
