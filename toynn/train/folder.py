"""The folder of a run; its files are complete or absent.

    config.toml          the resolved configuration
    metrics.jsonl        one object for each report
    model.safetensors    the best weights; for adapters, the adapter's files
    model.gguf           the same weights for llama.cpp; not for a model of pictures
    last/                the last weights, if they are not the best: the same files
    checkpoint-<step>/   to resume from
    sample.txt           text that the trained model wrote
    samples.jsonl        text that it wrote during training
    run.json             machine, cost, how the run ended
    report.html          a page that shows all of it

The folder is locked while a run writes there.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from toynn.errors import CheckpointError, ConfigError, DataError
from toynn.formats.files import write_atomically
from toynn.runs import write_report
from toynn.runs.page import REPORT
from toynn.runs.record import NOTES
from toynn.system.critical import uninterrupted
from toynn.system.printing import print_line
from toynn.train.boards import BOARDS
from toynn.train.lock import Lock
from toynn.train.notes import Notes

__all__ = ["RunFolder", "to_toml", "write_atomically"]

Value = str | bool | int | float | tuple[float | str, ...] | None


def to_toml(tables: Mapping[str, Mapping[str, Value]]) -> str:
    """Format tables of plain values as TOML; None, which TOML lacks, is left out."""
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {_toml(value)}" for key, value in table.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _toml(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, except that TOML allows neither a bare DEL nor a surrogate.
        plain = value.encode("utf-8", "backslashreplace").decode()
        return json.dumps(plain, ensure_ascii=False).replace("\x7f", r"\u007f")
    return repr(value)


#: Files of a Hugging Face folder beside the weights.
_BESIDE = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "tokenizer.model"),
)
#: PEFT's files; the adapters and the head of an encoder.
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter.safetensors")


class RunFolder:
    """The folder of a run: a new one, which must not exist yet.

    As a context manager it removes the folder if the run fails before ``trained`` is set. After
    that, the error gets a note with the folder's path.

    Raises ConfigError if it cannot be made.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self.check_absent(path)
        self._made = [each for each in (path, *path.parents) if not os.path.lexists(each)]
        try:
            path.mkdir(parents=True)
        except OSError as error:
            self._remove()
            raise ConfigError(f"{path}: cannot make the run folder: {error.strerror}") from error
        self._open(path)

    @classmethod
    def fresh(cls, path: str | Path) -> Self:
        """Make a folder of this name; if it exists, with -2, -3 and so on appended."""
        for n in count(1):
            named = Path(path if n == 1 else f"{path}-{n}")
            if os.path.lexists(named):
                continue
            try:
                return cls(named)
            except ConfigError:
                if not os.path.lexists(named):  # else another run has made it meanwhile
                    raise
        raise AssertionError("numbers end nowhere")

    @classmethod
    def resume(cls, path: str | Path) -> Self:
        """Open the folder of an earlier run, to resume it."""
        folder = cls.__new__(cls)
        if not Path(path).is_dir():
            raise ConfigError(f"{path}: expected the folder of a run; no such folder exists")
        folder._made = []
        folder._open(Path(path))
        folder.trained = True
        return folder

    def _open(self, path: Path) -> None:
        self.path = path
        self.trained = False  # whether a step was taken, so that the folder is kept
        self.begun = False  # whether the run may write here, so that its end is noted
        self.config: Mapping[str, Mapping[str, Value]] | None = None  # what begin() writes
        self._lock: Lock | None = Lock(path)
        self.metrics = path / "metrics.jsonl"
        self.samples = path / "samples.jsonl"
        self.model = path / "model.safetensors"
        self.gguf = path / "model.gguf"
        self.adapter = path / "adapter.gguf"
        self.last = path / "last"
        self.report = path / REPORT
        self.notes = Notes(path / NOTES)
        self.reports = True  # whether report.html is written when it ends

    def best_files(self) -> list[Path]:
        """Return the files that hold the best model so far."""
        peft = [self.path / name for name in _ADAPTERS]
        return [each for each in (self.model, self.gguf, self.adapter, *peft) if each.exists()]

    def __enter__(self) -> "RunFolder":
        return self

    @uninterrupted
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.trained and self.begun:
            self._end(error)
            if error is not None and self.path.is_dir():
                error.add_note(f"(the run folder {self.path} has the best weights until then)")
        if error is not None and not self.trained:
            files = (self.path / "config.toml", self.path / NOTES, self.metrics, self.samples)
            beside = [self.path / name for name in _BESIDE]
            for path in (*files, *self.best_files(), *beside):
                path.unlink(missing_ok=True)
            for name in BOARDS:
                shutil.rmtree(self.path / name, ignore_errors=True)
        self.close()
        if error is not None and not self.trained:
            self._remove()

    def _end(self, error: BaseException | None) -> None:
        """Write run.json and the report; an error of the disk is only printed."""
        if error is not None:
            self.notes.failed(error)
        try:
            self.notes.write()
            if self.reports:
                write_report(self.path)
        except (CheckpointError, DataError) as refused:
            again = f"`toynn report {self.path}` writes it, once there is room"
            print_line(f"toynn: no report: {refused}; {again}")

    def close(self) -> None:
        """Release the lock, so that other runs may use the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _remove(self) -> None:
        """Remove the folders that were made for this run, if they are empty."""
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    @staticmethod
    def check_absent(path: Path) -> None:
        """Raise ConfigError if a new folder cannot be made here."""
        if os.path.lexists(path):
            raise ConfigError(f"{path}: already exists; name a new folder with --out")
        above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            why = os.strerror(errno.EACCES if above.is_dir() else errno.ENOTDIR)
            raise ConfigError(f"{path}: cannot make the run folder: {why}: {above}")

    def begin(self) -> None:
        """Mark the run as begun, since nothing refuses it; write config.toml if it changed.

        Raises CheckpointError.
        """
        self.begun = True
        path = self.path / "config.toml"
        if self.config is not None:
            content = to_toml(self.config).encode()
            if not path.is_file() or path.read_bytes() != content:
                write_atomically(path, content)

    def write_sample(self, text: str) -> None:
        """Write sample.txt."""
        write_atomically(self.path / "sample.txt", text.encode())
