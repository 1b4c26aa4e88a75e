"""Options: a field of a dataclass each, which says everything about the option.

The bundles in toynn/jobs/ have a field for each option of a run:

    rank: int = option("rank of the adapters", 8, of=AdapterOptions, source="own")

The field's name, type and default, and what ``option`` is given, make the flag with its help, the
key in config.toml, the keyword of ``toynn.finetune``, the row in docs/flags.md, and the words that
the shell completes. ``Option.check`` checks every value, wherever it comes from. A subclass may
give a field another default (``steps: int = 200``), or call ``option`` again to change more.

``of=AdapterOptions``: that class takes the value, and its field ``rank`` declares the range, in the
same way, without a help. ``of=(Schedule, "lr_max")`` names the field, too.
"""

import math
import re
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from inspect import get_annotations
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np

from toynn.errors import ConfigError

LARGEST = 2**31 - 1
#: Options that older runs have under another name, in config.toml and in checkpoints.
RENAMED = {"pack_base": "prepack", "b_rate": "loraplus_lr_ratio", "measure": "metric"}


@dataclass(frozen=True)
class Option:
    """An option, as its field declares it.

    Attributes
    ----------
    name, kind, default
        The field's. ``log_every`` is also the key in config.toml, the keyword of
        ``toynn.finetune``, and --log-every. Without a default (MISSING) an option is required.
    help
        What the flag does in ten words; and what it does by default, if ``default`` is None.
    group
        The heading in --help; by default the bundle's ``GROUP``.
    of
        The class that takes the value, and its field, which declares the range. ``option`` may get
        the class alone, if the field has the same name.
    read
        Parses a text, or a list of texts if the option takes several. Raises ArgumentTypeError.
    words
        The values, unless there is a ``read``; what the shell completes. A Literal has its own.
    fetch
        Returns the local path of a value that names a file on the hub, once all options are
        checked; it is also given a function that is told a line about it, under a label.
    also
        The flag's name in mlx-lm or llama.cpp, which is taken, too.
    metavar
        As argparse takes it; by default the words, or "N" for what ``read`` parses.
    negated
        Whether a switch also has the flag --no-name.
    once
        Why the flag cannot be given twice; "" if the last one holds.
    source
        How starting from a model or adapter affects this option. "same": not at all. "own":
        the source has its own value, and a given one is refused. "may": the source's value is the
        default, and a given one takes precedence.
    compared
        Whether a resumed run must have the same value. It need not if the option does not change
        the training so far (length of the run, intervals, early stopping, memory), nor if the
        Trainer compares what follows from it.
    in_config
        Whether config.toml has it. Options that say where a run is read or written are not in it.
    program
        Whether "FILE.py:NAME" is a program that runs. A --config does not name one.
    hashed
        Whether it names a file or folder that the run starts from, which must not change.
    memory
        Advice if a step needs too much memory: "smaller"; or a value, and one that needs less.
    """

    name: str
    kind: Any
    default: Any
    help: str = ""
    group: str = ""
    of: tuple[Any, str] = (None, "")
    read: Callable[[Any], Any] | None = None
    words: Collection[str] = ()
    fetch: Callable[[str, Callable[[str, str], object]], str] | None = None
    also: str = ""
    metavar: str = ""
    negated: bool = False
    once: str = ""
    source: Literal["same", "own", "may"] = "same"
    compared: bool = True
    in_config: bool = True
    program: bool = False
    hashed: bool = False
    memory: Literal["smaller"] | tuple[Any, Any] | None = None

    @property
    def flag(self) -> str:
        """How it is typed."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_switch(self) -> bool:
        """Whether it is typed without a value."""
        return self.kind is bool

    @property
    def is_path(self) -> bool:
        """Whether its value is a path, or several."""
        return self.metavar.partition("[")[0] in ("PATH", "FILE", "DIR")

    @property
    def kinds(self) -> set[Any]:
        """The types of its values; a list of several words is a tuple, one of names a Sequence."""
        return {get_origin(each) or each for each in get_args(self.kind)}

    @property
    def described(self) -> str:
        """The help, with the default, unless it says that itself."""
        silent = self.default in (None, MISSING) or self.help == SUPPRESS or "(default" in self.help
        if silent or (self.is_switch and not self.negated):
            return self.help
        shown = f"{self.default:g}" if isinstance(self.default, float) else self.default
        return f"{self.help} (default {shown})"

    def typed(self, value: Any) -> list[str]:
        """Return how a value of it is typed."""
        if self.is_switch:
            no = [f"--no-{self.flag[2:]}"] if self.negated else []
            return [self.flag] if value else no
        return [self.flag, *value] if isinstance(value, tuple) else [f"{self.flag}={value}"]

    def check(self, value: Any) -> Any:
        """Return a value as the field has it: from a text, from Python, or from config.toml.

        Raises ArgumentTypeError for a value that the option cannot have.
        """
        try:
            return self._checked(value)
        except ArgumentTypeError as error:
            if isinstance(value, str):
                raise
            raise ArgumentTypeError(f"{str(error).partition('; got ')[0]}; got {value!r}") from None

    def _checked(self, value: Any) -> Any:
        several = self.kinds & {tuple, Sequence}
        if self.is_switch:
            if not isinstance(value, bool):
                raise ArgumentTypeError(f"must be True or False; got {value!r}")
            return value
        if value is None and NoneType in self.kinds:
            return value
        if isinstance(value, list | tuple) and several:
            words = [str(each) for each in value]
            return self._read(words if tuple in several else ",".join(words))
        if value is None or isinstance(value, bool | list | tuple | dict):
            self._read("")  # a reader of numbers says which
            raise ArgumentTypeError("must be a text")
        read = self._read(str(value))
        return read if isinstance(value, str) or isinstance(read, str) else type(read)(value)

    def _read(self, text: Any) -> Any:
        if self.read is not None:
            return self.read(text)
        if self.words and text not in self.words:
            raise ArgumentTypeError(f"must be one of {', '.join(self.words)}; got {text!r}")
        return not_empty(text) if self.is_path else text


def option(help: str = "", default: Any = MISSING, **more: Any) -> Any:
    """Return a field of a dataclass that is an option; ``more`` is as ``Option`` has it."""
    return field(default=default, metadata={"help": help, **more})


_known: dict[type[Any], dict[str, Option]] = {}


def options_of(kind: type[Any]) -> dict[str, Option]:
    """Return the options that a dataclass has, by name, with what its base classes say of them."""
    if kind in _known:
        return _known[kind]
    declared: dict[str, dict[str, Any]] = {}
    for base in reversed(kind.__mro__):
        for name in get_annotations(base):
            if inherited := getattr(base, "__dataclass_fields__", {}).get(name):
                more = declared.get(name) or {"group": getattr(base, "GROUP", "")}
                declared[name] = {**more, **inherited.metadata}
    options = {}
    for each in fields(kind):
        told = declared[each.name]
        if "help" not in told:
            continue
        if of := told.get("of"):
            target, name = of if isinstance(of, tuple) else (of, each.name)
            told = {**target.__dataclass_fields__[name].metadata, **told, "of": (target, name)}
        kinds = [each.type, *get_args(each.type)]
        literal = [word for k in kinds if get_origin(k) is Literal for word in get_args(k)]
        words = told.pop("words", literal or getattr(told.get("read"), "words", []))
        options[each.name] = Option(each.name, each.type, each.default, words=words, **told)
    _known[kind] = options
    return options


def compared(bundle: Any) -> dict[str, Any]:
    """Return the fields, with values, that a resumed run must share with the saved one.

    These are all fields of the bundle, options or not, but for options with compared=False.
    """
    return {
        each.name: getattr(bundle, each.name)
        for each in fields(bundle)
        if each.metadata.get("compared", True)
    }


def absent(kind: type[Any]) -> dict[str, Any]:
    """Return what an older run had for fields that did not exist then: their defaults.

    Options that the source may determine are left out: their old values are unknown.
    """
    sources = {name for name, each in options_of(kind).items() if each.source != "same"}
    return {
        each.name: each.default
        for each in fields(kind)
        if each.default is not MISSING and each.name not in sources
    }


def check_fields(bundle: Any, who: str = "") -> None:
    """Raise ConfigError for a field that is not in its range; ``who`` is named first."""
    for name in options_of(type(bundle)):
        check_field(type(bundle), name, getattr(bundle, name), who)


def check_field(kind: type[Any], name: str, value: Any, who: str = "") -> Any:
    """Return a value as a field has it; raise ConfigError for any other, and for a typed number."""
    allowed = options_of(kind)[name]
    try:
        read = allowed.check(value)
        return read if isinstance(read, str) or not isinstance(value, str) else allowed.check([])
    except ArgumentTypeError as error:
        none = ", or None" if NoneType in allowed.kinds else ""
        text = str(error).partition("; got ")[0]
        raise ConfigError(f"{who}{name} {text}{none}; got {value!r}") from None


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a run, maybe an older one, under the names that they have today.

    An old name stays where the new one is there, too.
    """
    return {
        name if (now := RENAMED.get(name, name)) in values else now: value
        for name, value in values.items()
    }


# -- What is read from a text ----------------------------------------------------------------------


def not_empty(text: str) -> str:
    """Return a path as typed. Raises ArgumentTypeError if it is empty."""
    if not text:  # Path("") is the current folder; a shell's unset variable is ""
        raise ArgumentTypeError("must be a path, not empty; got ''")
    return text


def typed_path(text: str) -> Path:
    """Return the path of a file or folder as typed. Raises ArgumentTypeError if it is empty."""
    return Path(not_empty(text))


def whole(least: float, most: float = LARGEST) -> Callable[[str], int]:
    """Return a parser of whole numbers from least to most."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            bounds = f" from {least} to {most}" if most < math.inf else ""
            raise ArgumentTypeError(f"must be a whole number{bounds}; got {text!r}")
        return number

    return parse


def real(
    least: float, most: float = math.inf, *, above: bool = False, below: bool = False
) -> Callable[[str], float]:
    """Return a parser of numbers, finite as float32.

    They are from least (or only ``above`` it) to most (or only ``below`` that).
    """
    bounds = f"above {least:g}" if above else f"of at least {least:g}"
    if most < math.inf:
        bounds += f" and {'below' if below else 'at most'} {most:g}"

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        with np.errstate(over="ignore"):
            single = float(np.float32(number))  # what kernels will see
        holds = math.isfinite(single) and least <= number <= most
        if not holds or (above and single <= least) or (below and single >= most):
            raise ArgumentTypeError(f"must be a number {bounds}; got {text!r}")
        return number

    return parse


#: 8G, 500 M, 7.5GiB: powers of 1000, with an i of 1024.
_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?) ?(?:([KMGT])(i?))?B?", re.IGNORECASE | re.ASCII)


def nbytes_or(word: str) -> Callable[[str], int | str]:
    """Return a parser of sizes in bytes, or of a word."""

    def parse(text: str) -> int | str:
        if text == word:
            return word
        match = _SIZE.fullmatch(text)
        number, unit, binary = match.groups() if match else ("0", "", "")
        power = " KMGT".index((unit or " ").upper())
        nbytes: int = round(float(number) * (1024 if binary else 1000) ** power)
        if not nbytes:
            raise ArgumentTypeError(f"must be a size such as 8G or 500M, or {word}; got {text!r}")
        return nbytes

    return parse


def names_of(known: Sequence[str], none: str | None = None) -> Callable[[str], str]:
    """Return a parser of names between commas, of those known, its ``words``; or ``none`` alone."""

    def parse(text: str) -> str:
        names = text.split(",")
        if text != none and (set(names) - set(known) or len(set(names)) < len(names)):
            may = f", or {none}" if none else ""
            raise ArgumentTypeError(f"must be of {', '.join(known)}{may}, once each; got {text!r}")
        return text

    parse.words = (*known, *([none] if none else []))  # type: ignore[attr-defined]
    return parse


def checked(name: str, value: Any, known: Sequence[str]) -> str:
    """Return the value of an option as given. Raises ConfigError if it is none of those known."""
    if value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}; got {value!r}")
    return str(value)


# -- The options of recipes ------------------------------------------------------------------------

#: Names of weight types; ggml's number for each.
WeightType = Literal["f32", "f16", "bf16"]
NUMBERS = {"0": "f32", "1": "f16", "30": "bf16"}
#: Which weights decay.
Decay = Literal["all", "matrices"]
Optimizer = Literal["adamw", "muon"]
#: How activations are kept for the backward pass.
Activations = Literal["float32", "bfloat16"]
ACTIVATIONS = get_args(Activations)
#: Which frozen weights are prepacked: "auto" those where that saves time and fits into memory.
Prepack = Literal["auto", "always", "never"]
PREPACK = get_args(Prepack)
#: The precision of products; int8 is for frozen quantized weights.
Precision = Literal["highest", "high", "medium", "int8", "auto"]


def _weight_type(text: str) -> str:
    name = NUMBERS.get(text, text)
    if name not in NUMBERS.values():
        raise ArgumentTypeError(f"must be f32, f16, bf16 or ggml's 0, 1, 30; got {text!r}")
    return name


@dataclass
class RecipeOptions:
    """Options of a recipe; each value is checked whenever it is set.

    Attributes
    ----------
    t_seq
        Tokens per sequence; 0 means the context length of the model.
    t_batch
        Sequences per step.
    weight_dtype
        The type that weights are rounded to in products: "f32", "f16" or "bf16", or ggml's number
        (0, 1, 30), which is stored as the name. "bf16" also makes the products "medium" (see
        ``toynn.set_float32_matmul_precision``).
    untied
        Whether the head is a separate matrix, and not the table of embeddings.
    qkv_bias
        Whether the projections to q, k and v have biases.
    seed
        Any integer.
    init_scale
        Factor for the standard deviation of new block matrices; for LoRA, the standard deviation of
        A.
    checkpointing
        Whether the backward pass recomputes the activations of each block instead of keeping them:
        less memory, the same results, about one forward pass more work.
    keep_attention
        Whether checkpointing keeps the outputs of attention: for each token as many numbers as all
        heads have channels. Over long rows attention takes most of a forward pass, which is not
        repeated then.
    recompute_cheap
        Whether the backward pass recomputes the outputs of norms and activations that products
        read, instead of keeping them: less memory, the same results, about one percent more work.
        Without it, that is done only for products with more than 512 outputs.
    activations
        How the activations of blocks are kept for the backward pass: "float32", or "bfloat16" in
        half the bytes. The forward pass and the loss have the same bits; gradients are those of
        activations that are rounded to 8 significant bits: docs/memory.md has the bounds.
    packed
        Whether a batch is examples one after another, in segments, of up to t_batch * t_seq tokens
        in all. Only tokens that exist are computed. See ``SequenceEngine.step``.
    label_losses
        Whether an evaluation keeps the loss of each label: see ``SequenceEngine.label_losses``.
    decay
        Which weights decay: "all", or "matrices", which include tables of embeddings but not gains,
        biases and other vectors.
    optimizer
        "adamw", or "muon": hidden matrices, those of blocks, are updated by Muon, and tables of
        embeddings, the head and vectors by AdamW, at the same learning rate.
    momentum
        Muon's; AdamW's rows have beta1.
    teacher_top_k
        How many tokens a teacher names of each row; 0: there is no teacher.
    teacher_beta, teacher_temperature
        The divergence from it: 0 is forward KL, 1 reverse KL, numbers between are the generalized
        Jensen-Shannon divergence; both models' logits are divided by the temperature.
    prepack
        Whether frozen base weights are prepacked into GEMM panels, so that a step neither
        dequantizes nor packs them: "always", "never", or "auto", which prepacks if steps have few
        enough rows to gain some percent and the copies fit into memory. A weight's copies take 8
        bytes; 4 in bfloat16, 2 in int8, 12 in three parts of bfloat16. Results are the same.
    precision
        The precision of the engine's matrix products: see ``toynn.set_float32_matmul_precision``,
        whose choice also holds if this is None. "auto" is the fastest one here that loses nothing.
        "int8" is for a base of quantized weights: products by them round both sides to 8 bits.
    n_threads
        The largest number of threads; None: as ``toynn.set_num_threads`` says.

    Raises
    ------
    ConfigError
        On a value out of range or of the wrong type, and on a name that is no option.
    """

    t_seq: int = option(default=0, read=whole(0))
    t_batch: int = option(default=1, read=whole(1))
    weight_dtype: str | int = option(default="f32", read=_weight_type)
    untied: bool = option(default=False)
    qkv_bias: bool = option(default=False)
    seed: int = option(default=0, read=whole(-math.inf, math.inf))
    init_scale: float = option(default=1.0, read=real(0))
    checkpointing: bool = option(default=False, compared=False)
    keep_attention: bool = option(default=False, compared=False)
    recompute_cheap: bool = option(default=False, compared=False)
    activations: Activations = option(default="float32")
    packed: bool = option(default=False)
    label_losses: bool = option(default=False, compared=False)
    decay: Decay = option(default="all")
    optimizer: Optimizer = option(default="adamw")
    momentum: float = option(default=0.95, read=real(0, 1))
    teacher_top_k: int = option(default=0, read=whole(0))
    teacher_beta: float = option(default=0.0, read=real(0, 1))
    teacher_temperature: float = option(default=1.0, read=real(0, above=True))
    prepack: Prepack = option(default="never", compared=False)
    # computed_with() says what is compared
    precision: Precision | None = option(default=None, compared=False)
    n_threads: int | None = option(default=None, read=whole(1), compared=False)

    def of_session(self) -> dict[str, Any]:
        """Return the arguments of ``Session`` that say how the recipe is computed."""
        # Whoever rounds weights to bfloat16 wants products of bfloat16.
        precision = "medium" if self.weight_dtype == "bf16" else self.precision
        names = "checkpointing", "keep_attention", "recompute_cheap", "activations", "prepack"
        values = {name: getattr(self, name) for name in ("seed", "n_threads", *names)}
        return {"matmul_precision": precision, **values}

    def __setattr__(self, name: str, value: Any) -> None:
        """Check and set one option."""
        if name not in (known := options_of(type(self))):
            names = ", ".join(known)
            raise ConfigError(f"RecipeOptions: no option is called {name}; there are {names}")
        object.__setattr__(self, name, check_field(type(self), name, value, "RecipeOptions: "))
