"""Jobs on encoders: texts through a tokenizer, packed; all weights, adapters, or a head alone."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from toynn.data.bounds import Bounds
from toynn.data.digest import digest
from toynn.data.examples import ShuffledExamples, check_not_asked, split_off
from toynn.data.jsonl import VALID, parts_of
from toynn.data.labelled import HowToRead
from toynn.data.splits import part_of
from toynn.data.texts import Texts
from toynn.engines import AdapterOptions
from toynn.engines.encoder import Encoder, Task
from toynn.errors import ConfigError
from toynn.formats import bases
from toynn.jobs.encoder_options import MOST_STEPS, EncoderOptions
from toynn.jobs.job import Job, late
from toynn.jobs.paths import text_model
from toynn.jobs.text_options import columns_of
from toynn.options import RecipeOptions
from toynn.system.printing import counted, fact
from toynn.train.folder import Value
from toynn.train.loop import WHOLE
from toynn.train.progress import Reading
from toynn.train.state import Result

#: Peak learning rates.
RATES = {"full": 2e-5, "lora": 2e-4, "head": 1e-3}


class EncoderJob(Job):
    """A run on texts that an encoder reads; ``columns`` of them make an example."""

    options: EncoderOptions
    unit = items = "texts"
    recipe_type: ClassVar[type[Encoder]] = Encoder
    columns = 1
    task: Task
    train: Any  # what ``encoded`` returns
    held_out: Any

    def __init__(self, typed: Mapping[str, Any], command: str | None = None) -> None:
        """Take the options. Raises ConfigError for contradictory ones."""
        super().__init__(typed, command)
        options = self.options
        if "steps" in typed and "epochs" not in typed:
            options.epochs = None
        options.lr = RATES[options.method] if options.lr is None else options.lr
        changed = (e for n, e in self.known.items() if getattr(options, n) != e.default)
        of_lora = [each.flag for each in changed if each.of[0] is AdapterOptions]
        if of_lora and options.method != "lora":
            raise ConfigError(
                f"{of_lora[0]}: it needs --method lora; the method is {options.method}"
            )

    @property
    def starts_from_source(self) -> bool:
        """No option is determined by another one."""
        return False

    def resolve(self) -> None:
        """Raise ConfigError for a folder without a model of text."""
        self.options.model = str(text_model(Path(self.options.model)))

    # -- Data ----------------------------------------------------------------------------------

    def read(self) -> None:
        """Open the model and read the texts."""
        options = self.options
        self.file = bases.open(options.model)
        self.files.callback(self.file.close)
        with Reading() as progress:
            self.task = self.read_rows(progress)
            engine = self.declared_with(RecipeOptions(t_seq=1))
            if options.seq is not None and options.seq > engine.context:
                self.say("data", f"--seq {options.seq}: the model reads {engine.context} tokens")
            self.train, valid = self.encoded(engine)
        path, self.cut = Path(options.data), self.train.cut + (0 if valid is None else valid.cut)
        if valid is None:
            self.train, valid, said = split_off(
                path, self.train, self.recipe_options().seed, VALID, options.holdout
            )
            for each in said:
                self.say("data", each)
        else:
            check_not_asked(path, options.holdout)
        self.held_out = valid
        steps = self.per_epoch() / options.grad_accum
        if options.eval_every is None:
            options.eval_every = max(1, min(round(steps), MOST_STEPS))
        options.save_every = (
            options.eval_every if options.save_every is None else options.save_every
        )

    @property
    def parts(self) -> tuple[Path, Path | None]:
        """The files to train on and to validate on; None if rows of the first are held out."""
        path, valid = Path(self.options.data), self.options.valid
        if not path.is_dir():
            return path, None if valid is None else Path(valid)
        return parts_of(path)["train"], Path(valid) if valid else part_of(path, VALID)

    def how(self, progress: Any, **more: Any) -> HowToRead:
        """Return how rows are read."""
        options = self.options
        bounds = Bounds(options.max_line, options.max_unpacked)
        return HowToRead(
            columns=columns_of(options.columns), bounds=bounds, progress=progress, **more
        )

    @abstractmethod
    def read_rows(self, progress: Any) -> Task:
        """Read the rows of ``parts``; return the task that follows from them."""

    @abstractmethod
    def encoded(self, engine: Encoder) -> tuple[Any, Any]:
        """Return the rows as tokens: those to train on, and those to validate on or None.

        They have what ``Encoded`` has: lengths, seq, pick, batch, batches.
        """

    # -- The model -----------------------------------------------------------------------------

    def teacher_of(self, kind: type[Any], path: Path) -> Any:
        """Return a teacher, a recipe of this kind, which computes as the student does."""
        options, same = self.recipe_options(), ("precision", "n_threads")
        how = RecipeOptions(**{name: getattr(options, name) for name in same})
        return kind.load(path, options=how, backend=self.options.backend)

    def all_options(self) -> RecipeOptions:
        """Return the recipe's options, with room for a batch of the longest texts."""
        options, lengths = self.recipe_options(), sorted(self.train.lengths)
        longest = int(lengths[-1])
        passes = -(-options.t_batch // len(lengths))  # of the data, in one batch
        room = passes * sum(lengths[-options.t_batch :])
        return replace(options, t_seq=longest, t_batch=-(-int(room) // longest))

    def declared_with(self, options: RecipeOptions) -> Encoder:
        """Return an engine of the model, before it takes memory."""
        engine = self._new()
        if self.options.method == "lora":
            engine.enable_lora(self.take(AdapterOptions))
            engine.declare_over(self.file, options, self.task)
        else:
            engine.declare_from(self.file, options, self.task)
        return self._suited(engine)

    def _new(self) -> Encoder:
        engine = self.recipe_type(self.options.backend)
        engine.texts = self.options.batch * self.columns
        self.prepare(engine)
        return engine

    def _suited(self, engine: Encoder) -> Encoder:
        """Give the engine --seq as the longest text."""
        if self.options.seq is not None:
            length = min(self.options.seq, engine.context)
            engine.sentences = replace(engine.sentences, length=length)
        return engine

    def prepare(self, engine: Encoder) -> None:
        """Set what the step depends on beside the task."""

    def realize(self) -> Encoder:
        """Return the recipe, ready to step. Raises ConfigError if its run could not be read."""
        engine = self._new()
        adapters = self.take(AdapterOptions) if self.options.method == "lora" else None
        engine.realize(self.file, self.all_options(), self.task, adapters)
        engine.check_has_tokenizer()
        return self._suited(engine)

    def announce(self) -> None:
        """Print the data and the model, and which weights of the head are new."""
        for line in self.described():
            print(line)
        if self.cut:
            what = "dropped" if self.options.too_long == "drop" else "cut"
            said = f"{counted(self.cut, 'text')} of more than {self.train.seq:,} tokens {what}"
            print(fact("", said))
        if self.recipe.new_weights:
            print(fact("head", f"new: the model has no {', '.join(self.recipe.new_weights)}"))
        if self.options.method != "lora" or not self.options.dropout:
            print(fact("", "without dropout, but for adapters (--dropout)"))
        super().announce()
        if self.recipe.file is not None:
            mapped = self.recipe.session.memory().mapped
            print(fact("", f"and {mapped / 1e6:.1f} MB of the model's file, which stay mapped"))

    def described(self) -> Sequence[str]:
        """Return lines about the data."""
        train, held = len(self.train), len(self.held_out)
        said = f"{counted(train, 'text')} to train on, {held:,} held out"
        return [fact("data", f"{self.options.data}: {said}")]

    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return config.toml's table of the data."""
        options = self.options
        named = {"name": self.directory.word(options.data), "sha256": digest(options.data)}
        return {"data": {**named, "train": len(self.train), "valid": len(self.held_out)}}

    # -- The loop ------------------------------------------------------------------------------

    def batches(self) -> Any:
        """Return every text once an epoch, in random order; a batch may reach into the next."""
        return self._shuffled(self.train)

    def _shuffled(self, texts: Any) -> ShuffledExamples:
        return ShuffledExamples(texts, self.options.batch, self.recipe_options().seed)

    def per_epoch(self) -> float:
        """Return the number of batches in a pass through the data."""
        return len(self.train) / self.options.batch

    def all_measured(self, result: Result) -> list[Any]:
        """Measure all held-out texts, for ``joined``; return [] if a stopped run must end."""
        is_late, measured = late(result), []
        for batch in self.valid():
            if is_late():
                return []
            measured.append(self.measure(batch)[WHOLE])
        return measured

    def valid(self) -> Sequence[Texts]:
        """Return the held-out texts in batches."""
        return self._valid

    @cached_property
    def _valid(self) -> Sequence[Texts]:
        batches: Sequence[Texts] = self.held_out.batches(self.options.batch)
        return batches
