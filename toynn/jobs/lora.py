"""``toynn train lora``: train an adapter of a model on data, into a run folder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toynn import engines
from toynn.data.examples import Examples
from toynn.data.jsonl import Dataset
from toynn.data.preference import PreferenceData, read_preferences
from toynn.data.reader import ReadOptions
from toynn.engines import AdapterOptions, PreferenceOptions, SequenceEngine, check_model
from toynn.engines.engine import Engine
from toynn.engines.objectives import KINDS
from toynn.errors import ConfigError
from toynn.formats import adapters, bases
from toynn.formats.adapters.adapter import HEAD
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.jobs import text
from toynn.jobs.adapted import origin_of
from toynn.jobs.before_after import before_and_after
from toynn.jobs.job import Job, late
from toynn.jobs.lora_options import LoRAOptions
from toynn.jobs.memory import read_by_step
from toynn.jobs.metrics import beside
from toynn.jobs.models import for_tied
from toynn.jobs.paths import text_model
from toynn.jobs.text import TextJob
from toynn.options import RecipeOptions
from toynn.recipes import LoRA, Preference
from toynn.system.platform import in_shell
from toynn.system.printing import fact, harmless
from toynn.train.folder import RunFolder
from toynn.train.state import Figures, Result

NORMAL_STD = 0.02  # standard deviation of A with --init normal
_SFT = "sft"


class AdapterJob(Job):
    """A run that trains an adapter of a causal model, which stays in its file."""

    options: Any
    tokenizer: Tokenizer
    source = ("adapter", "adapter")

    def __init__(self, typed: Mapping[str, Any], command: str | None = None) -> None:
        """Take the options. Raises ConfigError for contradictory ones."""
        if "adapter" in typed and "model" not in typed:
            origin = origin_of(Path(typed["adapter"]))._asdict()
            typed = {**{name: each for name, each in origin.items() if each is not None}, **typed}
        super().__init__(typed, command)

    def resolve(self) -> None:
        """Raise ConfigError for a folder without a model of text."""
        text_model(Path(self.options.model))

    def open_model(self) -> bases.Base:
        """Open the model, which stays open until the recipe is realized."""
        self.file = bases.open(self.options.model)
        self.files.callback(self.file.close)
        check_model(self.file)  # raises early for an unknown model
        return self.file

    def recipe_options(self, **more: Any) -> RecipeOptions:
        """Return the options to realize the recipe with."""
        return super().recipe_options(**{"init_scale": NORMAL_STD, **more})

    def enable(self, engine: SequenceEngine[Any]) -> None:
        """Enable the loss of an engine that is declared only."""

    def declared_with(self, options: RecipeOptions) -> Any:
        """Return an engine of the model with adapters, declared only."""
        engine = SequenceEngine[Any](self.options.backend)
        if self.options.adapter is None:
            engine.enable_lora(self.take(AdapterOptions))
        else:
            adapter = adapters.load(self.options.adapter, self.file, strict=self.options.strict)
            engine.enable_lora(AdapterOptions.of(adapter, **self.fields(AdapterOptions)))
        self.enable(engine)
        engine.declare_for_mmap(self.file, None, options)
        return engine

    def new_recipe(self) -> LoRA:
        """Return the recipe, not realized."""
        return LoRA(self.options.backend)

    def realize_with(self, options: RecipeOptions) -> Engine[Any]:
        """Return the recipe with these options, ready to step."""
        recipe, adapter = self.new_recipe(), self.options.adapter
        if adapter is None:
            recipe.realize(self.file, None, self.take(AdapterOptions), options)
        else:
            fields = self.fields(AdapterOptions)
            recipe.realize_from_adapter(self.file, adapter, options, **fields)
        return recipe

    def read_by_step(self) -> int:
        """Return the bytes of the base's file that a step reads."""
        options = self.all_options()
        return read_by_step(self.file, options.t_batch * options.t_seq)

    def announce(self) -> None:
        """Print notes on the adapters, and the size of the model's file."""
        super().announce()
        engine = self.recipe
        for name, adapter in engine.adapters.items():
            rank, rows = adapter.b.shape[-1], adapter.b.shape[-2]
            columns = adapter.a.size // (adapter.b.size // rows)
            if rank > min(rows, columns):
                said = f"rank {rank} is more than {name} has rows or columns ({rows} x {columns})"
                print(fact("", f"{said}: a smaller rank can express as much"))
                break
        mapped = engine.session.memory().mapped
        print(fact("", f"and {mapped / 1e6:.1f} MB of the model's file, which stay mapped"))
        for form, why in engine.unwritten.items():
            if why:
                what = "adapter.gguf" if form == "gguf" else "PEFT folder"
                print(fact("", f"there will be no {what}: {why}"))

    def uses(self, folder: RunFolder, *, chats: bool) -> Iterator[str]:
        """Yield commands that use the adapter."""
        in_llama = folder.adapter.exists()
        paths = self.options.model, folder.adapter if in_llama else folder.path
        model, adapter = (in_shell(path) for path in paths)
        chat = " --chat" if chats else ""
        run = in_shell(folder.path)
        yield f"try it      toynn generate --adapter {run}{chat} --prompt ..."
        if in_llama and not isinstance(self.tokenizer, ByteTokenizer):  # llama.cpp has no such kind
            if Path(self.options.model).is_dir():
                named = self.options.tokenizer
                more = "" if named is None else f" --tokenizer {in_shell(named)}"
                said = f"toynn convert {model}{more} --out model.gguf"
                yield f"            {said}     # for llama.cpp"
                model = "model.gguf"
            program = "llama-cli" if chat else "llama-completion -no-cnv"
            yield f"            {program} -m {model} --lora {adapter}"
        if not Path(self.options.model).is_dir() and not self.recipe.unwritten["peft"]:
            source = in_shell(self.options.model)
            yield f"for PEFT    toynn export --to hf --model {source} --out FOLDER"


class LoRAJob(AdapterJob, TextJob):
    """``toynn train lora``."""

    name = "lora"
    kind = LoRAOptions
    options: LoRAOptions
    preference: PreferenceOptions | None = None

    def __init__(self, typed: Mapping[str, Any], command: str | None = None) -> None:
        """Take the options. Raises ConfigError for contradictory ones."""
        super().__init__(typed, command)
        if self.options.loss != _SFT:
            if self.options.teacher is not None:
                raise ConfigError(f"--teacher: it is for --loss {_SFT}; got {self.options.loss}")
            self.preference = self.take(PreferenceOptions)
            self.unit = self.items = "pairs" if self.preference.paired else "completions"
            return
        of_pairs = (each for each in self.known.values() if each.of[0] is PreferenceOptions)
        values = vars(self.options)
        if changed := [each.flag for each in of_pairs if values[each.name] != each.default]:
            raise ConfigError(
                f"{changed[0]}: it needs --loss {', '.join(KINDS)}; the loss is {_SFT}"
            )

    def read(self) -> None:
        """Open the model; read the data with its tokenizer."""
        file = self.open_model()
        self.tokenizer = Tokenizer.for_model(file, self.options.tokenizer)
        self.check_metric()
        context = file.require(f"{file.architecture}.context_length", int)
        seq, said = text.rows_within(self.options.seq, context)
        if said:
            self.say("data", said)
        self.declared_with(RecipeOptions(t_seq=1))  # raises for adapters that do not fit
        self.read_text(seq)

    def read_source(self, path: str | None, how: ReadOptions) -> Dataset | PreferenceData:
        """Read texts or examples; with a preference loss, pairs or labelled completions."""
        if self.preference is None or path is None:
            return super().read_source(path, how)
        return read_preferences(path, self.tokenizer, how, loss=self.preference.loss)

    def enable(self, engine: SequenceEngine[Any]) -> None:
        """Enable the preference loss of an engine, if there is one."""
        if self.preference is not None:
            engine.enable_preference(self.preference)

    def new_recipe(self) -> LoRA:
        """Return the recipe, not realized."""
        backend = self.options.backend
        return LoRA(backend) if self.preference is None else Preference(self.preference, backend)

    def all_options(self, **more: Any) -> RecipeOptions:
        """Return the recipe's options; a row of pairs holds two sequences."""
        options = super().all_options(**more)
        return replace(options, t_batch=2 * options.t_batch) if self.unit == "pairs" else options

    @property
    def measures_ends(self) -> bool:
        """Whether the loss of stop tokens can be measured. With preferences it cannot."""
        return super().measures_ends and self.preference is None

    @property
    def advice_on_ends(self) -> str:
        """Advice for a model that does not learn stop tokens: adapt the head, if it is untied."""
        if HEAD in self.recipe.adapters:
            return super().advice_on_ends
        if adapters.is_tied(self.file):
            return for_tied(self.file.architecture, str(self.options.model))
        said = "adapt the head, which predicts them: --targets all-linear,head"
        return said + ("" if self.options.adapter is None else ", in a new adapter")

    def measure(self, batch: Any) -> Figures:
        """Return the loss of a batch; with preferences also rewards."""
        figures = dict(super().measure(batch))
        if self.preference is not None and "loss" in figures:
            figures |= self.recipe.preference.means()
            if "rewards/accuracies" in figures and not self.asked:
                figures["accuracy"] = figures["rewards/accuracies"]
        return figures

    def check_metric(self) -> None:
        """Read --questions, if there are any. Raises ConfigError for a wrong metric."""
        names, paired = self.metrics, self.preference is not None
        if "kl" in names and paired:
            raise ConfigError("--metric kl: it is for texts and examples, not for preferences")
        if "margins" in names and not paired:
            raise ConfigError(f"--metric margins: it needs --loss {', '.join(KINDS)}")
        if paired:  # preferences have an accuracy without questions
            self.of_questions = self.of_questions - {"accuracy"}
        super().check_metric()

    def extras(self) -> Sequence[Any]:
        """Return the questions; with --metric kl also texts on which to compare with the base."""
        if "kl" not in self.metrics:
            return super().extras()
        assert isinstance(self.shown, Dataset)  # check_metric refuses preferences
        return [*super().extras(), *beside(self.shown.valid, self.shown.seq, self._frozen())]

    def _frozen(self) -> Any:
        """Return the model without adapters, computed with the same options."""
        with bases.open(self.options.model, check=False) as file:
            return engines.frozen(file, options=self.recipe_options())

    def show(self, folder: RunFolder, result: Result) -> str:
        """Show what the adapter changes on held-out prompts; without prompts, a sample."""
        parts, shown = [text.shown_part(part) for _, part in self.parts], []
        if examples := [part for part in parts if isinstance(part, Examples)]:
            arguments = self._frozen, self.recipe, self.tokenizer, examples
            shown = list(before_and_after(*arguments, text.SAMPLE_TOKENS // 4, late(result)))
        if not shown:
            return super().show(folder, result)
        folder.notes["prompts"] = shown
        lines = [
            f"{name:9} " + text.replace("\n", "\\n")
            for each in shown
            for name, text in each.items()
        ]
        folder.write_sample("\n".join(lines))
        which = "held-out" if any(len(part.valid) for _, part in self.parts) else "training"
        print(f"--- {which} prompts, greedy ---")
        for line in lines:
            print(harmless(line, ""))
        print("---")
        return self.said_of(result)

    def said_of(self, result: Result) -> str:
        """Return the loss before training."""
        before = result.reports[0].val_loss
        return "" if before is None else f"before training {before:.4f}"

    def epilogue(self, folder: RunFolder, result: Result) -> Iterator[str]:
        """Yield the loss of the test examples, and how to try the adapter."""
        yield from super().epilogue(folder, result)
        yield from self.uses(folder, chats=self.data.chats)
