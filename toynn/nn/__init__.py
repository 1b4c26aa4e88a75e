"""Layers, with which models record their forward pass."""

from toynn.nn.caches import Caches
from toynn.nn.layers import Dropout, Layers
from toynn.nn.lora import LoRA, Magnitude, linear

__all__ = ["Caches", "Dropout", "Layers", "LoRA", "Magnitude", "linear"]
