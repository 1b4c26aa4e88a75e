"""A vision transformer in float64 PyTorch, written from the paper and timm's documentation.

Shares no code with toynn. Weights are a dict by timm's names, in timm's shapes: the patches are
embedded by a convolution. Heads are looped over, each with its whole T x T matrix.
Source: Dosovitskiy et al. 2020, arXiv:2010.11929, equations 1 to 4.
"""

import math

import torch
import torch_gpt2
from torch.nn import functional


class Model(torch_gpt2.Model):
    """A model of the shape of ``cfg``; its pictures are pixels (B, H, W, C)."""

    def __init__(self, weights, cfg):
        super().__init__(weights, cfg.n_heads)
        self.cfg = cfg

    def affine(self, x, name):
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def norm(self, x, name):
        if f"{name}.bias" in self.weights:
            x = x - x.mean(-1, keepdim=True)
        y = self.weights[f"{name}.weight"] * x
        y = y / (x.square().mean(-1, keepdim=True) + self.cfg.norm_eps).sqrt()
        return y + self.weights.get(f"{name}.bias", 0)

    def attention(self, x, block):
        T, C = x.shape
        q, k, v = self.affine(x, f"{block}.attn.qkv").reshape(T, 3, self.n_heads, -1).unbind(1)
        heads = [
            (q[:, h] @ k[:, h].T / math.sqrt(C // self.n_heads)).softmax(-1) @ v[:, h]
            for h in range(self.n_heads)
        ]
        return self.affine(torch.cat(heads, -1), f"{block}.attn.proj")

    def feed_forward(self, x, block):
        x = self.affine(x, f"{block}.mlp.fc1")
        if self.cfg.act == "gelu":
            x = x * (1 + torch.erf(x / math.sqrt(2))) / 2
        else:
            x = x / (1 + torch.exp(-x))
        return self.affine(x, f"{block}.mlp.fc2")

    def picture_logits(self, pixels, token):
        planes = torch.as_tensor(pixels).double().permute(2, 0, 1)
        w, b = (self.weights.get(f"patch_embed.proj.{part}") for part in ("weight", "bias"))
        grid = functional.conv2d(planes[None], w, b, stride=self.cfg.patch)[0]  # (D, rows, columns)
        tokens = torch.cat([self.weights["cls_token"][0], grid.flatten(1).T])
        x = tokens + self.weights["pos_embed"][0]
        for n in range(self.cfg.n_layers):
            block = f"blocks.{n}"
            x = x + self.attention(self.norm(x, f"{block}.norm1"), block)
            x = x + self.feed_forward(self.norm(x, f"{block}.norm2"), block)
        return self.affine(self.norm(x, "norm")[token], "head")

    def logits(self, pixels, batch, tokens=None):
        tokens = [0] * batch if tokens is None else tokens
        return torch.stack(
            [self.picture_logits(*pair) for pair in zip(pixels, tokens, strict=True)]
        )
