"""Models in files: opening one, prompts, and generation one token at a time."""

import tempfile
from pathlib import Path

import beside_llama_cpp
import decode as decoding
import load as loading
import rolled
from rows import best_and_usual, clock_of

import toynn
from toynn.testing.limits import measure
from toynn.testing.lora_step import write_file
from toynn.testing.race import race


def decode(n_threads: int, rounds: int, only: str) -> None:
    """Print tokens per second of generation, one token at a time with a KV cache."""
    print(f"{'tokens/s, best/median':28}{'toynn':>18}{'torch':>18}   toynn/torch", flush=True)
    for name, shape in decoding.SHAPES.items():
        if only not in name:
            continue
        times = race(decoding.contestants(shape, n_threads), rounds)
        best, usual = (
            {who: decoding.TOKENS / seconds for who, seconds in of.items()}
            for of in best_and_usual(times)
        )
        row = "".join(f"{best[who]:9.1f}/{usual[who]:8.1f}" for who in times)
        ratios = [rate["toynn"] / rate["torch"] for rate in (best, usual)]
        print(f"{name:28}{row}{ratios[0]:8.2f}/{ratios[1]:.2f}", flush=True)


def generation(n_threads: int, rounds: int, only: str) -> None:
    """Print tokens per second of prompts and generation over quantized files, beside llama.cpp."""
    clock = clock_of(n_threads)
    columns = "".join(f"{who:>16}" for who in ("toynn", "toynn medium", "llama.cpp"))
    print(f"{'tokens/s, median':18}{columns}   toynn, medium / llama.cpp", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in beside_llama_cpp.TYPES if only.upper() in name):
            path = Path(folder, f"{name}.gguf")
            beside_llama_cpp.write(path, name)
            for what, contestants in beside_llama_cpp.contestants(path, n_threads).items():
                times = race(contestants, rounds, clock)
                _, usual = best_and_usual(times)
                count = beside_llama_cpp.COUNTS[what]
                row = "".join(f"{count / seconds:16.1f}" for seconds in usual.values())
                if "llama.cpp" in usual:  # it does not read several sequences here
                    ratios = [usual["llama.cpp"] / usual[who] for who in ("toynn", "toynn medium")]
                    row += f"{ratios[0]:10.2f}{ratios[1]:8.2f}"
                print(f"{f'{name} {what}':18}{row}", flush=True)


def rollouts(n_threads: int, rounds: int, only: str) -> None:
    """Print tokens per second of rows that generate together, and what bounds them."""
    toynn.set_num_threads(n_threads)
    limits = measure(n_threads)
    print(f"{'rows':12}{'tokens/s':>12}{'of one':>8}{'bound':>10}{'llama.cpp':>12}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, (shape, type) in rolled.SHAPES.items():
            if only not in name:
                continue
            print(name)
            path = Path(folder, f"{name}.gguf")
            write_file(path, shape, type, beside_llama_cpp.tokenizer(shape.vocab))
            one = None
            for rows, calls in rolled.steps(path, shape, n_threads):
                _, usual = best_and_usual(race(calls, rounds, clock_of(n_threads)))
                rate, *theirs = (max(1, rows) / seconds for seconds in usual.values())
                one = one or rate
                bound = rolled.bound(path, shape, max(1, rows), limits)
                row = f"{rows or 'alone':>12}{rate:12.0f}{rate / one:8.2f}{bound:10.0f}"
                print(row + "".join(f"{their:12.0f}" for their in theirs), flush=True)


def load(n_threads: int, rounds: int, only: str) -> None:
    """Print the time to open a model of a gigabyte, and to its first logits."""
    toynn.set_num_threads(n_threads)
    with tempfile.TemporaryDirectory() as folder:
        for name, show in loading.loads(Path(folder)).items():
            for _ in range(rounds if only in name else 0):
                print(name)
                show()
