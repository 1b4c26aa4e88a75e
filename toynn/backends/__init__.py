"""Backends by name. Nothing outside this package asks which one is in use."""

from toynn.backends.protocol import Backend
from toynn.errors import BackendUnavailable

__all__ = ["available", "get"]


def available() -> list[str]:
    """Names of the backends that this build has."""
    return ["cpu"]


def get(name: str) -> Backend:
    """Return a backend by name; BackendUnavailable if this build lacks it."""
    if name not in available():
        raise BackendUnavailable(
            f"backend {name!r}: not in this build; available: {', '.join(available())}"
        )
    from toynn.backends.cpu import CPU

    return CPU()
