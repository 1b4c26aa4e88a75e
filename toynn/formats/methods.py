"""The words of an option: how adapters are combined. See toynn.formats.adapters.combine."""

from typing import Literal

Method = Literal["cat", "linear"]
