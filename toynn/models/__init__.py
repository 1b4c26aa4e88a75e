"""Models: one file for all that toynn knows of an architecture.

What an architecture of GGUF files needs to work everywhere is that its file is imported, which
``register``s it: `docs/adding-a-model.md` says how one is written.
"""

from toynn.models.checks import check_sizes
from toynn.models.gemma import GemmaConfig
from toynn.models.gpt2 import GPT2Config
from toynn.models.gptoss import GptOssConfig
from toynn.models.granite import GraniteConfig
from toynn.models.granitemoe import GraniteMoEConfig
from toynn.models.hyper import Hyper, Source, check_tensors, refuse
from toynn.models.lfm2 import LFM2Config
from toynn.models.llama import LlamaConfig
from toynn.models.model import Model
from toynn.models.olmo2 import Olmo2
from toynn.models.olmoe import OLMoEConfig
from toynn.models.phi3 import Phi3Config
from toynn.models.qwen3moe import Qwen3MoEConfig
from toynn.models.qwen35 import Qwen35Config
from toynn.models.registry import ARCHITECTURES, architecture, register
from toynn.models.sequence import Folder, SequenceConfig, SequenceModel
from toynn.models.smollm3 import SmolLM3
from toynn.models.table import Row, Shapes, Sizes, experts, matrix, norm, router, table
from toynn.models.vit import VIT, ViTConfig

__all__ = [
    "ARCHITECTURES",
    "VIT",
    "Folder",
    "GPT2Config",
    "GemmaConfig",
    "GptOssConfig",
    "GraniteConfig",
    "GraniteMoEConfig",
    "Hyper",
    "LFM2Config",
    "LlamaConfig",
    "Model",
    "OLMoEConfig",
    "Olmo2",
    "Phi3Config",
    "Qwen3MoEConfig",
    "Qwen35Config",
    "Row",
    "SequenceConfig",
    "SequenceModel",
    "Shapes",
    "Sizes",
    "SmolLM3",
    "Source",
    "ViTConfig",
    "architecture",
    "check_sizes",
    "check_tensors",
    "experts",
    "matrix",
    "norm",
    "refuse",
    "register",
    "router",
    "table",
]
