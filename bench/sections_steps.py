"""Whole training steps of GPT-2, Llama and ViT models, also as one size grows."""

import statistics
import time

import families as models
import growth
import lengths as growing
import steps
from busy import mean_ms
from rows import best_and_usual, clock_of

from toynn.errors import ConfigError
from toynn.testing.race import race


def race_steps(shapes: str, n_threads: int, rounds: int, only: str) -> None:
    """Print milliseconds of a training step, and PyTorch's time over toynn's."""
    for name, shape in getattr(steps, shapes).items():
        if only not in name:
            continue
        times = race(steps.contestants(shape, n_threads), rounds)
        others = [who for who in times if who != "toynn"]
        if name == next(iter(getattr(steps, shapes))) or only:
            columns = "".join(f"{who:>19}" for who in times)
            ratios = "".join(f"{f'{who}/toynn':>19}" for who in others)
            print(f"{'ms per step, best/median':28}{columns}{ratios}", flush=True)
        best, usual = (
            {who: 1e3 * seconds for who, seconds in of.items()} for of in best_and_usual(times)
        )
        row = "".join(f"{best[who]:10.3f}/{usual[who]:8.3f}" for who in times)
        for who in others:
            row += f"{best[who] / best['toynn']:14.2f}/{usual[who] / usual['toynn']:.2f}"
        print(f"{name:28}{row}", flush=True)


def tiny(n_threads: int, rounds: int, only: str) -> None:
    """Race a training step of a model so small that the time between kernels matters."""
    race_steps("TINY", n_threads, rounds, only)


def step(n_threads: int, rounds: int, only: str) -> None:
    """Race training steps of GPT-2 models, up to 124M parameters."""
    race_steps("STEPS", n_threads, rounds, only)


def llama(n_threads: int, rounds: int, only: str) -> None:
    """Race training steps of Llama models, up to the shape of SmolLM2-135M."""
    race_steps("LLAMA", n_threads, rounds, only)


def vit(n_threads: int, rounds: int, only: str) -> None:
    """Race training steps of ViT-Tiny at 224 pixels."""
    race_steps("VIT", n_threads, rounds, only)


def families(n_threads: int, rounds: int, only: str) -> None:
    """Print the time of each architecture's forward and backward, beside a Llama of its sizes."""
    llama = models.configuration("llama")
    beside, weights = models.step(llama, n_threads), models.active(llama)
    print(f"{'ms, median':18}{'family':>10}{'llama':>10}{'ratio':>8}{'of active weights':>20}")
    for name in models.names(only):
        try:
            cfg = models.configuration(name)
        except ConfigError as error:
            print(f"{name:18}not timed: {error}", flush=True)
            continue
        contestants = {"family": models.step(cfg, n_threads), "llama": beside}
        times = race(contestants, rounds, clock_of(n_threads))
        own, other = (1e3 * statistics.median(times[who]) for who in times)
        share = models.active(cfg) / weights
        print(f"{cfg.arch:18}{own:10.2f}{other:10.2f}{own / other:8.2f}{share:20.2f}", flush=True)


def scaling(n_threads: int, rounds: int, only: str) -> None:
    """Print a step's time, rate and share of attention as one size of a GPT-2 grows."""
    names = list(steps.contestants(growth.BASE, n_threads, torch=growth.has_torch()))
    columns = "".join(f"{who:>12}" for who in names)
    print(f"{growth.BASE}; ms, best")
    print(f"{'':14}{columns}{'GFLOP':>9}{'GFLOP/s':>9}{'attention':>11}", flush=True)
    for size, values in growth.SERIES.items():
        for value in values if only in size else ():
            shape = growth.BASE._replace(**{size: value})
            recipe = steps.gpt2_recipe(shape)
            contestants = steps.contestants(
                shape, n_threads, recipe=recipe, torch=growth.has_torch()
            )
            times = {who: min(spent) for who, spent in race(contestants, rounds).items()}
            flops = growth.work(recipe.session.tape)
            row = "".join(f"{1e3 * spent:12.2f}" for spent in times.values())
            row += f"{flops / 1e9:9.2f}{flops / times['toynn'] / 1e9:9.0f}"
            share = growth.attention_share(recipe.session)
            print(f"{f'{size} {value}':14}{row}{share:11.1%}", flush=True)


def memory(n_threads: int, rounds: int, only: str) -> None:
    """Print the peak memory of three steps of GPT-2 124M, each contestant in its own process."""
    print(f"{growth.MEMORY}, GB{'at most':>12}{'of it after import':>20}{'promised':>10}")
    for who in ("toynn", "torch"):
        for precision in ("highest", "medium"):
            before, most, promised = growth.measured(who, precision, n_threads)
            told = f"{promised / 1e9:10.2f}" if promised else ""
            print(f"{who} {precision:15}{most / 1e9:12.2f}{before / 1e9:20.2f}{told}", flush=True)


def busy(n_threads: int, rounds: int, only: str) -> None:
    """Print mean milliseconds of toynn's steps alone, and beside one and two busy processes."""
    print(f"{'ms per step, mean':28}{'alone':>10}{'beside 1':>10}{'beside 2':>10}", flush=True)
    for name, shape in steps.STEPS.items():
        if only not in name:
            continue
        step = steps.contestants(shape, n_threads, torch=False)["toynn"]
        row = "".join(f"{mean_ms(step, n):10.1f}" for n in (0, 1, 2))
        print(f"{name:28}{row}", flush=True)


def lengths(n_threads: int, rounds: int, only: str) -> None:
    """Print microseconds of CPU time a row of each kind of layer, as the sequence grows."""
    print(f"{'us a row, best/median':24}" + "".join(f"{f'{T} rows':>18}" for T in growing.LENGTHS))
    rows: dict[str, str] = {}
    for T in growing.LENGTHS:
        calls = {who: call for who, call in growing.steps(T).items() if only in who}
        for who, spent in race(calls, rounds, time.process_time).items():
            best, usual = (1e6 * of(spent) / T for of in (min, statistics.median))
            rows[who] = rows.get(who, "") + f"{best:11.2f}/{usual:6.2f}"
    for who, row in rows.items():
        print(f"{who:24}{row}", flush=True)
