"""An open model of either format, as a context manager, searched for NaN and infinity."""

from abc import ABC, abstractmethod
from typing import Self

from toynn.errors import ToynnError
from toynn.formats.gguf.tensors import TensorInfo

CHECK_BELOW = 1 << 28  # bytes: searching so many takes a tenth of a second


class Opened(ABC):
    """An open model with `tensors` by name; a context manager closes it."""

    tensors: dict[str, TensorInfo]
    nbytes: int

    @abstractmethod
    def close(self) -> None:
        """Release the files. Arrays taken from them stay valid."""

    @abstractmethod
    def check_finite(self) -> None:
        """Raise the format's error for a weight that is NaN or infinite."""

    def looked_through(self, check: bool | None) -> Self:
        """Return the model; with ``check``, search its weights for NaN and infinity first.

        ``check`` None means only if the model is small. Raises what ``check_finite`` does, after
        closing the model.
        """
        if check or (check is None and self.nbytes < CHECK_BELOW):
            try:
                self.check_finite()
            except ToynnError:
                self.close()
                raise
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __len__(self) -> int:
        return len(self.tensors)
