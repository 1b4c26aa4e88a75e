"""Fine-tuning over quantized files: steps, an epoch, each type, the cost of precision."""

import statistics
import tempfile
from itertools import product
from pathlib import Path

import growth
import lora as tuning
import mixture
import real as natural
import seeds as learning
from rows import best_and_usual, clock_of, lora_precisions
from smallest import smallest

import toynn
from toynn.formats.quants import BLOCKS, TYPES
from toynn.testing.race import race

CONTEXTS = smallest((512, 2048, 8192), (64,))


def lora(n_threads: int, rounds: int, only: str) -> None:
    """Race LoRA steps over a Q8_0 file with PEFT in float32 and bfloat16."""
    toynn.set_num_threads(n_threads)
    for name, shape in tuning.SHAPES.items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "base.gguf"
            tuning.write_file(path, shape)
            taken, promised = tuning.private_memory(path, name, n_threads)
            recipe = tuning.recipe_over(path, shape)
            contestants = tuning.toynn_calls(recipe, shape)
            for dtype in ("float32", "bfloat16"):
                contestants[f"PEFT {dtype}"] = tuning.peft_step(shape, dtype, n_threads)
            times = race(contestants, rounds)
        best, usual = best_and_usual(times)
        print(f"{name:28}{'s, best/median':>18}{'tokens/s':>10}{'time / toynn':>16}")
        for who in times:
            ratios = (of[who] / of["toynn"] for of in (best, usual))
            row = f"  {who:26}{best[who]:9.3f}/{usual[who]:8.3f}{shape.T / best[who]:10.0f}"
            print(row + " {:7.2f}/{:.2f}".format(*ratios), flush=True)
        print(f"  step / forward: {best['toynn'] / best['forward']:.2f}")
        print(f"  private memory {taken / 1e9:.3f} GB, promised {promised / 1e9:.3f} GB")
        print(recipe.session.profile(), flush=True)


def precisions(n_threads: int, rounds: int, only: str) -> None:
    """Race LoRA steps in each precision; in the coarse ones also with prepacked weights."""
    toynn.set_num_threads(n_threads)
    known = lora_precisions()
    for name, shape in tuning.SHAPES.items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            tuning.write_file(path := Path(folder) / "base.gguf", shape)
            calls = {}
            for precision, prepack in product(known, ("never", "always")):
                if (precision, prepack) == ("highest", "always"):
                    continue  # 8 bytes a weight
                recipe = tuning.recipe_over(path, shape, precision=precision, prepack=prepack)
                step = tuning.toynn_calls(recipe, shape)["toynn"]
                calls[precision + ", prepacked" * (prepack == "always")] = step
            best, usual = best_and_usual(race(calls, rounds, clock_of(n_threads)))
        print(f"{name:28}{'s, best/median':>18}{'medium takes':>16}")
        for who in calls:
            ratios = "/".join(f"{of['medium'] / of[who]:.2f}" for of in (best, usual))
            print(f"  {who:26}{best[who]:9.3f}/{usual[who]:8.3f}{ratios:>16}", flush=True)


def blocks(n_threads: int, rounds: int, only: str) -> None:
    """Race LoRA steps of all blocks, of the last 8 and of the last one; of LoRA-FA, too."""
    toynn.set_num_threads(n_threads)
    for name, shape in tuning.SHAPES.items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            tuning.write_file(path := Path(folder) / "base.gguf", shape)
            calls, peaks = {}, {}
            for number, fixed in product((None, 8, 1), (False, True)):
                who = f"{'all' if number is None else number}{', LoRA-FA' * fixed}"
                kind = {"num_layers": number, "use_lorafa": fixed}
                recipe = tuning.recipe_over(path, shape, kind=kind)
                peaks[who] = recipe.session.memory().peak
                calls[who] = tuning.toynn_calls(recipe, shape)["toynn"]
            best, usual = best_and_usual(race(calls, rounds, clock_of(n_threads)))
        print(f"{name:24}{'peak, MB':>10}{'s, best/median':>18}{'time / all':>14}")
        for who in calls:
            ratios = "/".join(f"{of[who] / of['all']:.2f}" for of in (best, usual))
            row = f"  {who:22}{peaks[who] / 1e6:10.1f}{best[who]:9.3f}/{usual[who]:8.3f}"
            print(f"{row}{ratios:>14}", flush=True)


def context(n_threads: int, rounds: int, only: str) -> None:
    """Print the memory and the time of a LoRA step for each token, as one row grows.

    The step recomputes blocks (checkpointing), then all of them but attention. ``only`` is the
    number of tokens, if not CONTEXTS.
    """
    toynn.set_num_threads(n_threads)
    clock, shape = clock_of(n_threads), tuning.SHAPES["smollm2_135m_T256"]
    head = f"{'tokens':>8}{'attention':>10}{'peak, MB':>10}{'kB/token':>10}{'ms/token':>10}"
    print(f"{head}{'of attention':>14}")
    lengths = [int(only)] if only else CONTEXTS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.gguf"
        tuning.write_file(path, shape._replace(T=max(lengths)))
        for T, kept in product(lengths, (False, True)):
            own = shape._replace(T=T)
            recipe = tuning.recipe_over(path, own, checkpointing=True, keep_attention=kept)
            step, taken = tuning.toynn_calls(recipe, own)["toynn"], []
            for _ in range(rounds):
                begun = clock()
                step()
                taken.append(clock() - begun)
            session, each = recipe.session, 1000 * min(taken) / T
            peak, of_attention = session.memory().peak, each * growth.attention_share(session)
            row = f"{T:8}{'kept' if kept else 'again':>10}{peak / 1e6:10.1f}"
            print(f"{row}{peak / T / 1e3:10.1f}{each:10.2f}{of_attention:14.2f}", flush=True)


def experts(n_threads: int, rounds: int, only: str) -> None:
    """Race LoRA steps over a mixture with the dense model of the active size and with PEFT."""
    toynn.set_num_threads(n_threads)
    clock = clock_of(n_threads)
    with tempfile.TemporaryDirectory() as folder:
        calls = mixture.contestants(Path(folder))
        calls["PEFT float32"] = mixture.peft_step(n_threads)
        calls = {who: call for who, call in calls.items() if only in who}
        times = race(calls, rounds, clock)
    best, usual = best_and_usual(times)
    print(f"{'32 experts, 4 used, T 256':28}{'s, best/median':>18}{'mixture takes':>16}")
    for who in times:
        ratios = "/".join(f"{of['mixture'] / of[who]:.2f}" for of in (best, usual))
        print(f"  {who:26}{best[who]:9.3f}/{usual[who]:8.3f}{ratios:>16}", flush=True)


def real(n_threads: int, rounds: int, only: str) -> None:
    """Race an epoch of LoRA on examples of natural lengths with PEFT and bitsandbytes."""
    clock = clock_of(n_threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "base.gguf")
        tuning.write_file(path, natural.SHAPE, tokenizer=natural.tokenizer())
        epochs, peaks = {}, {}
        for who, make in natural.CONTESTANTS.items():
            if why := natural.missing(who):
                print(f"{who}: skipped ({why})", flush=True)
            elif only in who:
                peaks[who] = natural.peak(path, who, n_threads)
                epochs[who] = make(path, n_threads)
        taken = {
            who: statistics.median(spent)
            for who, spent in natural.seconds(epochs, rounds, clock).items()
        }
        rates = {who: natural.learned(who) / spent for who, spent in taken.items()}
        ours = [who for who in rates if who.startswith("toynn")]
        columns = "".join(f"{f'{who} / it':>20}" for who in ours)
        print(f"{'an epoch, median':24}{'s':>8}{'trained/s':>11}{'filled':>8}{'GB':>7}{columns}")
        for who, rate in rates.items():
            ratios = "".join(f"{rates[one] / rate:20.2f}" for one in ours)
            row = f"{taken[who]:8.2f}{rate:11.0f}{epochs[who].filled:8.1%}{peaks[who] / 1e9:7.2f}"
            print(f"{who:24}{row}{ratios}", flush=True)
        found = natural.through_the_command_line(path, Path(folder), n_threads)
    spent = found["seconds"]
    rate = found["learned_tokens"] / spent
    print(f"toynn train lora --epochs 1, from start to adapter: {spent:.2f} s,", end=" ")
    print(f"of it {found['time']:.2f} s in steps; {rate:.0f} trained tokens a second")


def types(n_threads: int, rounds: int, only: str) -> None:
    """Print the times of LoRA steps over each type over the time with Q8_0, by minima/medians."""
    toynn.set_num_threads(n_threads)
    clock = clock_of(n_threads)
    columns = "".join(f"{f'{T} rows':>13}" for T in tuning.ROWS)
    print(f"{'':8}{'bits':>6}{columns}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder, f"{name}.gguf") for name in TYPES}
        for name, path in paths.items():
            tuning.write_file(path, tuning.OF_A_TYPE, name)
        for name in (name for name in TYPES if only.upper() in name and name != "Q8_0"):
            elements, nbytes = BLOCKS[name]
            row = f"{name:8}{8 * nbytes / elements:6.2f}"
            for T in tuning.ROWS:
                shape = tuning.OF_A_TYPE._replace(T=T)
                recipes = {type: tuning.recipe_over(paths[type], shape) for type in ("Q8_0", name)}
                calls = {
                    type: tuning.toynn_calls(recipe, shape)["toynn"]
                    for type, recipe in recipes.items()
                }
                times = race(calls, rounds, clock)
                best, usual = (
                    of(times[name]) / of(times["Q8_0"]) for of in (min, statistics.median)
                )
                row += f"{best:8.2f}/{usual:.2f}"
            print(row, flush=True)


def seeds(n_threads: int, rounds: int, only: str) -> None:
    """Print what LoRA learns at each precision, for three seeds."""
    learning.table(n_threads, only)
