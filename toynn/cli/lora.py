"""``toynn train lora``: from a model's file or folder and data to an adapter of it in a run."""

import shlex
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toynn import engines
from toynn.cli import _text_training
from toynn.cli._adapters import STRICT
from toynn.cli._before_after import before_and_after
from toynn.cli._flags import Flag, Once
from toynn.cli._measures import beside
from toynn.cli._numbers import real, whole
from toynn.cli._paths import model_file, text_model
from toynn.cli._run_flags import run_flags
from toynn.cli._text import fact, harmless
from toynn.cli._text_training import (
    CACHE,
    DATA,
    EXAMPLES,
    MEASURES,
    QUESTIONS,
    SAMPLES,
    TextTraining,
    columns_of,
)
from toynn.cli._training import late
from toynn.data.examples import Examples
from toynn.data.jsonl import Dataset
from toynn.data.preference import PreferenceData, read_preferences
from toynn.data.stream import Progress
from toynn.engines import AdapterOptions, PreferenceOptions, engine_for
from toynn.engines.preference import KINDS
from toynn.engines.targets import INITS
from toynn.errors import ConfigError
from toynn.formats import adapters, bases
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.models import ARCHITECTURES
from toynn.options import PACKS, RecipeOptions
from toynn.recipes import LoRA, Preference
from toynn.train.folder import RunFolder
from toynn.train.options import Result
from toynn.train.protocols import Recipe

__all__ = ["LoRATraining"]

NORMAL_STD = 0.02  # of A with --init normal, as of other weights


def _init(text: str) -> str:
    """Parse --init."""
    try:
        return AdapterOptions(1, init=text).init
    except ConfigError:
        raise ArgumentTypeError(f"must be one of {', '.join(INITS)}; got {text!r}") from None


_ADAPTER_FLAGS = (
    Flag("rank", "rank of the adapters (default {default})", 8, whole(1), source="own"),
    Flag(
        "alpha",
        "they are scaled by alpha / rank (default {default:g})",
        16.0,
        real(0, above=True),
        source="own",
    ),
    Flag(
        "targets",
        "which matrices get one, separated by commas: q, k, v, o, gate, up, down, embed, head, "
        "attention, all-linear, or names as in GGUF or PEFT (default {default})",
        "attention",
        metavar="NAMES",
        words=("attention", "all-linear", "experts", "q", "k", "v", "o", "gate", "up", "down"),
        source="own",
    ),
    Flag("rslora", "scale by alpha / sqrt(rank) instead", False, action="store_true", source="own"),
    Flag(
        "dora",
        "train magnitudes of the outputs too; PEFT loads such adapters, llama.cpp does not",
        False,
        action="store_true",
        source="own",
    ),
    Flag(
        "init",
        "what A starts from: peft, a uniform distribution as PEFT's (the default), or normal; or A "
        "and B from the principal part of each matrix: pissa, or quicker, by N passes, "
        "pissa_niter_N; the adapter is written with twice the rank",
        "peft",
        read=_init,
        metavar="START",
        words=("peft", "normal", "pissa"),
        source="own",
    ),
    Flag(
        "dropout",
        "zero so much of what an adapter sees while it is trained (default {default:g})",
        0.0,
        real(0, 0.99),
    ),
    Flag(
        "b_rate",
        "learning rate of B in terms of A's; LoRA+ has 16 (default {default:g})",
        1.0,
        real(0, above=True),
    ),
    Flag(
        "adapter",
        "go on with an adapter: a .gguf file, or a folder in PEFT's format",
        metavar="PATH",
        action=Once,
    ),
    Flag("strict", f"with --adapter: {STRICT}", False, action="store_true"),
)
_PACK_BASE = Flag(
    "pack_base",
    "keep the model's matrices packed in memory, in the order in which products read them, so that "
    "they are decoded and packed once and not in every step: always, never, or auto, where steps "
    "have so few tokens that it gains some percent, if that fits beside everything else; 8 bytes a "
    "weight, 4 where products are of bfloat16 (default {default})",
    "auto",
    choices=PACKS,
    to={RecipeOptions: "pack_base"},
)
_SFT = "sft"
_OPTIONS = ("beta", "label_smoothing", "desirable_weight", "undesirable_weight")
_PREFERENCE_FLAGS = (
    Flag(
        "loss",
        "sft learns what is in the data; dpo, orpo: the chosen rather than the rejected of lines "
        "with prompt, chosen, rejected; kto: of lines with prompt, completion, label, what is "
        "labelled true (default {default})",
        _SFT,
        choices=(_SFT, *KINDS),
    ),
    Flag("beta", "how much preferences count (default {default:g})", 0.1, real(0, above=True)),
    Flag(
        "label_smoothing",
        "of dpo: the share of pairs that are the wrong way round (default {default:g})",
        0.0,
        real(0, 0.49),
    ),
    Flag(
        "desirable_weight",
        "of kto: the weight of completions labelled true (default {default:g})",
        1.0,
        real(0, above=True),
    ),
    Flag(
        "undesirable_weight",
        "of kto: the weight of the others (default {default:g})",
        1.0,
        real(0, above=True),
    ),
)


class LoRATraining(TextTraining):
    """``toynn train lora``."""

    name = "lora"
    help = "an adapter of a model in a GGUF file or Hugging Face folder, which is only read"
    flags = (
        Flag(
            "model",
            f"a .gguf file, or a folder in Hugging Face's format: {', '.join(ARCHITECTURES)}",
            read=model_file,
            metavar="PATH",
            required=True,
        ),
        replace(DATA, required=True),
        *EXAMPLES,
        CACHE,
        Flag(
            "seq",
            "tokens of a row, and the most of an example; or those of a window of text "
            "(default {default})",
            512,
            whole(1),
        ),
        *_ADAPTER_FLAGS,
        *_PREFERENCE_FLAGS,
        *run_flags(
            name,
            "rows of --seq tokens",
            (*MEASURES, "kl", "margins"),
            steps=200,
            batch=1,
            lr=2e-4,
            weight_decay=0.0,
            log_every=10,
            eval_every=50,
            save_every=50,
            precision="auto",
        ),
        _PACK_BASE,
        SAMPLES,
        QUESTIONS,
    )
    source = ("adapter", "adapter")
    preference: PreferenceOptions | None

    def resolve(self) -> None:
        """Fill in what was not given; refuse what contradicts itself."""
        self.starts_from_source()
        arguments, self.preference = self.arguments, None
        text_model(Path(arguments.model))
        given = {name: getattr(arguments, name) for name in _OPTIONS}
        if arguments.loss != _SFT:
            self.preference = PreferenceOptions(arguments.loss, **given)
            self.unit = self.items = "pairs" if self.preference.paired else "completions"
        elif changed := [name for name in _OPTIONS if given[name] != self.default(name)]:
            typed = f"--{changed[0].replace('_', '-')}"
            raise ConfigError(f"{typed}: it is of --loss {', '.join(KINDS)}; the loss is {_SFT}")

    def read(self) -> None:
        """Open the model; read the data with its tokenizer."""
        file = self.file = bases.open(self.arguments.model)
        self.files.callback(file.close)
        engine_for(file)  # before anything takes time
        self.tokenizer = Tokenizer.of(file)
        self.check_measure()
        context = file.require(f"{file.architecture}.context_length", int)
        seq = min(self.arguments.seq, context)
        if seq < self.arguments.seq:
            said = f"--seq {self.arguments.seq}: the model sees {context} tokens at most"
            print(fact("data", f"{said}: rows have {seq}"))
        self._declared(RecipeOptions(t_seq=1))  # what adapters it cannot have
        self.read_text(seq)

    def read_source(
        self, path: str | None, seq: int, store: Any, progress: Progress
    ) -> Dataset | PreferenceData:
        """Read texts or examples; or pairs, or labelled completions."""
        if self.preference is None or path is None:
            return super().read_source(path, seq, store, progress)
        arguments = self.arguments
        return read_preferences(
            path,
            self.tokenizer,
            seq,
            vocab_size=self.tokenizer.vocab_size,
            loss=arguments.loss,
            seed=arguments.seed,
            keep_end=arguments.truncation_mode == "keep_end",
            columns=columns_of(arguments.columns),
            store=store,
            progress=progress,
        )

    def declared(self) -> tuple[Any, int]:
        """Return an engine of the model with adapters, before it takes memory; rows of a batch."""
        engine = self._declared(self._recipe_options())
        return engine, engine.t_batch * engine.t_seq

    def _declared(self, options: RecipeOptions) -> Any:
        """Return an engine of the model with adapters, which is declared and no more."""
        arguments = self.arguments
        engine = engine_for(self.file)(arguments.backend)
        if arguments.adapter is None:
            engine.enable_lora(self._adapter_options())
        else:
            found = adapters.load(arguments.adapter, self.file, strict=arguments.strict)
            engine.enable_lora(AdapterOptions.of(found, arguments.dropout, arguments.b_rate))
        if self.preference is not None:
            engine.enable_preference(self.preference)
        engine.declare_for_mmap(self.file, None, options)
        return engine

    def _recipe_options(self, **more: Any) -> RecipeOptions:
        """Return the options; a row of pairs has room for two sequences."""
        own = {"t_batch": 2 * self.arguments.batch} if self.unit == "pairs" else {}
        return self.options(t_seq=self.data.seq, packed=self.packed, **more, **own)

    def measure(self, batch: Any) -> Mapping[str, float]:
        """Return the loss of a batch; of preferences, rewards too."""
        found = dict(super().measure(batch))
        if self.preference is not None and "loss" in found:
            figures = self.recipe.figures
            found |= {name: total / count for name, (total, count) in figures.items() if count}
            if "rewards/accuracies" in found and not self.asked:
                found["accuracy"] = found["rewards/accuracies"]
        return found

    def check_measure(self) -> None:
        """Read --questions, if there are any. Raises ConfigError for a measure it lacks."""
        names, paired = self.arguments.measure.split(","), self.preference is not None
        if "kl" in names and paired:
            raise ConfigError("--measure kl: it is of texts and examples, not of preferences")
        if "margins" in names and not paired:
            raise ConfigError(f"--measure margins: they are of --loss {', '.join(KINDS)}")
        if paired:  # which has an accuracy of its own
            self.of_questions = self.of_questions - {"accuracy"}
        super().check_measure()

    def extras(self) -> Sequence[Any]:
        """Return the questions; for --measure kl, texts that the model and its base read."""
        if "kl" not in self.arguments.measure.split(","):
            return super().extras()
        assert isinstance(self.shown, Dataset)  # by check_measure
        with bases.open(self.arguments.model, check=False) as file:
            base = engines.frozen(file)
        return [*super().extras(), *beside(self.shown.valid, self.shown.seq, base)]

    def _adapter_options(self) -> AdapterOptions:
        arguments = self.arguments
        targets = [target.strip() for target in arguments.targets.split(",")]
        return AdapterOptions(
            arguments.rank,
            arguments.alpha,
            targets,
            arguments.dropout,
            arguments.rslora,
            b_rate=arguments.b_rate,
            use_dora=arguments.dora,
            init=arguments.init,
        )

    def realize(self) -> Recipe:
        """Return the recipe, ready to step."""
        arguments = self.arguments
        backend = arguments.backend
        recipe = LoRA(backend) if self.preference is None else Preference(self.preference, backend)
        options = self._recipe_options(init_scale=NORMAL_STD)
        if arguments.adapter is not None:
            recipe.realize_from_adapter(
                self.file,
                arguments.adapter,
                options,
                arguments.dropout,
                b_rate=arguments.b_rate,
            )
            return recipe
        own = self._adapter_options()
        recipe.realize(
            self.file,
            None,
            own.rank,
            options,
            own.alpha,
            own.targets,
            own.dropout,
            own.use_rslora,
            init=own.init,
            b_rate=own.b_rate,
            use_dora=own.use_dora,
        )
        return recipe

    def announce(self) -> None:
        """Print the adapters, and how large the file beside them is."""
        super().announce()
        engine = self.recipe.engine
        for name, found in engine.adapters.items():
            rank, rows = found.b.shape[-1], found.b.shape[-2]
            columns = found.a.size // (found.b.size // rows)
            if rank > min(rows, columns):
                said = f"rank {rank} is more than {name} has rows or columns ({rows} x {columns})"
                print(fact("", f"{said}: a smaller one says as much"))
                break
        mapped = engine.session.memory().mapped
        print(fact("", f"beside {mapped / 1e6:.1f} MB of the model's file, which stay mapped"))
        for form, why in engine.unwritten.items():
            if why:
                what = "adapter.gguf" if form == "gguf" else "PEFT folder"
                print(fact("", f"there will be no {what}: {why}"))

    def show(self, folder: RunFolder, result: Result) -> str:
        """Show what the adapter changes on held-out prompts; of texts, what the model writes."""
        valid, shown = [part.valid for _, part in self.parts], []
        if examples := [part for part in valid if isinstance(part, Examples)]:
            given = self.recipe.engine, self.tokenizer, examples
            count, model = _text_training.SAMPLE_TOKENS // 4, Path(self.arguments.model)
            shown = list(before_and_after(model, *given, count, late(result)))
        if not shown:
            return super().show(folder, result)
        folder.notes["prompts"] = shown
        lines = [
            f"{name:9} " + text.replace("\n", "\\n")
            for each in shown
            for name, text in each.items()
        ]
        folder.write_sample("\n".join(lines))
        print("--- held-out prompts, greedy ---")
        for line in lines:
            print(harmless(line, ""))
        print("---")
        return self.said_of(result)

    def said_of(self, result: Result) -> str:
        """Return the loss before training."""
        before = result.reports[0].val_loss
        return "" if before is None else f"before training {before:.4f}"

    def epilogue(self, folder: RunFolder) -> Iterator[str]:
        """Yield the loss of the test examples, and how to try the adapter."""
        yield from super().epilogue(folder)
        in_llama = folder.adapter.exists()
        paths = self.arguments.model, folder.adapter if in_llama else folder.path
        model, adapter = (shlex.quote(str(path)) for path in paths)
        chat = " --chat" if self.data.chats else ""
        yield f"try it      toynn generate --model {model} --adapter {adapter}{chat} --prompt ..."
        if not in_llama or isinstance(self.tokenizer, ByteTokenizer):  # which llama.cpp lacks
            return
        if Path(self.arguments.model).is_dir():
            yield f"            toynn convert {model} --out model.gguf     # for llama.cpp"
            model = "model.gguf"
        yield f"            llama-cli -m {model} --lora {adapter}"
