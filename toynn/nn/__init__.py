"""What a model's forward pass is written with, recorded on a session."""

from toynn.nn.caches import Caches
from toynn.nn.layers import Dropout, Layers
from toynn.nn.lora import LoRA, Magnitude, linear

__all__ = ["Caches", "Dropout", "Layers", "LoRA", "Magnitude", "linear"]
