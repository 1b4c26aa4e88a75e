"""The Metal backend: a planned tape as one command buffer on Apple's GPU. See docs/metal.md.

The backend exists if macOS has a device and the package was built with the bridge. Elsewhere it can
be imported, says why it is missing, and is refused by name. It never computes on the CPU instead.
"""

import sys

from toynn.backends.protocol import Backend
from toynn.errors import BackendError, BackendUnavailable

__all__ = ["create", "missing"]


def missing() -> str | None:
    """Return why this machine lacks the backend; None if it has it."""
    try:
        from toynn.backends.metal import _bridge
    except ImportError as error:
        if sys.platform != "darwin":
            return f"Metal is Apple's, for macOS; this is {sys.platform}"
        return (
            f"this build has no bridge to it ({error}): it needs Apple's command-line tools "
            "(`xcode-select --install`) and no TOYNN_METAL=0; pip install -v says what went wrong"
        )
    try:
        _bridge.Device()
    except BackendError as error:
        return str(error)
    return None


def create(n_threads: int | None = None) -> Backend:
    """Return a new backend. Raises BackendUnavailable if there is no device."""
    if (why := missing()) is not None:
        raise BackendUnavailable(
            f"backend 'metal': {why}; use --backend cpu, which runs everywhere"
        )
    from toynn.backends.metal.backend import Metal

    return Metal(n_threads)
