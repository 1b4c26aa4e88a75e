"""Layers: what models record their forward pass with."""

from toynn.nn.caches import Caches
from toynn.nn.layers import Dropout, Layers
from toynn.nn.lora import LoRA, Magnitude, linear

__all__ = ["Caches", "Dropout", "Layers", "LoRA", "Magnitude", "linear"]
