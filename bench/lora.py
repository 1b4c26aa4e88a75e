"""A LoRA step over a quantized file, toynn against PEFT: shapes, synthetic files, contestants.

toynn maps a Q8_0 file; PEFT holds the model in float32 or in bfloat16. A step has one sequence. The
files come from toynn/testing/lora_step.py. toynn over files of each type is also compared with
toynn over Q8_0.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from smallest import smallest

from toynn.testing.lora_step import ALPHA, RANK, SHAPES, Shape, batch, recipe_over, write_file
from toynn.testing.race import Contestants

__all__ = [
    "ALPHA",
    "OF_A_TYPE",
    "RANK",
    "ROWS",
    "SHAPES",
    "Shape",
    "peft_model",
    "peft_step",
    "private_memory",
    "recipe_over",
    "toynn_calls",
    "write_file",
]

SHAPES = {
    name: smallest(of, Shape(64, 8, 2, 1, 96, 256, of.untied, 32)) for name, of in SHAPES.items()
}
#: A small model whose rows hold whole super-blocks, and lengths of sequences.
OF_A_TYPE = smallest(
    Shape(768, 2, 12, 4, 2048, 1024, True, 512), Shape(256, 1, 4, 2, 256, 256, True, 32)
)
ROWS = smallest((1, 32, 256, 512), (1, 32))


def toynn_calls(recipe: Any, shape: Shape) -> Contestants:
    """Return a step, and its forward pass alone."""
    import toynn

    ids, labels = batch(shape)
    adamw, positions = toynn.AdamW.for_lora(), np.arange(shape.T, dtype=np.int32)

    def step() -> float:
        k = recipe.step_index
        return recipe.step(ids, positions, labels, adamw.hp_for_step(k), k == 0)

    return {"toynn": step, "forward": lambda: recipe.evaluate(ids, positions, labels)}


def peft_model(shape: Shape, dtype: str, n_threads: int, nf4: bool = False) -> Any:
    """Make the same model in PyTorch, with PEFT's adapters in float32.

    With nf4, bitsandbytes stores the weights of linear layers, except the head, in 4 bits.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(n_threads)
    torch.manual_seed(0)
    C, L, H, KV, F, V, untied, T = shape
    config = LlamaConfig(
        hidden_size=C,
        num_hidden_layers=L,
        num_attention_heads=H,
        num_key_value_heads=KV,
        intermediate_size=F,
        vocab_size=V,
        max_position_embeddings=T,
        tie_word_embeddings=not untied,
        use_cache=False,
    )
    torch.set_default_dtype(getattr(torch, dtype))
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if nf4:
        _to_nf4(model.model)
    adapters = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear")
    return get_peft_model(model, adapters).train()


def _to_nf4(model: Any) -> None:
    """Replace the linear layers by bitsandbytes' layers."""
    import bitsandbytes
    import torch

    found = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    for name, linear in found.items():
        layer = bitsandbytes.nn.Linear4bit(
            linear.in_features,
            linear.out_features,
            bias=False,
            compute_dtype=torch.bfloat16,
            quant_type="nf4",
        )
        layer.weight = bitsandbytes.nn.Params4bit(
            linear.weight.data, requires_grad=False, quant_type="nf4"
        )
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer.to("cpu"))


def peft_step(shape: Shape, dtype: str, n_threads: int) -> Callable[[], object]:
    """Make the same step in PyTorch, with fused attention and fused AdamW."""
    import torch

    model = peft_model(shape, dtype, n_threads)
    trained = [p for p in model.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)
    ids, labels = (torch.from_numpy(row.astype(np.int64)) for row in batch(shape))

    def step() -> float:
        logits = model(input_ids=ids[None]).logits[0].float()
        loss = torch.nn.functional.cross_entropy(logits, labels)
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        adamw.step()
        return loss.item()

    return step


def anonymous() -> int:
    """Return the bytes of this process that are not mapped from files."""
    words = Path("/proc/self/smaps_rollup").read_text().split()
    return int(words[words.index("Anonymous:") + 1]) * 1024


def private_memory(path: Path, name: str, n_threads: int) -> tuple[int, int]:
    """Return the bytes that two steps take in another process, without the mapping; the promise."""
    command = [sys.executable, __file__, str(path), name, str(n_threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    taken, promised = map(int, done.stdout.split())
    return taken, promised


if __name__ == "__main__":  # see private_memory
    import toynn

    file, wanted = Path(sys.argv[1]), SHAPES[sys.argv[2]]
    toynn.set_num_threads(int(sys.argv[3]))
    before = anonymous()
    tuned = recipe_over(file, wanted)
    for _ in range(2):
        toynn_calls(tuned, wanted)["toynn"]()
    print(anonymous() - before, tuned.engine.session.memory().peak)
