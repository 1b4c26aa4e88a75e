"""Choose the matrices of a model that get an adapter; the options of adapters."""

import re
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from os import fspath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from toynn.errors import AdapterError, ConfigError
from toynn.options import check_fields, option, real, whole

if TYPE_CHECKING:
    from toynn.formats.adapters import Adapter

#: Initializations. A is drawn from N(0, init_scale), or from U(-1/sqrt(in), 1/sqrt(in)) as in PEFT.
#: With pissa, A and B are principal singular vectors of the matrix, found exactly or by N passes of
#: a randomized search.
INITS = ("normal", "peft", "pissa", "pissa_niter_N")
_PISSA = re.compile(r"pissa(?:_niter_(\d{1,3}))?")

#: Short names of projections; GGUF's and Hugging Face's (as in PEFT) work too.
_SHORT = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "qkv": "attn_qkv",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "embed": "token_embd",
    "head": "output",
}
#: Names of groups, by the beginning of the matrices' GGUF names in a block. Groups exclude expert
#: matrices, which have their own name.
_GROUPS = {"attention": "attn_", "all-linear": ""}
_EXPERTS, _STACKED = "experts", "_exps"
_BLOCK = "blk."


def _init(text: str) -> str:
    """Parse the name of an initialization."""
    if text not in INITS[:2] and principal_passes(text) is None:
        raise ArgumentTypeError(f"must be one of {', '.join(INITS)}; got {text!r}")
    return text


@dataclass(frozen=True)
class AdapterOptions:
    """The adapters to add: y += scale B A x for each matrix that ``targets`` names.

    Raises ConfigError for an invalid value.

    Attributes
    ----------
    rank
        Rows of A and columns of B. A rank above the rows or columns of a matrix is allowed, but
        useless.
    alpha
        The scale is alpha / rank, or alpha / sqrt(rank) with ``use_rslora`` (arXiv:2312.03732).
        None means the rank.
    targets
        A list, or names between commas: q, k, v, qkv, o, gate, up, down; embed (the embedding
        table) and head (the output projection), also if both are one matrix. The groups "attention"
        and "all-linear" stand for matrices of all blocks, except experts: use "experts". GGUF's and
        PEFT's names work too, in full or from a dot on: attn_q, q_proj, mlp.c_proj,
        blk.0.attn_q.weight.
    dropout
        Probability that an element of an adapter's input is zeroed in a training step.
    loraplus_lr_ratio
        The learning rate of B and of magnitudes, as a multiple of A's: 16 in LoRA+
        (arXiv:2402.12354). The adapter of the embedding table has A's rate, as in PEFT. Not stored
        with the adapter.
    ranks
        Ranks of single matrices, by GGUF name, if they differ from ``rank``.
    num_layers
        Adapt only the last N blocks; None means all. Targets outside of blocks are not affected.
        The backward pass ends at the lowest adapter: below it, no gradient is computed and no
        activation is kept.
    use_dora
        Whether each output also has a trained magnitude (arXiv:2402.09353).
    use_lorafa
        Whether A stays as it is initialized, and only B is trained (LoRA-FA, arXiv:2308.03303). The
        backward pass then needs no inputs of adapted matrices. Not stored with the adapter.
    init
        The initial A and B, one of INITS. The principal ones (arXiv:2404.02948) are also kept,
        frozen, and subtracted. Embedding tables have no principal initialization.
    """

    rank: int = option(read=whole(1))
    alpha: float | None = option(default=None, read=real(0, above=True))
    targets: Sequence[str] | str = ("q",)
    dropout: float = option(default=0.0, read=real(0, 1, below=True))
    use_rslora: bool = option(default=False)
    ranks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    num_layers: int | None = option(default=None, read=whole(1))
    loraplus_lr_ratio: float = option(default=1.0, read=real(0, above=True))
    use_dora: bool = option(default=False)
    init: str = option(default="normal", read=_init)
    use_lorafa: bool = option(default=False)

    def __post_init__(self) -> None:
        targets = self.targets
        if isinstance(targets, str):
            targets = [target.strip() for target in targets.split(",")]
        check_fields(self, "LoRA: ")
        alpha = self.rank if self.alpha is None else self.alpha
        if self.use_dora and self.is_principal:
            raise ConfigError(
                f"LoRA: use_dora=True|--dora needs the whole matrix; got init {self.init!r}, which "
                "subtracts a part of it: use one of the two"
            )
        if self.use_lorafa and self.loraplus_lr_ratio != 1:
            raise ConfigError(
                "LoRA: use_lorafa=True|--lorafa trains no A, with whose learning rate "
                "loraplus_lr_ratio=|--loraplus-lr-ratio compares B's; got "
                f"{self.loraplus_lr_ratio:g}: use one of the two"
            )
        named = isinstance(targets, Sequence) and all(isinstance(t, str) and t for t in targets)
        if not named or not targets:
            raise ConfigError(f"LoRA: targets must be at least one name; got {self.targets!r}")
        object.__setattr__(self, "rank", int(self.rank))
        object.__setattr__(self, "alpha", float(alpha))
        object.__setattr__(self, "targets", tuple(targets))

    @classmethod
    def of(cls, adapter: "Adapter", dropout: float = 0.0, **training: Any) -> Self:
        """Return the options to continue training an adapter.

        ``training`` are loraplus_lr_ratio and use_lorafa. Raises AdapterError if the adapter's
        scales cannot be expressed by one alpha.
        """
        ranks = {weight: adapter.rank_of(weight) for weight in adapter.pairs}
        if not adapter.alpha and len(set(ranks.values())) > 1:
            raise AdapterError(
                f"{fspath(adapter.path)}: alpha: expected a number above 0, as the ranks differ; "
                "got 0"
            )
        return cls(
            adapter.rank,
            adapter.alpha or None,
            tuple(ranks),
            dropout,
            use_rslora=adapter.use_rslora and bool(adapter.alpha),
            ranks=ranks,
            use_dora=adapter.use_dora,
            **training,
        )

    @property
    def is_principal(self) -> bool:
        """Whether A and B begin as a part of the matrix, which is then subtracted (PiSSA)."""
        return principal_passes(self.init) is not None

    def rank_of(self, weight: str) -> int:
        """Return the rank of a matrix's adapter."""
        return self.ranks.get(weight, self.rank)

    def rate_of(self, tensor: str) -> float:
        """Return the factor of the learning rate of an adapter's tensor."""
        from toynn.formats.adapters import LORA_B, LORA_M, is_embedding

        weight = tensor.rpartition(".")[0]
        faster = tensor.endswith((LORA_B, LORA_M)) and not is_embedding(weight)
        return self.loraplus_lr_ratio if faster else 1.0

    def scale(self, weight: str) -> float:
        """Return the factor of B A for a matrix."""
        assert self.alpha is not None
        rank = self.rank_of(weight)
        return self.alpha / (sqrt(rank) if self.use_rslora else rank)

    def resolve(self, architecture: str, names: Iterable[str]) -> list[str]:
        """Return the names of the weights that the targets mean, in the model's order.

        Raises ConfigError for an unknown target, for one that DoRA, PiSSA or LoRA-FA does not
        support, and if there are fewer blocks than ``num_layers``.
        """
        from toynn.models import architecture as model_of

        names = list(names)
        hf_names, within = model_of(architecture).matrices(names), ""
        if self.num_layers is not None:
            blocks = 1 + max(map(_block_of, names))
            if self.num_layers > blocks:
                raise ConfigError(
                    f"--num-layers: expected at most {blocks}, the blocks of this "
                    f"{architecture}; got {self.num_layers}"
                )
            below = range(blocks - self.num_layers)
            within = f" in the last {self.num_layers} of its {blocks} blocks"
            hf_names = {name: hf for name, hf in hf_names.items() if _block_of(name) not in below}
        chosen: set[str] = set()
        for target in self.targets:
            meant = {name for name in hf_names if _is_meant(target, name, hf_names[name])}
            if not meant:
                raise ConfigError(
                    f"targets: this {architecture} has no {target!r}{within}; it has "
                    f"{', '.join(_listed(hf_names))}, {', '.join(_groups(hf_names))}"
                )
            chosen |= meant
        self._check_kinds(chosen)
        return [name for name in hf_names if name in chosen]

    def _check_kinds(self, chosen: Iterable[str]) -> None:
        """Raise ConfigError for a kind that does not support experts or the embedding table."""
        from toynn.formats.adapters import is_embedding, is_stack

        for name in sorted(chosen):
            if is_stack(name) and (self.use_dora or self.is_principal):
                kind = "DoRA" if self.use_dora else f"init {self.init!r}"
                raise ConfigError(f"targets: {name}: {kind} does not support expert matrices")
            if is_embedding(name) and self.use_dora:
                raise ConfigError(
                    f"targets: {name}: DoRA does not support the embedding table: it would need "
                    "norms of columns, so each step would read the whole table; leave out "
                    "embed, or use_dora=True|--dora"
                )
            if is_embedding(name) and self.use_lorafa:
                raise ConfigError(
                    f"targets: {name}: LoRA-FA trains only B, and A of the embedding table, whose "
                    "rows are looked up, is zero at first: leave out embed, or use_lorafa=True|"
                    "--lorafa"
                )


def _block_of(weight: str) -> int:
    """Return the number of the block that a weight belongs to; -1 if it belongs to none."""
    return int(weight.split(".")[1]) if weight.startswith(_BLOCK) else -1


def principal_passes(init: object) -> int | None:
    """Return the number of PiSSA's passes (0: exact SVD), or None for another ``init``."""
    match = _PISSA.fullmatch(init) if isinstance(init, str) else None
    return int(match[1] or 0) if match else None


def _is_meant(target: str, weight: str, module: str) -> bool:
    """Return whether a target means a weight; ``module`` is its Hugging Face name."""
    part = weight.removesuffix(".weight")
    if target == _EXPERTS:
        return part.endswith(_STACKED)
    if target in _GROUPS:
        inside = part.startswith(_BLOCK) and not part.endswith(_STACKED)
        return inside and part.split(".")[2].startswith(_GROUPS[target])
    target = _SHORT.get(target, target).removesuffix(".weight")
    return any(f".{name}".endswith(f".{target}") for name in (part, module.removesuffix(".weight")))


def _groups(hf_names: Mapping[str, str]) -> list[str]:
    """Return the names of the groups that a model has."""
    stacked = any(_is_meant(_EXPERTS, name, name) for name in hf_names)
    return [*_GROUPS, *([_EXPERTS] if stacked else [])]


def _listed(hf_names: Mapping[str, str]) -> list[str]:
    """Return the possible targets, each with its short, GGUF and Hugging Face name.

    Matrices in blocks come first; a name stands for those of all blocks.
    """
    short = {part: name for name, part in _SHORT.items()}
    parts: dict[str, str] = {}
    for weight in sorted(hf_names, key=lambda name: not name.startswith(_BLOCK)):
        part = weight.split(".")[-2]
        names = (short.get(part), part, hf_names[weight].split(".")[-2])
        parts[part] = " = ".join(dict.fromkeys(name for name in names if name))
    return list(parts.values())
