"""Modules that are imported when they are first asked for, so that programs start fast."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def submodules(package: str) -> Callable[[str], ModuleType]:
    """Return a ``__getattr__`` for a package: toynn.formats.gguf needs no import of its own."""

    def __getattr__(name: str) -> ModuleType:
        if name.startswith("__") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return __getattr__


def names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package with names of its modules: {name: module}."""

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return __getattr__


class Later(Mapping[str, T]):
    """Values by name; each is made when it is first asked for."""

    def __init__(self, names: Collection[str], make: Callable[[str], T]) -> None:
        self._names, self._make = names, cache(make)

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
