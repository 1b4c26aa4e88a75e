"""A whole training step, toynn against PyTorch in eager mode: shapes and contestants.

GPT-2's are in toynn/testing/steps.py, because ``toynn bench --compare`` needs them, too.
"""

from typing import Any, NamedTuple

import numpy as np
from smallest import smallest

import toynn
from toynn.testing.race import Contestants
from toynn.testing.steps import (
    SHAPES,
    Shape,
    draw,
    gpt2_recipe,
    positions,
    torch_gpt2,
    torch_step,
    toynn_step,
)
from toynn.testing.steps import contestants as gpt2_contestants

__all__ = [
    "LLAMA",
    "SHAPES",
    "STEPS",
    "TINY",
    "VIT",
    "LlamaShape",
    "Shape",
    "ViTShape",
    "contestants",
    "draw",
    "gpt2_recipe",
    "positions",
    "recipe_of",
    "torch_gpt2",
    "torch_step",
    "toynn_step",
]

TINY = {name: SHAPES[name] for name in SHAPES if name.startswith("d64")}
STEPS = {
    name: smallest(shape, SHAPES["d64_L2_T32_B1"])
    for name, shape in SHAPES.items()
    if name not in TINY
}


class LlamaShape(NamedTuple):
    """A Llama model with a tied head, and its batch."""

    d_model: int
    layers: int
    heads: int
    kv_heads: int
    d_ff: int
    vocab: int
    T: int
    B: int


class ViTShape(NamedTuple):
    """The batch of a step of ViT-Tiny: pictures 224 pixels wide, 10 classes."""

    B: int


LLAMA = {
    "llama_d128_L4_T128_B8": LlamaShape(128, 4, 4, 2, 352, 256, 128, 8),
    "smollm2_135m_T256_B1": LlamaShape(576, 30, 9, 3, 1536, 49152, 256, 1),
}
LLAMA = {name: smallest(of, LlamaShape(64, 1, 2, 1, 96, 256, 32, 1)) for name, of in LLAMA.items()}

VIT = {"vit_tiny_224_B1": ViTShape(1), "vit_tiny_224_B16": ViTShape(smallest(16, 1))}


def contestants(
    shape: Shape | LlamaShape | ViTShape, n_threads: int, **options: Any
) -> Contestants:
    """Return one step of each contestant on the same ids or pictures; ``options`` for GPT-2."""
    if isinstance(shape, Shape):
        return gpt2_contestants(shape, n_threads, **options)
    toynn.set_num_threads(n_threads)
    if isinstance(shape, ViTShape):
        return vit_contestants(shape.B, n_threads)
    ids, labels = draw(shape)
    found = {
        "toynn": toynn_step(recipe_of(shape), ids, positions(shape), labels),
        "torch": torch_step(torch_llama(shape), ids, labels, n_threads),
    }
    if toynn.get_float32_matmul_precision() == "medium":
        found["torch bf16"] = torch_step(torch_llama(shape), ids, labels, n_threads, bf16=True)
    return found


def recipe_of(shape: Shape | LlamaShape) -> Any:
    """Return a recipe with random weights."""
    if isinstance(shape, Shape):
        return gpt2_recipe(shape)
    C, L, H, KV, F, V, T, B = shape
    recipe = toynn.recipes.FromScratch()
    recipe.realize(toynn.LlamaConfig(V, C, H, KV, F, L, T), toynn.RecipeOptions(t_batch=B))
    return recipe


def vit_contestants(batch: int, n_threads: int) -> Contestants:
    """Return one step of each contestant on the same pictures, given as bytes."""
    import torch

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (batch, 224, 224, 3)).astype(np.uint8)
    labels = rng.integers(0, 10, batch)
    recipe = toynn.recipes.VitTiny()
    recipe.realize(toynn.ViTConfig(), toynn.RecipeOptions(t_batch=batch))
    images = torch.from_numpy(pixels)

    def planes() -> Any:
        return images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)

    torch.manual_seed(0)
    return {
        "toynn": toynn_step(recipe, pixels, [0], labels),
        "torch": torch_step(torch_vit(), planes, labels, n_threads),
        "torch bf16": torch_step(torch_vit(), planes, labels, n_threads, bf16=True),
    }


def torch_vit() -> Any:
    """Return timm's vit_tiny_patch16_224 with 10 classes."""
    import torch
    from torch import nn

    fused = nn.functional.scaled_dot_product_attention
    C, H = 192, 3

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(C, 1e-6), nn.LayerNorm(C, 1e-6)
            self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
            self.fc1, self.gelu, self.fc2 = nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            B, T, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, H, C // H).permute(2, 0, 3, 1, 4)
            x = x + self.proj(fused(q, k, v).transpose(1, 2).reshape(B, T, C))
            return x + self.fc2(self.gelu(self.fc1(self.norm2(x))))

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Conv2d(3, C, 16, 16)
            self.cls_token = nn.Parameter(torch.zeros(1, 1, C))
            self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 197, C))
            self.blocks = nn.Sequential(*(Block() for _ in range(12)))
            self.norm, self.head = nn.LayerNorm(C, 1e-6), nn.Linear(C, 10)

        def forward(self, planes: torch.Tensor) -> torch.Tensor:
            x = self.proj(planes).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
            return self.head(self.norm(self.blocks(x))[:, 0])

    return ViT()


def torch_llama(shape: LlamaShape) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    fused = nn.functional.scaled_dot_product_attention
    C, L, H, KV, F, V, T, _ = shape
    D = C // H
    angles = torch.outer(torch.arange(T), 1e4 ** -(torch.arange(0, D, 2) / D))
    cos, sin = (f(torch.cat([angles, angles], -1)) for f in (torch.cos, torch.sin))

    def rotated(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.RMSNorm(C, 1e-5), nn.RMSNorm(C, 1e-5)
            self.q, self.out = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
            self.k, self.v = (nn.Linear(C, KV * D, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(C, F, bias=False) for _ in range(2))
            self.down = nn.Linear(F, C, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            B = x.shape[0]
            n = self.norm_1(x)
            q, k, v = (f(n).view(B, T, -1, D).transpose(1, 2) for f in (self.q, self.k, self.v))
            heads = fused(rotated(q), rotated(k), v, is_causal=True, enable_gqa=KV < H)
            x = x + self.out(heads.transpose(1, 2).reshape(B, T, C))
            n = self.norm_2(x)
            return x + self.down(nn.functional.silu(self.gate(n)) * self.up(n))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.T = T
            self.table = nn.Embedding(V, C)
            self.blocks = nn.Sequential(*(Block() for _ in range(L)))
            self.norm = nn.RMSNorm(C, 1e-5)
            nn.init.normal_(self.table.weight, std=0.02)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.norm(self.blocks(self.table(ids))) @ self.table.weight.T

    return Llama()
