"""GPT-2 and AdamW in float64 PyTorch, written from the formulas; shares no code with toynn.

Weights are a dict by GGUF name, each (out, in) as GGUF and PyTorch have them. Autograd gives the
gradients, so nothing below is a hand-written derivative.
"""

import math

import torch

IGNORED = -100

torch.set_num_threads(1)  # the models are tiny


def shapes(vocab, d_model, d_ff, n_layers, context):
    """The shape of every weight by its GGUF name."""
    block = {
        "attn_norm.weight": (d_model,),
        "attn_norm.bias": (d_model,),
        "attn_qkv.weight": (3 * d_model, d_model),
        "attn_qkv.bias": (3 * d_model,),
        "attn_output.weight": (d_model, d_model),
        "attn_output.bias": (d_model,),
        "ffn_norm.weight": (d_model,),
        "ffn_norm.bias": (d_model,),
        "ffn_up.weight": (d_ff, d_model),
        "ffn_up.bias": (d_ff,),
        "ffn_down.weight": (d_model, d_ff),
        "ffn_down.bias": (d_model,),
    }
    return {
        "token_embd.weight": (vocab, d_model),
        "position_embd.weight": (context, d_model),
        **{f"blk.{n}.{name}": shape for n in range(n_layers) for name, shape in block.items()},
        "output_norm.weight": (d_model,),
        "output_norm.bias": (d_model,),
    }


def layer_norm(x, w, b):
    centred = x - x.mean(-1, keepdim=True)
    return w * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() + b


def attention(x, w, n_heads):
    """Causal self-attention of x (T, C): each head by itself, with its whole T x T matrix."""
    T, C = x.shape
    D = C // n_heads
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    q, k, v = (x @ w["attn_qkv.weight"].T + w["attn_qkv.bias"]).split(C, dim=-1)
    heads = []
    for h in range(n_heads):
        head = slice(h * D, (h + 1) * D)
        scores = q[:, head] @ k[:, head].T / math.sqrt(D)
        heads.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v[:, head])
    return torch.cat(heads, -1) @ w["attn_output.weight"].T + w["attn_output.bias"]


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def feed_forward(x, w):
    hidden = gelu(x @ w["ffn_up.weight"].T + w["ffn_up.bias"])
    return hidden @ w["ffn_down.weight"].T + w["ffn_down.bias"]


def sequence_logits(weights, ids, n_heads):
    """Logits (T, V) of one sequence."""
    x = weights["token_embd.weight"][ids] + weights["position_embd.weight"][: len(ids)]
    n_layers = len({name.split(".")[1] for name in weights if name.startswith("blk.")})
    for n in range(n_layers):
        prefix = f"blk.{n}."
        w = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        x = x + attention(layer_norm(x, w["attn_norm.weight"], w["attn_norm.bias"]), w, n_heads)
        x = x + feed_forward(layer_norm(x, w["ffn_norm.weight"], w["ffn_norm.bias"]), w)
    x = layer_norm(x, weights["output_norm.weight"], weights["output_norm.bias"])
    return x @ weights["token_embd.weight"].T


def logits(weights, ids, n_heads, batch):
    """Logits (B T, V) of several sequences, one after the other."""
    sequences = torch.as_tensor(ids).long().reshape(batch, -1)
    return torch.cat([sequence_logits(weights, sequence, n_heads) for sequence in sequences])


def cross_entropy(logits, labels):
    """Mean over the rows that count; labels: (N,) with -100, or dense (N, V)."""
    labels = torch.as_tensor(labels)
    log_p = logits.log_softmax(-1)
    if labels.ndim == 2:
        labels = labels.double()
        return -(labels * log_p).sum() / labels.any(-1).sum()
    counted = labels != IGNORED
    return -log_p[counted, labels[counted].long()].mean()


class Model:
    """Weights that train. ``moments`` are AdamW's, (m, v) by name."""

    def __init__(self, weights, n_heads):
        self.n_heads = n_heads
        self.weights = {
            name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
            for name, value in weights.items()
        }
        self.moments = {
            name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in self.weights.items()
        }

    def logits(self, ids, batch):
        return logits(self.weights, ids, self.n_heads, batch)

    def backward(self, ids, labels, batch):
        """Set the gradients; return the loss."""
        for w in self.weights.values():
            w.grad = None
        loss = cross_entropy(self.logits(ids, batch), labels)
        loss.backward()
        return loss.item()

    def gradients(self):
        return {name: w.grad.numpy().copy() for name, w in self.weights.items()}

    @torch.no_grad()
    def update(self, hp):
        """AdamW, with the last two factors of the row as they are."""
        lr, beta1, beta2, eps, weight_decay, c1, c2 = hp
        for name, w in self.weights.items():
            m, v = self.moments[name]
            m.mul_(beta1).add_((1 - beta1) * w.grad)
            v.mul_(beta2).add_((1 - beta2) * w.grad**2)
            w.mul_(1 - lr * weight_decay).sub_(lr * (c1 * m) / ((c2 * v).sqrt() + eps))

    def step(self, ids, labels, hp, batch, max_norm=None):
        """One training step; return the loss before the update."""
        loss = self.backward(ids, labels, batch)
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), max_norm)
        self.update(hp)
        return loss


def hp_row(convention, step, lr, weight_decay=0.0):
    """The seven slots at ``step`` (from 0): "lora" corrects the bias, "from_scratch" does not."""
    if convention == "lora":
        beta1, beta2, t = 0.9, 0.999, step + 1
        return lr, beta1, beta2, 1e-8, weight_decay, 1 / (1 - beta1**t), 1 / (1 - beta2**t)
    return lr, 0.9, 0.95, 1e-8, weight_decay, 0.9, 0.95
