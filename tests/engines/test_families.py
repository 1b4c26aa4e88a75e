"""Other architectures of the Llama family: what files and folders say that they do not compute."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hf_folders import edit_object, edit_tensors
from llamas import FACTORS, NEMOTRON_MOE, SCALES, config, make
from lora_bases import rewritten
from safetensors.numpy import load_file, save_file

from toynn.engines import LlamaSeqEngine, frozen
from toynn.engines.converting import fuse_into, unlike
from toynn.errors import ConfigError, DataError, GGUFError
from toynn.formats import bases, gguf, hf
from toynn.formats.adapters import Adapter
from toynn.models.hyper import Hyper
from toynn.options import RecipeOptions

LISTS = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 7.0]}
FOLDERS = {
    "interval": ("smollm3", dict(no_rope_layers=None, no_rope_layer_interval=3), "interval must"),
    "layers": ("smollm3", dict(no_rope_layers=[1, 1, 0, 1, 1]), "0 in every fourth layer"),
    "few layers": ("smollm3", dict(no_rope_layers=[1, 1, 1, 0]), "0 in every fourth layer"),
    "no list": ("smollm3", dict(no_rope_layers=3), "0 in every fourth layer; got 3"),
    "windows": ("smollm3", dict(layer_types=["sliding_attention"] * 5), "layer_types must be"),
    "window": ("smollm3", dict(use_sliding_window=True), "use_sliding_window must be False"),
    "base": ("smollm3", dict(rope_theta=None, rope_parameters=None), "rope_theta is missing"),
    "activation": ("granite", dict(hidden_act="gelu"), "hidden_act must be 'silu'; got 'gelu'"),
    "scale": ("granite", dict(residual_multiplier=0), "residual_multiplier must be a number > 0"),
    "text": ("granite", dict(logits_scaling="2"), "logits_scaling must be a number > 0"),
    "plain weights": ("qwen3moe", dict(norm_topk_prob=False), "norm_topk_prob must be true"),
    "default weights": ("qwen3moe", dict(norm_topk_prob=None), "norm_topk_prob must be true"),
    "dense blocks": (
        "qwen3moe",
        dict(mlp_only_layers=[1]),
        r"mlp_only_layers = \[1\] is not known",
    ),
    "sparse step": ("qwen3moe", dict(decoder_sparse_step=2), "decoder_sparse_step must be 1"),
    "two counts": ("qwen3moe", dict(num_local_experts=4), "num_local_experts is 4; by its other"),
    "balance": ("olmoe", dict(output_router_logits=True), "output_router_logits = True is not"),
    "shares": ("olmoe", dict(norm_topk_prob=True), "norm_topk_prob must be False; got True"),
    "clipped": ("olmoe", dict(clip_qkv=8.0), r"clip_qkv = 8\.0 is not known"),
    "oss alpha": ("gpt-oss", dict(swiglu_alpha=1.5), "swiglu_alpha must be 1.702; got 1.5"),
    "oss limit": ("gpt-oss", dict(swiglu_limit=5.0), "swiglu_limit must be 7.0; got 5.0"),
    "oss kinds": ("gpt-oss", dict(layer_types=["full_attention"] * 3), "in every other layer"),
    "oss window": ("gpt-oss", dict(sliding_window=None), "sliding_window is missing"),
    "oss packed": (
        "gpt-oss",
        dict(quantization_config={"quant_method": "gptq"}),
        "quant_method mxfp4; got",
    ),
    "no experts": ("granitemoe", dict(num_local_experts=None), "num_local_experts is missing"),
    "phi3 window": ("phi3", dict(sliding_window=2.5), "sliding_window must be a whole number >= 1"),
    "phi3 yarn": (
        "phi3",
        dict(rope_scaling={"type": "linear", "factor": 2.0}),
        "default or longrope",
    ),
    "phi3 part": (
        "phi3",
        dict(partial_rotary_factor=0.01),
        "partial_rotary_factor must be a whole",
    ),
    "phi3 lists": (
        "phi3-long",
        dict(rope_scaling=LISTS | {"long_factor": 3}),
        "long_factor must be",
    ),
    "phi3 numbers": (
        "phi3-long",
        dict(rope_scaling=LISTS | {"long_factor": [1.0, -1.0]}),
        "long_factor must be a number > 0; got -1.0",
    ),
    "phi3 unknown": (
        "phi3-long",
        dict(rope_scaling=LISTS | {"beta": 3}),
        "not known to toynn: beta",
    ),
    "phi3 attention": ("phi3", dict(full_attn_mod=2), "full_attn_mod must be 1; got 2"),
    "gemma2 cap": (
        "gemma2",
        dict(attn_logit_softcapping=0),
        "attn_logit_softcapping must be a num",
    ),
    "gemma3 cap": ("gemma3", dict(attn_logit_softcapping=50.0), "softcapping must be None; got 50"),
    "qwen35 kinds": (
        "qwen35",
        dict(layer_types=["full_attention", "linear_attention", "linear_attention"]),
        "layer_types must have 3 entries: full_attention in every n-th",
    ),
    "qwen35 rope": (
        "qwen35",
        dict(rope_parameters={"rope_theta": 1e4, "rope_type": "yarn", "factor": 2.0}),
        "RoPE must be default; got",
    ),
    "qwen35 width": (
        "qwen35",
        dict(linear_value_head_dim=None),
        "linear_value_head_dim must be a whole number",
    ),
    "hybrid kinds": ("granitehybrid", dict(layer_types=["conv"] * 3), "mamba or attention; got"),
    "hybrid count": ("granitehybrid", dict(layer_types=["mamba"]), "must be 3 kinds; got 1"),
    "hybrid all": (
        "granitehybrid",
        dict(layer_types=None),
        r"tensor blk\.1\.ssm_in\.weight is miss",
    ),
    "hybrid width": (
        "granitehybrid",
        dict(mamba_d_head=7),
        "mamba_expand x hidden_size, 48; got 42",
    ),
    "hybrid groups": (
        "granitehybrid",
        dict(mamba_n_groups=4),
        "does not fit: ssm.group_count = 4|div",
    ),
    "hybrid taps": ("granitehybrid", dict(mamba_d_conv=17), "conv_taps must be at most 16; got 17"),
    "hybrid bias": ("granitehybrid", dict(mamba_conv_bias=False), "mamba_conv_bias must be True"),
    "hybrid proj": ("granitehybrid", dict(mamba_proj_bias=True), "mamba_proj_bias must be False"),
    "hybrid limit": (
        "granitehybrid",
        dict(time_step_limit=[0.1, 3.0]),
        r"time_step_limit must be None; got \[0\.1, 3\.0\]",
    ),
    "hybrid position": (
        "granitehybrid",
        dict(position_embedding_type="alibi"),
        "position_embedding_type must be null or rope; got 'alibi'",
    ),
    "hybrid experts": (
        "granitehybrid-experts",
        dict(num_experts_per_tok=0),
        "num_experts_per_tok must be a whole number >= 1; got 0",
    ),
    "hybrid many": (
        "granitehybrid-experts",
        dict(num_experts_per_tok=6),
        "at most n_experts; got 6",
    ),
    "hybrid dense": ("granitehybrid-experts", dict(num_local_experts=0), "unknown tensors: blk"),
    "nemotron kinds": (
        "nemotron_h",
        dict(layers_block_type=["conv"]),
        "must be kinds of linear_at",
    ),
    "nemotron count": ("nemotron_h", dict(num_hidden_layers=3), "is 3; there are 4 kinds of bl"),
    "nemotron few": ("nemotron_h", dict(layers_block_type=["mamba"]), "unknown tensors: blk.1"),
    "nemotron act": ("nemotron_h", dict(mlp_hidden_act="silu"), "mlp_hidden_act must be 'relu2'"),
    "nemotron bias": ("nemotron_h", dict(use_conv_bias=False), "use_conv_bias must be True"),
    "nemotron limit": ("nemotron_h", dict(time_step_limit=[0.1, 1.0]), "time_step_limit must be"),
    "nemotron shared": ("nemotron_h_moe", dict(n_shared_experts=2), "n_shared_experts must be 1"),
    "nemotron many": (
        "nemotron_h_moe",
        dict(num_experts_per_tok=7),
        "at most n_experts; got 7 of 6",
    ),
    "nemotron groups": ("nemotron_h_moe", dict(n_group=4), "divide n_experts into groups of 2"),
    "nemotron latent": (
        "nemotron_h_moe",
        dict(moe_latent_size=0),
        "moe_latent_size must be a whole",
    ),
    "nemotron experts": ("nemotron_h_moe", dict(n_routed_experts=5), "the wrong shape|has 6"),
    "lfm2 bias": ("lfm2", dict(conv_bias=True), "conv_bias must be False; got True"),
    "lfm2 kinds": (
        "lfm2",
        dict(layer_types=["conv", "mamba", "conv"]),
        "full_attention or conv; got",
    ),
    "lfm2 count": ("lfm2", dict(layer_types=["conv"]), "layer_types must have 3 entries; got 1"),
    "lfm2 taps": ("lfm2", dict(conv_L_cache=0), "conv_L_cache must be a whole number >= 1; got 0"),
    "lfm2 rope": ("lfm2", dict(rope_theta=None), "rope_theta is missing"),
    "gemma scalar": (
        "gemma3",
        dict(query_pre_attn_scalar=0),
        "query_pre_attn_scalar must be a number > 0; got 0",
    ),
    "gemma kinds": (
        "gemma2",
        dict(layer_types=["full_attention"] * 3),
        "full_attention in the last of every 2 layers",
    ),
    "gemma pattern": ("gemma3", dict(sliding_window_pattern=5), "sliding_window_pattern must be 6"),
    "gemma ways": (
        "gemma3",
        dict(use_bidirectional_attention=True),
        "bidirectional_attention must",
    ),
    "gemma act": (
        "gemma2",
        dict(hidden_activation="silu"),
        "hidden_activation must be 'gelu_pytorch",
    ),
    "gemma window": ("gemma2", dict(sliding_window=None), "sliding_window is missing"),
    "gemma rope": (
        "gemma3",
        dict(rope_parameters={"full_attention": {"rope_type": "yarn", "factor": 2.0}}),
        "RoPE must be default or linear; got",
    ),
    "gemma2 rope": (
        "gemma2",
        dict(rope_scaling={"type": "linear", "factor": 2.0}),
        "RoPE must be def",
    ),
    "mistral scale": (
        "ministral3",
        dict(rope_parameters={"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0}),
        "llama_4_scaling_beta must be a number > 0; got None",
    ),
    "mistral rope": (
        "ministral3",
        dict(rope_parameters={"rope_type": "default"}),
        "rope_parameters must have rope_type yarn; got",
    ),
    "mistral window": (
        "ministral3",
        dict(sliding_window=5),
        "sliding_window must be null or at l",
    ),
    "seed bias": (
        "seed_oss",
        dict(attention_bias=False),
        "attention_bias is False; there is model",
    ),
    "seed out": (
        "seed_oss",
        dict(attention_out_bias=True),
        "attention_out_bias is True; there is no",
    ),
    "ernie bias": ("ernie4_5", dict(use_bias=True), "use_bias is True; there is no model"),
    "olmo3 rope": (
        "olmo3",
        dict(rope_parameters={"rope_theta": 50.0}),
        "rope_parameters must be given for full_attention and sliding_attention; got",
    ),
    "olmo3 local": (
        "olmo3",
        dict(rope_parameters={"sliding_attention": {"rope_type": "yarn", "factor": 2.0}}),
        "RoPE of sliding_attention must be default; got",
    ),
    "olmo3 cut": (
        "olmo3",
        dict(rope_parameters={"full_attention": {"rope_type": "yarn", "truncate": False}}),
        "truncate must be true",
    ),
    "olmo3 kinds": (
        "olmo3",
        dict(layer_types=["mamba"] * 3),
        "layer_types must be sliding_attention",
    ),
    "olmo3 count": (
        "olmo3",
        dict(layer_types=["full_attention"]),
        "layer_types must have 3 entries; got 1",
    ),
    "olmo3 no window": (
        "olmo3",
        dict(sliding_window=None),
        "layer_types has sliding_attention; sliding_window is null",
    ),
    "hunyuan alpha": (
        "hunyuan-dense",
        dict(rope_scaling={"type": "dynamic", "factor": 2.0}),
        "alpha must be a number > 0; got None",
    ),
    "hunyuan factor": (
        "hunyuan-dense",
        dict(rope_scaling={"type": "dynamic", "alpha": 9.0, "factor": 2.0}),
        "RoPE by alpha: factor must be 1; got 2.0",
    ),
    "hunyuan norms": (
        "hunyuan-dense",
        dict(use_qk_norm=False),
        "use_qk_norm must be True; got False",
    ),
    "exaone4 pattern": (
        "exaone4",
        dict(layer_types=None, sliding_window_pattern="LXG"),
        "sliding_window_pattern must be a whole number >= 1; got 'LXG'",
    ),
    "exaone4 window": ("exaone4", dict(sliding_window=0), "sliding_window must be a whole number"),
    "starcoder2 act": (
        "starcoder2",
        dict(hidden_act="relu"),
        "hidden_act must be 'gelu_pytorch_tan",
    ),
    "starcoder2 norm": ("starcoder2", dict(norm_type="rms"), "norm_type must be 'layer_norm'; got"),
    "cohere2 head": ("cohere2", dict(logit_scale=-1.0), "logit_scale must be a number > 0; got -1"),
    "cohere2 serial": (
        "cohere2",
        dict(use_parallel_block=False),
        "use_parallel_block must be True",
    ),
    "glm4 part": (
        "glm4",
        dict(partial_rotary_factor=-0.5),
        "partial_rotary_factor must be a number",
    ),
    "glm4 bias": ("glm4", dict(attention_bias=False), "attention_bias is False; there is model"),
    "granite bias": (
        "granite",
        dict(mlp_bias=True),
        "mlp_bias is True; there is no model.layers.0",
    ),
    "lfm2moe dense": ("lfm2moe", dict(num_dense_layers=4), "dense_blocks must be less than n_lay"),
    "lfm2moe no dense": ("lfm2moe", dict(num_dense_layers=-1), "num_dense_layers must be a whole"),
    "lfm2moe few": ("lfm2moe", dict(num_dense_layers=1), "blk.1.ffn_gate_inp.weight is missing"),
    "lfm2moe bias": ("lfm2moe", dict(use_expert_bias=False), "unknown tensors: blk.2.exp_probs_b"),
    "lfm2moe no bias": ("lfm2moe-plain", dict(use_expert_bias=True), "exp_probs_b.bias is missing"),
    "lfm2moe word": (
        "lfm2moe",
        dict(norm_topk_prob=1),
        "norm_topk_prob must be true or",
    ),
    "lfm2moe scale": (
        "lfm2moe",
        dict(routed_scaling_factor=0),
        "scaling_factor must be a number > 0",
    ),
    "lfm2moe experts": ("lfm2moe", dict(num_experts=4), "expert_count is 4; blk.2.ffn_gate_exps"),
    "lfm2moe kinds": ("lfm2moe", dict(layer_types=["mamba"] * 4), "full_attention or conv; got"),
    "lfm2 tied": (
        "lfm2",
        dict(tie_embedding=False),
        "tie_embedding is False; tie_word",
    ),
    "glm4moe groups": ("glm4moe", dict(n_group=4), "groups of 2 or more. As many of them as"),
    "glm4moe alone": ("glm4moe", dict(n_group=6), "groups of 2 or more. As many of them as"),
    "glm4moe used": ("glm4moe", dict(topk_group=4), "got 3, 6, 4 and 2"),
    "latent pairs": ("deepseek2", dict(rope_interleave=False), "rope_interleave must be True"),
    "latent bias": ("deepseek2", dict(attention_bias=True), "attention_bias must be False; got"),
    "latent heads": ("deepseek2", dict(num_key_value_heads=2), "heads must be 6 here; got 2"),
    "latent odd": ("deepseek2", dict(qk_rope_head_dim=3), "rope_dim must be even .RoPE rotates"),
    "latent rank": ("deepseek2", dict(kv_lora_rank=15), "attn_kv_a_mqa.weight has the wrong shape"),
    "latent queries": ("deepseek2", dict(q_lora_rank=None), "attn_q.weight is missing"),
    "latent choice": ("deepseek2", dict(topk_method="greedy"), "topk_method must be 'noaux_tc'"),
    "latent scores": (
        "deepseek2",
        dict(scoring_func="softmax"),
        "must be 'sigmoid'; got 'softmax'",
    ),
    "v2 method": ("deepseek2-v2", dict(topk_method="noaux_tc"), "or 'group_limited_greedy'; got"),
    "v2 groups": ("deepseek2-v2", dict(n_group=None), "n_group is missing"),
    "v2 used": ("deepseek2-v2", dict(topk_group=4), "got 3, 6, 4 and 2"),
    "v2 sums": (
        "deepseek2-v2",
        dict(norm_topk_prob=True),
        "norm_topk_prob must be false; got True",
    ),
    "v2 biases": ("deepseek2-v2", dict(mlp_bias=True), "mlp_bias must be false; got True"),
    "latent values": ("deepseek2", dict(v_head_dim=None), "v_head_dim is missing"),
    "latent groups": ("deepseek2", dict(n_group=None), "n_group is missing"),
    "latent part": ("deepseek2", dict(partial_rotary_factor=0.5), "factor must be 1; got 0.5"),
    "latent kinds": (
        "deepseek2",
        dict(mlp_layer_types=["dense", "sparse", "sparse"]),
        "mlp_layer_types must be 3 of dense, then of sparse",
    ),
    "latent glm": (
        "deepseek2",
        dict(model_type="glm4_moe_lite", mlp_layer_types=["dense", "sparse", "dense"]),
        "mlp_layer_types must be 3 of dense, then of sparse",
    ),
    "glm4moe none": (
        "glm4moe",
        dict(n_shared_experts=0),
        "n_shared_experts must be a whole",
    ),
    "glm4moe norms": ("glm4moe", dict(use_qk_norm=False), "unknown tensors: blk.0.attn_k_norm"),
    "glm4moe dense": ("glm4moe", dict(first_k_dense_replace=3), "unknown tensors|is missing"),
    "glm4moe part": ("glm4moe", dict(partial_rotary_factor=3.0), "rope_channels must be even"),
    "glm4moe next": ("glm4moe", dict(num_nextn_predict_layers=-1), "must be a whole number >= 0"),
    "ernie moe step": ("ernie4_5-moe", dict(moe_layer_interval=2), "interval must be 1; got 2"),
    "ernie moe last": ("ernie4_5-moe", dict(moe_layer_end_index=2), "index must be -1 or 3; got 2"),
    "ernie moe least": ("ernie4_5-moe", dict(moe_norm_min=0.1), "moe_norm_min must be 1e-12; got"),
    "ernie moe share": ("ernie4_5-moe", dict(moe_num_shared_experts=1), "the wrong shape"),
    "ernie moe used": ("ernie4_5-moe", dict(moe_k=9), "must be at most n_experts; got 9 of 5"),
    "qwen35moe gate": ("qwen35moe", dict(attn_output_gate=False), "attn_output_gate must be True"),
    "qwen35moe none": (
        "qwen35moe",
        dict(shared_expert_intermediate_size=0),
        "shared_expert_intermediate_size must be a whole number >= 1; got 0",
    ),
    "qwen35moe dense": ("qwen35moe", dict(mlp_only_layers=[1]), "mlp_only_layers = .* is not"),
    "qwen3next step": ("qwen3next", dict(decoder_sparse_step=2), "sparse_step must be 1; got 2"),
    "qwen3next dense": ("qwen3next", dict(mlp_only_layers=[1]), "mlp_only_layers = .* is not"),
    "qwen3next kinds": ("qwen3next", dict(layer_types=["mamba"] * 3), "attention in every n-th"),
    "qwen3next heads": (
        "qwen3next",
        dict(linear_num_key_heads=3),
        r"attn_qkv.weight: \(80, 24\) does not fit: 3 and 6 heads, 5 and 30 channels",
    ),
    "qwen3next none": ("qwen3next", dict(linear_num_key_heads=4), "does not fit: 4 and 6 heads"),
    "qwen3next experts": ("qwen3next", dict(num_experts=4), "count is 4; blk.0.ffn_gate_exps"),
    "qwen3next used": ("qwen3next", dict(num_experts_per_tok=9), "at most n_experts; got 9 of 5"),
    "gemma3n streams": ("gemma3n", dict(altup_num_inputs=2), "altup_num_inputs must be 4; got 2"),
    "gemma3n active": ("gemma3n", dict(altup_active_idx=1), "altup_active_idx must be 0; got 1"),
    "gemma3n scale": ("gemma3n", dict(altup_correct_scale=False), "scale must be True; got False"),
    "gemma3n clip": (
        "gemma3n",
        dict(altup_coef_clip=1e-3),
        "predict_coef.weight must be at most 0.0",
    ),
    "gemma3n no clip": (
        "gemma3n",
        dict(altup_coef_clip=-1),
        "altup_coef_clip must be a number > 0",
    ),
    "gemma3n rank": ("gemma3n", dict(laurel_rank=4), "laurel.rank must be 3 here; got 4"),
    "gemma3n cap": ("gemma3n", dict(final_logit_softcapping=None), "softcapping must be a number"),
    "gemma3n shares": (
        "gemma3n",
        dict(activation_sparsity_pattern=[0.5, 1.0, 0]),
        "activation_sparsity_pattern must be numbers from 0 to less than 1; got",
    ),
    "gemma3n share": (
        "gemma3n",
        dict(activation_sparsity_pattern=0.95),
        "activation_sparsity_pattern must have 3 entries; got 0.95",
    ),
    "gemma3n widths": ("gemma3n", dict(intermediate_size=[56, 40]), "must have 3 entries; got 2"),
    "gemma3n width": ("gemma3n", dict(intermediate_size=[1, 2, 0.5]), "intermediate_size must"),
    "gemma3n input": ("gemma3n", dict(hidden_size_per_layer_input=0), "whole number >= 1; got 0"),
    "gemma3n rows": ("gemma3n", dict(vocab_size_per_layer_input=60), "per_layer_input = 60"),
    "gemma3n shared": ("gemma3n", dict(num_kv_shared_layers=2), "shared_kv must leave a block of"),
    "gemma3n kinds": ("gemma3n", dict(layer_types=["mamba"] * 3), "layer_types must be slid"),
    "gemma3n rope": (
        "gemma3n",
        dict(
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
            }
        ),
        "RoPE of full_attention must be default; got linear",
    ),
    "gemma3n act": ("gemma3n", dict(hidden_activation="silu"), "activation must be 'gelu_py"),
    "gemma3n size": ("gemma3n", dict(hidden_size=2**40), "is more memory than can be addressed"),
    "gemma3n sizes": ("gemma3n", dict(hidden_size=2**60), "is more memory than can be addressed"),
    "gemma3n ids": ("gemma3n", dict(vocab_size=2**40), "does not fit: vocab_size = 1099511627776"),
    "gemma3n head": ("gemma3n", dict(head_dim=None), "head_dim is missing"),
    "gemma4 bias": ("gemma4", dict(attention_bias=True), "attention_bias must be False; got True"),
    "gemma4 ways": ("gemma4", dict(use_bidirectional_attention="all"), "must be None; got 'all'"),
    "gemma4 act": ("gemma4", dict(hidden_activation="silu"), "hidden_activation must be 'gelu_py"),
    "gemma4 last": (
        "gemma4",
        dict(layer_types=["sliding_attention"] * 4),
        "layer_types must end in full_attention; got",
    ),
    "gemma4 kinds": ("gemma4", dict(layer_types=["mamba"] * 4), "layer_types must be sliding_att"),
    "gemma4 count": ("gemma4", dict(num_hidden_layers=5), "layer_types must have 5 entries; got 4"),
    "gemma4 window": ("gemma4", dict(sliding_window=None), "sliding_window is null|whole number"),
    "gemma4 shared": ("gemma4", dict(num_kv_shared_layers=3), "shared_kv must leave a block of ea"),
    "gemma4 all shared": ("gemma4", dict(num_kv_shared_layers=9), "shared_kv must leave a block"),
    "gemma4 fewer": ("gemma4", dict(num_kv_shared_layers=1), "is missing"),
    "gemma4 rows": (
        "gemma4",
        dict(vocab_size_per_layer_input=60),
        "vocab_size_per_layer_input must be vocab_size, 61; got 60",
    ),
    "gemma4 sizes": (
        "gemma4",
        dict(per_layer_config={"1": {"head_dim": 6}, "3": {"head_dim": 8}}),
        "per_layer_config must say the same head_dim and num_key_value_heads",
    ),
    "gemma4 part": (
        "gemma4",
        dict(per_layer_config={"1": {"sliding_window": 6}, "3": {"sliding_window": 6}}),
        "and nothing else; got",
    ),
    "gemma4 other blocks": (
        "gemma4",
        dict(per_layer_config={"0": {"head_dim": 4}}),
        r"per_layer_config must have the full_attention blocks, \['1', '3'\]; got \['0'\]",
    ),
    "gemma4 number of sizes": (
        "gemma4",
        dict(per_layer_config={"1": 3, "3": 3}),
        "per_layer_config must have an object for each block; got",
    ),
    "gemma4 list of sizes": (
        "gemma4",
        dict(per_layer_config={"1": ["head_dim"], "3": ["head_dim"]}),
        "per_layer_config must have an object for each block; got",
    ),
    "gemma4 list of blocks": (
        "gemma4",
        dict(per_layer_config=[{"head_dim": 4}]),
        r"per_layer_config must be an object; got \[",
    ),
    "gemma4 k as v": (
        "gemma4",
        dict(attention_k_eq_v=True),
        "unknown tensors: blk.1.attn_v.weight",
    ),
    "gemma4 rope": (
        "gemma4",
        dict(rope_parameters={"full_attention": {"rope_theta": 9.0}}),
        "rope_parameters must be those of two kinds of layers, as objects; got",
    ),
    "gemma4 yarn": (
        "gemma4",
        dict(
            rope_parameters={
                "full_attention": {"rope_theta": 9.0, "rope_type": "yarn", "factor": 2.0},
                "sliding_attention": {"rope_theta": 9.0},
            }
        ),
        "RoPE of full_attention must be default, or proportional; got",
    ),
    "gemma4 turn": (
        "gemma4",
        dict(
            rope_parameters={
                "full_attention": {
                    "rope_theta": 9.0,
                    "rope_type": "proportional",
                    "partial_rotary_factor": 1.5,
                },
                "sliding_attention": {"rope_theta": 9.0},
            }
        ),
        "partial_rotary_factor must be at most 1; got 1.5",
    ),
    "gemma4 experts": ("gemma4-moe", dict(num_experts=4), "wrong shape: expected"),
    "gemma4 used": ("gemma4-moe", dict(top_k_experts=6), "experts need n_experts, n_experts_used"),
    "gemma4 no width": (
        "gemma4-moe",
        dict(moe_intermediate_size=None),
        "moe_intermediate_size is missing; enable_moe_block is true",
    ),
    "gemma4 dense": ("gemma4-moe", dict(enable_moe_block=False), "unknown tensors: blk.0.ffn_down"),
    "soft cap": ("granite", dict(logit_softcapping=30.0), "logit_softcapping = 30.0 is not known"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_refused_by_name(name, tmp_path):
    kind, changes, message = FOLDERS[name]
    make(kind).engine.export_hf(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DataError, match=message):
        LlamaSeqEngine.from_hf(tmp_path / "model", t_seq=4)


FILES = {
    "scale": ("granite", "granite.attention.scale", 0.0, r"attention\.scale must be a number > 0"),
    "kind": ("granite", "granite.logit_scale", 2, r"logit_scale must be a number > 0; got 2"),
    "experts": ("qwen3moe", "qwen3moe.expert_count", 4, "is 4; blk.0.ffn_gate_exps.weight has 5"),
    "many": ("olmoe", "olmoe.expert_count", 2**31, "is 2147483648; blk.0.ffn_gate_exps.weight has"),
    "none": ("olmoe", "olmoe.expert_count", 0, "expert_count must be a whole number >= 1; got 0"),
    "used": (
        "granitemoe",
        "granitemoe.expert_used_count",
        6,
        "must be at most n_experts; got 6 of",
    ),
    "width": ("qwen3moe", "qwen3moe.expert_feed_forward_length", 9, "the wrong shape: expected"),
    "widths": ("qwen3moe", "qwen3moe.expert_feed_forward_length", 2**31, "wrong shape: expected"),
    "gating": ("olmoe", "olmoe.expert_gating_func", 2, "expert_gating_func must be 1 here; got 2"),
    "groups": ("olmoe", "olmoe.expert_group_count", 2, "expert_group_count = 2 is not known"),
    "shared": ("granitemoe-shared", "granitemoe.expert_shared_feed_forward_length", 3, "the wrong"),
    "window": (
        "phi3",
        "phi3.attention.sliding_window",
        2.5,
        "sliding_window must be a whole number",
    ),
    "channels": (
        "phi3",
        "phi3.rope.dimension_count",
        6,
        "rope_channels must be even, and at most the 4",
    ),
    "huge": ("phi3", "phi3.rope.dimension_count", 2**31, "rope_channels must be even, and at most"),
    "odd": ("phi3", "phi3.rope.dimension_count", 3, "rope_channels must be even"),
    "factors": (
        "phi3-long",
        "phi3.rope.dimension_count",
        2,
        "short_factors must be 1 numbers above 0",
    ),
    "original": ("phi3-long", "phi3.rope.scaling.original_context_length", 0, "whole number >= 1"),
    "magnitude": (
        "phi3",
        "phi3.rope.scaling.attn_factor",
        1.5,
        "rope_magnitude needs short_factors",
    ),
    "yarn": (
        "phi3-long",
        "phi3.rope.scaling.type",
        7,
        "scaling.type must be 'longrope' here; got 7",
    ),
    "heads": (
        "phi3",
        "phi3.attention.head_count",
        2**31,
        r"a head of \d+ channels|wrong shape|divide",
    ),
    "delta heads": ("qwen35", "qwen35.ssm.group_count", 5, "delta_heads must divide"),
    "many delta heads": ("qwen35", "qwen35.ssm.group_count", 2**31, "delta_heads must divide"),
    "delta inner": ("qwen35", "qwen35.ssm.inner_size", 19, "must be a multiple of the 6 heads"),
    "state": ("qwen35", "qwen35.ssm.state_size", 2**31, "delta_dim must be at most 256"),
    "delta taps": ("qwen35", "qwen35.ssm.conv_kernel", 2**31, "conv_taps must be at most 16"),
    "every": ("qwen35", "qwen35.full_attention_interval", 3, "missing|unknown tensors|wrong shape"),
    "sections": ("qwen35", "qwen35.rope.dimension_sections", 3.5, "must be 4 numbers"),
    "next tokens": ("qwen35", "qwen35.nextn_predict_layers", 0.5, "must be a whole number >= 1"),
    "ssm groups": ("granitehybrid", "granitehybrid.ssm.group_count", 4, "mamba_groups must divide"),
    "ssm inner": ("granitehybrid", "granitehybrid.ssm.inner_size", 49, "a multiple of the 6 heads"),
    "ssm state": ("granitehybrid", "granitehybrid.ssm.state_size", 2**31, "the wrong shape"),
    "ssm taps": ("granitehybrid", "granitehybrid.ssm.conv_kernel", 2**31, "must be at most 16"),
    "ssm heads": ("granitehybrid", "granitehybrid.ssm.time_step_rank", 0, "whole number >= 1"),
    "ssm attention": (
        "granitehybrid",
        "granitehybrid.attention.head_count_kv",
        2,
        r"tensor blk\.0\.attn_q\.weight is missing",
    ),
    "nemotron widths": (
        "nemotron_h",
        "nemotron_h.feed_forward_length",
        40,
        r"tensor blk\.0\.ffn_up\.weight is missing",
    ),
    "nemotron eps": (
        "nemotron_h",
        "nemotron_h.attention.layer_norm_epsilon",
        0.5,
        "must be 0.03, as",
    ),
    "nemotron used": ("nemotron_h_moe", "nemotron_h_moe.expert_used_count", 7, "at most n_experts"),
    "nemotron gating": ("nemotron_h_moe", "nemotron_h_moe.expert_gating_func", 1, "must be 2 here"),
    "taps": ("lfm2", "lfm2.shortconv.l_cache", 2**31, "conv_taps must be at most 16; got"),
    "kv heads": (
        "lfm2",
        "lfm2.attention.head_count_kv",
        0,
        "head_count_kv must be the same in every block, or 0",
    ),
    "all attend": (
        "lfm2",
        "lfm2.attention.head_count_kv",
        2,
        "attn_q|attn_k|missing|unknown tensors",
    ),
    "no window": ("gemma2", "gemma2.attention.sliding_window", 0, "sliding_window must be a whole"),
    "pattern": ("gemma3", "gemma3.attention.sliding_window_pattern", 2, "must be 6 here; got 2"),
    "caps": ("gemma2", "gemma2.attn_logit_softcapping", -1.0, "softcapping must be a number > 0"),
    "no caps": ("gemma3", "gemma3.attn_logit_softcapping", 30.0, "softcapping = 30.0 is not known"),
    "linear": ("gemma3", "gemma3.rope.scaling.type", 7, "must be 'linear' here; got 7"),
    "base": (
        "gemma3",
        "gemma3.rope.freq_base_swa",
        0.0,
        "freq_base_swa must be a number > 0; got 0",
    ),
    "scaling": ("llama-yarn", "llama.rope.scaling.type", "su", "one of none, linear, yarn here"),
    "no word": ("llama-yarn", "llama.rope.scaling.type", 2, "scaling.type must be a text; got 2"),
    "yarn factor": ("llama-yarn", "llama.rope.scaling.factor", 0.5, "needs rope_factor >= 1"),
    "yarn beta": ("llama-yarn", "llama.rope.scaling.yarn_beta_slow", 9.0, "beta_fast > beta_slow"),
    "yarn ext": ("qwen3-yarn", "qwen3.rope.scaling.yarn_ext_factor", 0.5, "factor must be 1 here"),
    "yarn log": ("llama-yarn", "llama.rope.scaling.yarn_log_multiplier", 0.1, "is not known to"),
    "growth": ("ministral3", "mistral3.attention.temperature_scale", -1.0, "must be a number > 0"),
    "no yarn": ("ministral3", "mistral3.rope.scaling.type", "none", "needs rope_scaling 'yarn'"),
    "olmo3 pattern": (
        "olmo3",
        "olmo2.attention.sliding_window_pattern",
        True,
        "sliding_window_pattern must be 3 booleans; got True",
    ),
    "no norm": (
        "seed_oss",
        "seed_oss.attention.layer_norm_rms_epsilon",
        0.0,
        "must be a number > 0",
    ),
    "ernie heads": (
        "ernie4_5",
        "ernie4_5.attention.head_count_kv",
        5,
        "n_kv_heads must divide n_h",
    ),
    "hunyuan base": ("hunyuan-dense", "hunyuan-dense.rope.freq_base", 0.0, "must be a number > 0"),
    "centred": ("starcoder2", "starcoder2.attention.layer_norm_epsilon", 1, "must be a number > 0"),
    "logits": ("cohere2", "cohere2.logit_scale", 0.0, "logit_scale must be a number > 0; got 0"),
    "glm4 part": (
        "glm4",
        "glm4.rope.dimension_count",
        10,
        "rope_channels must be even, and at most",
    ),
    "glm4 sections": ("glm4", "glm4.rope.dimension_sections", 1, "is not known to toynn"),
    "exaone4 window": (
        "exaone4",
        "exaone4.attention.sliding_window",
        2.5,
        "must be a whole number",
    ),
    "oss no window": ("gpt-oss", "gpt-oss.attention.sliding_window", 0, "number >= 1; got 0"),
    "oss pattern": ("gpt-oss", "gpt-oss.attention.sliding_window_pattern", 4, "must be 2 here"),
    "oss width": ("gpt-oss", "gpt-oss.expert_feed_forward_length", 9, "ffn_gate_exps.weight has"),
    "lfm2moe gating": ("lfm2moe", "lfm2moe.expert_gating_func", 1, "must be 2 here; got 1"),
    "lfm2moe dense": ("lfm2moe", "lfm2moe.leading_dense_block_count", 2**31, "less than n_layers"),
    "lfm2moe width": ("lfm2moe", "lfm2moe.expert_feed_forward_length", 9, "the wrong shape"),
    "lfm2moe used": ("lfm2moe", "lfm2moe.expert_used_count", 6, "must be at most n_experts; got 6"),
    "latent heads": ("deepseek2", "deepseek2.attention.key_length_mla", 8, "the wrong shape"),
    "latent keys": ("deepseek2", "deepseek2.attention.key_length", 9, "must be 18 here; got 9"),
    "latent scores": ("deepseek2", "deepseek2.expert_gating_func", 1, "unknown tensors"),
    "v2 scores": ("deepseek2-v2", "deepseek2.expert_gating_func", 2, "exp_probs_b.bias is missing"),
    "v2 gating": ("deepseek2-v2", "deepseek2.expert_gating_func", 3, "must be 2 here; got 3"),
    "latent values": ("deepseek2", "deepseek2.attention.value_length_mla", 8, "the wrong shape"),
    "latent shared": ("deepseek2", "deepseek2.attention.head_count_kv", 6, "must be 1 here; got"),
    "latent queries": ("deepseek2", "deepseek2.attention.q_lora_rank", 9, "the wrong shape"),
    "gemma3n active": ("gemma3n-usual", "gemma3n.altup.active_idx", 1, "must be 0 here; got 1"),
    "gemma3n streams": ("gemma3n-usual", "gemma3n.altup.num_inputs", 2, "must be 4 here; got 2"),
    "gemma3n cut": (
        "gemma3n-usual",
        "gemma3n.activation_sparsity_scale",
        1.6,
        "activation_sparsity_scale must be 2 numbers; got 1.6",
    ),
    "gemma3n cap": ("gemma3n-usual", "gemma3n.final_logit_softcapping", 0.0, "must be a number >"),
    "gemma3n input": (
        "gemma3n-usual",
        "gemma3n.embedding_length_per_layer_input",
        255,
        "wrong shape: expected",
    ),
    "gemma3n width": ("gemma3n-usual", "gemma3n.feed_forward_length", 41, "wrong shape: expected"),
    "gemma3n shared": ("gemma3n-usual", "gemma3n.attention.shared_kv_layers", 2, "must leave a bl"),
    "gemma4 heads": (
        "gemma4",
        "gemma4.attention.head_count_kv",
        3,
        "wrong shape: expected",
    ),
    "gemma4 width": ("gemma4", "gemma4.attention.key_length", 7, "must be 7 here; got"),
    "gemma4 local": ("gemma4", "gemma4.attention.key_length_swa", 2**31, "must be 2147483648 here"),
    "gemma4 mlp": (
        "gemma4",
        "gemma4.feed_forward_length",
        40,
        "wrong shape: expected",
    ),
    "gemma4 input": ("gemma4", "gemma4.embedding_length_per_layer_input", 4, "wrong shape: expect"),
    "gemma4 no input": ("gemma4", "gemma4.embedding_length_per_layer_input", 0, "unknown tensors"),
    "gemma4 shared": (
        "gemma4",
        "gemma4.attention.shared_kv_layers",
        4,
        "shared_kv must leave a bl",
    ),
    "gemma4 many shared": (
        "gemma4",
        "gemma4.attention.shared_kv_layers",
        2**31,
        "must leave a blo",
    ),
    "gemma4 pattern": (
        "gemma4",
        "gemma4.attention.sliding_window_pattern",
        7,
        "the last block must have no window|must be one number for all blocks",
    ),
    "gemma4 count": ("gemma4-moe", "gemma4.expert_count", 4, "wrong shape: expected"),
    "gemma4 no experts": ("gemma4-moe", "gemma4.expert_count", 0, "experts need n_experts, n_exp"),
    "gemma4 used": ("gemma4-moe", "gemma4.expert_used_count", 2**31, "experts need n_experts"),
    "gemma4 cap": (
        "gemma4",
        "gemma4.final_logit_softcapping",
        -1.0,
        "softcapping must be a number",
    ),
    "glm4moe share": ("glm4moe", "glm4moe.expert_shared_count", 0, "whole number >= 1; got 0"),
    "glm4moe groups": ("glm4moe", "glm4moe.expert_group_used_count", 4, "got 3, 6, 4 and"),
    "glm4moe word": ("glm4moe", "glm4moe.expert_weights_norm", 1, "must be true or false; got 1"),
    "glm4moe next": (
        "glm4moe",
        "glm4moe.nextn_predict_layers",
        4,
        "must be less than block_count, 4; got 4",
    ),
    "ernie step": ("ernie4_5-moe", "ernie4_5-moe.interleave_moe_layer_step", 2, "must be 1 here"),
    "ernie share": (
        "ernie4_5-moe",
        "ernie4_5-moe.expert_shared_feed_forward_length",
        30,
        "expert_d_ff must divide shared_d_ff; got 28 and 30",
    ),
    "qwen35moe share": (
        "qwen35moe",
        "qwen35moe.expert_shared_feed_forward_length",
        0,
        "shared_d_ff must be a whole number >= 1; got 0",
    ),
    "qwen3next heads": ("qwen3next", "qwen3next.ssm.group_count", 4, "delta_heads must divide"),
    "qwen3next state": ("qwen3next", "qwen3next.ssm.state_size", 6, "the wrong shape"),
    "qwen3next used": ("qwen3next", "qwen3next.expert_used_count", 6, "at most n_experts; got 6"),
    "unknown": ("smollm3", "smollm3.residual_scale", 0.5, r"smollm3\.residual_scale = 0\.5 is not"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_refused_by_name(name, tmp_path):
    kind, key, value, message = FILES[name]
    make(kind).engine.export_gguf(tmp_path / "model.gguf")
    with gguf.open(tmp_path / "model.gguf") as file:
        metadata = {k: (v, file.types[k]) for k, v in file.metadata.items()}
        tensors = {k: (np.array(file[k]), "f32") for k in file}
    kinds = {float: "FLOAT32", int: "UINT32", str: "STRING", bool: "BOOL"}
    metadata[key] = (value, kinds[type(value)])
    gguf.write(tmp_path / "bad.gguf", metadata, tensors)
    with pytest.raises(GGUFError, match=message):
        LlamaSeqEngine.from_gguf(tmp_path / "bad.gguf")


def test_the_logarithm_of_a_ministrals_yarn_divides_its_magnitude(tmp_path):
    make("ministral3").engine.export_gguf(tmp_path / "a.gguf")
    told = {"mistral3.rope.scaling.yarn_log_multiplier": (1.0, "FLOAT32")}
    path = rewritten(tmp_path / "a.gguf", tmp_path / "b.gguf", np.copy, told)
    cfg = LlamaSeqEngine.from_gguf(path).config
    assert cfg.yarn_magnitude == pytest.approx(1 / (1 + 0.1 * np.log(4)))  # so RoPE's is 1


def test_a_tied_folder_is_not_fused_where_llama_cpp_wants_a_head(tmp_path):
    make("olmoe-one").engine.export_hf(tmp_path / "model")
    with hf.open(tmp_path / "model") as base:
        ends = {"lora_a": np.zeros((1, 24)), "lora_b": np.zeros((24, 1))}
        pair = {f"blk.0.attn_q.weight.{end}": w.astype(np.float32) for end, w in ends.items()}
        adapter = Adapter("olmoe", 1.0, pair)
        with pytest.raises(ConfigError, match=r"has a tied head, but llama\.cpp needs olmoe with"):
            fuse_into(base, adapter, tmp_path / "fused.gguf")


def test_a_qwen3next_has_no_positions_in_pictures(tmp_path):
    """Unlike a Qwen3.5, from which it differs by little."""
    for kind, has in (("qwen35moe", True), ("qwen3next", False)):
        engine = make(kind).engine
        engine.export_gguf(tmp_path / f"{kind}.gguf")
        with gguf.open(tmp_path / f"{kind}.gguf") as file:
            assert (f"{kind}.rope.dimension_sections" in file.metadata) == has
        engine.export_hf(tmp_path / kind)
        config = json.loads((tmp_path / kind / "config.json").read_text())
        assert ("mrope_section" in config["rope_parameters"]) == has


def test_blocks_that_predict_further_tokens_are_left_out(tmp_path):
    """Behind the last, in folders beside those that num_hidden_layers counts."""
    engine = make("glm4moe", context=16).engine
    engine.export_hf(tmp_path / "model")
    edit_object(tmp_path / "model" / "config.json", num_nextn_predict_layers=1)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    more = {n.replace("s.3.", "s.4.", 1): w for n, w in tensors.items() if "layers.3." in n}
    more |= dict.fromkeys(
        ("model.layers.4.eh_proj.weight", "mtp.norm.weight"), tensors["model.norm.weight"]
    )
    save_file(tensors | more, tmp_path / "model" / "model.safetensors")
    engine.export_gguf(tmp_path / "a.gguf")
    with gguf.open(tmp_path / "a.gguf") as file:
        metadata = {k: (v, file.types[k]) for k, v in file.metadata.items()}
        weights = {k: (np.array(file[k]), "f32") for k in file}
    weights |= {n.replace(".3.", ".4."): w for n, w in weights.items() if ".3." in n}
    weights |= {"blk.4.nextn.enorm.weight": weights["output_norm.weight"]}
    counts = {"block_count": 5, "nextn_predict_layers": 1}
    metadata |= {f"glm4moe.{key}": (count, "UINT32") for key, count in counts.items()}
    gguf.write(tmp_path / "b.gguf", metadata, weights)
    ids = np.arange(13)
    for path in ("model", "b.gguf"):
        with bases.open(tmp_path / path) as file:
            assert np.array_equal(frozen(file).logits(ids), engine.logits(ids))


USUAL = {  # the number of dense blocks, where a folder's key is missing or null
    "glm4moe": ("first_k_dense_replace", 1),
    "ernie4_5-moe": ("moe_layer_start_index", 1),
    "lfm2moe": ("num_dense_layers", 2),
}


@pytest.mark.parametrize("value", [..., None])
@pytest.mark.parametrize("kind", USUAL)
def test_as_many_blocks_are_dense_as_transformers_takes(kind, value, tmp_path):
    make(kind).engine.export_hf(tmp_path / "model")
    key, expected = USUAL[kind]
    changes = {key: value, "num_nextn_predict_layers": value}
    edit_object(tmp_path / "model" / "config.json", **changes)
    with hf.open(tmp_path / "model") as file:
        assert file.metadata[f"{kind}.leading_dense_block_count"] == expected


def test_scales_of_a_granite():
    assert config("granite").attention_scale == pytest.approx(0.5)  # heads of 4
    assert config("granite", **SCALES).attention_scale == 0.3
    with pytest.raises(ConfigError, match="GraniteConfig: logit_scale must be a number above 0"):
        config("granite", logit_scale=0.0)


def test_a_mixture_needs_as_many_experts_as_it_uses():
    with pytest.raises(ConfigError, match="n_experts_used must be at most n_experts; got 3 of 2"):
        config("olmoe", n_experts=2, n_experts_used=3)
    with pytest.raises(ConfigError, match="n_experts must be a whole number >= 1; got 0"):
        config("qwen3moe", n_experts=0)


def test_a_missing_expert_is_named(tmp_path):
    make("qwen3moe").engine.export_hf(tmp_path / "model")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    edit_tensors(tmp_path / "model" / "model.safetensors", {name: None})
    message = r"blk\.1\.ffn_up_exps\.weight: expected experts 0 to 3; got \[0, 1, 2, 4\]"
    with pytest.raises(DataError, match=message):
        LlamaSeqEngine.from_hf(tmp_path / "model", t_seq=4)


def test_experts_of_unlike_shapes_are_named(tmp_path):
    make("qwen3moe").engine.export_hf(tmp_path / "model")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    edit_tensors(tmp_path / "model" / "model.safetensors", {name: np.zeros((3, 4), np.float32)})
    with pytest.raises(DataError, match=r"ffn_up_exps\.weight: expected matrices of one shape"):
        hf.open(tmp_path / "model")


def test_what_files_have_no_place_for_is_not_written(tmp_path):
    with pytest.raises(ConfigError, match=r"llama\.cpp reads olmoe with as many heads of k and v"):
        build(config("olmoe")).export_gguf(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match=r"has RoPE; got none.* Load its original folder"):
        build(config("granite", rotated=False)).export_hf(tmp_path / "model")
    with pytest.raises(ConfigError, match="granitemoe cannot hold a shared expert"):
        make("granitemoe-shared").engine.export_hf(tmp_path / "model")


def build(cfg):
    engine = LlamaSeqEngine()
    engine.realize_for_random_init(cfg, RecipeOptions(t_seq=8))
    return engine


def test_what_a_family_cannot_be():
    for kind, sizes, message in (
        ("mistral3", {"query_growth": -1.0}, "query_growth must be 0 to 1000; got -1.0"),
        ("mistral3", {"query_growth": 0.1}, "query_growth needs rope_scaling 'yarn'; got 'none'"),
        (
            "olmo2",
            {"window": 4, "windowed": (True,)},
            "windowed must be True or False for each of 2",
        ),
        ("olmo2", {"windowed": (True, False)}, "for each of 0 blocks with a window of 0"),
        ("cohere2", {"logit_scale": 0.0}, "logit_scale must be a number above 0; got 0.0"),
        ("glm4", {"rope_channels": 3}, "rope_channels must be even, and at most the 4"),
        ("llama", {"mlp_bias": 1}, "mlp_bias must be True or False; got 1"),
        ("gemma3", {"query_scalar": 0.0}, "query_scalar must be a number above 0; got 0.0"),
        ("gemma3n", {"laurel_rank": 0}, "laurel_rank must be a whole number >= 1; got 0"),
        ("gemma3n", {"sparsity": (0.5,)}, "sparsity must be 2 numbers from 0 to less than 1"),
        ("gemma3n", {"sparsity": (0.5, 1.0)}, "sparsity must be 2 numbers from 0 to less than 1"),
        ("gemma3n", {"block_widths": (5,)}, "block_widths must be 2 whole numbers >= 1; got"),
        ("gemma3n", {"logit_cap": 0.0}, "logit_cap must be a number above 0; got 0"),
        ("gemma4", {"full_kv_heads": 4}, "full_kv_heads must divide n_heads; got 4 and 6"),
        ("gemma4", {"rope_channels": 6}, "rope_channels must be even, and those at most this; got"),
        ("gemma4", {"full_head_dim": 3}, "full_head_dim and rope_channels must be even"),
        ("gemma4", {"windowed": (False, True)}, "the last block must have no window"),
        ("gemma4", {"shared_kv": 1}, "shared_kv must leave a block of each kind"),
        ("gemma4", {"block_scales": (1.0,)}, "block_scales must be 2 numbers above 0; got 1"),
        ("gemma4", {"n_experts": 4}, "experts need n_experts, n_experts_used of them and expert_d"),
        ("gemma4", {"k_as_v": 1}, "k_as_v must be True or False; got 1"),
        ("gemma4", {"window": 0}, "window must be a whole number >= 1; got 0"),
        ("granitehybrid", {"shared_d_ff": 5}, "and 0 if it is 0; got n_experts 0, 0 and 5"),
        ("granitehybrid", {"n_experts": 4, "n_experts_used": 2}, "got n_experts 4, 2 and 0"),
        ("granitehybrid", {"n_experts": 4, "shared_d_ff": 5}, "got n_experts 4, 0 and 5"),
    ):
        with pytest.raises(ConfigError, match=message):
            config(kind, **sizes)
    with pytest.raises(ConfigError, match="cohere2: the head is tied"):
        make("cohere2", untied=True)


def test_what_llama_cpp_does_not_load_is_not_written_and_what_it_changes_is_said(tmp_path):
    for n, (kind, sizes, message) in enumerate(
        (
            ("qwen3next", {"normalized": False}, "reads qwen3next with normalized; got False"),
            ("qwen35", {"delta_dim": 3}, r"delta_dim = delta_value_dim; got 3 and 4"),
            (
                "granitehybrid",
                {"attention_blocks": (0, 1), "n_experts": 4, "n_experts_used": 2, "shared_d_ff": 5},
                r"reads granitemoe with RoPE; got none .*: keep the model as a Hugging Face folder",
            ),
            (
                "deepseek2",
                {"n_kv_heads": 6},
                "without q_rank if there are 27 blocks, else with it; got 0 and 2",
            ),
            (
                "deepseek2",
                {"n_kv_heads": 6, "n_layers": 27, "q_rank": 5},
                "without q_rank if there are 27 blocks, else with it; got 5 and 27",
            ),
            (
                "gemma2",
                {"query_scalar": 9.0, "score_cap": 1.0, "logit_cap": 1.0},
                "query_scalar 4; got 9",
            ),
            ("seed_oss", {"mlp_bias": True}, "llama.cpp reads seed_oss without mlp_bias; got True"),
            ("smollm3", FACTORS, r"llama.cpp reads smollm3 without rope_factors; got \(1.0, 4.0\)"),
            ("starcoder2", {}, "llama.cpp reads starcoder2 with output_bias and mlp_bias"),
            ("cohere2", {"window": 0}, "llama.cpp reads cohere2 with a window only; got 0"),
            ("gemma3n", {"per_layer": 5}, "gemma3n of 2 blocks with per_layer 256; got 5"),
            ("gemma3n", {"laurel_rank": 3}, "with laurel_rank 64; got 3"),
            ("gemma3n", {"logit_cap": 2.0}, "with logit_cap 30.0; got 2.0"),
            ("gemma3n", {"sparsity": (0.9, 0.9)}, r"with sparsity \(0.95, 0.95\); got"),
            ("gemma3n", {"block_widths": (40, 56)}, r"with block_widths \(\); got"),
            ("gemma3n", {"n_layers": 21}, "gemma3n of 21 blocks with shared_kv 1; got 0"),
            (
                "gemma4",
                {"n_layers": 4, "windowed": (False, True, True, False), "shared_kv": 1},
                "gemma4 with block 1 with a window and 2 without, as the last that have k and v",
            ),
        )
    ):
        with pytest.raises(ConfigError, match=f"export: .*{message}"):
            build(config(kind, **sizes)).export_gguf(tmp_path / "model.gguf")
        build(config(kind, **sizes)).export_hf(tmp_path / str(n)) if kind != "smollm3" else None
    for changes in (
        {"kinds": "-*"},
        NEMOTRON_MOE | {"arch": "nemotron_h_moe", "n_layers": 4, "kinds": "ME-*"},
    ):
        cfg = config(**{"arch": "nemotron_h", "n_layers": 2} | changes)
        with pytest.raises(
            ConfigError, match=r"export: .* a state space \(M\) in at least one block.*; got"
        ):
            build(cfg).export_gguf(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match="folders of nemotron_h have a head of their own"):
        build(cfg).export_hf(tmp_path / "model")
    for kind, said in (
        ("gpt-oss", ["cuts YaRN's ramp to whole pairs, as if truncate were true", "does not read"]),
        ("phi3", ["has no window of 5 tokens here"]),
        ("starcoder2", ["has no window of 4 tokens here"]),
        ("exaone4", ["does not know a model of 3 blocks with windows"]),
        ("deepseek2-v2", ["chooses groups of experts by the sum of their two best, not their"]),
        ("olmo3", ["does not read YaRN's betas here", "has one base of RoPE for all blocks"]),
        ("ministral3", []),
        ("llama-linear", []),
    ):
        path = tmp_path / f"{kind}.gguf"
        make(kind).engine.export_gguf(path)
        lines = unlike(path)
        assert len(lines) == len(said)
        assert all(f"llama.cpp {what}" in line for what, line in zip(said, lines, strict=True))


def test_what_a_phi3_or_gemma_cannot_be():
    for sizes, message in (
        ({"rope_channels": 3}, "rope_channels must be even"),
        ({"long_factors": (1.0, 2.0)}, "short_factors must be 2 numbers above 0; got 0"),
        ({"window": -1}, "window must be a whole number >= 0"),
    ):
        with pytest.raises(ConfigError, match=f"Phi3Config: {message}"):
            config("phi3", **sizes)
    with pytest.raises(ConfigError, match="GemmaConfig: gemma3 has no score_cap"):
        config("gemma3", score_cap=50.0)
    with pytest.raises(ConfigError, match="GemmaConfig: score_cap must be a number above 0"):
        config("gemma2")
    for blocks in ((), (3,), (1, 0)):
        with pytest.raises(ConfigError, match="LFM2Config: attention_blocks must be indices of"):
            config("lfm2", attention_blocks=blocks)
    for sizes, message in (
        ({"delta_heads": 4}, "delta_heads must divide delta_value_heads"),
        ({"delta_dim": 257}, "delta_dim must be at most 256"),
        ({"rope_channels": 3}, "rope_channels must be even"),
        ({"conv_taps": 17}, "conv_taps must be at most 16"),
        ({"attention_every": 0}, "attention_every must be a whole number >= 1"),
    ):
        with pytest.raises(ConfigError, match=f"Qwen35Config: .*{message}"):
            config("qwen35", **{"delta_value_heads": 6} | sizes)
    for kind in ("exaone4", "phi3", "gemma3", "gemma3n", "gemma4", "lfm2", "qwen35"):
        with pytest.raises(ConfigError, match=f"{kind}: q, k and v have no biases"):
            make(kind, qkv_bias=True)
    with pytest.raises(ConfigError, match="gemma2: the head is tied"):
        make("gemma2", untied=True)


def test_heads_that_llama_cpp_does_not_read_are_not_exported(tmp_path):
    for kind in ("olmo2", "phi3"):
        engine = LlamaSeqEngine()
        engine.realize_for_random_init(config(kind, head_dim=10), RecipeOptions())
        with pytest.raises(ConfigError, match=rf"llama\.cpp reads {kind} with heads of d_model"):
            engine.export_gguf(tmp_path / "model.gguf")


def test_a_counter_that_is_an_array_is_refused_by_name():
    metadata = {"olmoe.expert_group_count": np.array([0, 2])}
    file = SimpleNamespace(architecture="olmoe", tensors={}, metadata=metadata, path="a.gguf")
    file.error = GGUFError
    with pytest.raises(GGUFError, match=r"expert_group_count must be a whole number >= 1; got arr"):
        Hyper(file).count("expert_group_count")
