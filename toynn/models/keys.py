"""GGUF's keys of hyper-parameters that several architectures have, without the architecture."""

WIDTH, KV = "feed_forward_length", "attention.head_count_kv"
#: Widths of a head of q and k, and of a head of v.
KEY, VALUE = "attention.key_length", "attention.value_length"
#: The epsilon that norms add under the square root: of RMSNorm, and of LayerNorm.
EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
#: Keys that a query sees in a block with a window, and which blocks have one.
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
#: The bound of logits: cap tanh(logits / cap).
LOGITS = "final_logit_softcapping"

#: RoPE: channels that rotate, base, and base in blocks with a window.
ROTATED = "rope.dimension_count"
FREQ_BASE, LOCAL_FREQ_BASE = "rope.freq_base", "rope.freq_base_swa"
#: How RoPE is stretched to a longer context than the original one.
SCALING, FACTOR = "rope.scaling.type", "rope.scaling.factor"
ORIGINAL, MAGNITUDE = "rope.scaling.original_context_length", "rope.scaling.attn_factor"
YARN_LOG = "rope.scaling.yarn_log_multiplier"
