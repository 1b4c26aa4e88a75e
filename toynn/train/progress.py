"""A progress bar on a terminal; elsewhere, one plain line per report."""

import contextlib
import os
import sys
from dataclasses import replace
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

from toynn.printing import duration, harmless
from toynn.train.metrics import Report

__all__ = ["Progress", "Reading"]

SHOWN = 2**23  # bytes: less is read before anybody asks
BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


def _words(report: Report, unit: str, *names: str) -> str:
    """Return the figures of a report that are known, of those named."""
    forms = {
        "loss": ("loss {:.4f}", report.train_loss),
        "val": ("val {:.4f}", report.val_loss),
        "accuracy": ("accuracy {:.1%}", report.val_accuracy),
        "lr": ("lr {:.1e}", report.learning_rate),
        "norm": ("norm {:.2f}", report.grad_norm),
        "speed": ("{:,.0f} " + f"{unit}/s", report.tokens_per_second),
        "examples": ("{:,} examples", report.examples),
        "filled": ("filled {:.0%}", report.filled),
        "skipped": ("skipped {}", report.skipped_updates),
    }
    known = (forms[name] for name in names)
    return "  ".join(form.format(figure) for form, figure in known if figure is not None)


class _Lenient:
    """A stream for what may be lost: a run goes on where nobody can be told of it any more."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None: the process was started without
        self.encoding = getattr(stream, "encoding", None)

    def write(self, text: str) -> int:
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):  # a closed file is a ValueError
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.flush()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("no stream")
        return self._stream.fileno()

    def isatty(self) -> bool:
        return True  # asked by what draws the bar, which is made for a terminal alone

    def is_terminal(self) -> bool:
        """Whether a bar can be drawn: some terminals, as in containers, do not know their width."""
        try:
            return os.get_terminal_size(self.fileno()).columns > 0
        except (OSError, ValueError):
            return False


class Progress:
    """Shows a run of so many steps on a stream; enter it, then call it with each report."""

    def __init__(
        self, steps: int, stream: TextIO | None = None, unit: str = "tokens", done: int = 0
    ) -> None:
        self._steps, self._unit, self._done = steps, unit, done
        self._stream = _Lenient(sys.stderr if stream is None else stream)
        self._bar: tqdm | None = None
        self._evaluated: Report | None = None  # the last one with an evaluation

    def __enter__(self) -> "Progress":
        if self._stream.is_terminal():
            self._bar = tqdm(
                total=self._steps,
                initial=self._done,
                file=self._stream,
                bar_format=BAR,
                dynamic_ncols=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update()

    def evaluating(self, done: int, of: int) -> None:
        """Say in the bar how far an evaluation is; the next report takes its place."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"evaluating {done + 1}{f'/{of}' if of else ''}")

    def sample(self, iteration: int, text: str) -> None:
        """Show what the model writes after so many steps."""
        if self._bar is not None:
            self._bar.clear()
        print(
            f"--- sample, step {iteration} ---\n{harmless(text)}\n---",
            file=self._stream,
            flush=True,
        )
        if self._bar is not None:
            self._bar.refresh()

    def __call__(self, report: Report) -> None:
        """Show a report."""
        if report.val_loss is not None:
            self._evaluated = report
        if self._bar is not None:
            newest = report
            if (last := self._evaluated) is not None:
                newest = replace(report, val_loss=last.val_loss, val_accuracy=last.val_accuracy)
            words = _words(newest, self._unit, "loss", "val", "accuracy", "speed", "filled")
            self._bar.set_postfix_str(words)
            return
        done = report.iteration
        left = report.time * (self._steps - done) / done if done else None
        eta = f"  ETA {duration(left)}" if left else ""
        width = len(str(self._steps))
        names = ("loss", "val", "accuracy", "lr", "norm", "speed", "examples", "filled", "skipped")
        words = _words(report, self._unit, *names)
        print(f"step {done:{width}}/{self._steps}  {words}{eta}", file=self._stream, flush=True)


class Reading:
    """Shows how far files are read: a bar; where there is no terminal, a line every tenth.

    Enter it, then call it with the bytes that are done, and of how many. Little data is read in
    silence.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = _Lenient(sys.stderr if stream is None else stream)
        self._bar: tqdm | None = None
        self._tenths = 0

    def __enter__(self) -> "Reading":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._tenths = None, 0

    def __call__(self, done: int, of: int) -> None:
        """Show that so many bytes are done."""
        if of < SHOWN:
            return
        if self._stream.is_terminal():
            if self._bar is None:
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
            word = f"tokens      {tenths}0 % of {of / 2**20:,.0f} MiB are read"
            print(word, file=self._stream, flush=True)
        if done == of:
            self._close()
