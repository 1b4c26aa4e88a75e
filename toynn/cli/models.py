"""The recipes of ``toynn train`` that make a model of text: gpt2, from-scratch and warm-start."""

from abc import abstractmethod
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from toynn.adamw import AdamW
from toynn.cli._flags import Flag
from toynn.cli._numbers import real, whole
from toynn.cli._paths import model_file, text_model
from toynn.cli._run_flags import DECAY, run_flags, shape_flags
from toynn.cli._text import fact
from toynn.cli._text_training import (
    CACHE,
    DATA,
    EXAMPLES,
    MEASURES,
    QUESTIONS,
    SAMPLES,
    TextTraining,
)
from toynn.data.mixture import Mixture
from toynn.data.text import VOCAB, ByteBigram
from toynn.engines.gpt2 import GPT2Config
from toynn.engines.llama import LlamaConfig, LlamaSeqEngine
from toynn.errors import ConfigError, DataError
from toynn.formats import bases
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.formats.tokenizer.folder import has_tokenizer
from toynn.models import ARCHITECTURES, architecture
from toynn.options import WEIGHT_DTYPES, RecipeOptions
from toynn.recipes import GPT2, FromScratch, WarmStart
from toynn.train.folder import Value
from toynn.train.options import Result
from toynn.train.protocols import Recipe

__all__ = ["FromScratchTraining", "GPT2Training", "WarmStartTraining", "default_d_ff"]


def _text_flags(recipe: str) -> tuple[Flag, ...]:
    """Return what all recipes here take."""
    return (
        replace(
            DATA, help=f"{DATA.help}; without it, the language reference that ships with Python"
        ),
        Flag(
            "tokenizer",
            "a GGUF file or a Hugging Face folder whose tokenizer is used (default: bytes, or that "
            "of --init-from)",
            read=model_file,
            metavar="FILE",
        ),
        *EXAMPLES,
        CACHE,
        Flag(
            "seq",
            "tokens per window, and the context of a new model (default {default})",
            128,
            whole(1),
        ),
        *run_flags(recipe, "windows of text", MEASURES),
        DECAY,
        SAMPLES,
        QUESTIONS,
        *shape_flags(128),
    )


_INIT_FROM = Flag(
    "init_from",
    "start from the weights of a GGUF file, or of a folder in Hugging Face's format",
    read=model_file,
    metavar="PATH",
)
_LLAMA_FLAGS = (
    Flag(
        "arch",
        "architecture of the model (default {default})",
        LlamaConfig.arch,
        choices=LlamaSeqEngine.architectures,
        source="own",
    ),
    Flag(
        "kv_heads",
        "heads of k and v; they must divide the heads (default: as many)",
        read=whole(1),
        source="own",
    ),
    Flag(
        "d_ff",
        "width of the feed-forward layers (default: 8/3 of the model's, in steps of 32)",
        read=whole(1),
        source="own",
    ),
    Flag(
        "weight_dtype",
        "what weights are rounded to before a product (default {default}: they are not)",
        "f32",
        choices=list(WEIGHT_DTYPES.values()),
        to={RecipeOptions: "weight_dtype"},
    ),
    Flag(
        "qkv_bias",
        "give the projections to q, k and v biases",
        False,
        action="store_true",
        to={RecipeOptions: "qkv_bias"},
        source="own",
    ),
    Flag(
        "init_scale",
        "factor of the standard deviation of the blocks' matrices (default {default:g})",
        1.0,
        real(0),
        to={RecipeOptions: "init_scale"},
        source="own",
    ),
)


class ModelTraining(TextTraining):
    """A run that trains all weights of a model of text."""

    make: ClassVar[Callable[[str], Any]]  # the recipe, new, on a backend

    @abstractmethod
    def new_config(self) -> Any:
        """Return the configuration of a new model. Raises ConfigError if it makes no model."""

    def start(self, recipe: Any, options: RecipeOptions) -> None:
        """Realize the recipe of a new model."""
        recipe.realize(self.config, options)

    def resolve(self) -> None:
        """Fill in what was not given; refuse what contradicts itself."""
        arguments = self.arguments
        if arguments.init_from is not None:
            self._check_source(Path(arguments.init_from))
        self.tokenizer = self._tokenizer()
        arguments.vocab = self.tokenizer.vocab_size
        self.fine_tunes = self.starts_from_source()
        if not self.fine_tunes:
            if arguments.d_model % arguments.heads:
                raise ConfigError(
                    f"--heads {arguments.heads} does not divide --d-model {arguments.d_model}"
                )
            self.config = self.new_config()
            return
        declared = self._declared()
        self.config = declared.config
        for flag in self.flags:
            if flag.source == "own" and RecipeOptions in flag.to:
                setattr(arguments, flag.name, getattr(declared.options, flag.to[RecipeOptions]))

    @classmethod
    def reads(cls) -> tuple[str, ...]:
        """Return the architectures of models that the recipe goes on with."""
        return tuple(type(cls.make("cpu").engine).architectures)

    def _check_source(self, path: Path) -> None:
        """Raise ConfigError where --init-from names no model, or one of another recipe."""
        with bases.open(text_model(path, "--init-from"), check=False) as file:
            own, arch = self.reads(), file.architecture
        others = [each for each in (GPT2Training, FromScratchTraining) if arch in each.reads()]
        if arch not in own and others:
            raise ConfigError(
                f"--init-from {path}: `toynn train {self.name}` goes on with {', '.join(own)}; "
                f"this is {arch}: `toynn train {others[0].name} --init-from {path}`"
            )

    def _tokenizer(self) -> Tokenizer:
        """Return the tokenizer that is asked for, or that of the source; else a token is a byte."""
        if self.arguments.tokenizer is not None:
            return Tokenizer.of(self.arguments.tokenizer)
        source = self.arguments.init_from
        if source is None or (Path(source).is_dir() and not has_tokenizer(Path(source))):
            return ByteTokenizer()
        with bases.open(source, check=False) as file:
            return Tokenizer.of(file)

    def _declared(self) -> Any:
        """Return an engine of the shape that --init-from names, without weights."""
        arguments = self.arguments
        recipe = type(self).make(arguments.backend)
        path, dtype = arguments.init_from, self.options().weight_dtype
        declared = recipe.declared_from(path, arguments.seq, dtype)
        if declared.vocab != arguments.vocab:
            raise ConfigError(
                f"--init-from {path}: the model has {declared.vocab} tokens, the tokenizer "
                f"{arguments.vocab}: name a file or folder that has the model's own by --tokenizer"
            )
        return declared

    def read(self) -> None:
        """Read the texts or examples."""
        self.check_measure()
        self.read_text(self.arguments.seq)

    def declared(self) -> tuple[Any, int]:
        """Return an engine of the model, before it takes memory; rows of a batch."""
        options = self.options(t_seq=self.data.seq, packed=self.packed)
        engine = type(self).make(self.arguments.backend).engine
        if self.fine_tunes:
            found = self._declared()
            own = ("t_seq", "t_batch", "checkpointing", "packed", "decay")
            options = replace(found.options, **{name: getattr(options, name) for name in own})
            engine = type(found)(self.arguments.backend)
        engine.declare(self.config, options)
        return engine, engine.t_batch * engine.t_seq

    def realize(self) -> Recipe:
        """Return the recipe, ready to step."""
        arguments, recipe = self.arguments, type(self).make(self.arguments.backend)
        options = self.options(t_seq=self.data.seq, packed=self.packed)
        if self.fine_tunes:
            recipe.realize_from(
                arguments.init_from,
                options.t_seq,
                options.t_batch,
                options.weight_dtype,
                checkpointing=options.checkpointing,
                packed=options.packed,
                decay=options.decay,
            )
        else:
            self.start(recipe, options)
        carried = arguments.tokenizer or arguments.init_from
        if carried is not None and (carried == arguments.tokenizer or Path(carried).is_dir()):
            self._carry(recipe, carried)
        return recipe  # type: ignore[no-any-return]

    def _carry(self, recipe: Any, path: str) -> None:
        """Let model.gguf have the tokenizer; of a folder it may be one that such files cannot."""
        try:
            if not Path(path).is_dir() or has_tokenizer(Path(path)):
                recipe.engine.carry_tokenizer(path)
        except DataError as error:
            print(fact("tokenizer", f"model.gguf will have none: {error}"))

    def announce(self) -> None:
        """Print the model, and how well bytes are told from the one before alone."""
        super().announce()
        train = None if isinstance(self.data, Mixture) else self.data.train
        if isinstance(train, np.ndarray) and self.tokenizer.vocab_size == VOCAB:
            loss = self.baselines["byte bigram"] = ByteBigram(train).loss(self.valid())
            print(f"baseline    a byte bigram model: validation loss {loss:.4f}")

    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return what config.toml says of the data and the model."""
        return {**super().tables(), "model": asdict(self.config)}

    def said_of(self, result: Result) -> str:
        """Return the baselines."""
        return ", ".join(f"{name} {loss:.4f}" for name, loss in self.baselines.items())


class GPT2Training(ModelTraining):
    """``toynn train gpt2``."""

    name = "gpt2"
    help = "a small GPT-2 from scratch, on text"
    flags = (*_text_flags(name), _INIT_FROM)
    make = GPT2

    def new_config(self) -> GPT2Config:
        """Return the shape that the flags say."""
        arguments = self.arguments
        return GPT2Config(
            vocab=arguments.vocab,
            d_model=arguments.d_model,
            n_heads=arguments.heads,
            d_ff=4 * arguments.d_model,
            n_layers=arguments.layers,
            context=arguments.seq,
        )


def default_d_ff(width: int) -> int:
    """Return 8/3 of a model's width, in steps of 32."""
    return -(-width * 8 // 96) * 32


class FromScratchTraining(ModelTraining):
    """``toynn train from-scratch``."""

    name = "from-scratch"
    help = "a small Llama-like model from scratch, on text"
    flags = (
        *_text_flags(name),
        _INIT_FROM,
        *_LLAMA_FLAGS,
        Flag(
            "untied",
            "give the model an output matrix of its own",
            False,
            action="store_true",
            to={RecipeOptions: "untied"},
            source="own",
        ),
    )
    make: ClassVar[Callable[[str], Any]] = FromScratch

    def _optimizer(self) -> AdamW:
        return AdamW.for_from_scratch()

    def new_config(self) -> LlamaConfig:
        """Return the shape that the flags say."""
        arguments = self.arguments
        width, heads = arguments.d_model, arguments.heads
        if width // heads % 2:
            raise ConfigError(
                f"--heads {heads}: heads of {width // heads} are odd; RoPE turns pairs"
            )
        if arguments.kv_heads is not None and heads % arguments.kv_heads:
            raise ConfigError(f"--kv-heads {arguments.kv_heads} does not divide --heads {heads}")
        cfg: LlamaConfig = architecture(arguments.arch).config_type(
            vocab=arguments.vocab,
            d_model=width,
            n_heads=heads,
            n_kv_heads=arguments.kv_heads or heads,
            d_ff=arguments.d_ff or default_d_ff(width),
            n_layers=arguments.layers,
            context=arguments.seq,
            arch=arguments.arch,
        )
        return cfg


def _no_start(path: str) -> NoReturn:
    """Refuse --init-from where the model starts from a donor."""
    raise ArgumentTypeError(
        "a warm start takes a donor's embeddings alone, and draws the rest (--donor). "
        f"`toynn train from-scratch --init-from {path}` goes on with all weights of a model, that "
        "of a warm start too"
    )


class WarmStartTraining(FromScratchTraining):
    """``toynn train warm-start``."""

    name = "warm-start"
    help = "a small Llama-like model that starts from a donor's embeddings, on text"
    flags = (
        *_text_flags(name),
        Flag(
            "donor",
            f"a GGUF file ({', '.join(ARCHITECTURES)}) whose embeddings the model sees",
            read=model_file,
            metavar="FILE",
            required=True,
        ),
        Flag(
            "init",
            "donor: its table behind a random lens (the default); pca: behind the lens that keeps "
            "most of the table; scratch: a random table as wide as the donor's, to compare with",
            "donor",
            choices=("scratch", "donor", "pca"),
        ),
        Flag("init_from", SUPPRESS, read=_no_start),
        *_LLAMA_FLAGS,
    )
    make = WarmStart

    def options(self, **more: Any) -> RecipeOptions:
        """Return what the flags say of the recipe; the head is a matrix of its own."""
        return super().options(**more | {"untied": True})

    def resolve(self) -> None:
        """Fill in what was not given; the head is a matrix of its own."""
        self.arguments.untied = True
        super().resolve()

    def new_config(self) -> LlamaConfig:
        """Return the shape that the flags say, behind a table as wide as the donor's."""
        width = WarmStart.donor_embed_width(self.arguments.donor)
        return replace(super().new_config(), donor_d_in=width)

    def start(self, recipe: WarmStart, options: RecipeOptions) -> None:
        """Realize the recipe: the donor's table, and its lens."""
        arguments, config = self.arguments, self.config
        recipe.realize_scratch(config, options)
        if arguments.init != "scratch":
            own, donor = arguments.tokenizer, arguments.donor
            tokens = Tokenizer.of(own).tokens if own else WarmStart.byte_tokens(donor)
            recipe.realize_warm(donor, config, tokens)
        if arguments.init == "pca":
            recipe.upload_lens(WarmStart.pca_lens(arguments.donor, config.d_model))
        recipe.build()
