"""The sections of compare.py, which starts this file: rows of contestants that take turns."""

import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import beside_llama_cpp
import decode as decoding
import growth
import lengths as growing
import load as loading
import lora as tuning
import mixture
import numpy as np
import real as natural
import seeds as learning
import steps
from busy import mean_ms

import toynn
from toynn._kernels import attention as attention_kernel
from toynn._kernels import level
from toynn._kernels import matmul as matmul_kernel
from toynn.formats.quants import BLOCKS, TYPES
from toynn.testing.cases import CASES
from toynn.testing.cases.quants import matrix
from toynn.testing.race import Contestants, race


def report(title: str, contestants: Contestants, flops: int, rounds: int) -> float:
    """Print one row, GFLOP/s from minima/medians of time, and return the ratio of the minima."""
    times = race(contestants, rounds)
    best = {name: flops / min(t) / 1e9 for name, t in times.items()}
    usual = {name: flops / statistics.median(t) / 1e9 for name, t in times.items()}
    others = [name for name in times if name != "toynn"]
    ratios = [rate["toynn"] / max(rate[name] for name in others) for rate in (best, usual)]
    rates = "".join(f"{best[name]:7.0f}/{usual[name]:4.0f}" for name in times)
    print(f"{title:42}{rates}{ratios[0]:8.2f}/{ratios[1]:.2f}", flush=True)
    return ratios[0]


def heading(names: list[str]) -> None:
    """Print the names of the columns."""
    columns = "".join(f"{name:>12}" for name in names)
    print(f"{'GFLOP/s, best/median':42}{columns}   toynn/best other", flush=True)


def summary(ratios: list[float]) -> None:
    """Print the spread of the ratios of a section, if it has any."""
    if not ratios:
        print("no shape has such a name\n")
        return
    print(f"ratio of minima: least {min(ratios):.2f}, median {statistics.median(ratios):.2f}\n")


def shapes() -> dict[str, dict[str, int]]:
    """Sizes of the products: those of the case table with float weights, and of larger batches."""
    found = {name: sizes for name, sizes in CASES["matmul"].bench.items() if "type" not in sizes}
    for name in [name for name in found if name.startswith("gpt2")]:
        found[f"{name}_1024"] = found[name] | {"M": 1024}
    for C in (128, 256):
        parts = {"qkv": (3 * C, C), "fc": (4 * C, C), "proj": (C, 4 * C)}
        found |= {f"d{C}_{part}": {"M": 1024, "N": N, "K": K} for part, (N, K) in parts.items()}
    return found


def products(M: int, N: int, K: int, n_threads: int) -> dict[str, Contestants]:
    """The three products of a linear layer, each contestant writing into an array it is given."""
    import torch

    rng = np.random.default_rng(7)
    x, w, dy = (rng.standard_normal(shape, np.float32) for shape in ((M, K), (N, K), (M, N)))
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)
    tx, tw, tdy, ty, tdx, tdw = map(torch.from_numpy, (x, w, dy, y, dx, dw))
    torch.set_num_threads(n_threads)
    given = {"n_threads": n_threads, "precision": toynn.get_float32_matmul_precision()}
    return {
        "y = x w^T": {
            "toynn": lambda: matmul_kernel.forward(y, None, x, w, None, **given),
            "numpy": lambda: np.matmul(x, w.T, out=y),
            "torch": lambda: torch.mm(tx, tw.t(), out=ty),
        },
        "dx = dy w": {
            "toynn": lambda: matmul_kernel.backward_input(dx, dy, w, **given),
            "numpy": lambda: np.matmul(dy, w, out=dx),
            "torch": lambda: torch.mm(tdy, tw, out=tdx),
        },
        "dw = dy^T x": {
            "toynn": lambda: matmul_kernel.backward_weight(dw, dy, x, **given),
            "numpy": lambda: np.matmul(dy.T, x, out=dw),
            "torch": lambda: torch.mm(tdy.t(), tx, out=tdw),
        },
    }


def medium(n_threads: int, rounds: int, only: str) -> None:
    """The products in bfloat16: toynn's medium and highest, and PyTorch's with casts."""
    import torch

    torch.set_num_threads(n_threads)
    rng = np.random.default_rng(7)
    heading(["toynn", "highest", "torch bf16"])
    ratios = []
    for name, sizes in shapes().items():
        M, N, K = sizes["M"], sizes["N"], sizes["K"]
        if only not in name or M * N * K <= 1 << 21 or M <= 3:
            continue  # float32 in any precision
        x, w, dy = (rng.standard_normal(shape, np.float32) for shape in ((M, K), (N, K), (M, N)))
        y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)
        tx, tw, tdy = map(torch.from_numpy, (x, w, dy))
        rows = {
            "y = x w^T": (partial(matmul_kernel.forward, y, None, x, w, None), tx, tw.t()),
            "dx = dy w": (partial(matmul_kernel.backward_input, dx, dy, w), tdy, tw),
            "dw = dy^T x": (partial(matmul_kernel.backward_weight, dw, dy, x), tdy.t(), tx),
        }
        for product, (door, a, b) in rows.items():
            contestants = {
                "toynn": partial(door, n_threads=n_threads, precision="medium"),
                "highest": partial(door, n_threads=n_threads),
                "torch bf16": lambda a=a, b=b: torch.mm(a.bfloat16(), b.bfloat16()).float(),
            }
            title = f"{name} {M}x{N}x{K} {product}"
            ratios.append(report(title, contestants, 2 * M * N * K, rounds))
    summary(ratios)


def matmul(n_threads: int, rounds: int, only: str) -> None:
    """The products at the shapes of the case table, those of GPT-2 with 1024 rows too."""
    heading(["toynn", "numpy", "torch"])
    ratios = []
    for name, sizes in shapes().items():
        if only not in name:
            continue
        M, N, K = sizes["M"], sizes["N"], sizes["K"]
        for product, contestants in products(M, N, K, n_threads).items():
            title = f"{name} {M}x{N}x{K} {product}"
            ratios.append(report(title, contestants, 2 * M * N * K, rounds))
    summary(ratios)


def stored(n_threads: int, rounds: int, only: str) -> None:
    """Products with weights in blocks: their times over that with float32 weights."""
    names = ["F32", *(name for name in TYPES if name != "F32" and only.upper() in name)]
    rng = np.random.default_rng(7)
    print(f"{'ms with F32, then times that':42}" + "".join(f"{name:>8}" for name in names))
    for M, N, K in [(M, *NK) for M in (256, 1) for NK in ((768, 768), (5632, 2048), (2048, 5632))]:
        x, dy = rng.standard_normal((M, K), np.float32), rng.standard_normal((M, N), np.float32)
        y, dx = np.empty_like(dy), np.empty_like(x)
        weights = {"F32": rng.standard_normal((N, K), np.float32)}
        weights |= {name: matrix(rng, TYPES[name], N, K)[1] for name in names[1:]}
        rows: dict[str, Contestants] = {
            "y = x w^T": {
                name: partial(
                    matmul_kernel.forward, y, None, x, w, None, type=name, n_threads=n_threads
                )
                for name, w in weights.items()
            },
            "dx = dy w": {
                name: partial(
                    matmul_kernel.backward_input, dx, dy, w, type=name, n_threads=n_threads
                )
                for name, w in weights.items()
            },
        }
        for product, contestants in rows.items():
            best = {name: min(times) for name, times in race(contestants, rounds).items()}
            row = "".join(f"{best[name] / best['F32']:8.2f}" for name in names[1:])
            print(f"{f'{M}x{N}x{K} {product}':42}{1e3 * best['F32']:8.3f}{row}", flush=True)


def attentions(
    B: int, T: int, H: int, D: int, causal: bool, n_threads: int
) -> dict[str, Contestants]:
    """Attention without gradient and with it; PyTorch's is its fused one."""
    import torch

    rng = np.random.default_rng(7)
    q, k, v, o, do, dq, dk, dv = rng.standard_normal((8, B * T, H * D), np.float32)
    lse, delta = np.empty((2, B, H, T), np.float32)

    def forward() -> None:
        attention_kernel.forward(o, lse, q, k, v, causal, n_threads=n_threads)

    def both() -> None:
        forward()
        attention_kernel.backward(
            dq, dk, dv, delta, do, o, lse, q, k, v, causal, n_threads=n_threads
        )

    fused = torch.nn.functional.scaled_dot_product_attention
    heads = [torch.from_numpy(x.reshape(B, T, H, D)).transpose(1, 2) for x in (q, k, v)]
    dy = torch.from_numpy(do.reshape(B, T, H, D)).transpose(1, 2)
    leaves = [x.detach().requires_grad_() for x in heads]
    torch.set_num_threads(n_threads)

    def torch_forward() -> None:
        fused(*heads, is_causal=causal)

    def torch_both() -> None:
        torch.autograd.grad(fused(*leaves, is_causal=causal), leaves, dy)

    return {
        "forward": {"toynn": forward, "torch": torch_forward},
        "forward + backward": {"toynn": both, "torch": torch_both},
    }


def attention(n_threads: int, rounds: int, only: str) -> None:
    """Attention at the shapes of the case table that have as many heads of k and v as of q."""
    heading(["toynn", "torch"])
    ratios = []
    for name, sizes in CASES["attention"].bench.items():
        if only not in name or sizes["KV"] != sizes["H"]:
            continue
        B, T, H, D, causal = (sizes[size] for size in ("B", "T", "H", "D", "causal"))
        flops = 4 * B * H * T * T * D // (2 if causal else 1)
        for part, contestants in attentions(B, T, H, D, bool(causal), n_threads).items():
            work = flops if part == "forward" else flops * 7 // 2
            ratios.append(report(f"{name} {part}", contestants, work, rounds))
    summary(ratios)


def race_steps(shapes: str, n_threads: int, rounds: int, only: str) -> None:
    """Print milliseconds of a whole training step, and PyTorch's time over toynn's."""
    for name, shape in getattr(steps, shapes).items():
        if only not in name:
            continue
        times = race(steps.contestants(shape, n_threads), rounds)
        others = [who for who in times if who != "toynn"]
        if name == next(iter(getattr(steps, shapes))) or only:
            columns = "".join(f"{who:>19}" for who in times)
            ratios = "".join(f"{f'{who}/toynn':>19}" for who in others)
            print(f"{'ms per step, best/median':28}{columns}{ratios}", flush=True)
        best = {who: 1e3 * min(t) for who, t in times.items()}
        usual = {who: 1e3 * statistics.median(t) for who, t in times.items()}
        row = "".join(f"{best[who]:10.3f}/{usual[who]:8.3f}" for who in times)
        for who in others:
            row += f"{best[who] / best['toynn']:14.2f}/{usual[who] / usual['toynn']:.2f}"
        print(f"{name:28}{row}", flush=True)


def tiny(n_threads: int, rounds: int, only: str) -> None:
    """A training step of a model so small that what lies between the kernels counts."""
    race_steps("TINY", n_threads, rounds, only)


def step(n_threads: int, rounds: int, only: str) -> None:
    """A training step of GPT-2 models, up to 124M parameters."""
    race_steps("STEPS", n_threads, rounds, only)


def llama(n_threads: int, rounds: int, only: str) -> None:
    """A training step of Llama models, up to the shape of SmolLM2-135M."""
    race_steps("LLAMA", n_threads, rounds, only)


def vit(n_threads: int, rounds: int, only: str) -> None:
    """A training step of ViT-Tiny at 224 pixels."""
    race_steps("VIT", n_threads, rounds, only)


def decode(n_threads: int, rounds: int, only: str) -> None:
    """Tokens per second of generation, one at a time over a cache of keys and values."""
    print(f"{'tokens/s, best/median':28}{'toynn':>18}{'torch':>18}   toynn/torch", flush=True)
    for name, shape in decoding.SHAPES.items():
        if only not in name:
            continue
        times = race(decoding.contestants(shape, n_threads), rounds)
        best = {who: decoding.TOKENS / min(t) for who, t in times.items()}
        usual = {who: decoding.TOKENS / statistics.median(t) for who, t in times.items()}
        row = "".join(f"{best[who]:9.1f}/{usual[who]:8.1f}" for who in times)
        ratios = [rate["toynn"] / rate["torch"] for rate in (best, usual)]
        print(f"{name:28}{row}{ratios[0]:8.2f}/{ratios[1]:.2f}", flush=True)


def lora(n_threads: int, rounds: int, only: str) -> None:
    """A LoRA step over a Q8_0 file, against PEFT in float32 and bfloat16."""
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
        best = {who: min(t) for who, t in times.items()}
        usual = {who: statistics.median(t) for who, t in times.items()}
        print(f"{name:28}{'s, best/median':>18}{'tokens/s':>10}{'time / toynn':>16}")
        for who in times:
            ratios = (of[who] / of["toynn"] for of in (best, usual))
            row = f"  {who:26}{best[who]:9.3f}/{usual[who]:8.3f}{shape.T / best[who]:10.0f}"
            print(row + " {:7.2f}/{:.2f}".format(*ratios), flush=True)
        print(f"  step / forward: {best['toynn'] / best['forward']:.2f}")
        print(f"  private memory {taken / 1e9:.3f} GB, promised {promised / 1e9:.3f} GB")
        print(recipe.engine.session.profile(), flush=True)


def experts(n_threads: int, rounds: int, only: str) -> None:
    """A LoRA step over a mixture of experts, against the dense model of the active size and PEFT.

    On one thread it is CPU time, so that a busy machine will do.
    """
    toynn.set_num_threads(n_threads)
    clock = time.process_time if n_threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        calls = mixture.contestants(Path(folder))
        calls["PEFT float32"] = mixture.peft_step(n_threads)
        calls = {who: call for who, call in calls.items() if only in who}
        times = race(calls, rounds, clock)
    best = {who: min(t) for who, t in times.items()}
    usual = {who: statistics.median(t) for who, t in times.items()}
    print(f"{'32 experts, 4 used, T 256':28}{'s, best/median':>18}{'mixture takes':>16}")
    for who in times:
        ratios = "/".join(f"{of['mixture'] / of[who]:.2f}" for of in (best, usual))
        print(f"  {who:26}{best[who]:9.3f}/{usual[who]:8.3f}{ratios:>16}", flush=True)


def real(n_threads: int, rounds: int, only: str) -> None:
    """An epoch of LoRA on examples of natural lengths, against PEFT and bitsandbytes.

    On one thread it is CPU time, so that a busy machine will do.
    """
    clock = time.process_time if n_threads == 1 else time.perf_counter
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
        print(f"{'an epoch, median':24}{'s':>8}{'learned/s':>11}{'filled':>8}{'GB':>7}{columns}")
        for who, rate in rates.items():
            ratios = "".join(f"{rates[one] / rate:20.2f}" for one in ours)
            row = f"{taken[who]:8.2f}{rate:11.0f}{epochs[who].filled:8.1%}{peaks[who] / 1e9:7.2f}"
            print(f"{who:24}{row}{ratios}", flush=True)
        found = natural.through_the_command_line(path, Path(folder), n_threads)
    spent = found["seconds"]
    rate = found["learned_tokens"] / spent
    print(f"toynn train lora --epochs 1, from start to adapter: {spent:.2f} s,", end=" ")
    print(f"of it {found['time']:.2f} s in steps; {rate:.0f} learned tokens a second")


def types(n_threads: int, rounds: int, only: str) -> None:
    """LoRA steps over each type: their times over that over Q8_0, by minima/medians of turns.

    On one thread it is CPU time, so that a busy machine will do.
    """
    toynn.set_num_threads(n_threads)
    clock = time.process_time if n_threads == 1 else time.perf_counter
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


def lengths(n_threads: int, rounds: int, only: str) -> None:
    """What reads a sequence: microseconds of CPU time a row, as the sequence grows."""
    print(f"{'us a row, best/median':24}" + "".join(f"{f'{T} rows':>18}" for T in growing.LENGTHS))
    rows: dict[str, str] = {}
    for T in growing.LENGTHS:
        calls = {who: call for who, call in growing.steps(T).items() if only in who}
        for who, spent in race(calls, rounds, time.process_time).items():
            best, usual = (1e6 * of(spent) / T for of in (min, statistics.median))
            rows[who] = rows.get(who, "") + f"{best:11.2f}/{usual:6.2f}"
    for who, row in rows.items():
        print(f"{who:24}{row}", flush=True)


def load(n_threads: int, rounds: int, only: str) -> None:
    """Print how long a model in a file of a gigabyte takes to open, and to its first logits."""
    toynn.set_num_threads(n_threads)
    with tempfile.TemporaryDirectory() as folder:
        for name, show in loading.loads(Path(folder)).items():
            for _ in range(rounds if only in name else 0):
                print(name)
                show()


def scaling(n_threads: int, rounds: int, only: str) -> None:
    """A step as one size of a GPT-2 grows: its time, time per flop, and attention's part of it."""
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
            flops = growth.work(recipe.engine.session.tape)
            row = "".join(f"{1e3 * spent:12.2f}" for spent in times.values())
            row += f"{flops / 1e9:9.2f}{flops / times['toynn'] / 1e9:9.0f}"
            share = growth.attention_share(recipe.engine.session)
            print(f"{f'{size} {value}':14}{row}{share:11.1%}", flush=True)


def memory(n_threads: int, rounds: int, only: str) -> None:
    """The most memory that three steps of GPT-2 124M take, each in a process of its own."""
    print(f"{growth.MEMORY}, GB{'at most':>12}{'of it after import':>20}{'promised':>10}")
    for who in ("toynn", "torch"):
        for precision in ("highest", "medium"):
            before, most, promised = growth.measured(who, precision, n_threads)
            told = f"{promised / 1e9:10.2f}" if promised else ""
            print(f"{who} {precision:15}{most / 1e9:12.2f}{before / 1e9:20.2f}{told}", flush=True)


def busy(n_threads: int, rounds: int, only: str) -> None:
    """Mean milliseconds of toynn's steps alone, and beside one and two busy processes."""
    print(f"{'ms per step, mean':28}{'alone':>10}{'beside 1':>10}{'beside 2':>10}", flush=True)
    for name, shape in steps.STEPS.items():
        if only not in name:
            continue
        step = steps.contestants(shape, n_threads, torch=False)["toynn"]
        row = "".join(f"{mean_ms(step, n):10.1f}" for n in (0, 1, 2))
        print(f"{name:28}{row}", flush=True)


def generation(n_threads: int, rounds: int, only: str) -> None:
    """Tokens per second of prompts and of generation over quantized files, beside llama.cpp.

    On one thread it is CPU time, so that a busy machine will do.
    """
    clock = time.process_time if n_threads == 1 else time.perf_counter
    columns = "".join(f"{who:>16}" for who in ("toynn", "toynn medium", "llama.cpp"))
    print(f"{'tokens/s, median':18}{columns}   toynn, medium / llama.cpp", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in beside_llama_cpp.TYPES if only.upper() in name):
            path = Path(folder, f"{name}.gguf")
            beside_llama_cpp.write(path, name)
            for what, contestants in beside_llama_cpp.contestants(path, n_threads).items():
                times = race(contestants, rounds, clock)
                usual = {who: statistics.median(t) for who, t in times.items()}
                count = beside_llama_cpp.COUNTS[what]
                row = "".join(f"{count / seconds:16.1f}" for seconds in usual.values())
                if "llama.cpp" in usual:  # it is not asked for several sequences
                    ratios = [usual["llama.cpp"] / usual[who] for who in ("toynn", "toynn medium")]
                    row += f"{ratios[0]:10.2f}{ratios[1]:8.2f}"
                print(f"{f'{name} {what}':18}{row}", flush=True)


def seeds(n_threads: int, rounds: int, only: str) -> None:
    """Validation losses of LoRA in highest and in medium, on three seeds."""
    learning.table(n_threads)


SECTIONS = {
    "matmul": matmul,
    "medium": medium,
    "stored": stored,
    "attention": attention,
    "tiny": tiny,
    "step": step,
    "llama": llama,
    "vit": vit,
    "decode": decode,
    "lora": lora,
    "experts": experts,
    "real": real,
    "types": types,
    "lengths": lengths,
    "load": load,
    "scaling": scaling,
    "memory": memory,
    "busy": busy,
    "seeds": seeds,
    "generation": generation,
}


def main() -> None:
    """Run sections as compare.py asks: threads, rounds, precision, part of a name, sections."""
    n_threads, rounds, precision, only, *names = sys.argv[1:]
    toynn.set_float32_matmul_precision(precision)
    for name in names:
        print(f"{name}, {n_threads} thread{'s' if n_threads != '1' else ''}, {level}")
        SECTIONS[name](int(n_threads), int(rounds), only)


if __name__ == "__main__":
    main()
