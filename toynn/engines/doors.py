"""Doors of engines, by the names that the seeds and users know, to what is elsewhere."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.engines.adapters import Adapters
from toynn.engines.decoding import BatchDecoder, Decoder, Decoding
from toynn.engines.targets import AdapterOptions
from toynn.engines.weights import Weights
from toynn.errors import LifecycleError
from toynn.formats.adapters import Adapter
from toynn.graph.tape import Tensor
from toynn.models import Source
from toynn.nn import LoRA
from toynn.session import Session

__all__ = ["AdapterDoors", "DecoderDoors", "Widths"]


class Widths:
    """The sizes of a transformer, as its configuration says them."""

    config: Any

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return int(self.config.d_model)

    @property
    def n_heads(self) -> int:
        """Number of attention heads."""
        return int(self.config.n_heads)

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return int(self.config.d_head)

    @property
    def d_ff(self) -> int:
        """Width of the feed-forward layer."""
        return int(self.config.d_ff)

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return int(self.config.n_layers)


class DecoderDoors:
    """Reading on where one stopped."""

    context: int
    _decoding: Decoding

    @abstractmethod
    def _session_for(self, call: str) -> Session:
        """Return the session; LifecycleError before there are weights."""

    def decoder(self) -> Decoder:
        """Begin a sequence, to be read piece by piece; the one begun before ends with that.

        The keys and values of ``context`` tokens get their memory when the first token is read,
        and keep it.
        """
        self._session_for("decoder()")
        return Decoder(self._decoding.begin(1, self.context))

    def batch_decoder(self, batch: int, room: int = 0) -> BatchDecoder:
        """Begin several sequences, to be read together piece by piece; see ``decoder``.

        Each has room for so many tokens; 0: the context. Those begun before, as many with as much
        room, end with that; so do those that were not read while batches of four other sizes were,
        whose memory is freed. Raises ConfigError for a number or a room out of range.
        """
        self._session_for("batch_decoder()")
        return self._decoding.begin(batch, room or self.context)


class AdapterDoors:
    """Adapters beside the weights of a file: asked for before the weights, used after."""

    lora: AdapterOptions | None = None  # as it was asked for
    _trains_adapters = False
    _weights: Weights

    @abstractmethod
    def load_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Replace all weights; over a file, all adapters."""

    @abstractmethod
    def _session_for(self, call: str) -> Session:
        """Return the session; LifecycleError before there are weights."""

    @abstractmethod
    def _check_undeclared(self, call: str) -> None:
        """Raise LifecycleError once the weights are declared."""

    def enable_lora(self, options: AdapterOptions, *, train: bool = True) -> None:
        """Ask for adapters; comes before ``realize_for_mmap``. Untrained ones only add to y."""
        self._check_undeclared("enable_lora")
        self.lora, self._trains_adapters = options, train

    def enable_lora_q(self, rank: int) -> None:
        """Ask for adapters of rank ``rank``, scale 1, on the projections to q."""
        self.enable_lora(AdapterOptions(rank), train=False)

    def enable_lora_q_adamw(self) -> None:
        """Have the adapters trained; comes after ``enable_lora_q``.

        Raises LifecycleError before enable_lora_q().
        """
        self._check_undeclared("enable_lora_q_adamw")
        if self.lora is None:
            raise LifecycleError(
                f"{type(self).__name__}.enable_lora_q_adamw before enable_lora_q()"
            )
        self._trains_adapters = True

    @property
    def adapter_dropout(self) -> float:
        """The share of their inputs that adapters do not see in a training step."""
        return self.lora.dropout if self.lora and self._trains_adapters else 0.0

    @property
    def file(self) -> Source | None:
        """The file that the weights lie in, if they do."""
        return self._weights.file

    def check_unchanged(self) -> None:
        """Raise the file's error where it is mapped and no longer the one that was opened."""
        if self.file is not None:
            self.file.check_unchanged()

    @property
    def adapters(self) -> Mapping[str, LoRA]:
        """The adapters, by the GGUF name of their matrix."""
        found = self._weights.adapters
        return {} if found is None else found.layers

    def init_adapters(self, init: str, seed: int, init_scale: float) -> None:
        """Draw every A, each with a stream of its own, as ``init`` says; set every B to zero.

        ``init`` as in AdapterOptions; one that is principal must be asked for there, too.
        """
        self._session_for("init_adapters()")
        AdapterOptions(1, init=init)  # refuses what there is not
        if self._weights.adapters is not None:
            self._weights.adapters.start(init, seed, init_scale)

    def upload_lora_q_init(self, seed: int, init_scale: float) -> None:
        """Draw every A from N(0, init_scale); set every B to zero."""
        self.init_adapters("normal", seed, init_scale)

    def adapter(self) -> Adapter:
        """Return a copy of the adapters, for ``toynn.formats.adapters`` to write.

        Raises LifecycleError where there are none.
        """
        self._session_for("adapter()")
        return self._adapted("adapter").copy()

    def load_adapter(self, adapter: Adapter) -> None:
        """Replace all adapters by those that were read; AdapterError unless they are alike.

        Raises LifecycleError where there are none.
        """
        self.load_weights(self._adapted("load_adapter").taken(adapter))

    def adapter_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the adapters: `<weight>.lora_a` (r, in), `<weight>.lora_b` (out, r).

        Of DoRA `<weight>.lora_magnitude` (out,), too. Rows are those of the file that the weights
        lie in; ``adapter`` has GGUF's.
        """
        found = self._weights.adapters
        return {} if found is None else found.weights()

    @property
    def unwritten(self) -> Mapping[str, str]:
        """Why the adapters cannot be written as "gguf" and as "peft"; empty where they can be."""
        found = self._weights.adapters
        return {"gguf": "", "peft": ""} if found is None else found.unwritten

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """What A and B began with, where that is taken away from them: frozen, by name."""
        found = self._weights.adapters
        return {} if found is None else found.starts

    def measure_norms(self) -> None:
        """Take the norms that DoRA's magnitudes stand in place of, if weights have changed."""
        if self._weights.adapters is not None:
            self._weights.adapters.measure()

    def _adapted(self, call: str) -> Adapters:
        if self._weights.adapters is None:
            raise LifecycleError(f"{type(self).__name__}.{call}: it was realized without adapters")
        return self._weights.adapters
