"""Muon, and a tokenizer of 2,048 tokens, so that a window of 128 holds three times the text.

In a short time a model sees little of the text, so the tokenizer reads a part of it, too.
"""

from toynn.cli import main

STEPS = {1: 650, 3: 2000, 30: 20000}  # by minutes of one core
SHARE = {1: 6, 3: 3, 5: 2, 10: 1, 30: 1}
MODEL, OPTIMIZER = "gpt2", "--optimizer muon --lr 0.012"


def tokenized(text, out, budget):
    """Return a part of the text, and a tokenizer of it."""
    part, made = (out.with_name(out.name + more) for more in (".txt", "-tokenizer"))
    part.write_bytes(b"\n\n".join(text.read_bytes().split(b"\n\n")[:: SHARE[budget]]))
    assert main(f"tokenizer train --data {part} --vocab-size 2048 --out {made}".split()) == 0
    return part, made


def train(text, out, seed, budget):
    """Train the tokenizer and the model; return the run's folder."""
    part, made = tokenized(text, out, budget)
    words = f"train {MODEL} --data {part} --tokenizer {made} --holdout 0 --threads 1 --save-every 0"
    words += f" --out {out} {OPTIMIZER} --steps {STEPS[budget]} --seed {seed}"
    assert main(words.split()) == 0
    return out
