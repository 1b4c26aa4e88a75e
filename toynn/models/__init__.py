"""Models: one file holds all that toynn knows of an architecture.

Importing the file ``register``s the architecture; every command and recipe then knows it.
`docs/adding-a-model.md` says how to write one.
"""

from toynn.models.bert import Bert
from toynn.models.checks import check_sizes
from toynn.models.cohere2 import Cohere2Config
from toynn.models.deepseek2 import DeepSeek2Config
from toynn.models.encoder import Encoder, EncoderConfig
from toynn.models.ernie4_5 import Ernie45
from toynn.models.ernie4_5moe import Ernie45MoEConfig
from toynn.models.exaone4 import Exaone4Config
from toynn.models.gemma import GemmaConfig
from toynn.models.gemma3n import Gemma3nConfig
from toynn.models.gemma4 import Gemma4Config
from toynn.models.glm4 import Glm4Config
from toynn.models.glm4moe import Glm4MoEConfig
from toynn.models.gpt2 import GPT2Config
from toynn.models.gptoss import GptOssConfig
from toynn.models.granite import GraniteConfig
from toynn.models.granitehybrid import GraniteHybridConfig
from toynn.models.granitemoe import GraniteMoEConfig
from toynn.models.hunyuan import Hunyuan
from toynn.models.hyper import Hyper, Source, check_tensors, refuse
from toynn.models.lfm2 import LFM2Config
from toynn.models.lfm2moe import LFM2MoEConfig
from toynn.models.llama import LlamaConfig
from toynn.models.ministral3 import Ministral3Config
from toynn.models.model import Model
from toynn.models.modernbert import ModernBertConfig
from toynn.models.nemotronh import NemotronHConfig
from toynn.models.olmo2 import Olmo2Config
from toynn.models.olmoe import OLMoEConfig
from toynn.models.phi3 import Phi3Config
from toynn.models.qwen3moe import Qwen3MoEConfig
from toynn.models.qwen3next import Qwen3NextConfig
from toynn.models.qwen35 import Qwen35Config
from toynn.models.qwen35moe import Qwen35MoEConfig
from toynn.models.registry import ARCHITECTURES, ENCODERS, architecture, register
from toynn.models.seed_oss import SeedOss
from toynn.models.sequence import HEAD, TABLE, Folder, SequenceConfig, SequenceModel
from toynn.models.smollm3 import SmolLM3
from toynn.models.starcoder2 import Starcoder2Config
from toynn.models.table import Row, Shapes, Sizes, experts, matrix, norm, router, table
from toynn.models.vit import VIT, ViTConfig

__all__ = [
    "ARCHITECTURES",
    "ENCODERS",
    "HEAD",
    "TABLE",
    "VIT",
    "Bert",
    "Cohere2Config",
    "DeepSeek2Config",
    "Encoder",
    "EncoderConfig",
    "Ernie45",
    "Ernie45MoEConfig",
    "Exaone4Config",
    "Folder",
    "GPT2Config",
    "Gemma3nConfig",
    "Gemma4Config",
    "GemmaConfig",
    "Glm4Config",
    "Glm4MoEConfig",
    "GptOssConfig",
    "GraniteConfig",
    "GraniteHybridConfig",
    "GraniteMoEConfig",
    "Hunyuan",
    "Hyper",
    "LFM2Config",
    "LFM2MoEConfig",
    "LlamaConfig",
    "Ministral3Config",
    "Model",
    "ModernBertConfig",
    "NemotronHConfig",
    "OLMoEConfig",
    "Olmo2Config",
    "Phi3Config",
    "Qwen3MoEConfig",
    "Qwen3NextConfig",
    "Qwen35Config",
    "Qwen35MoEConfig",
    "Row",
    "SeedOss",
    "SequenceConfig",
    "SequenceModel",
    "Shapes",
    "Sizes",
    "SmolLM3",
    "Source",
    "Starcoder2Config",
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
