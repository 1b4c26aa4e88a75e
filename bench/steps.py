"""A whole training step, toynn against PyTorch in eager mode: shapes and contestants."""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    """Pictures of a step of ViT-Tiny: 224 pixels wide, 10 classes."""

    B: int


TINY = {"d64_L2_T32_B1": Shape(64, 2, 4, 627, 32, 1)}
STEPS = {
    "d128_L4_T128_B8": Shape(128, 4, 4, 256, 128, 8),
    "d256_L8_T256_B4": Shape(256, 8, 8, 4096, 256, 4),
    "gpt2_124m_T64_B4": Shape(768, 12, 12, 50257, 64, 4),
    "gpt2_124m_T256_B4": Shape(768, 12, 12, 50257, 256, 4),
}


LLAMA = {
    "llama_d128_L4_T128_B8": LlamaShape(128, 4, 4, 2, 352, 256, 128, 8),
    "smollm2_135m_T256_B1": LlamaShape(576, 30, 9, 3, 1536, 49152, 256, 1),
}

VIT = {"vit_tiny_224_B1": ViTShape(1), "vit_tiny_224_B16": ViTShape(16)}


def contestants(shape: Shape | LlamaShape | ViTShape, n_threads: int) -> Contestants:
    """Return one step of each contestant, on the same ids or pictures."""
    if isinstance(shape, ViTShape):
        return vit_contestants(shape.B, n_threads)
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, shape.vocab, (2, shape.B * shape.T), np.int32)
    import toynn

    found = {
        "toynn": toynn_step(shape, ids, labels, n_threads),
        "torch": torch_step(shape, ids, labels, n_threads),
    }
    if toynn.get_float32_matmul_precision() == "medium":
        found["torch bf16"] = torch_step(shape, ids, labels, n_threads, bf16=True)
    return found


def toynn_step(
    shape: Shape | LlamaShape, ids: np.ndarray, labels: np.ndarray, n_threads: int
) -> Callable[[], object]:
    import toynn

    toynn.set_num_threads(n_threads)
    options = toynn.RecipeOptions(t_batch=shape.B)
    if isinstance(shape, LlamaShape):
        C, L, H, KV, F, V, T, _ = shape
        recipe = toynn.recipes.FromScratch()
        recipe.realize(toynn.LlamaConfig(V, C, H, KV, F, L, T), options)
    else:
        C, L, H, V, T, _ = shape
        recipe = toynn.recipes.GPT2()
        recipe.realize(toynn.GPT2Config(V, C, H, 4 * C, L, T), options)
    adamw = toynn.AdamW.for_lora()
    positions = np.tile(np.arange(shape.T, dtype=np.int32), shape.B)

    def step() -> float:
        k = recipe.step_index
        return recipe.step(ids, positions, labels, adamw.hp_for_step(k), k == 0)

    return step


def torch_step(
    shape: Shape | LlamaShape,
    ids: np.ndarray,
    labels: np.ndarray,
    n_threads: int,
    *,
    bf16: bool = False,
) -> Callable[[], object]:
    """Make the same step in PyTorch: fused attention, fused AdamW, gradients set to None."""
    import torch
    from torch import nn

    torch.set_num_threads(n_threads)
    torch.manual_seed(0)
    model = torch_llama(shape) if isinstance(shape, LlamaShape) else torch_gpt2(shape)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    tokens = torch.from_numpy(ids.astype(np.int64)).view(shape.B, shape.T)
    targets = torch.from_numpy(labels.astype(np.int64))

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.view(-1, shape.vocab), targets)
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        adamw.step()
        return loss.item()

    return step


def vit_contestants(batch: int, n_threads: int) -> Contestants:
    """Return one step of each contestant on the same pictures: bytes, as a decoder gives them."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (batch, 224, 224, 3)).astype(np.uint8)
    labels = rng.integers(0, 10, batch)
    return {
        "toynn": toynn_vit_step(pixels, labels, n_threads),
        "torch": torch_vit_step(pixels, labels, n_threads, bf16=False),
        "torch bf16": torch_vit_step(pixels, labels, n_threads, bf16=True),
    }


def toynn_vit_step(pixels: np.ndarray, labels: np.ndarray, n_threads: int) -> Callable[[], object]:
    import toynn

    toynn.set_num_threads(n_threads)
    recipe = toynn.recipes.VitTiny()
    recipe.realize(toynn.ViTConfig(), toynn.RecipeOptions(t_batch=len(pixels)))
    adamw = toynn.AdamW.for_lora()

    def step() -> float:
        k = recipe.step_index
        return recipe.step(pixels, [0], labels, adamw.hp_for_step(k), k == 0)

    return step


def torch_vit_step(
    pixels: np.ndarray, labels: np.ndarray, n_threads: int, *, bf16: bool
) -> Callable[[], object]:
    """Make the same step in PyTorch, in float32 or in bfloat16 by autocast."""
    import torch
    from torch import nn

    torch.set_num_threads(n_threads)
    torch.manual_seed(0)
    model = torch_vit()
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    images, targets = torch.from_numpy(pixels), torch.from_numpy(labels)

    def step() -> float:
        planes = images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = nn.functional.cross_entropy(model(planes), targets)
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        adamw.step()
        return loss.item()

    return step


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


def torch_gpt2(shape: Shape) -> Any:
    import torch
    from torch import nn

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

    return GPT2()


def torch_llama(shape: LlamaShape) -> Any:
    import torch
    from torch import nn

    fused = nn.functional.scaled_dot_product_attention
    C, L, H, KV, F, V, T, _ = shape
    D = C // H
    angles = torch.outer(torch.arange(T), 1e4 ** -(torch.arange(0, D, 2) / D))
    cos, sin = (f(torch.cat([angles, angles], -1)) for f in (torch.cos, torch.sin))

    def turn(x: torch.Tensor) -> torch.Tensor:
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
            heads = fused(turn(q), turn(k), v, is_causal=True, enable_gqa=KV < H)
            x = x + self.out(heads.transpose(1, 2).reshape(B, T, C))
            n = self.norm_2(x)
            return x + self.down(nn.functional.silu(self.gate(n)) * self.up(n))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(V, C)
            self.blocks = nn.Sequential(*(Block() for _ in range(L)))
            self.norm = nn.RMSNorm(C, 1e-5)
            nn.init.normal_(self.table.weight, std=0.02)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.norm(self.blocks(self.table(ids))) @ self.table.weight.T

    return Llama()
