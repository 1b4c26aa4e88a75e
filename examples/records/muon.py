"""`toynn train gpt2` by Muon with its tuned rate, on bytes; all else as in gpt2.py."""

from toynn.cli import main

STEPS = {1: 900, 3: 2500, 30: 25000}  # by minutes of one core


def train(text, out, seed, budget):
    """Train; return the run's folder."""
    words = f"train gpt2 --data {text} --holdout 0 --threads 1 --save-every 0 --out {out}"
    words += f" --optimizer muon --lr 0.012 --steps {STEPS[budget]} --seed {seed}"
    assert main(words.split()) == 0
    return out
