"""The targets: what `toynn train gpt2` reaches with all its defaults, on bytes."""

from toynn.cli import main

STEPS = {1: 900, 3: 3050, 30: 61500}  # by minutes of one core (30: of a faster one)


def train(text, out, seed, budget):
    """Train; return the run's folder. Reports and checkpoints are part of the time."""
    words = f"train gpt2 --data {text} --holdout 0 --threads 1 --save-every 0 --out {out}"
    assert main([*words.split(), "--steps", str(STEPS[budget]), "--seed", str(seed)]) == 0
    return out
