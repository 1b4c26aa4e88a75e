"""A whole training step of GPT-2, toynn against PyTorch in eager mode: shapes and contestants."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Contestants = dict[str, Callable[[], object]]


class Shape(NamedTuple):
    """A GPT-2 model and its batch."""

    d_model: int
    layers: int
    heads: int
    vocab: int
    T: int
    B: int


TINY = {"d64_L2_T32_B1": Shape(64, 2, 4, 627, 32, 1)}
STEPS = {
    "d128_L4_T128_B8": Shape(128, 4, 4, 256, 128, 8),
    "d256_L8_T256_B4": Shape(256, 8, 8, 4096, 256, 4),
    "gpt2_124m_T64_B4": Shape(768, 12, 12, 50257, 64, 4),
    "gpt2_124m_T256_B4": Shape(768, 12, 12, 50257, 256, 4),
}


def contestants(shape: Shape, n_threads: int) -> Contestants:
    """Return one step of each contestant, on the same ids."""
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, shape.vocab, (2, shape.B * shape.T), np.int32)
    return {
        "toynn": toynn_step(shape, ids, labels, n_threads),
        "torch": torch_step(shape, ids, labels, n_threads),
    }


def toynn_step(
    shape: Shape, ids: np.ndarray, labels: np.ndarray, n_threads: int
) -> Callable[[], object]:
    import toynn

    toynn.set_num_threads(n_threads)
    recipe = toynn.recipes.GPT2()
    recipe.realize(
        toynn.GPT2Config(
            shape.vocab, shape.d_model, shape.heads, 4 * shape.d_model, shape.layers, shape.T
        ),
        toynn.RecipeOptions(t_batch=shape.B),
    )
    adamw = toynn.AdamW.for_lora()
    positions = np.tile(np.arange(shape.T, dtype=np.int32), shape.B)

    def step() -> float:
        k = recipe.step_index
        return recipe.step(ids, positions, labels, adamw.hp_for_step(k), k == 0)

    return step


def torch_step(
    shape: Shape, ids: np.ndarray, labels: np.ndarray, n_threads: int
) -> Callable[[], object]:
    """Make the same step in PyTorch: fused attention, fused AdamW, gradients set to None."""
    import torch
    from torch import nn

    torch.set_num_threads(n_threads)
    fused = nn.functional.scaled_dot_product_attention
    C, H = shape.d_model, shape.heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
            self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
            self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
            self.gelu = nn.GELU(approximate="tanh")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
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
            self.wte, self.wpe = nn.Embedding(shape.vocab, C), nn.Embedding(shape.T, C)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.ln_f = nn.LayerNorm(C)
            for table in (self.wte, self.wpe):  # the default std of 1 makes subnormals in softmax
                nn.init.normal_(table.weight, std=0.02)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.ln_f(x) @ self.wte.weight.T

    torch.manual_seed(0)
    model = GPT2()
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    tokens = torch.from_numpy(ids.astype(np.int64)).view(shape.B, shape.T)
    targets = torch.from_numpy(labels.astype(np.int64))

    def step() -> float:
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.view(-1, shape.vocab), targets)
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        adamw.step()
        return loss.item()

    return step
