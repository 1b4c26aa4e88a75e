"""Recipes: a model, its initial weights, and its training step."""

from toynn.recipes.encoders import Classifier, Embedder, Reranker
from toynn.recipes.from_scratch import GPT2, FromScratch
from toynn.recipes.grpo import GRPO
from toynn.recipes.lora import LoRA
from toynn.recipes.metal import LoRAMetal, WarmStartMetal
from toynn.recipes.preference import Preference
from toynn.recipes.vit_tiny import VitTiny
from toynn.recipes.warm_start import WarmStart

__all__ = [
    "GPT2",
    "GRPO",
    "Classifier",
    "Embedder",
    "FromScratch",
    "LoRA",
    "LoRAMetal",
    "Preference",
    "Reranker",
    "VitTiny",
    "WarmStart",
    "WarmStartMetal",
]
