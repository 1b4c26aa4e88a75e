"""The Llama family against transformers in float64: the same weights under its names."""

from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")

import torch
import torch_gpt2
import transformers
from llamas import SCALES, SIZES, draw, make, shake
from test_gpt2_parity import LOSS, assert_gradients_agree, hp
from transformers.models.gemma3n import modeling_gemma3n
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.granitemoehybrid import modeling_granitemoehybrid
from transformers.models.nemotron_h import modeling_nemotron_h
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next

from toynn.models import architecture

pytestmark = pytest.mark.parity

#: By architecture: what transformers' classes begin with, and what comes behind in its config's.
MODELS = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "smollm3": "SmolLM3",
    "granite": "Granite",
    "qwen3moe": "Qwen3Moe",
    "olmoe": "Olmoe",
    "granitemoe": "GraniteMoe",
    "granitemoe-shared": "GraniteMoeShared",
    "granitehybrid": "GraniteMoeHybrid",
    "nemotron_h": "NemotronH",
    "nemotron_h_moe": "NemotronH",
    "gpt-oss": "GptOss",
    "olmo2": "Olmo2",
    "olmo3": "Olmo3",
    "phi3": "Phi3",
    "lfm2": "Lfm2",
    "lfm2moe": "Lfm2Moe",
    "ernie4_5-moe": "Ernie4_5_Moe",
    "glm4moe": "Glm4Moe",
    "deepseek2": "DeepseekV3",
    "deepseek2-v2": "DeepseekV2",
    "deepseek2-glm": "Glm4MoeLite",
    "qwen35": ("Qwen3_5", "Text"),
    "qwen35moe": ("Qwen3_5Moe", "Text"),
    "qwen3next": "Qwen3Next",
    "gemma2": "Gemma2",
    "gemma3": ("Gemma3", "Text"),
    "gemma3n": ("Gemma3n", "Text"),
    "gemma4": ("Gemma4", "Text"),
    "mistral3": "Ministral3",
    "seed_oss": "SeedOss",
    "ernie4_5": "Ernie4_5",
    "hunyuan-dense": "HunYuanDenseV1",
    "exaone4": "Exaone4",
    "starcoder2": "Starcoder2",
    "cohere2": "Cohere2",
    "glm4": "Glm4",
}


def classes(kind):
    """The classes of the configuration and of the model."""
    name, part = (MODELS[kind], "") if isinstance(MODELS[kind], str) else MODELS[kind]
    return (getattr(transformers, f"{name}{end}") for end in (f"{part}Config", "ForCausalLM"))


GRANITE = {
    "embedding_multiplier": SCALES["embedding_scale"],
    "residual_multiplier": SCALES["residual_scale"],
    "attention_multiplier": SCALES["attention_scale"],
    "logits_scaling": SCALES["logit_scale"],
}
#: What else their configurations have.
MORE = {
    "smollm3": {"pad_token_id": None},
    "granite": GRANITE,
    "granitemoe": GRANITE,
    "granitemoe-shared": GRANITE,
    "granitehybrid": GRANITE,
    "qwen3moe": {"norm_topk_prob": True},
    "olmoe": {"pad_token_id": None},
    "olmo2": {"pad_token_id": None},
    "seed_oss": {"pad_token_id": None, "attention_dropout": 0.0, "residual_dropout": 0.0},
}
NO_PAD = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_up_proj",
    "ffn_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_shexp": "shared_mlp.input_linear",
    "ffn_up_shexp": "shared_mlp.input_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}
KINDS = ["llama", "llama-untied", "llama-wide-heads", "qwen2", "qwen3", "qwen3-untied-bias"]
KINDS += ["smollm3", "granite", "qwen3moe", "olmoe", "olmoe-one", "olmoe-all", "granitemoe"]
KINDS += ["granitemoe-shared", "gpt-oss", "granitehybrid", "granitehybrid-experts"]
KINDS += ["nemotron_h", "nemotron_h_moe"]
KINDS += ["olmo2", "phi3", "phi3-tied-part", "phi3-short", "phi3-long"]
KINDS += ["llama-linear", "llama-yarn", "llama-yarn-uncut", "qwen3-yarn"]
KINDS += ["qwen35", "qwen35-tied", "qwen35-usual"]
KINDS += ["llama-biases", "ministral3", "seed_oss", "ernie4_5", "olmo3", "hunyuan-dense"]
KINDS += ["exaone4", "starcoder2", "cohere2", "glm4", "qwen35-widths"]
KINDS += ["lfm2moe", "lfm2moe-plain", "glm4moe", "glm4moe-plain", "qwen35moe"]
KINDS += ["ernie4_5-moe", "ernie4_5-moe-none", "qwen3next"]
KINDS += ["deepseek2", "deepseek2-plain", "deepseek2-v2", "deepseek2-glm"]
KINDS += ["gemma4", "gemma4-moe", "gemma4-plain", "gemma3n", "gemma3n-usual"]
KINDS += ["lfm2", "lfm2-taps", "gemma2", "gemma3", "gemma3-untied-cap"]


PARTS = ("gate", "up", "down")
CHOICE = "exp_probs_b.bias"  # of experts: not trained
OTHER_NAMES = {
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "lfm2": {
        "attn_norm": "operator_norm",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.conv": "conv.conv",
        "shortconv.out_proj": "conv.out_proj",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
        "token_embd_norm": "model.embedding_norm",
    },
    "lfm2moe": {
        "ffn_gate_inp": "feed_forward.gate",
        "ffn_gate_exps": "feed_forward.experts.gate_up_proj",
        "ffn_up_exps": "feed_forward.experts.gate_up_proj",
        "ffn_down_exps": "feed_forward.experts.down_proj",
        "exp_probs_b": "feed_forward.expert_bias",
    },
    "gpt-oss": {"ffn_gate_inp": "mlp.router", "attn_sinks": "self_attn.sinks"},
    "qwen35": {
        "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_beta": "linear_attn.in_proj_b",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_conv1d": "linear_attn.conv1d",
        "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj",
    },
    "hunyuan-dense": {
        "attn_q_norm": "self_attn.query_layernorm",
        "attn_k_norm": "self_attn.key_layernorm",
    },
    "starcoder2": {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "glm4": {
        "post_attention_norm": "post_self_attn_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    "gemma2": {"ffn_norm": "pre_feedforward_layernorm"},
    "gemma3": {"ffn_norm": "pre_feedforward_layernorm"},
}
OTHER_NAMES["granitehybrid"] = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
    "ffn_gate": "shared_mlp.input_linear",
    "ffn_up": "shared_mlp.input_linear",
    "ffn_down": "shared_mlp.output_linear",
}
OTHER_NAMES["gemma4"] = {
    "ffn_norm": "pre_feedforward_layernorm",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_up_exps": "experts.gate_up_proj",
    "ffn_down_exps": "experts.down_proj",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}
OTHER_NAMES["gemma3n"] = OTHER_NAMES["gemma4"] | {
    f"altup_{ours}.{i}": f"model.altup_{theirs}.{i}"
    for ours, theirs in (("proj", "projections"), ("unembd_proj", "unembed_projections"))
    for i in range(3)
}
OTHER_NAMES["gemma3n"] |= {
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_correct_coef": "altup.correction_coefs",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
OTHER_NAMES["nemotron_h"] = {
    f"{own}": f"mixer.{name}"
    for own, name in {
        "ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_norm": "norm", "ssm_out": "out_proj",
        "attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj",
        "ffn_up": "up_proj", "ffn_down": "down_proj", "ffn_gate_inp": "gate",
        "ffn_up_exps": "experts.up_proj", "ffn_down_exps": "experts.down_proj",
        "ffn_up_shexp": "shared_experts.up_proj", "ffn_down_shexp": "shared_experts.down_proj",
        "ffn_latent_down": "fc1_latent_proj", "ffn_latent_up": "fc2_latent_proj",
        "exp_probs_b": "gate.e_score_correction_bias",
    }.items()
}  # fmt: skip
OTHER_NAMES["nemotron_h"] |= {"attn_norm": "norm", "token_embd": "model.embeddings"}
OTHER_NAMES["nemotron_h"] |= {"output_norm": "model.norm_f"}
OTHER_NAMES["nemotron_h_moe"] = OTHER_NAMES["nemotron_h"]
SHARED = {f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in PARTS}
OTHER_NAMES["glm4moe"] = SHARED | {"exp_probs_b": "mlp.gate.e_score_correction_bias"}
LATENT = {"q_a": "q_a_proj", "q_b": "q_b_proj", "q_a_norm": "q_a_layernorm"}
LATENT |= {"kv_a_mqa": "kv_a_proj_with_mqa", "kv_a_norm": "kv_a_layernorm", "kv_b": "kv_b_proj"}
OTHER_NAMES["deepseek2"] = OTHER_NAMES["glm4moe"] | {
    f"attn_{part}": f"self_attn.{name}" for part, name in LATENT.items()
}
OTHER_NAMES["ernie4_5-moe"] = SHARED | {
    "exp_probs_b": "mlp.gate.moe_statics.e_score_correction_bias"
}
OTHER_NAMES["qwen35moe"] = OTHER_NAMES["qwen35"] | {
    f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in PARTS
}
OTHER_NAMES["qwen35moe"] |= {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
OTHER_NAMES["qwen3next"] = OTHER_NAMES["qwen35moe"] | {
    "attn_qkv": "linear_attn.in_proj_qkvz",
    "attn_gate": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
}
OTHER_NAMES["lfm2moe"] = OTHER_NAMES["lfm2"] | OTHER_NAMES["lfm2moe"]


MAMBA = {"n_heads": "mamba_heads", "d_head": "mamba_dim", "n_groups": "mamba_groups"}
MAMBA |= {"d_state": "state_dim", "d_conv": "conv_taps"}


def more(kind, cfg):
    """What else the configurations of an architecture have, or have in other ways."""
    if cfg.arch == "phi3":
        rope = {"rope_type": "default", "rope_theta": cfg.rope_base}
        rope["partial_rotary_factor"] = cfg.rope_channels / cfg.d_head
        if cfg.long_factors:
            factors = {"short_factor": cfg.short_factors, "long_factor": cfg.long_factors}
            rope |= {"rope_type": "longrope", "attention_factor": cfg.rope_magnitude}
            rope |= {name: list(values) for name, values in factors.items()}
        context = {"original_max_position_embeddings": cfg.original_context}
        window = {"sliding_window": cfg.window or None, "pad_token_id": None}
        return {"rope_parameters": rope} | context | window
    if cfg.arch.startswith("lfm2"):
        kinds = [
            "full_attention" if n in cfg.attention_blocks else "conv" for n in range(cfg.n_layers)
        ]
        width = {"block_auto_adjust_ff_dim": False, "pad_token_id": None, "norm_eps": cfg.rms_eps}
        known = {"layer_types": kinds, "conv_L_cache": cfg.conv_taps} | width
        return known | (sparse(cfg, "num_dense_layers") if cfg.arch == "lfm2moe" else {})
    if cfg.arch.startswith("nemotron_h"):
        names = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
        known = {"layers_block_type": [names[letter] for letter in cfg.kinds]} | NO_PAD
        known |= {"mamba_num_heads": cfg.mamba_heads, "mamba_head_dim": cfg.mamba_dim}
        known |= {"n_groups": cfg.mamba_groups, "ssm_state_size": cfg.state_dim}
        known |= {"conv_kernel": cfg.conv_taps, "layer_norm_epsilon": cfg.rms_eps}
        known |= {"n_routed_experts": cfg.n_experts or 1, "moe_latent_size": cfg.latent or None}
        known |= {"moe_shared_expert_intermediate_size": cfg.shared_d_ff}
        return known | {"routed_scaling_factor": cfg.weights_scale, "time_step_min": 1e-30}
    if cfg.arch == "granitehybrid":
        kinds = ("linear_attention", "full_attention")
        known = {"layer_types": [kinds[n in cfg.attention_blocks] for n in range(cfg.n_layers)]}
        known |= {"position_embedding_type": "rope" if cfg.rotated else None}
        known |= {f"mamba_{name}": getattr(cfg, field) for name, field in MAMBA.items()}
        return MORE[cfg.arch] | NO_PAD | known | {"shared_intermediate_size": cfg.d_ff}
    if hasattr(cfg, "delta"):
        rope = {"rope_type": "default", "rope_theta": cfg.rope_base, "mrope_section": [2, 1, 1]}
        rope["partial_rotary_factor"] = cfg.rope_channels / cfg.d_head
        every = {"layer_types": None, "full_attention_interval": cfg.attention_every}
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        sizes = {f"linear_{name}": size for name, size in zip(names, cfg.delta, strict=True)}
        known = {"rope_parameters": rope, "linear_conv_kernel_dim": cfg.conv_taps} | every | sizes
        if cfg.arch != "qwen35":
            known |= {"norm_topk_prob": cfg.normalized}
            known |= {"shared_expert_intermediate_size": cfg.shared_d_ff} | NO_PAD
            known |= {"num_experts": cfg.n_experts}
        return known
    if cfg.arch in ("gemma3n", "gemma4"):
        return NO_PAD | shared(cfg) | (gemma4(cfg) if cfg.arch == "gemma4" else gemma3n(cfg))
    if cfg.arch.startswith("gemma"):
        rope = {"rope_type": "default", "rope_theta": cfg.rope_base}
        if cfg.arch == "gemma3":
            local = {"rope_type": "default", "rope_theta": cfg.local_base}
            rope |= {"rope_type": "linear", "factor": cfg.rope_divisor}
            rope = {"full_attention": rope, "sliding_attention": local}
        caps = {"final_logit_softcapping": cfg.logit_cap or None}
        if cfg.score_cap:
            caps["attn_logit_softcapping"] = cfg.score_cap
        scores = {"query_pre_attn_scalar": cfg.d_head, "sliding_window": cfg.window}
        scores["pad_token_id"] = None
        return {"rope_parameters": rope} | caps | scores
    if cfg.arch == "gpt-oss":
        return {"sliding_window": cfg.window, "attention_bias": True} | stretch(cfg)
    if cfg.arch == "mistral3":
        growth = {"llama_4_scaling_beta": cfg.query_growth}
        return NO_PAD | {"rope_parameters": stretch(cfg)["rope_parameters"] | growth}
    if getattr(cfg, "windowed", ()):
        kinds = ["sliding_attention" if has else "full_attention" for has in cfg.windowed]
        known = NO_PAD | {"layer_types": kinds, "sliding_window": cfg.window}
        if cfg.arch == "olmo2":
            local = {"rope_type": "default", "rope_theta": cfg.local_base}
            both = {"full_attention": stretch(cfg)["rope_parameters"], "sliding_attention": local}
            known |= {"rope_parameters": both}
        more = {"layer_norm_eps": cfg.rms_eps, "logit_scale": getattr(cfg, "logit_scale", 1.0)}
        return known | more
    if cfg.arch == "starcoder2":
        return {"sliding_window": cfg.window, "norm_epsilon": cfg.rms_eps}
    if cfg.arch.startswith("glm4"):
        part = {"partial_rotary_factor": cfg.rope_channels / cfg.d_head}
        rope = {"rope_type": "default", "rope_theta": cfg.rope_base}
        known = NO_PAD | {"rope_parameters": rope | part}
        return known | (sparse(cfg, "first_k_dense_replace") if cfg.arch == "glm4moe" else {})
    if cfg.arch == "deepseek2":
        names = {"kv_lora_rank": "kv_rank", "qk_nope_head_dim": "nope_dim"}
        names |= {"qk_rope_head_dim": "rope_dim", "v_head_dim": "value_dim"}
        known = {theirs: getattr(cfg, ours) for theirs, ours in names.items()}
        known |= NO_PAD | {"q_lora_rank": cfg.q_rank or None}
        known["rope_parameters"] = {"rope_type": "default", "rope_theta": cfg.rope_base}
        known |= stretch(cfg)
        if cfg.yarn_scores:
            known["rope_parameters"]["mscale_all_dim"] = cfg.yarn_scores
        if cfg.softmax:
            known["topk_method"] = "group_limited_greedy"
        return known | sparse(cfg, "first_k_dense_replace")
    if cfg.arch == "ernie4_5-moe":
        known = {"moe_k": cfg.n_experts_used, "moe_num_experts": cfg.n_experts}
        known |= {"moe_num_shared_experts": cfg.shared_d_ff // cfg.expert_d_ff}
        return NO_PAD | known | {"moe_layer_start_index": cfg.dense_blocks}
    return MORE.get(kind, NO_PAD) | stretch(cfg)


def shared(cfg):
    """What Gemma 3n and 4 have."""
    kinds = ["sliding_attention" if has else "full_attention" for has in cfg.windowed]
    known = {"layer_types": kinds, "sliding_window": cfg.window}
    known |= {"num_kv_shared_layers": cfg.shared_kv, "hidden_size_per_layer_input": cfg.per_layer}
    known |= {"vocab_size_per_layer_input": cfg.vocab}
    rope = {"full_attention": {"rope_type": "default", "rope_theta": cfg.rope_base}}
    rope |= {"sliding_attention": {"rope_type": "default", "rope_theta": cfg.local_base}}
    return known | {"rope_parameters": rope, "final_logit_softcapping": cfg.logit_cap or None}


def gemma3n(cfg):
    """What a Gemma 3n has besides."""
    widths = list(cfg.block_widths) or cfg.d_ff
    known = {"laurel_rank": cfg.laurel_rank, "intermediate_size": widths}
    return known | {"activation_sparsity_pattern": list(cfg.sparsity)}


def gemma4(cfg):
    """What a Gemma 4 has besides, as released folders say it."""
    rope = shared(cfg)["rope_parameters"]
    rope["full_attention"] |= {"rope_type": "proportional"}
    rope["full_attention"]["partial_rotary_factor"] = cfg.rope_channels / cfg.width_of(full=True)
    known = {"global_head_dim": cfg.width_of(full=True), "rope_parameters": rope}
    known |= {"num_global_key_value_heads": cfg.heads(full=True)}
    known |= {"attention_k_eq_v": cfg.k_as_v, "use_double_wide_mlp": cfg.wide_shared}
    known |= {"enable_moe_block": cfg.n_experts > 0, "num_experts": cfg.n_experts or None}
    return known | {"top_k_experts": cfg.n_experts_used or None}


def sparse(cfg, dense):
    """What the mixtures have whose experts have a width of their own."""
    known = {"num_experts": cfg.n_experts, "norm_topk_prob": cfg.normalized}
    known |= {"n_routed_experts": cfg.n_experts, "use_qk_norm": getattr(cfg, "head_norms", False)}
    known |= {"n_shared_experts": cfg.shared_d_ff // cfg.expert_d_ff}
    known |= {"routed_scaling_factor": cfg.weights_scale, dense: cfg.dense_blocks}
    known |= {"n_group": cfg.expert_groups, "topk_group": cfg.expert_groups_used}
    return known | {"use_expert_bias": getattr(cfg, "expert_bias", True)}


def stretch(cfg):
    """rope_parameters of linear and of yarn."""
    if cfg.rope_scaling not in ("linear", "yarn"):
        return {}
    rope = {"rope_type": cfg.rope_scaling, "rope_theta": cfg.rope_base, "factor": cfg.rope_factor}
    if cfg.rope_scaling == "yarn":
        rope |= {"original_max_position_embeddings": cfg.original_context}
        rope |= {"beta_fast": cfg.beta_fast, "beta_slow": cfg.beta_slow, "truncate": cfg.yarn_cut}
        if cfg.yarn_magnitude != 1:
            usual = 1 + 0.1 * np.log(cfg.rope_factor)
            rope["attention_factor"] = float(usual * cfg.yarn_magnitude)
    return {"rope_parameters": rope}


@contextmanager
def in_float64(module):
    """What a module computes in float32 whatever it is given, in float64."""

    class Wide:
        float32 = torch.float64

        def __getattr__(self, name):
            return getattr(torch, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "torch", Wide())
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


#: Weights whose names end in no ".weight".
WHOLE = {"ssm_a": "mixer.A_log", "ssm_dt.bias": "mixer.dt_bias", "ssm_d": "mixer.D"}
WHOLE |= {"ffn_gate_inp.scale": "router.scale"}
WHOLE |= {"altup_correct_scale.weight": "altup.correct_output_scale"}
WHOLE |= {"ffn_down_exps.scale": "router.per_expert_scale"}


def their_name(name, arch):
    """blk.0.attn_q.weight: model.layers.0.self_attn.q_proj.weight."""
    if name.endswith(CHOICE):
        return f"model.layers.{name.split('.')[1]}.{OTHER_NAMES[arch]['exp_probs_b']}"
    for whole, theirs in WHOLE.items():
        if name.endswith(f".{whole}"):
            mixers = {"granitehybrid": "mamba", "nemotron_h": "mixer", "nemotron_h_moe": "mixer"}
            mixer = mixers.get(arch, "linear_attn")
            return f"model.layers.{name.split('.')[1]}.{theirs.replace('mixer', mixer)}"
    part, _, kind = name.rpartition(".")
    block = part.split(".")[:2] if part.startswith("blk.") else []
    part = ".".join(part.split(".")[len(block) :])
    module = OTHER_NAMES.get(arch, {}).get(part) or NAMES[part]
    if part.endswith(("_exps", "_sinks")):
        module, kind = module + "_bias" * (kind == "bias"), ""
    kinds = [kind] if kind else []
    return ".".join([*(["model.layers", block[1]] if block else []), module, *kinds])


def first_of(name, arch):
    """Gate and up of experts are one weight there: that of gate; granite's shared ones too.

    And Qwen3-Next's q, k, v and z.
    """
    if arch == "qwen3next":
        name = name.replace("attn_gate", "attn_qkv")
    if arch == "granitehybrid":
        name = name.replace("ffn_up.", "ffn_gate.")
    shared = "ffn_up_shexp" if "ffn_up_shexp" not in OTHER_NAMES.get(arch, {}) else "none"
    if arch.startswith("nemotron_h"):
        return name
    return name.replace("ffn_up_exps", "ffn_gate_exps").replace(shared, "ffn_gate_shexp")


def half_of(name, w, cfg):
    """What of their weight is ours."""
    arch = cfg.arch
    if arch == "qwen3next" and (".attn_qkv." in name or ".attn_gate." in name):
        K, V, D, E = cfg.delta
        heads, before = w.reshape(K, -1, w.shape[-1]), 2 * D + V // K * E
        return heads[:, :before] if "attn_qkv" in name else heads[:, before:]
    if arch == "gpt-oss" and "_exps" in name:  # columns by turns, and matrices the other way round
        ours = w[..., int("ffn_up" in name) :: 2] if "ffn_down" not in name else w
        return ours if name.endswith("bias") else ours.swapaxes(-1, -2)
    half = w.shape[-2] // 2 if w.ndim > 1 else 0
    if name != first_of(name, arch):
        return w[..., half:, :]
    other = name.replace("gate", "up")
    return w[..., :half, :] if other != name == first_of(other, arch) else w


def less(name, w, cfg):
    """Gemma's gains are 1 + w there, and most of Qwen3.5's."""
    shifted = cfg.arch in ("gemma2", "gemma3") or hasattr(cfg, "delta")
    shifted = shifted and "ssm_" not in name
    return w - (shifted and name.endswith("norm.weight"))


def rows_apart(name, w, cfg):
    """Rows of q and k from GGUF's order, where pairs are interleaved, to halves.

    Heads of v of a delta rule: from those that read one of q and k after the other, to together.
    """
    if cfg.arch == "qwen3next":
        K, _, D, _ = cfg.delta
        if ".attn_qkv." not in name:
            return w
        qkv = np.split(w, [K * D, 2 * K * D])
        heads = [part.reshape(K, -1, w.shape[-1]) for part in qkv]
        return np.concatenate(heads, axis=1).reshape(w.shape)
    if cfg.arch.startswith("qwen35"):
        K, V, D, _ = cfg.delta
        parts = ("attn_gate", "attn_qkv", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt", "ssm_conv1d")
        if "ssm_out" in name:
            return w.reshape(len(w), V // K, K, -1).swapaxes(1, 2).reshape(w.shape)
        if not any(f".{part}" in name for part in parts):
            return w
        before = 2 * K * D if "qkv" in name or "conv" in name else 0
        heads = w[before:].reshape(V // K, K, -1, *w.shape[1:]).swapaxes(0, 1)
        return np.concatenate([w[:before], heads.reshape(w[before:].shape)])
    paired = any(row.pairs for row in architecture(cfg.arch).table)
    if not (paired and architecture(cfg.arch).interleaved) or not name.rpartition(".")[0].endswith(
        ("attn_q", "attn_k")
    ):
        return w
    heads = w.reshape(-1, cfg.d_head // 2, 2, *w.shape[1:])
    return heads.swapaxes(1, 2).reshape(w.shape)


WIDE = {"qwen35": modeling_qwen3_5, "qwen35moe": modeling_qwen3_5_moe}
WIDE |= {"qwen3next": modeling_qwen3_next, "granitehybrid": modeling_granitemoehybrid}
WIDE |= {"gemma3n": modeling_gemma3n, "gemma4": modeling_gemma4}
WIDE |= {"nemotron_h": modeling_nemotron_h, "nemotron_h_moe": modeling_nemotron_h}


class Theirs:
    """A model of transformers with an engine's weights; speaks in GGUF's names and row order."""

    def __init__(self, engine):
        cfg, opts = engine.config, engine.options
        shared = getattr(cfg, "shared_d_ff", 0)
        kind = f"{cfg.arch}-shared" if shared and cfg.arch == "granitemoe" else cfg.arch
        kind = "olmo3" if kind == "olmo2" and cfg.window else kind
        kind = "deepseek2-v2" if getattr(cfg, "softmax", False) else kind
        glm = getattr(cfg, "q_rank", 0) and cfg.rope_scaling == "none" and not cfg.softmax
        config, model = classes("deepseek2-glm" if glm else kind)
        self.cfg = cfg
        known = {"rope_parameters": {"rope_type": "default", "rope_theta": cfg.rope_base}}
        known |= {} if cfg.arch == "qwen2" else {"attention_bias": opts.qkv_bias}
        known |= {"mlp_bias": cfg.mlp_bias}
        known |= {"intermediate_size": cfg.d_ff} | more(kind, cfg)
        if hasattr(cfg, "n_experts"):
            known |= {"num_experts_per_tok": cfg.n_experts_used}
            apart = cfg.arch in ("gemma4", "nemotron_h", "nemotron_h_moe")
            width = cfg.expert_d_ff if apart else cfg.expert_width
            known |= {"moe_intermediate_size": width}
            known |= {"num_local_experts": cfg.n_experts}
            known |= {"shared_intermediate_size": shared} if shared else {}
        self.model = model(
            config(
                vocab_size=cfg.vocab,
                hidden_size=cfg.d_model,
                num_hidden_layers=cfg.n_layers,
                num_attention_heads=cfg.n_heads,
                num_key_value_heads=cfg.n_kv_heads,
                head_dim=getattr(cfg, "rope_dim", cfg.d_head),
                max_position_embeddings=cfg.context,
                rms_norm_eps=cfg.rms_eps,
                tie_word_embeddings=not opts.untied,
                attn_implementation="eager",
                **known,
            )
        ).double()
        self.model.set_experts_implementation("eager")  # the others are for floats
        theirs = dict(self.model.named_parameters()) | dict(self._decays())
        theirs |= {name: w for name, w in self.model.named_buffers() if name.endswith("_bias")}
        theirs = {
            name.replace("block_sparse_moe.router", "mlp.gate"): w for name, w in theirs.items()
        }
        theirs = {name.replace("block_sparse_moe", "mlp"): w for name, w in theirs.items()}
        firsts = [name for name in engine.weights() if name == first_of(name, cfg.arch)]
        self.weights = {name: theirs.pop(their_name(name, cfg.arch)) for name in firsts}
        for name, left in theirs.items():  # attention_bias gives the output a bias too
            assert name.endswith("o_proj.bias")
            torch.nn.init.zeros_(left)
        with torch.no_grad():
            for n, scale in enumerate(getattr(cfg, "block_scales", ())):
                self.model.model.layers[n].layer_scalar.fill_(scale)
            for name, w in engine.weights().items():
                theirs = half_of(name, self.weights[first_of(name, cfg.arch)], cfg)
                ours = less(name, rows_apart(name, w, cfg), cfg)
                theirs.copy_(torch.tensor(ours).view_as(theirs))
        self.weights = {n: w for n, w in self.weights.items() if not n.endswith(CHOICE)}
        self.moments = {
            name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in self.weights.items()
        }

    def _decays(self):
        """What A_log is the logarithm of, which is what we train, in its place."""
        for name, module in self.model.named_modules():
            if hasattr(module, "A_log"):
                decay = module.decay = torch.nn.Parameter(torch.empty_like(module.A_log))
                del module.A_log
                module.register_forward_pre_hook(
                    lambda module, _: setattr(module, "A_log", torch.log(-module.decay))
                )
                yield f"{name}.A_log", decay

    def logits(self, ids, batch):
        ids = torch.tensor(ids.astype(np.int64)).reshape(batch, -1)
        if self.cfg.arch not in WIDE:
            return self.model(input_ids=ids).logits.flatten(0, 1)
        with in_float64(WIDE[self.cfg.arch]):
            return self.model(input_ids=ids).logits.flatten(0, 1)

    def backward(self, ids, labels, batch):
        self.model.zero_grad()
        labels = torch.tensor(labels.astype(np.int64))
        loss = torch.nn.functional.cross_entropy(self.logits(ids, batch), labels)
        loss.backward()
        return loss.item()

    def gradient_of(self, name, ours):
        """Our gradient in their order, and theirs."""
        whole = self.weights[first_of(name, self.cfg.arch)]
        theirs = half_of(name, whole.grad.numpy(), self.cfg)
        return rows_apart(name, ours, self.cfg).reshape(theirs.shape), theirs

    def update(self, row):
        torch_gpt2.Model.update(self, row)
        with torch.no_grad():
            for name, w in self.weights.items():  # ours decays to 0, which is -1 there
                w += row[0] * row[4] * less(name, 0.0, self.cfg)


#: Seeds of weights and tokens, by kind. With seed 1, softmaxes that are almost certain magnify
#: float32's rounding in these, by which level and order of sums decide; in PyTorch's float32, too.
SEEDS = {"deepseek2": 3, "deepseek2-glm": 3, "gemma4": 3, "lfm2-taps": 2, "qwen35moe": 5}
SEEDS |= {"qwen3next": 3, "smollm3": 6}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 3])
def test_logits_loss_gradients_and_ten_steps(kind, batch):
    rng = np.random.default_rng(SEEDS.get(kind, 1))
    recipe = make(kind, batch)
    shake(recipe.engine, rng)
    theirs = Theirs(recipe.engine)
    ids, _ = draw(rng, batch)
    expected = theirs.logits(ids, batch).detach().numpy()
    got = recipe.engine.logits(ids)
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    for step in range(10):
        ids, labels = draw(rng, batch)
        loss = recipe.step(ids, None, labels, hp("from_scratch", step), step == 0)
        assert loss == pytest.approx(theirs.backward(ids, labels, batch), rel=LOSS)
        if step == 0:  # later the weights differ by what rounding did
            pairs = {n: theirs.gradient_of(n, g) for n, g in recipe.engine.gradients().items()}
            ours, expected = ({name: p[i] for name, p in pairs.items()} for i in (0, 1))
            assert_gradients_agree(ours, expected)
        theirs.update(torch_gpt2.hp_row("from_scratch", step, 3e-3, 0.1))


def test_llama3_frequency_factors():
    """The factors that transformers computes for a Llama 3.1, given to the engine one by one."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131072}
    config = transformers.LlamaConfig(**sizes, rope_parameters=rope)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device=None)

    from toynn import LlamaConfig as Ours

    plain = Ours(**SIZES | {"d_model": 4096, "n_heads": 32}, rope_base=5e5)
    factors = plain.inverse_frequencies() / frequencies.double().numpy()
    assert factors.min() == pytest.approx(1) and factors.max() == pytest.approx(8)
    scaled = Ours(
        **SIZES | {"d_model": 4096, "n_heads": 32},
        rope_base=5e5,
        rope_scaling="llama3",
        rope_factors=tuple(factors),
    )
    np.testing.assert_allclose(scaled.inverse_frequencies(), frequencies.numpy(), rtol=1e-6)
