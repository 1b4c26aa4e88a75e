"""Models that transformers has saved and toynn reads, and the other way round: equal logits."""

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")

import torch
import transformers
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from toynn import AdamW
from toynn.engines import SequenceEngine, frozen
from toynn.engines.converting import convert
from toynn.errors import ConfigError, DataError
from toynn.formats import gguf, hf

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SIZES = {"vocab_size": 61, "bos_token_id": None, "eos_token_id": None}
LLAMA = SIZES | {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
NO_PAD = LLAMA | {"pad_token_id": None, "rope_parameters": {"rope_theta": 50.0}}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.5}
GRANITE |= {"attention_multiplier": 0.3, "rms_norm_eps": 1e-3}
MHA = {"num_key_value_heads": 6}
EXPERTS = {"num_experts": 5, "num_local_experts": 5, "num_experts_per_tok": 2}
QWEN = EXPERTS | {"moe_intermediate_size": 20, "norm_topk_prob": True, "head_dim": 6}
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 40, "beta_fast": 1.5, "beta_slow": 0.5}
GPT_OSS = NO_PAD | EXPERTS | {"rope_parameters": YARN, "head_dim": 12, "sliding_window": 4}
GPT_OSS = {name: value for name, value in GPT_OSS.items() if name != "num_experts"}
PART = {"rope_theta": 50.0, "partial_rotary_factor": 0.5}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 7.0]}
LONGROPE = NO_PAD | {"rope_parameters": LONGROPE | {"rope_theta": 50.0}}
GEMMA = LLAMA | {"pad_token_id": None, "head_dim": 6, "query_pre_attn_scalar": 6}
GEMMA |= {"sliding_window": 5, "final_logit_softcapping": 2.0}
TWO_ROPES = {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}
TWO_ROPES |= {"sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}
GEMMA4 = LLAMA | {"pad_token_id": None, "head_dim": 4, "rms_norm_eps": 0.03, "sliding_window": 4}
GEMMA4 |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4}
GEMMA4 |= {"global_head_dim": 8, "final_logit_softcapping": 20.0, "num_kv_shared_layers": 2}
GEMMA4 |= {"hidden_size_per_layer_input": 5, "vocab_size_per_layer_input": 61}
GEMMA3N = {key: size for key, size in GEMMA4.items() if key != "global_head_dim"}
GEMMA3N |= {"laurel_rank": 3, "activation_sparsity_pattern": [0.3, 0.8, 0.0, 0.5]}
GEMMA3N |= {"intermediate_size": [56, 40, 56, 56]}
GEMMA3N["rope_parameters"] = {
    "full_attention": {"rope_type": "default", "rope_theta": 50.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
}
GEMMA3N_FILE = GEMMA3N | {"layer_types": None, "rope_parameters": None, "intermediate_size": 56}
GEMMA3N_FILE |= {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.95] * 4}
GEMMA3N_FILE |= {"hidden_size_per_layer_input": 256, "laurel_rank": 64}
GEMMA3N_FILE |= {"final_logit_softcapping": 30.0, "tie_word_embeddings": False}
GEMMA4["use_double_wide_mlp"] = True
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 50.0, "partial_rotary_factor": 0.5}
GEMMA4["rope_parameters"] = {
    "full_attention": PROPORTIONAL,
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
}
GEMMA4MOE = GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 3}
GEMMA4MOE |= {"num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 20}
GEMMA4MOE["enable_moe_block"] = True
PLAIN = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "layer_types": None}
PLAIN |= {"rope_parameters": None, "final_logit_softcapping": None, "use_double_wide_mlp": False}
LFM2 = NO_PAD | {"num_hidden_layers": 3, "conv_L_cache": 4, "norm_eps": 1e-3}
LFM2 |= {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}
LFM2 |= {"block_multiple_of": 8, "block_ffn_dim_multiplier": 1.5}
SPARSE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
LFM2MOE = NO_PAD | SPARSE | {"num_hidden_layers": 4, "conv_L_cache": 4, "norm_eps": 1e-3}
LFM2MOE |= {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
GLM4MOE = NO_PAD | SPARSE | {"num_hidden_layers": 4, "head_dim": 8, "first_k_dense_replace": 2}
GLM4MOE |= {"n_routed_experts": 6, "use_qk_norm": True, "routed_scaling_factor": 1.7}
GLM4MOE |= {"n_group": 3, "topk_group": 2, "num_experts": 6}
LATENT = NO_PAD | SPARSE | {"num_hidden_layers": 3, "num_key_value_heads": 6, "n_group": 3}
LATENT |= {"n_routed_experts": 6, "topk_group": 2, "n_shared_experts": 2, "kv_lora_rank": 14}
LATENT |= {"q_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 12, "v_head_dim": 7}
LATENT |= {"routed_scaling_factor": 1.7, "num_experts": None, "rms_norm_eps": 1e-3}
DEEPSEEK = {"beta_slow": 0.1, "mscale": 0.7, "mscale_all_dim": 0.7, "truncate": True}
DEEPSEEK = {"first_k_dense_replace": 1, "rope_parameters": YARN | DEEPSEEK}
V2 = {k: v for k, v in LATENT.items() if k != "num_experts"}
V2 |= {"norm_topk_prob": False, "topk_method": "group_limited_greedy"}
ERNIE_MOE = NO_PAD | {"moe_intermediate_size": 20, "moe_k": 2, "moe_num_experts": 5}
ERNIE_MOE |= {"num_hidden_layers": 4, "moe_layer_start_index": 2}
QWEN35 = LLAMA | {"num_hidden_layers": 3, "head_dim": 8, "rms_norm_eps": 0.03}
QWEN35 |= {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 5}
QWEN35 |= {"linear_value_head_dim": 5, "linear_conv_kernel_dim": 3, "full_attention_interval": 2}
QWEN35MOE = {k: v for k, v in (QWEN35 | SPARSE).items() if k != "intermediate_size"}
QWEN35MOE |= {"shared_expert_intermediate_size": 12}
QWEN35MOE |= {"rope_parameters": PART | {"rope_type": "default"}}
QWEN3NEXT = QWEN35MOE | {"moe_intermediate_size": 20}
MAMBA = {"mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_d_head": 8}
MAMBA |= {"mamba_d_conv": 3, "num_hidden_layers": 3, "shared_intermediate_size": 20}
HYBRID = LLAMA | GRANITE | MAMBA | {"num_local_experts": 0, "num_experts_per_tok": 0}
HYBRID |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
HYBRID |= {"position_embedding_type": "rope", "rope_parameters": {"rope_theta": 50.0}}
HYBRID_MOE = HYBRID | {"num_local_experts": 5, "num_experts_per_tok": 2}
HYBRID_MOE |= {"position_embedding_type": None}
NEMOTRON = {k: v for k, v in NO_PAD.items() if k != "num_hidden_layers"} | {"head_dim": 6}
NEMOTRON |= {"mamba_num_heads": 6, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 5}
NEMOTRON |= {"conv_kernel": 3, "layer_norm_epsilon": 1e-3, "time_step_min": 1e-30}
NEMOTRON |= {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]}
NEMOTRON_MOE = NEMOTRON | {"n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3}
NEMOTRON_MOE |= {"moe_intermediate_size": 20, "moe_shared_expert_intermediate_size": 28}
NEMOTRON_MOE |= {"routed_scaling_factor": 1.7, "topk_group": 2, "moe_latent_size": 12}
NEMOTRON_MOE |= {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]}
MINISTRAL = {"llama_4_scaling_beta": 0.3, "max_position_embeddings": 16, "mscale": 1.5}
MINISTRAL |= YARN | {"mscale_all_dim": 0.7, "original_max_position_embeddings": 5, "truncate": True}
MINISTRAL = LLAMA | {
    "head_dim": 12,
    "rope_parameters": MINISTRAL | {"beta_fast": 0.3, "beta_slow": 0.1},
}
WINDOWS = NO_PAD | {"num_hidden_layers": 5, "sliding_window": 4}
OLMO3 = {"full_attention": YARN | {"attention_factor": 1.3, "truncate": True}}
OLMO3 |= {"sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}
OLMO3["full_attention"]["beta_slow"] = 0.45
OLMO3 = WINDOWS | {"rope_parameters": OLMO3, "num_attention_heads": 2, "num_key_value_heads": 1}
ALPHA = {"rope_type": "dynamic", "alpha": 50.0, "rope_theta": 20.0, "factor": 1.0}
COHERE2 = WINDOWS | {"layer_norm_eps": 1e-3, "logit_scale": 0.4}
STARCODER2 = LLAMA | {"norm_epsilon": 1e-3, "rope_parameters": {"rope_theta": 50.0}}
GPT2 = SIZES | {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 16}

# By name: the class of the configuration, and what it is given.
MODELS = {
    "llama": ("LlamaConfig", LLAMA | {"rms_norm_eps": 1e-3}),
    "llama-tied": ("LlamaConfig", LLAMA | {"tie_word_embeddings": True}),
    "llama-bias": ("LlamaConfig", LLAMA | {"attention_bias": True}),
    "llama-biases": ("LlamaConfig", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama-wide": ("LlamaConfig", LLAMA | {"head_dim": 10}),
    "llama-base": ("LlamaConfig", LLAMA | {"rope_parameters": {"rope_theta": 50.0}}),
    "llama-3": ("LlamaConfig", LLAMA | {"rope_parameters": LLAMA3}),
    "mistral": ("MistralConfig", LLAMA | {"sliding_window": None}),
    "qwen2": ("Qwen2Config", LLAMA),
    "qwen2-tied": ("Qwen2Config", LLAMA | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", LLAMA | {"head_dim": 6}),
    "smollm3": ("SmolLM3Config", NO_PAD | {"num_hidden_layers": 5}),
    "smollm3-untied": ("SmolLM3Config", NO_PAD | {"tie_word_embeddings": False}),
    "granite": ("GraniteConfig", LLAMA | GRANITE),
    "granite-biases": ("GraniteConfig", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "granite-tied-plain": ("GraniteConfig", LLAMA | {"tie_word_embeddings": True}),
    "qwen3moe": ("Qwen3MoeConfig", LLAMA | QWEN),
    "olmoe": ("OlmoeConfig", NO_PAD | MHA | EXPERTS),
    "olmoe-tied": ("OlmoeConfig", NO_PAD | MHA | EXPERTS | {"tie_word_embeddings": True}),
    "granitemoe": ("GraniteMoeConfig", LLAMA | GRANITE | EXPERTS),
    "granitehybrid": ("GraniteMoeHybridConfig", HYBRID),
    "granitehybrid-experts": ("GraniteMoeHybridConfig", HYBRID_MOE),
    "granitehybrid-attention": (
        "GraniteMoeHybridConfig",
        HYBRID | {"layer_types": ["full_attention"] * 3, "position_embedding_type": None},
    ),
    "nemotron_h": ("NemotronHConfig", NEMOTRON),
    "nemotron_h_moe": ("NemotronHConfig", NEMOTRON_MOE),
    "gpt-oss": ("GptOssConfig", GPT_OSS),
    "gpt-oss-plain": ("GptOssConfig", GPT_OSS | {"rope_parameters": {"rope_theta": 50.0}}),
    "olmo2": ("Olmo2Config", NO_PAD),
    "phi3": ("Phi3Config", NO_PAD | {"sliding_window": 4}),
    "phi3-tied-part": (
        "Phi3Config",
        NO_PAD | {"rope_parameters": PART, "tie_word_embeddings": True},
    ),
    "phi3-longrope": ("Phi3Config", LONGROPE | {"original_max_position_embeddings": 8}),
    "phi3-longrope-short": ("Phi3Config", LONGROPE | {"original_max_position_embeddings": 15}),
    "lfm2": ("Lfm2Config", LFM2),
    "lfm2-adjusted": ("Lfm2Config", LFM2 | {"block_auto_adjust_ff_dim": True}),
    "lfm2moe": ("Lfm2MoeConfig", LFM2MOE),
    "lfm2moe-bare": (
        "Lfm2MoeConfig",
        LFM2MOE
        | {"use_expert_bias": False, "norm_topk_prob": False, "num_dense_layers": 0}
        | {"num_hidden_layers": 3, "layer_types": LFM2["layer_types"]},
    ),
    "glm4moe": ("Glm4MoeConfig", GLM4MOE),
    "deepseek2": ("DeepseekV3Config", LATENT | DEEPSEEK),
    "deepseek2-glm": (
        "Glm4MoeLiteConfig",
        LATENT | {"mlp_layer_types": ["dense", "dense", "sparse"], "rms_norm_eps": 1e-6},
    ),
    "deepseek2-moonlight": (
        "DeepseekV3Config",  # of which llama.cpp reads files by its 27 blocks
        LATENT | {"q_lora_rank": None, "num_hidden_layers": 27, "first_k_dense_replace": 25},
    ),
    "deepseek2-v2": ("DeepseekV2Config", V2 | DEEPSEEK),
    "deepseek2-v2-bare": ("DeepseekV2Config", V2 | {"q_lora_rank": None, "topk_method": "greedy"}),
    "glm4moe-plain": (
        "Glm4MoeConfig",
        GLM4MOE
        | {"use_qk_norm": False, "norm_topk_prob": False, "n_shared_experts": 2}
        | {"attention_bias": True, "first_k_dense_replace": 0, "num_hidden_layers": 2},
    ),
    "ernie4_5-moe": ("Ernie4_5_MoeConfig", ERNIE_MOE),
    "ernie4_5-moe-none": (
        "Ernie4_5_MoeConfig",
        ERNIE_MOE | {"moe_num_shared_experts": 0, "moe_layer_start_index": 0},
    ),
    "qwen35": ("Qwen3_5TextConfig", QWEN35),
    "qwen35-widths": ("Qwen3_5TextConfig", QWEN35 | {"linear_value_head_dim": 3}),
    "qwen35-part": (
        "Qwen3_5TextConfig",
        QWEN35 | {"tie_word_embeddings": True, "rope_parameters": PART | {"rope_type": "default"}},
    ),
    "qwen35moe": ("Qwen3_5MoeTextConfig", QWEN35MOE),
    "qwen3next": ("Qwen3NextConfig", QWEN3NEXT),
    "qwen3next-widths": (
        "Qwen3NextConfig",
        QWEN3NEXT
        | {"linear_value_head_dim": 3, "norm_topk_prob": False, "tie_word_embeddings": True},
    ),
    "gemma2": ("Gemma2Config", GEMMA | {"num_hidden_layers": 3}),
    "gemma2-scalar": ("Gemma2Config", GEMMA | {"query_pre_attn_scalar": 11}),
    "gemma3": ("Gemma3TextConfig", GEMMA | {"num_hidden_layers": 7, "rope_parameters": TWO_ROPES}),
    "gemma3-plain": ("Gemma3TextConfig", GEMMA | {"tie_word_embeddings": False}),
    "gemma3n-widths": ("Gemma3nTextConfig", GEMMA3N),
    "gemma3n": ("Gemma3nTextConfig", GEMMA3N_FILE),
    "gemma4": ("Gemma4TextConfig", GEMMA4),
    "gemma4-moe": ("Gemma4TextConfig", GEMMA4MOE),
    "gemma4-plain": ("Gemma4TextConfig", GEMMA4 | PLAIN),
    "ministral3": ("Ministral3Config", MINISTRAL | {"pad_token_id": None}),
    "seed_oss": ("SeedOssConfig", NO_PAD | {"head_dim": 6}),
    "seed_oss-biases": (
        "SeedOssConfig",
        NO_PAD | {"head_dim": 6, "attention_out_bias": True, "mlp_bias": True},
    ),
    "seed_oss-bare": ("SeedOssConfig", NO_PAD | {"head_dim": None, "attention_bias": False}),
    "ernie4_5": ("Ernie4_5Config", NO_PAD | {"head_dim": 6}),
    "ernie4_5-biases": ("Ernie4_5Config", NO_PAD | {"head_dim": None, "use_bias": True}),
    "olmo3": ("Olmo3Config", OLMO3),
    "olmo3-biases": ("Olmo3Config", OLMO3 | {"rope_parameters": None, "attention_bias": True}),
    "hunyuan": ("HunYuanDenseV1Config", NO_PAD | {"head_dim": 6, "rope_parameters": ALPHA}),
    "hunyuan-biases": ("HunYuanDenseV1Config", NO_PAD | {"head_dim": 4, "attention_bias": True}),
    "exaone4": ("Exaone4Config", WINDOWS | {"head_dim": 4}),
    "exaone4-full": (
        "Exaone4Config",
        NO_PAD | {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "starcoder2": ("Starcoder2Config", STARCODER2 | {"sliding_window": 4}),
    "starcoder2-bare": (
        "Starcoder2Config",
        STARCODER2 | {"use_bias": False, "tie_word_embeddings": False},
    ),
    "cohere2": ("Cohere2Config", COHERE2),
    "glm4": ("Glm4Config", NO_PAD | {"head_dim": 8}),
    "glm4-bare": (
        "Glm4Config",
        NO_PAD
        | {
            "head_dim": 8,
            "attention_bias": False,
            "rope_parameters": PART | {"partial_rotary_factor": 0.8},
        },
    ),
    "gpt2": ("GPT2Config", GPT2),
    "gpt2-inner": ("GPT2Config", GPT2 | {"n_inner": 40, "layer_norm_epsilon": 1e-3}),
}
IDS = np.random.default_rng(0).integers(0, 61, 13)


def their_model(kind):
    """A model of transformers with random weights, gains and biases."""
    name, settings = MODELS[kind]
    torch.manual_seed(0)
    settings = json.loads(json.dumps(settings))  # which the configuration may change
    model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings)).float()
    with torch.no_grad():
        chosen = [w for name, w in model.named_buffers() if name.endswith(("_bias", "scalar"))]
        for w in [*model.parameters(), *chosen]:
            w.add_(torch.randn_like(w), alpha=0.2)
    return model.eval()


def their_logits(model):
    model.set_experts_implementation("eager")  # the others are for floats
    with torch.no_grad():
        return model.double()(input_ids=torch.tensor(IDS)[None]).logits[0].numpy()


def assert_logits_agree(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


#: Folders that llama.cpp has no files for.
NOT_CONVERTED = "-biases", "-bare", "-widths", "gemma2-scalar"
CONVERTED = ("llama-biases", "granite-biases", "seed_oss-bare", "glm4-bare")


def is_converted(kind):
    return kind in CONVERTED or not kind.endswith(NOT_CONVERTED)


@pytest.mark.parametrize("kind", MODELS)
def test_there_and_back(kind, tmp_path):
    theirs = their_model(kind)
    theirs.save_pretrained(tmp_path / "theirs")
    expected = their_logits(theirs)
    with hf.open(tmp_path / "theirs") as source:
        engine = SequenceEngine.from_hf(tmp_path / "theirs", t_seq=13)
        mapped = frozen(source)
    assert_logits_agree(engine.logits(IDS), expected)
    assert_logits_agree(mapped.logits(IDS), expected)
    if is_converted(kind):
        convert(tmp_path / "theirs", tmp_path / "model.gguf", "f32")
        with gguf.open(tmp_path / "model.gguf") as file:
            assert_logits_agree(frozen(file).logits(IDS), expected)
    else:
        with pytest.raises(ConfigError, match=r"export: llama\.cpp reads \w+.*; got|output_bias"):
            convert(tmp_path / "theirs", tmp_path / "model.gguf", "f32")
    if kind == "llama-3":  # export_hf refuses it: see test_hf
        return
    engine.export_hf(tmp_path / "ours")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    assert_logits_agree(engine.logits(IDS), their_logits(back))
    before, after = theirs.float().state_dict(), back.float().state_dict()
    assert before.keys() == after.keys()
    for name in before:  # a gain of Gemma's is w + 1 here, which rounds it; a logarithm is -e^w
        changed = kind.startswith(
            ("gemma", "qwen35", "qwen3n", "granitehybrid", "nemotron")
        ) and name.endswith(("norm.weight", "A_log"))
        rounded = 3e-7 if changed else 0
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=rounded)


def test_the_part_for_text_of_a_model_that_sees(tmp_path):
    """As Ministral 3 is published: names have language_model in them, or are of other parts."""
    settings = dict(MODELS["ministral3"][1])
    text = transformers.Ministral3Config(**json.loads(json.dumps(settings)))
    sees = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "image_size": 8}
    sees |= {"num_attention_heads": 2, "patch_size": 4, "head_dim": 4}
    vision = transformers.PixtralVisionConfig(**sees)
    config = transformers.Mistral3Config(
        text_config=text, vision_config=vision, image_token_index=60, tie_word_embeddings=False
    )
    torch.manual_seed(0)
    theirs = transformers.Mistral3ForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(IDS % 60)[None]).logits[0].numpy()
    theirs.float().save_pretrained(tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text((tmp_path / "new" / "config.json").read_text())
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    assert any("vision_tower" in name for name in tensors)
    for name in [name for name in tensors if "language_model" in name or "lm_head" in name]:
        rest = name.removeprefix("model.").removeprefix("language_model.")
        inner = rest if rest.startswith(("model.", "lm_head.")) else f"model.{rest}"
        tensors[f"language_model.{inner}"] = tensors.pop(name)
    save_file(tensors, tmp_path / "old" / "model.safetensors")
    for version in ("new", "old"):
        assert_logits_agree(logits_of(tmp_path / version, IDS % 60), expected)
    save_file(tensors | {"spare.weight": tensors["language_model.lm_head.weight"]},
              tmp_path / "old" / "model.safetensors")  # fmt: skip
    with pytest.raises(DataError, match=r"unknown tensors: spare\.weight"):
        hf.open(tmp_path / "old")


def test_a_gemma4_as_it_is_published(tmp_path):
    """Its text part is nested, says sizes in other words, and has k and v that no block reads."""
    their_model("gemma4").save_pretrained(tmp_path)
    expected = logits_of(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    text |= {"global_head_dim": text.pop("per_layer_config")["1"]["head_dim"]}
    config = {"model_type": "gemma4", "text_config": text, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {f"model.language_{name}": w for name, w in tensors.items() if "lm_head" not in name}
    layer = "model.language_model.layers"
    for part in ("k_proj.weight", "v_proj.weight", "k_norm.weight"):
        for n in (2, 3):
            unread = tensors[f"{layer}.{n - 2}.self_attn.{part}"]
            tensors[f"{layer}.{n}.self_attn.{part}"] = 2 * unread
    tensors["model.vision_tower.spare.weight"] = np.ones(3, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    assert np.array_equal(logits_of(tmp_path), expected)
    convert(tmp_path, tmp_path / "model.gguf", "f32")
    with gguf.open(tmp_path / "model.gguf") as file:
        assert "blk.2.attn_k.weight" not in file
        assert np.array_equal(frozen(file).logits(IDS), expected)
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        tensors = {name: (np.array(file[name]), "f32") for name in file}
    tensors["blk.2.attn_k.weight"] = tensors["blk.0.attn_k.weight"]  # as llama.cpp's converter
    gguf.write(tmp_path / "more.gguf", metadata, tensors)
    with gguf.open(tmp_path / "more.gguf") as file:
        assert np.array_equal(frozen(file).logits(IDS), expected)


def test_a_gemma3n_as_it_is_published(tmp_path):
    """Its text part is nested, and ids of other parts, behind the others, have row 0 as input."""
    settings = json.loads(json.dumps(GEMMA3N | {"vocab_size_per_layer_input": 50}))
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(transformers.Gemma3nTextConfig(**settings)).eval()
    assert (IDS >= 50).any()
    theirs.save_pretrained(tmp_path)
    expected = their_logits(theirs)
    text = json.loads((tmp_path / "config.json").read_text())
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope["full_attention"]["rope_theta"]}  # as before transformers 5
    text |= {"rope_local_base_freq": rope["sliding_attention"]["rope_theta"]}
    config = {"model_type": "gemma3n", "text_config": text, "audio_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {f"model.language_{name}": w for name, w in tensors.items() if "lm_head" not in name}
    layer = "model.language_model.layers.2.self_attn"
    tensors |= {f"{layer}.{part}_proj.weight": np.ones((8, 24), np.float32) for part in "kv"}
    others = ("vision_tower", "audio_tower", "embed_vision", "embed_audio")
    tensors |= {f"model.{part}.spare.weight": np.ones(3, np.float32) for part in others}
    save_file(tensors, tmp_path / "model.safetensors")
    assert_logits_agree(logits_of(tmp_path), expected)
    engine = SequenceEngine.from_hf(tmp_path, t_seq=13)
    assert_logits_agree(engine.logits(IDS), expected)
    table = engine.weights()["per_layer_token_embd.weight"]
    assert len(table) == 61 and (table[50:] == table[0]).all()


#: What changes no number of what is computed: ids, training, the longest text.
NEUTRAL = {"max_position_embeddings", "initializer_range", "use_cache", "pretraining_tp"}
UNUSED = ("_token_id", "dropout", "pdrop")
NEUTRAL |= {"router_aux_loss_coef"}  # where output_router_logits is false
NEUTRAL |= {"sliding_window_pattern"}  # where there are layer_types
NEUTRAL |= {"mamba_chunk_size", "chunk_size", "expand"}  # of an algorithm, and of nothing
NEUTRAL |= {f"time_step_{name}" for name in ("min", "max", "floor")}  # of how weights start
NEUTRAL |= {"num_logits_to_keep", "rescale_prenorm_residual", "use_mamba_kernels"}
NEUTRAL |= {"moe_shared_expert_overlap"}
NEUTRAL |= {"altup_coef_clip"}  # of larger weights, in training
FAMILIES = ["ministral3", "seed_oss", "ernie4_5", "olmo3", "hunyuan", "exaone4", "starcoder2"]
FAMILIES += [
    "cohere2",
    "glm4",
    "granite-biases",
    "gemma2",
    "gemma3",
    "gemma3n-widths",
    "gemma4",
    "gemma4-moe",
    "phi3-longrope",
    "qwen35-part",
    "lfm2moe",
    "glm4moe",
    "deepseek2",
    "deepseek2-glm",
    "deepseek2-v2",
    "ernie4_5-moe",
    "qwen35moe",
    "qwen3next",
    "granitehybrid",
    "granitehybrid-experts",
    "nemotron_h",
    "nemotron_h_moe",
]
#: Of blocks that no such model has.
NONE = {"qwen3next": ("intermediate_size",)}
NONE |= {"granitehybrid": ("intermediate_size", "num_experts_per_tok")}
NONE |= {"granitehybrid-experts": ("rope_theta",)}
MOE = ("num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size")
MOE += ("n_routed_experts", "n_shared_experts", "routed_scaling_factor", "norm_topk_prob")
NONE |= {"nemotron_h": (*MOE, "n_group", "topk_group", "rope_theta")}
NONE |= {"nemotron_h_moe": ("intermediate_size", "rope_theta")}


def numbers_of(config, path=()):
    """Each number in a config.json that could count, by its path; true and false are numbers."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from numbers_of(value, (*path, key))
        elif isinstance(value, int | float) and not (key in NEUTRAL or key.endswith(UNUSED)):
            yield (*path, key), value


def changed(config, path, value):
    config = json.loads(json.dumps(config))
    *outer, last = path
    inner = config
    for key in outer:
        inner = inner[key]
    inner[last] = value
    return config


def logits_of(path, ids=IDS):
    with hf.open(path) as source:
        return frozen(source).logits(ids)


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_number_of_config_json_counts_or_is_refused(kind, tmp_path):
    """And old and new versions of it say the same."""
    their_model(kind).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config, expected = json.loads(file.read_text()), logits_of(tmp_path)
    for path, value in numbers_of(config):
        if path[-1] in NONE.get(kind, ()):
            continue
        other = not value if isinstance(value, bool) else 2 * value if value > 1 else value + 0.25
        file.write_text(json.dumps(changed(config, path, other)))
        try:
            same = np.array_equal(logits_of(tmp_path), expected)
        except DataError as error:
            assert str(tmp_path) in str(error)
            continue
        assert not same, path
    base = config.pop("rope_parameters")
    if "full_attention" in base:  # old versions have one base for both kinds of blocks
        return
    old = {key: base.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in base}
    old["rope_scaling"] = {"type" if key == "rope_type" else key: v for key, v in base.items()}
    file.write_text(json.dumps(config | {"torch_dtype": config.pop("dtype")} | old))
    assert np.array_equal(logits_of(tmp_path), expected)


def test_experts_that_are_stacked_in_a_folder(tmp_path):
    """As Qwen3.5's mixtures are published: one weight of all experts, without .weight."""
    their_model("qwen35moe").save_pretrained(tmp_path)
    expected = logits_of(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for n in range(QWEN35MOE["num_hidden_layers"]):
        at = f"model.layers.{n}.mlp.experts."
        gate, up, down = (
            np.stack([tensors.pop(f"{at}{e}.{part}_proj.weight") for e in range(5)])
            for part in ("gate", "up", "down")
        )
        tensors[f"{at}gate_up_proj"] = np.concatenate([gate, up], axis=1)
        tensors[f"{at}down_proj"] = down
    save_file(tensors, tmp_path / "model.safetensors")
    assert np.array_equal(logits_of(tmp_path), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, tmp_path):
    their_model("llama").to(dtype).save_pretrained(tmp_path / "theirs")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    engine = SequenceEngine.from_hf(tmp_path / "theirs", t_seq=13)
    expected = their_logits(theirs)
    assert_logits_agree(engine.logits(IDS), expected)
    with hf.open(tmp_path / "theirs") as source:
        assert_logits_agree(frozen(source).logits(IDS), expected)


@pytest.mark.parametrize("kind", ["llama-tied", "gpt2"])
def test_fine_tuning_goes_on_from_the_weights(kind, tmp_path):
    theirs = their_model(kind)
    theirs.save_pretrained(tmp_path / "theirs")
    engine = SequenceEngine.from_hf(tmp_path / "theirs", t_seq=13)
    labels = np.roll(IDS, -1)
    logits = torch.tensor(their_logits(theirs))
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).item()
    adam = AdamW.for_lora()
    losses = [engine.step(IDS, None, labels, adam.hp_for_step(k), k == 0) for k in range(20)]
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0] - 0.1
