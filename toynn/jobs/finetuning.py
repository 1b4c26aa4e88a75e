"""``toynn.finetune``: `toynn train lora` as one call, for scripts and notebooks.

    run = toynn.finetune("model.gguf", "chats.jsonl", rank=16, steps=100)
    run.generate("Who lives on the moon? "), run.evaluate("held-out.jsonl"), run.path

The call runs the same job as the command: same options, defaults, checks and run folder.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from inspect import signature
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from toynn.data.labelled import HowToRead
from toynn.engines import SequenceEngine
from toynn.engines.encoder import Encoder
from toynn.errors import ConfigError, DataError, ToynnError
from toynn.formats.adapters import Adapter
from toynn.formats.files import write_atomically
from toynn.formats.tokenizer import Tokenizer
from toynn.generation.completion import complete
from toynn.jobs.classified import text_figures
from toynn.jobs.embedded import score_figures, vector_figures
from toynn.jobs.figures import figures, has_preferences, preference_figures, seq_of
from toynn.jobs.lora import AdapterJob
from toynn.jobs.lora_options import LoRAOptions
from toynn.jobs.made import made
from toynn.jobs.options import StrPath
from toynn.jobs.run import Outcome, carried_out
from toynn.jobs.text_options import columns_of
from toynn.options import checked
from toynn.recipes import Classifier, Embedder
from toynn.system.printing import lenient
from toynn.train.state import Result

RECIPES = ("lora", "grpo", "classify", "embed", "rerank")
ROWS = "finetune: rows"
P = ParamSpec("P")
T = TypeVar("T")
Rows = Iterable[Mapping[str, Any]]
Data = StrPath | Sequence[StrPath] | Mapping[StrPath, float] | Rows | None


class Run:
    """The result of ``toynn.finetune``: the best adapter, with its base model.

    Attributes
    ----------
    path
        The run's folder, as `toynn train lora` writes it: adapter.gguf, PEFT's two files,
        metrics.jsonl, config.toml, checkpoints.
    result
        Losses, steps, tokens and seconds; whether it was interrupted.
    tokenizer, engine
        The model's tokenizer, and the model with the adapter.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.path: Path = outcome.path
        self.result: Result = outcome.result
        job: Any = outcome.job
        self.engine: SequenceEngine[Any] = job.recipe
        self.tokenizer: Tokenizer = (job if isinstance(job, AdapterJob) else job.recipe).tokenizer
        self._model, self._options = Path(job.options.model), job.options

    @property
    def report(self) -> Path:
        """The page of the run: report.html in its folder, which opens from disk."""
        return self.path / "report.html"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: iteration, train_loss, val_loss, learning_rate, ..."""
        lines = (self.path / "metrics.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def adapter(self) -> Adapter:
        """A copy of the adapter, for ``toynn.formats.adapters`` to write, combine or fuse."""
        return self.engine.adapter()

    def generate(self, prompt: str | Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the model's continuation of a prompt, which is a text or messages.

        ``options`` go to ``toynn.generation.complete``: max_tokens, temperature, top_p, seed, ...

        Raises ConfigError for options out of range, for prompts that exceed the context, and for
        an encoder.
        """
        if isinstance(self.engine, Encoder):
            raise ConfigError("generate: the model is an encoder, which writes no text: predict()")
        return complete(self.engine, self.tokenizer, prompt, **options).text

    def predict(self, texts: Sequence[Any]) -> list[Any]:
        """Return what a classifier says of texts: see ``toynn.recipes.Classifier.predict``.

        Raises ConfigError for another model.
        """
        if not isinstance(self.engine, Classifier):
            raise ConfigError('predict: the model is no classifier: finetune(recipe="classify")')
        return self.engine.predict(texts)

    def evaluate(self, data: StrPath | None = None, seq: int | None = None) -> dict[str, Any]:
        """Return what `toynn eval` measures: loss and perplexity, or accuracy of questions.

        After training on preferences, preference data give loss, margins and accuracy.

        ``data`` is a .jsonl file or a text; None returns the held-out loss of training. ``seq`` is
        the most tokens of a window or example (default: 512, or the model's context).

        Raises DataError for data that cannot be read. Raises ConfigError for a seq beyond the
        context. Raises it also without ``data``, if training held nothing out.
        """
        if data is None:
            if math.isinf(self.result.val_loss):
                raise ConfigError("evaluate: nothing was held out in training: name data")
            return {"loss": self.result.val_loss, "iteration": self.result.best_iteration}
        columns = columns_of(self._options.columns)
        if isinstance(self.engine, Classifier):
            return text_figures(self.engine, Path(data), HowToRead(columns=columns))
        if isinstance(self.engine, Embedder):
            return vector_figures(self.engine, Path(data), columns)
        if isinstance(self.engine, Encoder):
            return score_figures(self.engine, Path(data), columns)
        if self.engine.preference is not None and has_preferences(Path(data)):
            at_most = seq_of(seq, self.engine.context)
            return preference_figures(
                self.engine, self.tokenizer, Path(data), at_most, columns=columns
            )
        return figures(self.engine, self.tokenizer, Path(data), seq, columns=columns)

    def __repr__(self) -> str:
        result = self.result
        valid = f", validation {result.val_loss:.4f}" if result.val_loss < math.inf else ""
        path = fspath(self.path)
        return f"Run({path!r}, {result.iterations} steps, loss {result.train_loss:.4f}{valid})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        result = self.result
        valid = f"{result.val_loss:.4f}, at step {result.best_iteration}"
        rows = {
            "run folder": fspath(self.path),
            "model": fspath(self._model),
            "steps": f"{result.iterations}{' (interrupted)' if result.interrupted else ''}",
            "training loss": f"{result.train_loss:.4f}",
            "validation loss": valid if result.val_loss < math.inf else "nothing held out",
            "tokens": f"{result.trained_tokens:,} in {result.seconds:.1f} s",
        }
        cells = (f"<tr><th>{k}</th><td>{escape(v)}</td></tr>" for k, v in rows.items())
        return f"<table>{''.join(cells)}</table>"


@dataclass(kw_only=True, repr=False, eq=False)
class _Given(LoRAOptions):
    """What ``finetune`` takes."""

    model: StrPath = field(kw_only=False)
    data: Data = field(default=None, kw_only=False)  # type: ignore[assignment]
    out: StrPath | None = field(default=None, kw_only=False)
    rows: Rows | None = None
    quiet: bool = False
    recipe: str = "lora"


def _takes(kind: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the parameters of a dataclass: for editors, type checkers and `help`."""

    def typed(function: Callable[..., T]) -> Callable[P, T]:
        run = signature(function).return_annotation
        shown = signature(kind).replace(return_annotation=run)
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return typed


@_takes(_Given)
def finetune(
    model: StrPath,
    data: Data = None,
    out: StrPath | None = None,
    *,
    rows: Rows | None = None,
    quiet: bool = False,
    recipe: str = "lora",
    **options: Any,
) -> Run:
    """Train an adapter of a model on data; return the run, with its best weights.

    With ``recipe`` grpo, classify, embed or rerank it is that command, with its options.

    Parameters
    ----------
    model
        A GGUF file, a folder in Hugging Face's format, or hf:OWNER/NAME.
    data
        A .jsonl file, a folder with train.jsonl, a table or a text, as `--data` takes. Give several
        in a list, or in a mapping from paths to weights (shares of the rows). Rows work here, too.
    rows
        Instead of ``data``: mappings with the fields of a line of a .jsonl file, in a list, an
        iterator, or a ``datasets.Dataset``. They are saved beside the run's folder, as
        rows-<hash>.jsonl, so that the run can be resumed.
    out
        The run's folder, a new one; by default runs/lora-<date>-<time>.
    quiet
        Print nothing.
    **options
        Options of `toynn train lora` by their names: rank=16, targets="all-linear" (or a list),
        steps=100, lr=1e-4, batch=2, seq=256, loss="dpo", rslora=True. The defaults are those of the
        command.

    Raises ConfigError for unknown options and for options that contradict one another. Raises the
    command's other errors, too: DataError, GGUFError, AdapterError, NonFiniteError;
    KeyboardInterrupt if it was stopped before the first step.
    """
    if (data is None) == (rows is None):
        raise ConfigError("finetune: expected either data or rows; got both or neither")
    if isinstance(data, Iterable) and not isinstance(data, str | PathLike | Mapping):
        data = items = [*data]
        if not items or isinstance(items[0], Mapping):
            rows = items
    beside = Path("runs") if out is None else Path(out).parent
    named = _sources(data) if rows is None else [kept(rows, beside)]
    typed = {"model": fspath(model), "data": named if named[1:] else named[0], **options}
    typed |= {"out": fspath(out)} if out is not None else {}
    try:
        with silence() if quiet else lenient():
            return Run(carried_out(made(checked("recipe", recipe, RECIPES), typed)))
    except ToynnError as error:
        if rows is not None:  # the caller has not seen their file
            error.args = (_of_rows(str(error), named[0]),)
        raise


def _of_rows(message: str, path: str) -> str:
    """Return an error about a file of rows as one about the rows: its lines are their numbers."""
    message = re.sub(rf"{re.escape(path)}:(?=\d)", f"{ROWS}: row ", message).replace(path, ROWS)
    if not message.startswith(ROWS):  # its lines may be those of another file
        return message
    return re.sub(r"\bline (?=\d)", "row ", message)


def _sources(data: Any) -> list[str]:
    """Return paths of data as --data takes them. Raises ConfigError for anything else."""
    if isinstance(data, str | PathLike):
        return [fspath(data)]
    weights = data if isinstance(data, Mapping) else {}
    paths = [*data] or [data] if isinstance(data, Iterable) else [data]
    for path in paths:
        if not isinstance(path, str | PathLike):
            raise ConfigError(
                "finetune: data: expected a path, a list of paths, a mapping of paths to weights, "
                f"or a list of rows (mappings); got {type(path).__name__}: {path!r:.60}"
            )
    return [f"{fspath(path)}:{weights[path]}" if weights else fspath(path) for path in paths]


def kept(rows: Rows, beside: Path) -> str:
    """Write rows to a file that is named by their hash, so that equal rows share one file.

    Raises ConfigError for an item that is not a mapping. Raises DataError for a row that is not
    JSON, and for a folder that cannot be written.
    """
    lines = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"{ROWS}: row {number}: expected a mapping, such as "
                f'{{"prompt": "...", "completion": "..."}}; got {type(row).__name__}: {row!r:.60}'
            )
        try:
            lines.append(json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n")
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"{ROWS}: row {number}: not JSON: {error}") from error
    if not lines:
        raise DataError(f"{ROWS}: expected at least one; got none")
    try:
        content = "".join(lines).encode()
        path = beside / f"rows-{sha256(content).hexdigest()[:16]}.jsonl"
        beside.mkdir(parents=True, exist_ok=True)
    except UnicodeEncodeError as error:
        raise DataError(f"{ROWS}: not UTF-8: {error}") from error
    except OSError as error:
        raise DataError(f"{ROWS}: {beside}: cannot write: {error.strerror}") from error
    if not path.exists():
        write_atomically(path, content, DataError)
    return str(path)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discard everything that the body prints."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield
