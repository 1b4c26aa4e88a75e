"""Write TensorBoard's event files, with the figures and names of metrics.jsonl.

    toynn train gpt2 --report html,tensorboard --out runs/mine; tensorboard --logdir runs

TensorBoard's own library writes them. A resumed run begins a new file with a mark. The mark makes
TensorBoard drop the earlier file's events from that step on.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toynn.errors import CheckpointError, ConfigError

__all__ = ["EventFile", "check_installed"]


def check_installed() -> None:
    """Raise ConfigError if TensorBoard's library is missing."""
    try:
        import tensorboard.summary.writer.event_file_writer  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "a report for TensorBoard needs its library, which is not installed: pip install "
            "tensorboard"
        ) from error


class EventFile:
    """A new file of events in a folder, from a step on. Raises CheckpointError."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder, self._event = folder, event_pb2.Event
        self._summary, session = summary_pb2.Summary, event_pb2.SessionLog
        try:
            self._writer = EventFileWriter(str(folder))
        except OSError as error:
            raise self._refused(error) from error
        begin = session(status=session.START)
        self._add(self._event(wall_time=time.time(), step=step, session_log=begin))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step, and flush. Raises CheckpointError."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in figures.items()
            if name != "iteration"
        ]
        summary = self._summary(value=values)
        self._add(self._event(wall_time=time.time(), step=step, summary=summary))

    def _add(self, event: Any) -> None:
        try:
            self._writer.add_event(event)
            self._writer.flush()
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self._folder}: cannot write events: {error.strerror or error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._writer.close()
        except OSError as refused:
            if error is None:
                raise self._refused(refused) from refused
