"""How DeepSeek-V2 and V3 choose experts, in config.json.

V2's scores are a softmax over all experts, V3's a sigmoid of each. V3 adds a bias for the choice.
Both may have groups of experts. V2 scores a group by its best expert, V3 by its two best.
"""

from collections.abc import Mapping
from typing import Any

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.models.mixture import GATING, GROUPS, GROUPS_USED, SCORES, SUM

V2 = "deepseek_v2"
_ALL, _IN_GROUPS = "greedy", "group_limited_greedy"  # values of V2's topk_method


def scores_read(config: Config, hyper: dict[str, Any], dense_key: str) -> Config:
    """Add how experts are chosen to ``hyper``; return config.json with V2's defaults.

    ``dense_key`` is the key of the number of first blocks without experts. Raises DataError for a
    choice that toynn does not implement.
    """
    v2 = config.get("model_type") == V2
    method, scores = config.get("topk_method"), "softmax" if v2 else "sigmoid"
    methods = (None, _ALL, _IN_GROUPS) if v2 else (None, "noaux_tc")
    if method not in methods:
        names = " or ".join(map(repr, methods[1:]))
        config.refuse(f"topk_method must be {names}; got {method!r}")
    if config.get("scoring_func") not in (None, scores):
        config.refuse(f"scoring_func must be {scores!r}; got {config.get('scoring_func')!r}")
    hyper[GATING] = SCORES[scores]
    for key, name in ((GROUPS, "n_group"), (GROUPS_USED, "topk_group")):
        if v2 and method != _IN_GROUPS:  # which does not read them
            hyper[key] = 1
        elif key not in hyper:
            config.refuse(f"{name} is missing")
    if not v2:
        return config
    for key in ("norm_topk_prob", "mlp_bias"):
        if config.get(key):
            config.refuse(f"{key} must be false; got {config.get(key)!r}")
    dense = config.get(dense_key)
    return config.over(norm_topk_prob=False, **{dense_key: 0 if dense is None else dense})


def scores_written(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Return what config.json says of V2's choice. Raises ConfigError if its weights add up."""
    if hyper[GATING] != SCORES["softmax"]:
        return {}
    if hyper[SUM]:
        raise ConfigError(f"export_hf: a folder of {V2} has normalized False; got True")
    method = _IN_GROUPS if hyper.get(GROUPS, 1) > 1 else _ALL
    keys = {"model_type": V2, "architectures": ["DeepseekV2ForCausalLM"]}
    return keys | {"topk_method": method}
