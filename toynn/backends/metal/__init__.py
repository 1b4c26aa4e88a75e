"""The Metal backend: shaders on Apple's GPUs. It is not here yet; its shaders are being written."""

import platform

from toynn.backends.protocol import Backend
from toynn.errors import BackendUnavailable

__all__ = ["create", "missing"]


def missing() -> str:
    """Return why there is no such device here."""
    return f"{platform.system()}: Metal is for macOS, and the backend is not complete yet"


def create(n_threads: int | None = None) -> Backend:
    """Return a new backend; raises BackendUnavailable where there is no device."""
    raise BackendUnavailable(
        f"backend 'metal': {missing()}; use another: backend=\"cpu\" runs everywhere"
    )
