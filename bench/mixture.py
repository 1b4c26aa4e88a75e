"""A LoRA step over a mixture of experts: files, contestants.

A token uses 4 of 32 experts; these 4 together are as wide as SmolLM2-135M's MLP. The contestants
are the dense model of that size, one pass that reads the experts, and PEFT in transformers. Files
hold random Q8_0 blocks. The vocabulary has only 1024 tokens, so that the head, which is the same
for all, does not hide differences. Adapters have rank 8, on attention.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from smallest import smallest

import toynn
from toynn.formats import gguf
from toynn.models import LlamaConfig, architecture
from toynn.models.qwen3moe import Qwen3MoEConfig
from toynn.options import RecipeOptions
from toynn.testing.race import Contestants

__all__ = ["T", "contestants", "peft_step"]

T, RANK, ALPHA, LAYERS = smallest(256, 32), 8, 16.0, smallest(30, 1)
DENSE = LlamaConfig(1024, 576, 9, 3, 1536, LAYERS, T, arch="qwen3", head_dim=64)
MIXTURE = Qwen3MoEConfig(
    1024, 576, 9, 3, 384, LAYERS, T, head_dim=64, n_experts=32, n_experts_used=4
)


def write_file(path: Path, cfg: LlamaConfig) -> None:
    """Write a model of random Q8_0 blocks; norms are ones, the router is random floats."""
    rng, model = np.random.default_rng(0), architecture(cfg.arch)
    tensors: dict[str, Any] = {}
    for name, shape in model.shapes(cfg, RecipeOptions()).items():
        if len(shape) == 1:
            tensors[name] = np.ones(shape, np.float32), "f32"
        elif "ffn_gate_inp" in name:
            tensors[name] = rng.standard_normal(shape, np.float32), "f32"
        else:
            raw = rng.integers(0, 256, (*shape[:-1], shape[-1] // 32, 34), np.uint8)
            scale = np.float16(1 / (73 * shape[-1] ** 0.5))
            raw[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
            tensors[name] = raw.reshape(*shape[:-1], -1), "q8_0"
    metadata = {f"{cfg.arch}.{key}": value for key, value in model.write(cfg).items()}
    own = {"general.architecture": cfg.arch, "tokenizer.ggml.model": "no_vocab"}
    gguf.write(path, own | metadata, tensors)


def batch() -> Any:
    """Return ids and labels (2, T)."""
    return np.random.default_rng(0).integers(0, DENSE.vocab, (2, T), np.int32)


def _step(path: Path) -> Callable[[], float]:
    recipe = toynn.recipes.LoRA()
    recipe.realize(path, None, RANK, RecipeOptions(t_seq=T), ALPHA, "attention", init="peft")
    (ids, labels), adamw = batch(), toynn.AdamW.for_lora()
    return lambda: recipe.step(
        ids, None, labels, adamw.hp_for_step(recipe.step_index), recipe.step_index == 0
    )


def contestants(folder: Path) -> Contestants:
    """Return steps of the mixture and of the dense model, and a pass that reads the experts."""
    for name, cfg in (("mixture", MIXTURE), ("dense", DENSE)):
        write_file(folder / f"{name}.gguf", cfg)
    with gguf.open(folder / "mixture.gguf") as file:
        names = [name for name in file.tensors if name.endswith("_exps.weight")]
        experts = np.concatenate([file.raw(name).reshape(-1) for name in names]).view(np.uint64)
    return {
        "mixture": _step(folder / "mixture.gguf"),
        "dense, active size": _step(folder / "dense.gguf"),
        "reading the experts": lambda: experts.sum(),
    }


def peft_step(n_threads: int) -> Callable[[], float]:
    """Make the step of the mixture in PyTorch, float32, with PEFT's adapters."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.set_num_threads(n_threads)
    cfg = MIXTURE
    config = Qwen3MoeConfig(
        vocab_size=cfg.vocab,
        hidden_size=cfg.d_model,
        num_hidden_layers=cfg.n_layers,
        num_attention_heads=cfg.n_heads,
        num_key_value_heads=cfg.n_kv_heads,
        head_dim=cfg.d_head,
        moe_intermediate_size=cfg.d_ff,
        num_experts=cfg.n_experts,
        num_experts_per_tok=cfg.n_experts_used,
        norm_topk_prob=True,
        max_position_embeddings=T,
        tie_word_embeddings=True,
        use_cache=False,
    )
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    adapters = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets)
    model = get_peft_model(Qwen3MoeForCausalLM(config), adapters).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)
    ids, labels = (torch.from_numpy(row.astype(np.int64)) for row in batch())

    def step() -> float:
        logits = model(input_ids=ids[None]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, labels)
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        adamw.step()
        return loss.item()

    return step
