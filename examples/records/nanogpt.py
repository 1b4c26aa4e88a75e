"""nanoGPT's model and training loop in PyTorch, on the tokens of tokens.py; AdamW, tuned rate.

With AUTOCAST=1 in the environment products are in bfloat16. Needs torch and safetensors.
"""

import json
import math
import os

import numpy as np
import torch
from safetensors.torch import save_file
from tokens import tokenized

from toynn.cli import main
from toynn.formats.tokenizer import Tokenizer
from toynn.testing.steps import Shape, torch_gpt2

BF16 = os.environ.get("AUTOCAST") == "1"
STEPS, RATE, WARM = {1: 1250}, 4e-3, 0.4
SHAPE = Shape(d_model=128, layers=4, heads=4, vocab=2048, T=128, B=4)
NAMES = {"qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}


def drawn(seed):
    """Return the model with nanoGPT's first weights, and its optimizer."""
    model = torch_gpt2(SHAPE)
    torch.manual_seed(seed)
    for name, w in model.named_parameters():
        if w.dim() == 2:
            deep = name.endswith(("out.weight", "down.weight"))
            torch.nn.init.normal_(w, std=0.02 / math.sqrt(2 * SHAPE.layers) if deep else 0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(w)
    parts = [[w for w in model.parameters() if (w.dim() == 2) is two] for two in (True, False)]
    groups = [{"params": parts[0], "weight_decay": 0.1}, {"params": parts[1], "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def train(text, out, seed, budget):
    """Train the tokenizer and the model; write the run's folder."""
    torch.set_num_threads(1)
    part, made = tokenized(text, out, budget)
    ids = torch.from_numpy(Tokenizer.of(made).encode_array(part.read_text()).astype(np.int64))
    (model, adamw), steps, random = drawn(seed), STEPS[budget], np.random.default_rng(seed)
    for step in range(steps):
        done = (step - WARM * steps) / (steps - WARM * steps)
        share = (step + 1) / (WARM * steps) if done < 0 else 0.55 + 0.45 * math.cos(math.pi * done)
        for group in adamw.param_groups:
            group["lr"] = RATE * share
        begins = random.integers(0, len(ids) - SHAPE.T, SHAPE.B)
        rows = torch.stack([ids[b : b + SHAPE.T + 1] for b in begins])
        with torch.autocast("cpu", torch.bfloat16, enabled=BF16):
            scores = model(rows[:, :-1])
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        if step % 25 == 0:
            print(step, loss.item(), flush=True)
    write(model, made, out)


def write(model, tokenizer, out):
    """Write a folder as transformers has it, and model.gguf."""
    tensors = {}
    for name, w in model.state_dict().items():
        for ours, theirs in NAMES.items():
            name = name.replace(f".{ours}.", f".{theirs}.")
        matrix = w.dim() == 2 and name.startswith("blocks.")
        name = f"transformer.{name.replace('blocks.', 'h.')}"
        tensors[name] = (w.T if matrix else w).contiguous()
    out.mkdir()
    save_file(tensors, out / "model.safetensors")
    sizes = {"n_embd": SHAPE.d_model, "n_layer": SHAPE.layers, "n_head": SHAPE.heads}
    sizes |= {"vocab_size": SHAPE.vocab, "n_positions": SHAPE.T, "n_ctx": SHAPE.T}
    more = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    more |= {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
    (out / "config.json").write_text(json.dumps({**more, **sizes}))
    words = f"convert {out} --outtype f32 --tokenizer {tokenizer} --out {out / 'model.gguf'}"
    assert main(words.split()) == 0
