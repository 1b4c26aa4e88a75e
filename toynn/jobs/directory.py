"""The working directory of a run's first start, to which its paths are relative.

config.toml keeps this directory (run.directory) and the paths as they were typed. So a run can be
resumed, and its config.toml used, from any folder.
"""

import os
from typing import Any

from toynn.jobs.paths import on_hub
from toynn.jobs.weighted import path_and_weight
from toynn.options import Option


class Directory:
    """The working directory of a run's first start; by default the current one.

    The tree may have been moved since. A path that does not exist in that directory, but does in
    the current one, is read from the current one.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path or os.getcwd()
        self._words: dict[str, str] = {}  # resolved path -> path as typed

    @property
    def elsewhere(self) -> bool:
        """Whether the run started in a directory that is not the current one."""
        return self.path != os.getcwd()

    def resolved(self, option: Option | None, value: Any) -> Any:
        """Return the value of an option; a path becomes one that opens from the current folder."""
        if option is None or not (option.is_path and self.elsewhere):
            return value
        if isinstance(value, list):
            return [self.resolved(option, each) for each in value]
        return self.path_of(value) if isinstance(value, str) else value

    def path_of(self, word: str) -> str:
        """Return a path of the run, perhaps with a weight, so that it opens from here."""
        if on_hub(word):
            return word
        joined = os.path.join(self.path, word)
        path, typed = (path_and_weight(each, "")[0] for each in (joined, word))
        if joined == word or (typed.exists() and not path.exists()):
            return word
        self._words |= {joined: word, str(path): str(typed)}
        return joined

    def typed(self, option: Option, value: Any) -> Any:
        """Return a newly typed value of an option in the form that config.toml can keep."""
        if not (option.is_path and self.elsewhere) or value is None:
            return value
        if isinstance(value, tuple):
            return tuple(self.typed(option, each) for each in value)
        return value if on_hub(value) else os.path.abspath(value)

    def word(self, value: Any) -> Any:
        """Undo ``resolved``: return a value as it was typed first."""
        if isinstance(value, list | tuple):
            return type(value)(self.word(each) for each in value)
        return self._words.get(value, value) if isinstance(value, str) else value
