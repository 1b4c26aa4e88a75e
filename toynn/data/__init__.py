"""Training data: from files to batches. Knows nothing of models."""

from typing import TYPE_CHECKING

from toynn.system.later import submodules

if not TYPE_CHECKING:  # editors know the modules
    __getattr__ = submodules(__name__)
