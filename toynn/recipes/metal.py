"""The upstream names of the recipes on Apple's GPUs: the same recipes with backend="metal"."""

from toynn.recipes.lora import LoRA
from toynn.recipes.warm_start import WarmStart


class WarmStartMetal(WarmStart):
    """WarmStart on the GPU; raises BackendUnavailable if there is none."""

    def __init__(self, backend: str = "metal") -> None:
        super().__init__(backend)


class LoRAMetal(LoRA):
    """LoRA on the GPU; raises BackendUnavailable if there is none."""

    def __init__(self, backend: str = "metal") -> None:
        super().__init__(backend)
