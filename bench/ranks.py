"""The cost of adding gradients: ``mpiexec -n 2 python bench/ranks.py``, one thread per rank.

For each shape it prints the expected and the measured time of a step. It also prints two parts of
the measured time: the sum of the gradients, and waiting for other ranks. One machine shows whether
the cost model holds, and what a sum costs in memory. It does not show how several machines scale.
Beside other load, use the medians of several runs (--rounds).
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from lora import SHAPES, recipe_over, write_file
from smallest import smallest

import toynn
from toynn.data.text import RandomWindows
from toynn.distributed import LINKS
from toynn.train import Trainer
from toynn.train.ranks import Ranks


def gpt2(width: int, layers: int, seq: int, batch: int, vocab: int) -> Any:
    """Return a GPT-2 recipe of a shape, and its data."""
    heads = max(1, width // 64)
    config = toynn.GPT2Config(vocab, width, heads, 4 * width, layers, seq)
    recipe = toynn.recipes.GPT2()
    recipe.realize(config, toynn.RecipeOptions(t_seq=seq, t_batch=batch))
    return recipe, RandomWindows(_text(vocab), batch, seq, seed=0)


def lora(folder: Path) -> Any:
    """Return a recipe of adapters, rank 8 on all matrices of a Q8_0 SmolLM2-135M, and its data."""
    shape, path = SHAPES["smollm2_135m_T256"], folder / "base.gguf"
    if toynn.distributed.rank() == 0 and not path.exists():
        write_file(path, shape)
    toynn.distributed.init().barrier("the file is written")
    recipe = recipe_over(path, shape)
    return recipe, RandomWindows(_text(shape.vocab), 1, shape.T, seed=0)


def _text(vocab: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(0).integers(0, vocab, 100_000).astype(np.int32)


CASES: dict[str, tuple[int, Callable[[Path], Any]]] = {
    "GPT-2 d128 L4 T128 B8 V256": (30, lambda _: gpt2(128, 4, 128, 8, 256)),
    "GPT-2 d384 L6 T256 B4 V4096": (
        4,
        lambda _: gpt2(*smallest((384, 6, 256, 4), (64, 1, 32, 1)), 4096),
    ),
    "LoRA, SmolLM2-135M's shape, Q8_0, T256": (4, lora),
}


def rounds(make: Callable[[], Any], steps: int, count: int, order: str) -> Iterator[list[float]]:
    """Yield for each round a step's expected and measured seconds, parts, and the cost model."""
    recipe, data = make()
    for _ in range(count):
        trainer = Trainer(
            recipe, data, steps=steps, eval_every=0, progress=False, allreduce=order, lr=1e-4
        )
        trainer.fit()
        ranks = trainer.ranks
        if not isinstance(ranks, Ranks):
            raise SystemExit("start this under mpiexec: mpiexec -n 2 python bench/ranks.py")
        cost, spent = ranks.cost, ranks.spent
        parts = (spent.whole, spent.sums, spent.waits)
        here = [cost.work + cost.here, *(part / spent.steps for part in parts)]
        yield [*here, cost.here, cost.work, cost.moved(ranks.size), cost.nbytes]


def main() -> None:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--allreduce", default="ordered", choices=toynn.distributed.ORDERS)
    options = parser.parse_args()
    group = toynn.distributed.init()
    folder = group.tell(tempfile.mkdtemp())
    for name, (steps, make) in CASES.items():
        if options.only not in name:
            continue
        found = [*rounds(lambda: make(Path(folder)), steps, options.rounds, options.allreduce)]  # noqa: B023
        expected, took, sums, waits, alone, work, moved, nbytes = map(
            statistics.median, zip(*found, strict=True)
        )
        if group.rank:
            continue
        print(f"{name}: gradients {nbytes / 1e6:.2f} MB, {moved / 1e6:.2f} MB out and in a step")
        print(f"  expected {expected * 1e3:7.1f} ms a step, {alone * 1e3:.2f} of them the sum")
        print(
            f"  took     {took * 1e3:7.1f} ms, the sum {sums * 1e3:.2f} ({sums / took:.1%}), "
            f"waiting {waits * 1e3:.2f} ({waits / took:.1%})"
        )
        cost = toynn.distributed.Cost(int(nbytes), work)
        for link, rate in LINKS.items():
            row = " ".join(f"{n}: {cost.faster(n, rate):.1f}" for n in (2, 4, 8, 16, 32, 64))
            print(f"  {link:10} {row}", flush=True)


if __name__ == "__main__":
    main()
