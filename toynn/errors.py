"""The kinds of error. Each message says what, where, expected, got, and what to do."""

__all__ = [
    "AdapterError",
    "BackendError",
    "BackendUnavailable",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "GGUFError",
    "LabelError",
    "LifecycleError",
    "NonFiniteError",
    "RankError",
    "ShapeError",
    "ToynnError",
]


class ToynnError(Exception):
    """Base of every error that toynn raises on purpose."""


class ShapeError(ToynnError, ValueError):
    """An array or tensor has the wrong shape or dtype."""


class LifecycleError(ToynnError, RuntimeError):
    """A call came in the wrong order; the message names the call that is missing."""


class LabelError(ToynnError, ValueError):
    """A label or token id is out of range, or no row counts; names the row and the value."""


class ConfigError(ToynnError, ValueError):
    """A configuration contradicts itself or asks for what does not exist."""


class DataError(ToynnError, ValueError):
    """A data file is missing, empty, too short or malformed; names the file and the line."""


class GGUFError(ToynnError, ValueError):
    """A GGUF file is malformed or cannot be read or written; names file, offset, expected, got."""


class AdapterError(ToynnError, ValueError):
    """An adapter does not fit its base model."""


class CheckpointError(ToynnError, RuntimeError):
    """A checkpoint cannot be written or resumed from."""


class NonFiniteError(ToynnError, ArithmeticError):
    """A gradient is NaN or infinite, and weights and moments were left as they were; or a logit."""


class BackendUnavailable(ToynnError, RuntimeError):
    """The backend was not built, or this machine lacks it."""


class RankError(ToynnError, RuntimeError):
    """Of the processes that train together another one failed, left, or does something else."""


class BackendError(ToynnError, RuntimeError):
    """The device failed: in the middle of a step, or in compiling; says so in its own words."""
