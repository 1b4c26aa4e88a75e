"""The values of general.architecture that toynn reads, by the files of this package that do.

Their order is that of all lists of architectures.
"""

DECODERS = {
    "llama": ("llama", "qwen2", "qwen3"),
    "cohere2": ("cohere2",),
    "deepseek2": ("deepseek2",),
    "ernie4_5": ("ernie4_5",),
    "ernie4_5moe": ("ernie4_5-moe",),
    "olmo2": ("olmo2",),
    "exaone4": ("exaone4",),
    "gemma": ("gemma2", "gemma3"),
    "gemma3n": ("gemma3n",),
    "gemma4": ("gemma4",),
    "glm4": ("glm4",),
    "glm4moe": ("glm4moe",),
    "gpt2": ("gpt2",),
    "gptoss": ("gpt-oss",),
    "granite": ("granite",),
    "granitemoe": ("granitemoe",),
    "granitehybrid": ("granitehybrid",),
    "hunyuan": ("hunyuan-dense",),
    "lfm2": ("lfm2",),
    "lfm2moe": ("lfm2moe",),
    "ministral3": ("mistral3",),
    "nemotronh": ("nemotron_h", "nemotron_h_moe"),
    "olmoe": ("olmoe",),
    "phi3": ("phi3",),
    "qwen3moe": ("qwen3moe",),
    "qwen35": ("qwen35",),
    "qwen35moe": ("qwen35moe",),
    "qwen3next": ("qwen3next",),
    "seed_oss": ("seed_oss",),
    "smollm3": ("smollm3",),
    "starcoder2": ("starcoder2",),
}
ENCODERS = {
    "bert": ("bert", "roberta", "xlm-roberta", "distilbert"),
    "modernbert": ("modern-bert",),
}
#: Decoders whose configurations are LlamaConfigs: all but GPT-2.
LLAMAS = tuple(name for file, names in DECODERS.items() if file != "gpt2" for name in names)
