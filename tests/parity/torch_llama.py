"""Llama, Qwen2 and Qwen3 in float64 PyTorch, written from the formulas; shares no code with toynn.

Weights are a dict by GGUF name. Heads are looped over, each with its whole T x T matrix.
"""

import math

import torch
import torch_gpt2


def rms_norm(x, w, eps):
    return w * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def rotate(x, positions, base, factors, interleaved):
    """RoPE of one head x (T, D)."""
    T, D = x.shape
    frequencies = base ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    if factors:
        frequencies = frequencies / torch.tensor(factors, dtype=torch.float64)
    angles = torch.as_tensor(positions).double()[:, None] * frequencies
    a, b = (x[:, ::2], x[:, 1::2]) if interleaved else (x[:, : D // 2], x[:, D // 2 :])
    a, b = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    return torch.stack([a, b], -1).reshape(T, D) if interleaved else torch.cat([a, b], -1)


class Model(torch_gpt2.Model):
    """A model of the shape of ``cfg``; names in ``frozen`` get no gradient.

    ``dtype``, if given, is what matrices are rounded to before a product.
    """

    def __init__(self, weights, cfg, frozen=(), dtype=None):
        super().__init__(weights, cfg.n_heads)
        self.cfg, self.dtype = cfg, dtype
        self.all = dict(self.weights)
        for name in frozen:
            del self.weights[name]

    def matrix(self, name):
        w = self.all[f"{name}.weight"]
        return w if self.dtype is None else w + (w.to(self.dtype).double() - w).detach()

    def project(self, x, name):
        y = x @ self.matrix(name).T
        return y + self.all[f"{name}.bias"] if f"{name}.bias" in self.all else y

    def norm(self, x, name):
        return rms_norm(x, self.all[f"{name}.weight"], self.cfg.rms_eps)

    def attention(self, x, block, positions):
        cfg = self.cfg
        T, D, H, KV = len(x), cfg.d_head, cfg.n_heads, cfg.n_kv_heads
        q, k, v = (self.project(x, f"{block}.attn_{part}").reshape(T, -1, D) for part in "qkv")
        if cfg.arch == "qwen3":
            q, k = self.norm(q, f"{block}.attn_q_norm"), self.norm(k, f"{block}.attn_k_norm")
        rope = (positions, cfg.rope_base, cfg.rope_factors, cfg.arch == "llama")
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        heads = []
        for h in range(H):
            kv = h * KV // H
            scores = rotate(q[:, h], *rope) @ rotate(k[:, kv], *rope).T / math.sqrt(D)
            heads.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v[:, kv])
        return self.project(torch.cat(heads, -1), f"{block}.attn_output")

    def sequence_logits(self, ids, positions):
        x = self.all["token_embd.weight"][ids]
        if "lens.proj.weight" in self.all:
            x = x @ self.matrix("lens.proj").T
        for n in range(self.cfg.n_layers):
            block = f"blk.{n}"
            x = x + self.attention(self.norm(x, f"{block}.attn_norm"), block, positions)
            h = self.norm(x, f"{block}.ffn_norm")
            gate, up = (self.project(h, f"{block}.ffn_{part}") for part in ("gate", "up"))
            x = x + self.project(gate * torch.sigmoid(gate) * up, f"{block}.ffn_down")
        head = "output" if "output.weight" in self.all else "token_embd"
        return self.norm(x, "output_norm") @ self.matrix(head).T

    def logits(self, ids, batch, positions=None):
        sequences = torch.as_tensor(ids).long().reshape(batch, -1)
        positions = range(sequences.shape[1]) if positions is None else positions
        positions = torch.tensor(list(positions))
        return torch.cat([self.sequence_logits(ids, positions) for ids in sequences])
