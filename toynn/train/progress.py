"""Print a line for each report; on a terminal, show a bar below the lines."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from toynn.runs.series import series
from toynn.system.printing import Lenient, columns, duration, harmless, size
from toynn.train.metrics import Report

if TYPE_CHECKING:
    from tqdm import tqdm  # imported where a bar is made

SHOWN = 2**23  # bytes: less is read at once
BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
LEAST_BAR = 24  # columns of BAR without the step numbers: percentage, bar, time, brackets
COLUMNS = 80  # of a plain line
#: Figures that a too long line leaves out, in this order; metrics.jsonl has them all.
DROPPED = (
    *("filled", "examples", "norm", "epoch", "speed", "lr"),
    *("top", "stop", "perplexity", "kl", "accuracy", "f1", "ETA", "length", "flat"),
)
F1 = ("entities/f1", "classes/macro_f1")  # a run has one of them


def _words(report: Report, unit: str, epochs: float | None, eta: float | None, room: int) -> str:
    """Return the figures of a report in words, as many as fit into ``room`` characters.

    ``epochs`` are the passes through the data so far, ``eta`` the seconds left.
    """
    figures = report.figures or {}
    with_loss = "" if report.learned_tokens is None else " with loss"
    f1 = next((name for name in F1 if f"val_{name}" in figures), F1[0])
    forms = {
        "loss": ("loss {:.4f}", report.train_loss),
        "val": ("val {:.4f}", report.val_loss),
        "reward": ("reward {:.3f}", figures.get("rewards/mean")),
        "held out": ("val reward {:.3f}", figures.get("val_rewards/mean")),
        "teacher": ("reverse-kl {:.4f}", figures.get("teacher/reverse_kl")),
        "flat": ("flat {:.0%}", figures.get("rewards/flat_groups")),
        "length": ("length {:.0f}", figures.get("samples/length")),
        "stop": ("stop {:.4f}", figures.get("val_stop/loss")),
        "f1": (series(f1).short + " {:.3f}", figures.get(f"val_{f1}")),
        "accuracy": ("accuracy {:.1%}", report.val_accuracy),
        "perplexity": ("perplexity {:.2f}", figures.get("val_text/perplexity")),
        "kl": ("kl {:.4f}", figures.get("val_base/kl", figures.get("val_teacher/forward_kl"))),
        "top": ("same top {:.1%}", figures.get("val_base/same_top")),
        "lr": ("lr {:.1e}", report.learning_rate),
        "norm": ("norm {:.2f}", report.grad_norm),
        "speed": ("{:,.0f} " + f"{unit}/s{with_loss}", report.tokens_per_second),
        "epoch": ("epoch {:.2f}", epochs),
        "examples": ("{:,} examples", report.examples),
        "filled": ("filled {:.0%}", report.filled),
        "skipped": ("skipped {}", report.skipped_updates),
        "ETA": ("ETA {}", duration(eta) if eta else None),
    }
    words = {name: form.format(value) for name, (form, value) in forms.items() if value is not None}
    for name in DROPPED:
        if len("  ".join(words.values())) > room:
            words.pop(name, None)
    return "  ".join(words.values())


class _Pace:
    """Measures steps and evaluations, and estimates the rest of a run."""

    def __init__(self, steps: int, eval_every: int, clock: Callable[[], float]) -> None:
        self._steps, self._every, self._clock = steps, eval_every, clock
        self._last = clock()
        self._begun: float | None = None  # an evaluation
        self._in_steps = self._in_evaluations = 0.0
        self._taken = self._evaluated = 0

    def step(self) -> None:
        """Count a step, which ends now."""
        now = self._clock()
        self._in_steps, self._taken = self._in_steps + now - self._last, self._taken + 1
        self._last = now

    def evaluating(self) -> None:
        """Note that an evaluation is running."""
        if self._begun is None:
            self._begun = self._clock()

    def reported(self) -> None:
        """Note the end of an evaluation, if one was running."""
        now = self._clock()
        if self._begun is not None:
            self._in_evaluations += now - self._begun
            self._evaluated += 1
        self._begun, self._last = None, now

    def left(self, done: int) -> float | None:
        """Return the seconds until the end; None if unknown."""
        if not self._taken or done >= self._steps:
            return None
        evaluations = 0
        if self._every and self._evaluated:
            evaluations = -(-self._steps // self._every) - done // self._every
        each = self._in_evaluations / max(self._evaluated, 1)
        return self._in_steps / self._taken * (self._steps - done) + each * evaluations


class _Screen(Lenient):
    """A stream for a bar, if it is a terminal."""

    def isatty(self) -> bool:
        return True  # tqdm asks; the bar is made only for a terminal

    @property
    def columns(self) -> int:
        """The width of the terminal; 0 if no bar can be drawn."""
        return columns(self._stream)


class Progress:
    """Shows a run of ``steps`` steps; enter it, then call it with each report.

    Each report is a line on ``stream``, standard output by default, at most as wide as its
    terminal, or else 80 columns. If ``below``, standard error by default, is a terminal, it shows a
    bar with the newest figures. ``per_epoch`` is the number of steps in a pass through the data;
    the model is evaluated every ``eval_every`` steps.
    """

    def __init__(
        self,
        steps: int,
        stream: TextIO | None = None,
        unit: str = "tokens",
        done: int = 0,
        per_epoch: float | None = None,
        eval_every: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        below: TextIO | None = None,
    ) -> None:
        self._steps, self._unit, self._done = steps, unit, done
        self._per_epoch = per_epoch
        self._stream = Lenient(sys.stdout if stream is None else stream)
        self._below = _Screen(sys.stderr if below is None else below)
        self._bar: tqdm | None = None
        self._evaluated: Report | None = None  # the last one with an evaluation
        self._pace = _Pace(steps, eval_every, clock)

    def __enter__(self) -> "Progress":
        if self._below.columns:
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._steps,
                initial=self._done,
                file=self._below,
                bar_format=BAR,
                dynamic_ncols=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self) -> None:
        """Count one step."""
        self._pace.step()
        if self._bar is not None:
            self._bar.update()

    def evaluating(self, done: int, of: int) -> None:
        """Show the progress of an evaluation in the bar; the next report replaces it."""
        self._pace.evaluating()
        if self._bar is not None:
            self._bar.set_postfix_str(f"evaluating {done + 1}{f'/{of}' if of else ''}")

    @contextmanager
    def above(self) -> Iterator[None]:
        """Clear the bar in this context, so that printed text stays above it."""
        if self._bar is not None:
            self._bar.clear()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.refresh()

    def sample(self, iteration: int, text: str) -> None:
        """Show a sample of the model's text after ``iteration`` steps."""
        self._print(f"--- sample, step {iteration} ---\n{harmless(text)}\n---")

    def _print(self, text: str) -> None:
        with self.above():
            print(text, file=self._stream, flush=True)

    def __call__(self, report: Report) -> None:
        """Show a report."""
        self._pace.reported()
        done = report.iteration
        epochs = done / self._per_epoch if self._per_epoch and done else None
        eta = self._pace.left(done)
        if report.val_loss is not None:
            self._evaluated = report
        if self._bar is not None:
            newest = report
            if (last := self._evaluated) is not None:
                newest = replace(report, val_loss=last.val_loss, val_accuracy=last.val_accuracy)
            room = self._below.columns - LEAST_BAR - 2 * len(str(self._steps))
            self._bar.set_postfix_str(_words(newest, self._unit, epochs, eta, room), refresh=False)
        head = f"step {done:{len(str(self._steps))}}/{self._steps}  "
        room = (columns(self._stream) or COLUMNS) - len(head)
        if words := _words(report, self._unit, epochs, eta, room):
            self._print(head + words)


class Reading:
    """Shows the progress of reading files: a bar on a terminal, else a line every tenth.

    Enter it, then call it with the bytes done and the bytes in all. Small data show nothing.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = _Screen(sys.stderr if stream is None else stream)
        self._bar: tqdm | None = None
        self._tenths = 0

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._tenths = None, 0

    def __call__(self, done: int, of: int) -> None:
        """Show that ``done`` bytes are done."""
        if of < SHOWN:
            return
        if self._stream.columns:
            if self._bar is None:
                from tqdm import tqdm

                self._bar = tqdm(
                    desc="tokens",
                    total=of,
                    file=self._stream,
                    unit="B",
                    unit_scale=True,
                    leave=False,
                )
            self._bar.update(done - self._bar.n)
        elif (tenths := 10 * done // of) > self._tenths:
            self._tenths = tenths
            word = f"tokens      {tenths}0 % of {size(of)} are read"
            print(word, file=self._stream, flush=True)
        if done == of:
            self._close()
