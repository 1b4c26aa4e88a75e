"""Jobs that train all weights of a text model: gpt2, from-scratch and warm-start."""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from toynn.data.mixture import Mixture
from toynn.data.text import VOCAB, ByteBigram
from toynn.engines import GPT2Config, LlamaConfig, SequenceEngine
from toynn.engines.engine import Engine
from toynn.errors import ConfigError, DataError
from toynn.formats import bases
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.formats.tokenizer.folder import has_tokenizer
from toynn.jobs.llama_options import FromScratchOptions, LlamaOptions, WarmStartOptions
from toynn.jobs.model_options import ModelOptions
from toynn.jobs.options import JobOptions
from toynn.jobs.paths import text_model
from toynn.jobs.text import TextJob
from toynn.models import architecture
from toynn.options import RecipeOptions
from toynn.recipes import GPT2, FromScratch, WarmStart
from toynn.system.platform import in_shell
from toynn.train.folder import RunFolder, Value
from toynn.train.state import Result

#: Tokens to learn from for a weight of the blocks.
PER_WEIGHT = 8
#: Peak rates at a width of 128; they fall by the root of the width.
RATES = {"adamw": 3e-3, "muon": 1.2e-2}


def dialed(typed: Mapping[str, Any], kind: type[ModelOptions]) -> dict[str, Any]:
    """Return the options with those that follow from ``depth``, unless they are given.

    docs/clock.md has the measurements behind the rules.
    """
    usual = {name: getattr(kind, name) for name in ("batch", "seq", "grad_accum", "optimizer")}
    depth = typed["depth"]
    values = usual | {"layers": depth, "heads": depth, "d_model": 32 * depth} | dict(typed)
    rate = RATES[values["optimizer"]] * (128 / values["d_model"]) ** 0.5
    values.setdefault("lr", float(f"{rate:.2g}"))
    if "epochs" not in values:
        weights = 12 * values["layers"] * values["d_model"] ** 2
        tokens = values["batch"] * values["seq"] * values["grad_accum"]
        values.setdefault("steps", max(1, round(PER_WEIGHT * weights / tokens)))
    return values


class ModelJob(TextJob):
    """A run that trains all weights of a model of text."""

    kind: ClassVar[type[ModelOptions]] = ModelOptions
    options: ModelOptions
    make: ClassVar[type[SequenceEngine[Any]]]  # makes the recipe on a backend
    _apart: str | None = None  # the tokenizer, if model.gguf cannot hold it

    def _completed(self, typed: Mapping[str, Any]) -> JobOptions:
        """Fill in what --depth sets."""
        new = "depth" in typed and self.source[0] not in typed
        return super()._completed(dialed(typed, self.kind) if new else typed)

    @abstractmethod
    def new_config(self) -> Any:
        """Return the configuration of a new model. Raises ConfigError if there is none."""

    def start(self, recipe: Any, options: RecipeOptions) -> None:
        """Realize the recipe of a new model."""
        recipe.realize(self.config, options)

    def resolve(self) -> None:
        """Fill in missing options; raise ConfigError for contradictory ones."""
        if self.options.init_from is not None:
            self._check_source(Path(self.options.init_from))
        self.tokenizer = self._tokenizer()
        if self.starts_from_source:
            self.config = self._declared(self.recipe_options(t_seq=self.options.seq)).config
            return
        if self.options.depth is not None:
            length = "steps" if self.options.epochs is None else "epochs"
            names = ("d_model", "layers", "heads", "batch", "lr", length)
            flags = (f"{self.known[n].flag} {getattr(self.options, n)}" for n in names)
            self.say("depth", " ".join(flags))
        width, heads = self.options.d_model, self.options.heads
        if width % heads:
            raise ConfigError(f"--heads {heads} does not divide --d-model {width}")
        self.config = self.new_config()

    @classmethod
    def reads(cls) -> Collection[str]:
        """Return the architectures that the recipe can continue training."""
        return cls.make.architectures

    def _check_source(self, path: Path) -> None:
        """Raise ConfigError if --init-from names no model, or a model of another recipe."""
        with bases.open(text_model(path, "--init-from"), check=False) as file:
            arch = file.architecture
        others = _continuing(arch)
        if arch not in self.reads() and others:
            raise ConfigError(
                f"--init-from {path}: `toynn train {self.name}` does not train {arch}: use "
                f"`toynn train {others[0]} --init-from {path}`"
            )

    def _tokenizer(self) -> Tokenizer:
        """Return the requested tokenizer, else the source's, else a tokenizer of bytes."""
        named, source = self.options.tokenizer, self.options.init_from
        if named is not None and source is None:
            return Tokenizer.of(named)
        has_none = source is None or (Path(source).is_dir() and not has_tokenizer(Path(source)))
        if source is None or (named is None and has_none):
            return ByteTokenizer()
        with bases.open(source, check=False) as file:
            return Tokenizer.for_model(file, named)

    def _declared(self, options: RecipeOptions) -> Any:
        """Return an engine of the shape that --init-from names, without weights."""
        path, tokens = self.options.init_from, self.tokenizer.vocab_size
        assert path is not None
        declared = type(self).make(self.options.backend)
        with bases.open(path, check=True) as file:
            declared.declare_from(file, options)
        if declared.vocab != tokens and self.options.tokenizer is None:  # a named one was checked
            raise ConfigError(
                f"--init-from {path}: the model has {declared.vocab} tokens, the tokenizer "
                f"{tokens}: name the model's own tokenizer (a file or folder) by --tokenizer"
            )
        return declared

    def read(self) -> None:
        """Read the texts or examples."""
        self.check_metric()
        self.read_text(self.options.seq)

    def declared_with(self, options: RecipeOptions) -> Any:
        """Return an engine of the model, before it takes memory.

        Raises ConfigError if model and tokenizer differ in their number of tokens.
        """
        if self.starts_from_source:
            return self._declared(options)
        engine = type(self).make(self.options.backend)
        engine.declare(self.config, options)
        return engine

    def realize_with(self, options: RecipeOptions) -> Engine[Any]:
        """Return the recipe with these options, ready to step."""
        recipe, init_from = type(self).make(self.options.backend), self.options.init_from
        if init_from is not None:
            assert isinstance(recipe, FromScratch)
            recipe.realize_from(init_from, options=options)
        else:
            self.start(recipe, options)
        carried = self.options.tokenizer or init_from
        if carried is not None and (carried == self.options.tokenizer or Path(carried).is_dir()):
            self._carry(recipe, str(carried))
        return recipe

    def _carry(self, recipe: Any, path: str) -> None:
        """Put the tokenizer into model.gguf; GGUF cannot hold every tokenizer of a folder."""
        try:
            if not Path(path).is_dir() or has_tokenizer(Path(path)):
                recipe.carry_tokenizer(path)
        except DataError as error:
            self._apart = path
            self.say("tokenizer", f"model.gguf will have none: {error}")

    def announce(self) -> None:
        """Print the model; for texts of bytes, also the loss of a bigram model as a baseline."""
        super().announce()
        train = None if isinstance(self.data, Mixture) else self.data.train
        valid = self.valid()
        if isinstance(train, np.ndarray) and self.tokenizer.vocab_size == VOCAB and valid:
            loss = self.baselines["byte bigram"] = ByteBigram(train).loss(valid)
            print(f"baseline    a byte bigram model: validation loss {loss:.4f}")

    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return config.toml's tables of the data and the model."""
        return {**super().tables(), "model": asdict(self.config)}

    def epilogue(self, folder: RunFolder, result: Result) -> Iterator[str]:
        """Yield the loss of the test examples, and a command to try the model."""
        yield from super().epilogue(folder, result)
        run = in_shell(folder.path)
        more = "" if self._apart is None else f" --tokenizer {in_shell(self._apart)}"
        chat = " --chat" if self.data.chats else ""
        yield f"try it      toynn generate --model {run}{more}{chat} --prompt ..."

    def said_of(self, result: Result) -> str:
        """Return the baselines."""
        return ", ".join(f"{name} {loss:.4f}" for name, loss in self.baselines.items())


class GPT2Job(ModelJob):
    """``toynn train gpt2``."""

    name = "gpt2"
    make = GPT2

    def new_config(self) -> GPT2Config:
        """Return the shape from the options."""
        options = self.options
        return GPT2Config(
            vocab=self.tokenizer.vocab_size,
            d_model=options.d_model,
            n_heads=options.heads,
            d_ff=4 * options.d_model,
            n_layers=options.layers,
            context=options.seq,
        )


def default_d_ff(width: int) -> int:
    """Return 8/3 of a model's width, in steps of 32."""
    return -(-width * 8 // 96) * 32


class FromScratchJob(ModelJob):
    """``toynn train from-scratch``."""

    name = "from-scratch"
    kind: ClassVar[type[ModelOptions]] = FromScratchOptions
    options: LlamaOptions
    make: ClassVar[type[SequenceEngine[Any]]] = FromScratch

    def new_config(self) -> LlamaConfig:
        """Return the shape from the options; raise ConfigError for heads that do not fit."""
        options = self.options
        width, heads = options.d_model, options.heads
        if width // heads % 2:
            raise ConfigError(
                f"--heads {heads}: RoPE rotates pairs, so a head's width must be even; got "
                f"{width // heads}"
            )
        if options.kv_heads is not None and heads % options.kv_heads:
            raise ConfigError(f"--kv-heads {options.kv_heads} does not divide --heads {heads}")
        cfg: LlamaConfig = architecture(options.arch).new_config(
            vocab=self.tokenizer.vocab_size,
            d_model=width,
            n_heads=heads,
            n_kv_heads=options.kv_heads or heads,
            d_ff=options.d_ff or default_d_ff(width),
            n_layers=options.layers,
            context=options.seq,
            arch=options.arch,
        )
        return cfg


class WarmStartJob(FromScratchJob):
    """``toynn train warm-start``."""

    name = "warm-start"
    kind = WarmStartOptions
    options: WarmStartOptions
    make = WarmStart

    def resolve(self) -> None:
        """Fill in missing options; raise ConfigError for contradictory ones, and for a folder."""
        if Path(self.options.donor).is_dir():
            raise ConfigError(
                f"--donor {self.options.donor}: expected a GGUF file; got a folder: `toynn "
                "convert` writes the GGUF file of a Hugging Face folder"
            )
        super().resolve()

    def recipe_options(self, **more: Any) -> RecipeOptions:
        """Return the options to realize the recipe with; the head is untied."""
        return super().recipe_options(**more | {"untied": True})

    def new_config(self) -> LlamaConfig:
        """Return the shape from the options, with a table as wide as the donor's."""
        width = WarmStart.donor_embed_width(self.options.donor)
        return replace(super().new_config(), donor_d_in=width)

    def start(self, recipe: WarmStart, options: RecipeOptions) -> None:
        """Realize the recipe: the donor's table and its input projection."""
        config, job_options = self.config, self.options
        recipe.realize_scratch(config, options)
        if job_options.init != "scratch":
            donor, named = job_options.donor, self.options.tokenizer
            tokens = Tokenizer.of(named).tokens if named else WarmStart.byte_tokens(donor)
            recipe.realize_warm(donor, config, tokens)
        if job_options.init == "pca":
            recipe.upload_lens(WarmStart.pca_lens(job_options.donor, config.d_model))
        recipe.build()


def _continuing(arch: str) -> list[str]:
    """Return the recipes that continue training all weights of a model of an architecture."""
    return [job.name for job in (GPT2Job, FromScratchJob) if arch in job.reads()]


def for_tied(arch: str, model: str) -> str:
    """Return advice for a token that a model with a tied head does not know.

    An adapter of a tied head is no advice: llama.cpp cannot load it.
    """
    other = "end with a token that the base knows"
    recipes = _continuing(arch)
    if not recipes:
        return other
    return f"train all weights: toynn train {recipes[0]} --init-from {in_shell(model)}; or {other}"
