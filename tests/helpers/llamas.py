"""Small Llama-like models of every kind, for tests: configurations, options, random weights."""

import numpy as np

from toynn import RecipeOptions
from toynn.models import architecture
from toynn.recipes import FromScratch

SIZES = {"vocab": 61, "d_model": 24, "n_heads": 6, "n_kv_heads": 2, "d_ff": 40, "n_layers": 2}
SIZES |= {"context": 16}
FACTORS = {"rope_scaling": "llama3", "rope_factors": (1.0, 4.0)}  # of the pairs of a head
LINEAR = {"rope_scaling": "linear", "rope_factor": 2.5}
YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "original_context": 40, "rope_base": 50.0}
YARN |= {"beta_fast": 1.5, "beta_slow": 0.5, "head_dim": 12}  # a ramp from pair 2 to 4 of 6
YARN_UNCUT = YARN | {"yarn_magnitude": 1.3, "yarn_cut": False}
SCALES = {"embedding_scale": 3.0, "residual_scale": 0.4, "attention_scale": 0.3}
SCALES |= {"logit_scale": 2.5}
EXPERTS = {"n_experts": 5, "n_experts_used": 2}
SPARSE = EXPERTS | {"expert_d_ff": 28, "dense_blocks": 2, "n_layers": 4}
GROUPS = {"n_experts": 6, "expert_groups": 3, "expert_groups_used": 2}
LATENT = {"n_kv_heads": 6, "kv_rank": 14, "nope_dim": 6, "rope_dim": 4}
LATENT |= {"value_dim": 7, "latent_eps": 1e-6}
YARN_LATENT = {name: value for name, value in YARN.items() if name != "head_dim"}
YARN_LATENT |= {"yarn_magnitude": 0.8782489, "yarn_scores": 0.7, "beta_slow": 0.1, "rms_eps": 1e-3}
OLMOE = {"n_kv_heads": 6}
CAPS = {"window": 4, "score_cap": 1.5, "logit_cap": 2.0}
LOCAL = {"window": 4, "rope_base": 500.0, "local_base": 50.0, "rope_divisor": 8.0}
LONGROPE = {"rope_magnitude": 1.2}
LONGROPE |= {"short_factors": (1.0, 1.5), "long_factors": (2.0, 7.0)}  # of the pairs of a head
# What states give is normalised, small as it may be: eps keeps float32 from being all there is.
DELTA = {
    "rms_eps": 0.03,
    "delta_heads": 2,
    "delta_value_heads": 6,
    "delta_dim": 5,
    "delta_value_dim": 5,
}
WIDTHS = {"delta_value_dim": 3}
# What comes of a state space is normalised, too.
MAMBA = {"rms_eps": 0.03, "n_layers": 3, "attention_blocks": (1,), "mamba_heads": 6}
MAMBA |= {"mamba_dim": 8, "mamba_groups": 2, "state_dim": 5, "conv_taps": 3}
HYBRID = SCALES | MAMBA
BIASES = {"output_bias": True, "mlp_bias": True}
GROWTH = YARN | {"original_context": 5, "beta_slow": 0.2, "query_growth": 0.3}
WINDOWS = {"n_layers": 3, "window": 4, "windowed": (True, False, True)}
OLMO3 = WINDOWS | YARN | {"head_dim": None, "local_base": 20.0}
COHERE2 = WINDOWS | {"logit_scale": 0.4}
STARCODER2 = BIASES | {"window": 4}
GLM4 = {"head_dim": 8, "rope_channels": 4}
GEMMA4 = {"full_head_dim": 6, "rope_channels": 4, "rope_base": 50.0, "window": 4}
GEMMA4 |= {"rms_eps": 0.03}  # v is normalised, small as it may be: as of states, above
GEMMA4 |= {"n_layers": 4, "local_base": 20.0, "block_scales": (0.8, 1.3, 0.7, 0.9)}
SHARED = {"windowed": (True, False, True, False), "shared_kv": 2, "wide_shared": True}
GEMMA3N = {"n_layers": 3, "windowed": (True, False, True), "shared_kv": 1, "per_layer": 5}
GEMMA3N |= {"rope_base": 50.0, "local_base": 20.0, "window": 4, "rms_eps": 0.1, "logit_cap": 2.0}
GEMMA3N |= {"laurel_rank": 3, "sparsity": (0.3, 0.0, 0.8), "block_widths": (56, 40, 56)}
#: How the names of gains end.
GAINS = ("norm.weight", "norm_1.weight", "norm_2.weight", ".scale", "scale.weight")
NEMOTRON = {name: size for name, size in MAMBA.items() if name != "attention_blocks"}
NEMOTRON |= {"n_layers": 4, "kinds": "M-*-"}
NEMOTRON_MOE = NEMOTRON | {"n_layers": 5, "kinds": "ME*ME", "n_experts": 6, "n_experts_used": 2}
NEMOTRON_MOE |= {"expert_d_ff": 28, "shared_d_ff": 20, "latent": 12, "weights_scale": 1.7}
T = 13

# By name: what differs in the configuration, and the options.
KINDS = {
    "llama": ({}, {}),
    "llama-untied": ({"rms_eps": 1e-3, "rope_base": 100.0}, {"untied": True}),
    "llama-bias": ({}, {"qkv_bias": True}),
    "llama-biases": (BIASES, {"qkv_bias": True}),
    "llama-one-kv-head": ({"n_kv_heads": 1}, {}),
    "llama-all-kv-heads": ({"n_kv_heads": 6}, {}),
    "llama-wide-heads": ({"head_dim": 10}, {}),
    "llama-llama3": (FACTORS, {}),
    "llama-linear": (LINEAR, {}),
    "llama-yarn": (YARN, {}),
    "llama-yarn-uncut": (YARN_UNCUT, {"untied": True}),
    "qwen3-yarn": ({"arch": "qwen3"} | YARN, {}),
    "llama-lens": ({"donor_d_in": 30}, {"untied": True}),
    "qwen2": ({"arch": "qwen2"}, {"qkv_bias": True}),
    "qwen3": ({"arch": "qwen3", "head_dim": 6}, {}),
    "qwen3-untied-bias": ({"arch": "qwen3"}, {"untied": True, "qkv_bias": True}),
    "smollm3": ({"arch": "smollm3", "n_layers": 5}, {}),
    "granite": ({"arch": "granite"} | SCALES, {"untied": True}),
    "qwen3moe": ({"arch": "qwen3moe", "head_dim": 6} | EXPERTS, {"untied": True}),
    "olmoe-one": ({"arch": "olmoe"} | OLMOE | {"n_experts": 3, "n_experts_used": 1}, {}),
    "olmoe": ({"arch": "olmoe"} | OLMOE | EXPERTS, {}),
    "olmoe-all": (
        {"arch": "olmoe"} | OLMOE | {"n_experts": 2, "n_experts_used": 2},
        {"untied": True},
    ),
    "granitemoe": ({"arch": "granitemoe"} | EXPERTS | SCALES, {"untied": True}),
    "granitemoe-shared": ({"arch": "granitemoe", "shared_d_ff": 20} | EXPERTS | SCALES, {}),
    "granitehybrid": ({"arch": "granitehybrid", "rotated": True} | HYBRID, {"untied": True}),
    "granitehybrid-experts": (
        {"arch": "granitehybrid", "shared_d_ff": 20} | HYBRID | EXPERTS,
        {},
    ),
    "nemotron_h": ({"arch": "nemotron_h", "head_dim": 6} | NEMOTRON, {"untied": True}),
    "nemotron_h_moe": ({"arch": "nemotron_h_moe"} | NEMOTRON_MOE, {"untied": True}),
    "gpt-oss": (
        {"arch": "gpt-oss", "n_layers": 3, "window": 4} | EXPERTS | YARN_UNCUT,
        {"untied": True},
    ),
    "olmo2": ({"arch": "olmo2"}, {"untied": True}),
    "phi3": ({"arch": "phi3", "window": 5}, {"untied": True}),
    "phi3-tied-part": ({"arch": "phi3", "n_heads": 2, "n_kv_heads": 1, "rope_channels": 8}, {}),
    "phi3-short": ({"arch": "phi3", "original_context": 13} | LONGROPE, {}),
    "phi3-long": ({"arch": "phi3", "original_context": 12} | LONGROPE, {}),
    "lfm2": ({"arch": "lfm2", "n_layers": 3, "attention_blocks": (1,)}, {}),
    "lfm2-taps": ({"arch": "lfm2", "attention_blocks": (0,), "conv_taps": 5}, {"untied": True}),
    "lfm2moe": ({"arch": "lfm2moe", "attention_blocks": (1, 3)} | SPARSE, {}),
    "lfm2moe-plain": (
        {"arch": "lfm2moe", "attention_blocks": (0,), "expert_bias": False, "normalized": False}
        | {"weights_scale": 0.6},
        {"untied": True},
    ),
    "glm4moe": (
        {"arch": "glm4moe", "head_norms": True, "shared_d_ff": 56, "weights_scale": 1.7}
        | GLM4
        | SPARSE
        | GROUPS,
        {"untied": True, "qkv_bias": True},
    ),
    "deepseek2": (
        {"arch": "deepseek2"}
        | LATENT
        | SPARSE
        | GROUPS
        | {"q_rank": 10, "shared_d_ff": 56, "weights_scale": 1.7, "n_layers": 3}
        | YARN_LATENT,
        {"untied": True},
    ),
    "deepseek2-plain": (
        {"arch": "deepseek2"} | LATENT | {"normalized": False, "n_experts_used": 3},
        {},
    ),
    "deepseek2-glm": (
        {"arch": "deepseek2", "q_rank": 10, "dense_blocks": 1, "shared_d_ff": 56, "rms_eps": 1e-5}
        | EXPERTS
        | LATENT
        | {"expert_d_ff": 28, "weights_scale": 1.8, "n_layers": 3, "rope_base": 50.0},
        {"untied": True},
    ),
    "deepseek2-v2": (
        {"arch": "deepseek2", "softmax": True, "normalized": False, "q_rank": 10}
        | LATENT
        | GROUPS
        | {"n_experts_used": 2, "shared_d_ff": 56, "expert_d_ff": 28, "weights_scale": 1.7},
        {},
    ),
    "glm4moe-plain": ({"arch": "glm4moe", "normalized": False, "rope_channels": 2}, {}),
    "ernie4_5-moe": ({"arch": "ernie4_5-moe", "shared_d_ff": 56} | SPARSE, {}),
    "ernie4_5-moe-none": ({"arch": "ernie4_5-moe", "shared_d_ff": 0} | EXPERTS, {"untied": True}),
    "qwen35": (
        {"arch": "qwen35", "n_layers": 3, "attention_every": 2, "rope_channels": 4, "head_dim": 6}
        | DELTA,
        {"untied": True},
    ),
    "qwen35-widths": ({"arch": "qwen35", "attention_every": 2} | DELTA | WIDTHS, {}),
    "qwen35-tied": ({"arch": "qwen35", "attention_every": 1, "conv_taps": 2}, {}),
    "qwen35-usual": ({"arch": "qwen35", "n_layers": 3, "attention_every": 3, "rms_eps": 0.1}, {}),
    "qwen35moe": (
        {"arch": "qwen35moe", "n_layers": 3, "attention_every": 2, "head_dim": 6, "expert_d_ff": 28}
        | EXPERTS
        | DELTA,
        {"untied": True},
    ),
    "qwen3next": (
        {"arch": "qwen3next", "n_layers": 3, "attention_every": 2, "head_dim": 6, "expert_d_ff": 28}
        | EXPERTS
        | DELTA
        | {"rms_eps": 0.1},
        {"untied": True},
    ),
    "qwen3next-widths": (
        {"arch": "qwen3next", "attention_every": 2, "normalized": False} | DELTA | WIDTHS,
        {},
    ),
    "gemma2": ({"arch": "gemma2", "n_layers": 3, "head_dim": 6} | CAPS, {}),
    "gemma3": ({"arch": "gemma3", "n_layers": 7, "head_dim": 6} | LOCAL, {}),
    "gemma3n": ({"arch": "gemma3n", "head_dim": 6} | GEMMA3N, {}),
    "gemma3n-usual": ({"arch": "gemma3n", "rms_eps": 0.1}, {"untied": True}),
    "gemma4": (
        {"arch": "gemma4", "per_layer": 5, "logit_cap": 2.0} | GEMMA4 | SHARED,
        {},
    ),
    "gemma4-moe": (
        {"arch": "gemma4"}
        | GEMMA4
        | EXPERTS
        | {"expert_d_ff": 28, "k_as_v": True, "full_kv_heads": 3}
        | {"n_layers": 3, "block_scales": (0.8, 1.3, 0.7)},
        {},
    ),
    "gemma4-plain": ({"arch": "gemma4", "n_layers": 3, "rms_eps": 0.1}, {"untied": True}),
    "ministral3": ({"arch": "mistral3"} | GROWTH, {}),
    "seed_oss": ({"arch": "seed_oss", "head_dim": 6}, {"qkv_bias": True, "untied": True}),
    "ernie4_5": ({"arch": "ernie4_5", "head_dim": 6}, {}),
    "olmo3": ({"arch": "olmo2"} | OLMO3, {"untied": True}),
    "hunyuan-dense": ({"arch": "hunyuan-dense", "head_dim": 6}, {}),
    "exaone4": ({"arch": "exaone4"} | WINDOWS, {"untied": True}),
    "exaone4-full": ({"arch": "exaone4"} | FACTORS, {}),
    "starcoder2": ({"arch": "starcoder2"} | STARCODER2, {"qkv_bias": True}),
    "cohere2": ({"arch": "cohere2"} | COHERE2, {}),
    "glm4": ({"arch": "glm4"} | GLM4, {"qkv_bias": True, "untied": True}),
    "gemma3-untied-cap": ({"arch": "gemma3", "window": 3, "logit_cap": 2.0}, {"untied": True}),
}
#: Those of which llama.cpp reads no file.
NO_FILES = {"deepseek2-plain", "qwen35-widths", "qwen3next-widths", "lfm2moe-plain"}
NO_FILES |= {"gemma3n"}


def config(arch="llama", **sizes):
    """The configuration of an architecture; what is not given is small."""
    return architecture(arch).config_type(**SIZES | sizes, arch=arch)


def make(kind="llama", batch=1, length=T, context=SIZES["context"], **options):
    """A recipe of this kind, realized."""
    changes, needed = KINDS[kind]
    recipe = FromScratch()
    opts = RecipeOptions(t_seq=length, t_batch=batch, seed=5, **needed | options)
    recipe.realize(config(**changes | {"context": context}), opts)
    return recipe


def shake(engine, rng):
    """Load random weights, biases and gains too, so that no gradient is small; return them."""
    weights = {
        name: (name.endswith(GAINS) + 0.3 * rng.standard_normal(w.shape)).astype(np.float32)
        for name, w in engine.weights().items()
    }
    for name in (name for name in weights if name.endswith("ssm_a")):  # by which states forget
        weights[name] = -np.abs(weights[name])
    engine.load_weights(weights)
    return weights


def draw(rng, batch=1, length=T, *, ignored=True):
    """Ids and labels of one batch; a third of the labels does not count."""
    ids, labels = rng.integers(0, SIZES["vocab"], (2, batch * length)).astype(np.int32)
    if ignored:
        labels[rng.permutation(labels.size)[: labels.size // 3]] = -100
    return ids, labels
