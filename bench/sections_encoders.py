"""Encoders: texts a second of training and of vectors, on sentences of natural lengths."""

import statistics
import tempfile
from itertools import product
from pathlib import Path

import encoders as natural
import real
from rows import clock_of

import toynn

__all__ = ["encoders"]


def encoders(n_threads: int, rounds: int, only: str) -> None:
    """Race an epoch of each task with transformers' model; ``only`` is part of "minilm classes"."""
    toynn.set_num_threads(n_threads)
    for size, task in product(natural.SIZES, natural.TASKS):
        if only not in f"{size} {task}":
            continue
        count = natural.SIZES[size][2]
        with tempfile.TemporaryDirectory() as folder:
            natural.write_folder(Path(folder), size)
            epochs = natural.epochs(Path(folder), task, count, n_threads)
            spent = real.seconds(epochs, rounds, clock_of(n_threads))
        rates = {who: count / statistics.median(times) for who, times in spent.items()}
        ours = [who for who in rates if who.startswith("toynn")]
        print(
            f"{f'{size} {task}':26}{'texts/s':>9}{'filled':>8}{''.join(f'{w:>16}' for w in ours)}"
        )
        for who, rate in rates.items():
            ratios = "".join(f"{rates[one] / rate:16.2f}" for one in ours)
            print(f"{who:26}{rate:9.1f}{epochs[who].filled:8.1%}{ratios}", flush=True)
