"""A training step of GPT-2 in toynn and in PyTorch (eager mode), for races between them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from toynn.backends.threads import set_num_threads
from toynn.engines import GPT2Config
from toynn.numerics.precision import get_float32_matmul_precision
from toynn.optim import AdamW
from toynn.options import RecipeOptions
from toynn.recipes import GPT2
from toynn.testing.cases import Array
from toynn.testing.race import Contestants


class Shape(NamedTuple):
    """A GPT-2 model and its batch."""

    d_model: int
    layers: int
    heads: int
    vocab: int
    T: int
    B: int


SHAPES = {
    "d64_L2_T32_B1": Shape(64, 2, 4, 627, 32, 1),
    "d128_L4_T128_B8": Shape(128, 4, 4, 256, 128, 8),
    "d256_L8_T256_B4": Shape(256, 8, 8, 4096, 256, 4),
    "gpt2_124m_T64_B4": Shape(768, 12, 12, 50257, 64, 4),
    "gpt2_124m_T256_B4": Shape(768, 12, 12, 50257, 256, 4),
}


def contestants(
    shape: Shape, n_threads: int, *, recipe: Any = None, torch: bool = True
) -> Contestants:
    """Return one step of each contestant on the same ids; at medium also PyTorch in bfloat16."""
    ids, labels = draw(shape)
    set_num_threads(n_threads)
    times = {"toynn": toynn_step(recipe or gpt2_recipe(shape), ids, positions(shape), labels)}
    if torch:
        times["torch"] = torch_step(torch_gpt2(shape), ids, labels, n_threads)
        if get_float32_matmul_precision() == "medium":
            times["torch bf16"] = torch_step(torch_gpt2(shape), ids, labels, n_threads, bf16=True)
    return times


def draw(shape: Any) -> Array:
    """Return ids and labels (2, B T)."""
    rng = np.random.default_rng(0)
    return rng.integers(0, shape.vocab, (2, shape.B * shape.T), np.int32)


def positions(shape: Any) -> Array:
    """Return positions (B T,): 0 .. T-1 in each sequence."""
    return np.tile(np.arange(shape.T, dtype=np.int32), shape.B)


def gpt2_recipe(shape: Shape) -> GPT2:
    """Return a recipe with random weights."""
    C, L, H, V, T, B = shape
    recipe = GPT2()
    recipe.realize(GPT2Config(V, C, H, 4 * C, L, T), RecipeOptions(t_batch=B))
    return recipe


def toynn_step(recipe: Any, inputs: Array, places: Any, labels: Array) -> Callable[[], object]:
    """Return a step of any recipe on one batch: forward, loss, backward, AdamW."""
    adamw = AdamW.for_lora()

    def step() -> float:
        k = recipe.step_index
        loss: float = recipe.step(inputs, places, labels, adamw.hp_for_step(k), k == 0)
        return loss

    return step


def torch_step(
    model: Any,
    inputs: Array | Callable[[], Any],
    labels: Array,
    n_threads: int,
    *,
    bf16: bool = False,
) -> Callable[[], object]:
    """Return the same step in PyTorch: fused AdamW, gradients set to None.

    ``inputs`` are ids (B T,) for a model of (B, T), or a function that returns the model's input.
    """
    import torch

    torch.set_num_threads(n_threads)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    targets = torch.from_numpy(labels.astype(np.int64))
    if not callable(inputs):
        ids = torch.from_numpy(inputs.astype(np.int64)).view(-1, model.T)
        inputs = lambda: ids  # noqa: E731

    def step() -> float:
        batch = inputs()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            scores = model(batch)
            loss = torch.nn.functional.cross_entropy(scores.view(-1, scores.shape[-1]), targets)
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        adamw.step()
        value: float = loss.item()
        return value

    return step


def torch_gpt2(shape: Shape) -> Any:
    """Return GPT-2 in plain PyTorch, with its fused attention and a tied head."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    fused = nn.functional.scaled_dot_product_attention
    C, H = shape.d_model, shape.heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
            self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
            self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
            self.gelu = nn.GELU(approximate="tanh")

        def forward(self, x: Any) -> Any:
            B, T, _ = x.shape
            q, k, v = (
                part.view(B, T, H, C // H).transpose(1, 2)
                for part in self.qkv(self.ln_1(x)).split(C, dim=2)
            )
            heads = fused(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
            x = x + self.out(heads)
            return x + self.down(self.gelu(self.up(self.ln_2(x))))

    class GPT2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.T = shape.T
            self.wte, self.wpe = nn.Embedding(shape.vocab, C), nn.Embedding(shape.T, C)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.ln_f = nn.LayerNorm(C)
            for table in (self.wte, self.wpe):  # the default std of 1 makes subnormals in softmax
                nn.init.normal_(table.weight, std=0.02)

        def forward(self, ids: Any) -> Any:
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.ln_f(x) @ self.wte.weight.T

    return GPT2()
