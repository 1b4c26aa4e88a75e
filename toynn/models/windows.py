"""Windows: a Llama in which a query in some blocks sees its last keys only.

    scores of query i:  keys j <= i,  in a block with a window  i - window < j <= i

This is the base of architectures whose files say for each block whether it has a window; usually
all but every fourth have. Source: Beltagy, Peters & Cohan 2020, arXiv:2004.05150, section 3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.graph.tape import Tensor
from toynn.models.checks import check_sizes
from toynn.models.hyper import Hyper
from toynn.models.keys import PATTERN, WINDOW
from toynn.models.llama import Llama, LlamaConfig
from toynn.models.tables import Floats
from toynn.nn import Layers

_PERIOD = 4  # by default the last of every 4 blocks has no window
_SLIDING, _FULL = "sliding_attention", "full_attention"
_MOST = 1 << 16  # blocks: a limit on the lists that a wrong config.json can ask for
_LETTERS = {"L": True, "G": False}


@dataclass(frozen=True)
class WindowConfig(LlamaConfig):
    """Shape of a Llama with windows. Raises ConfigError for blocks that do not fit.

    Attributes
    ----------
    window
        Keys that a query sees, its own included, in blocks with a window; 0: no block has one.
    windowed
        For each block, whether it has a window; empty: all but every fourth.
    """

    window: int = 0
    windowed: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window", least=0)
        usual = tuple((n + 1) % _PERIOD != 0 for n in range(self.n_layers if self.window else 0))
        windowed = tuple(self.windowed) or usual
        if [type(each) for each in windowed] != [bool] * len(usual):
            raise ConfigError(
                f"{type(self).__name__}: windowed must be True or False for each of {len(usual)} "
                f"blocks with a window of {self.window}; got {self.windowed!r}"
            )
        object.__setattr__(self, "windowed", windowed)

    def width(self, n: int) -> int:
        """Return the window of block n; 0: no window."""
        return self.window if self.window and self.windowed[n] else 0


class Windowed(Llama):
    """Base of the architectures with a WindowConfig."""

    config_type = WindowConfig
    #: The window where config.json has no sliding_window; 0: none.
    usual_window = 4096
    #: The last of so many blocks has no window, where a file does not say.
    period = _PERIOD

    # -- Files ---------------------------------------------------------------------------------

    def read(self, hyper: Hyper) -> Any:
        """Return a file's configuration."""
        cfg = super().read(hyper)
        window = hyper.count(WINDOW)
        windowed = hyper.pattern(PATTERN, cfg.n_layers, self.period) if window else []
        return replace(cfg, window=window, windowed=tuple(windowed))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        windows = {WINDOW: cfg.window, PATTERN: list(cfg.windowed)} if cfg.window else {}
        return super().write(cfg) | windows

    def read_kinds(self, config: Config, hyper: dict[str, Any]) -> None:
        """Read which blocks have a window."""
        window = config.get("sliding_window", self.usual_window)
        kinds, period = config.get("layer_types"), config.get("sliding_window_pattern", _PERIOD)
        count = min(hyper.get("block_count", 0), _MOST)
        if window is None:
            if isinstance(kinds, list) and _SLIDING in kinds:
                config.refuse(f"layer_types has {_SLIDING}; sliding_window is null")
            return
        hyper[WINDOW] = int(config.number("sliding_window", window, real=False))
        if kinds is not None:
            named = {_SLIDING: True, _FULL: False}
            if not isinstance(kinds, list) or any(str(kind) not in named for kind in kinds):
                config.refuse(f"layer_types must be {_SLIDING} or {_FULL}; got {kinds!r}")
            hyper[PATTERN] = [named[kind] for kind in kinds]
        elif isinstance(period, str) and period and set(period) <= _LETTERS.keys():
            hyper[PATTERN] = [_LETTERS[period[n % len(period)]] for n in range(count)]
        else:
            period = int(config.number("sliding_window_pattern", period, real=False))
            hyper[PATTERN] = [(n + 1) % period != 0 for n in range(count)]
        if len(hyper[PATTERN]) != count:
            config.refuse(f"layer_types must have {count} entries; got {len(hyper[PATTERN])}")

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for windows, and pad_token_id null."""
        keys = super().folder(hyper, tensors)
        windowed = hyper.get(PATTERN) or [False] * hyper["block_count"]
        kinds = [_SLIDING if has else _FULL for has in windowed]
        window = hyper.get(WINDOW)
        return keys | {"sliding_window": window, "layer_types": kinds, "pad_token_id": None}

    # -- Forward -------------------------------------------------------------------------------

    def mixed(self, block: Layers, cfg: Any, n: int, x: Tensor, positions: Tensor) -> Tensor:
        """Record the attention of block n."""
        rotated = positions if self.rotates(cfg, n) else None
        return self.attention(block, cfg, x, rotated, self.rope(cfg, n), window=cfg.width(n))

    def rope(self, cfg: Any, n: int) -> dict[str, Any]:
        """Return arguments of Layers.rope that are block n's own."""
        return {}
