"""Backends by name. Nothing outside this package asks which one is in use.

A backend is a folder here, or was given to ``register``. The folder's ``create(n_threads)`` returns
a backend (see protocol.py), or raises BackendUnavailable and says why. If not every machine has the
backend, the folder also has ``missing()``, which says why this one lacks it, or returns None.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from toynn.errors import BackendUnavailable, ConfigError
from toynn.system.later import submodules

__all__ = ["SHIPPED", "available", "get", "register", "unavailable"]

if TYPE_CHECKING:  # editors know the modules
    from toynn.backends.protocol import Backend
else:
    __getattr__ = submodules(__name__)

_registered: "dict[str, Callable[[int | None], Backend]]" = {}
#: The names of the backends that toynn has; not every machine has all of them.
SHIPPED = tuple(sorted(module.name for module in iter_modules(__path__) if module.ispkg))


def register(name: str, create: "Callable[[int | None], Backend]") -> None:
    """Register a backend by name; ``create`` gets the number of threads that it may use, or None.

    Raises ConfigError if the name is taken.
    """
    if name in SHIPPED or name in _registered:
        raise ConfigError(f"backend {name!r}: this name is taken; choose another one")
    _registered[name] = create


def available() -> list[str]:
    """Return the names of the backends that this machine has."""
    return [*(name for name in SHIPPED if name not in unavailable()), *_registered]


def unavailable() -> dict[str, str]:
    """Return, by name, why this machine lacks a backend that toynn has."""
    reasons = {}
    for name in SHIPPED:
        missing = getattr(import_module(f"{__name__}.{name}"), "missing", None)
        if missing is not None and (why := missing()) is not None:
            reasons[name] = why
    return reasons


def get(name: str, n_threads: int | None = None) -> "Backend":
    """Return a new backend by name. Raises BackendUnavailable if there is none of that name."""
    if name in _registered:
        return _registered[name](n_threads)
    if name not in SHIPPED:
        raise BackendUnavailable(
            f"backend {name!r}: not in this build; available: {', '.join(available())}"
        )
    created: Backend = import_module(f"{__name__}.{name}").create(n_threads)
    return created
