"""LoRA steps with prepacked base weights, against steps that dequantize and pack them each time."""

import statistics
import tempfile
import time
from pathlib import Path

import lora as tuning
from smallest import smallest

import toynn
from toynn.testing.lora_step import Shape
from toynn.testing.race import race

__all__ = ["prepacked"]

ROWS, TYPES = smallest((32, 64, 128, 256, 512), (32,)), ("F16", "Q8_0", "Q4_K")
#: The matrices of SmolLM2-135M, in multiples of the 256 elements of a super-block; few tokens.
SHAPE = smallest(Shape(768, 4, 12, 4, 1536, 1024, True, 512), tuning.OF_A_TYPE)


def prepacked(n_threads: int, rounds: int, only: str) -> None:
    """Print the time of LoRA steps with prepack="never" over the time with "always".

    Ratios are of minima/medians of turns. On one thread, times are CPU time, so other load matters
    little.
    """
    toynn.set_num_threads(n_threads)
    clock = time.process_time if n_threads == 1 else time.perf_counter
    print(
        f"{'':8}"
        + "".join(f"{f'{T} rows':>13}" for T in ROWS)
        + f"{'mapped, MB':>13}{'prepacked':>11}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in TYPES if only.upper() in name):
            path = Path(folder, f"{name}.gguf")
            tuning.write_file(path, SHAPE, name)
            row = f"{name:8}"
            for T in ROWS:
                shape = SHAPE._replace(T=T)
                recipes = {
                    pack: tuning.recipe_over(path, shape, prepack=pack)
                    for pack in ("never", "always")
                }
                calls = {
                    pack: tuning.toynn_calls(recipe, shape)["toynn"]
                    for pack, recipe in recipes.items()
                }
                times = race(calls, rounds, clock)
                best, usual = (
                    of(times["never"]) / of(times["always"]) for of in (min, statistics.median)
                )
                row += f"{best:8.2f}/{usual:.2f}"
            memory = recipes["always"].engine.session.memory()
            print(f"{row}{memory.mapped / 1e6:13.0f}{memory.prepacked / 1e6:11.0f}", flush=True)
