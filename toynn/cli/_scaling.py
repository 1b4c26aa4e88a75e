"""``toynn bench --scaling``: the speed-up of steps, generation and tokenizing with cores."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from toynn.backends.threads import get_num_threads, set_num_threads
from toynn.system.machine import load

if TYPE_CHECKING:
    from toynn.testing.scaling import Lost, Timings

STEPS = {"step": "gpt2_124m_T64_B4", "small": "d128_L4_T128_B8"}  # of toynn/testing/steps.py
LORA = {"lora": "smollm2_135m_T256", "lora-1.1b": "tinyllama_1.1b_T256"}  # of lora_step.py
LORA_T = 512
GENERATION, TOKENIZING = "generation", "tokenizing"
PARTS = (*STEPS, *LORA, GENERATION, TOKENIZING)
DEFAULT = tuple(part for part in PARTS if part != "lora-1.1b")  # its file takes 1.2 GB
PAST, NEW = 64, 4  # generation: tokens in the cache, and tokens read one by one
TEXTS, REPEATS = 512, 60  # tokenizing: number of texts, and sentences in each
TRIES = 3
SHOWN = 0.005  # ops below this share of the time are added up in one row

HEAD = ("serial", "uneven", "hand-over", "growth", "memory")


def scaling(parts: Sequence[str], cores: Sequence[int], bandwidth: float) -> list[dict[str, Any]]:
    """Measure and simulate parts on numbers of cores; print a table for each.

    ``bandwidth`` is the memory bandwidth of the simulated machines, in bytes per second.
    """
    from toynn.testing.scaling import HAND_OVER

    here, busy = get_num_threads(), load()
    loaded = "" if busy is None else f"\nThe load is {busy:.1f}: measured rows need idle cores."
    told = "no limit" if bandwidth == float("inf") else f"{bandwidth / 1e9:.0f} GB/s in all"
    print(
        f"This machine computes on {here} {'core' if here == 1 else 'cores'}. `measured` runs that "
        f"many threads. `ms` is CPU\ntime, so other load hardly matters; `wall` is the time by the "
        f"clock. `simulated` computes on\none core, share by share, the work that the kernels cut "
        f"for that many cores. It assumes that a call\nof the thread pool takes "
        f"{HAND_OVER[0] / 1e3:.1f} microseconds, and {HAND_OVER[1] / 1e3:.1f} for each further "
        f"thread.\nMemory bandwidth: {told}.{loaded}"
    )
    tables = []
    for part in parts:
        set_num_threads(max(*cores, here, 2))  # programs are compiled for so many
        with _part(part) as (title, record):
            tables.append(_table(part, title, record, cores, here, bandwidth))
    set_num_threads(here)
    return tables


#: (cores, alone) -> launches; None: another library has the threads, and toynn cannot set how many
Record = Callable[[int, bool], "Timings | None"]


@contextmanager
def _part(part: str) -> Iterator[tuple[str, Record]]:
    """Yield the title of a part, and a function that records it."""
    from toynn.testing import lora_step, scaling, steps

    def recorder(call: Callable[[], object]) -> Record:
        call()
        return lambda n, alone: scaling.record(call, n, alone=alone, tries=TRIES)

    if part in STEPS:
        shape = steps.SHAPES[STEPS[part]]
        ids, labels = steps.draw(shape)
        recipe = steps.gpt2_recipe(shape)
        step = steps.toynn_step(recipe, ids, steps.positions(shape), labels)
        yield f"a step of GPT-2, {STEPS[part]}", recorder(step)
        return
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows: it is mapped
        path = Path(folder, "base.gguf")
        if part == TOKENIZING:
            from toynn.formats.tokenizer import Tokenizer

            _write_tokenizer(path)
            many = [(f"{i} {SENTENCE * REPEATS}", False) for i in range(TEXTS)]
            tokenizer = Tokenizer.from_gguf(path)
            once = scaling.record_pieces(part, lambda: tokenizer.encode_many(many), TEXTS, TRIES)

            def dealt(n: int, alone: bool) -> "Timings | None":
                launches = scaling.on_cores(once.launches, n)
                return scaling.Timings(launches, once.seconds) if alone else None

            yield f"tokenizing {TEXTS} texts", dealt
            return
        name = LORA["lora" if part == GENERATION else part]
        small = lora_step.SHAPES[name]._replace(T=LORA_T)
        lora_step.write_file(path, small)
        model = name.rpartition("_")[0]
        if part == GENERATION:
            yield f"{NEW} tokens, read one by one, {model}", recorder(_tokens(path))
            return
        lora = lora_step.recipe_over(path, small)
        ids, labels = lora_step.batch(small)
        step = steps.toynn_step(lora, ids, None, labels)
        yield f"a LoRA step over Q8_0, {model}, T {LORA_T}", recorder(step)


def _tokens(path: Path) -> Callable[[], object]:
    """Return a call that reads a few tokens one by one."""
    from toynn import engines
    from toynn.formats import gguf

    decoder = engines.frozen(gguf.open(path)).decoder()
    decoder.read([1] * PAST)

    def read() -> None:
        decoder.rewind(PAST)
        for token in range(NEW):
            decoder.read([token])

    return read


SENTENCE = "The step takes 12.5 milliseconds on 2 cores; it's measured, isn't it? "


def _write_tokenizer(path: Path) -> None:
    """Write a tokenizer of bytes and pairs of letters."""
    from toynn.formats import gguf
    from toynn.formats.tokenizer import byte_letters

    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = [f"{a} {b}" for a in letters for b in letters]
    tokens = [*byte_letters(), *(pair.replace(" ", "") for pair in pairs)]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": pairs,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    gguf.write(path, metadata, {})


def _table(
    part: str, title: str, record: Record, cores: Sequence[int], here: int, bandwidth: float
) -> dict[str, Any]:
    """Print the table of a part; return its rows."""
    from toynn.testing.scaling import Machine, by_op

    alone_run = record(1, True)
    assert alone_run is not None
    alone = sum(launch.work for launch in alone_run.launches)
    print(f"\n{title:60}{'lost, ms:':>10}")
    print(f"{'cores':20}{'ms':>10}{'wall':>10}{'speed-up':>10}{'of ideal':>10}", end="")
    print("".join(f"{name:>10}" for name in HEAD))
    rows: list[dict[str, Any]] = []
    measured: dict[int, float] = {}
    for n in cores:
        for kind in ("measured", "simulated"):
            if (kind == "measured" and n > here) or (kind == "simulated" and n == 1):
                continue
            is_measured = kind == "measured"
            run = record(n, not is_measured) if n > 1 else alone_run
            if run is None:
                continue
            machine = Machine(n, (0.0, 0.0)) if is_measured else Machine(n, bandwidth=bandwidth)
            ops = by_op(run.launches, alone_run.launches, machine)
            lost = _sum(ops)
            tail = ""
            if is_measured:
                measured[n] = lost.time
            elif n in measured:
                tail = f"   off by {lost.time / measured[n] - 1:+.1%}"
            wall = run.seconds if is_measured else None
            _print_row(f"{n:5d} {kind}", lost, alone / lost.time, machine.rate, wall, tail)
            rows.append(
                {
                    "cores": n,
                    "kind": kind,
                    "seconds": lost.time / 1e9,
                    "wall": wall,
                    "of_ideal": alone / lost.time / machine.rate,
                    "ops": {op: asdict(each) for op, each in ops.items()},
                }
            )
            if kind == "simulated" and n == max(cores):
                slow = Machine(n, bandwidth=bandwidth, slow=n // 2)
                lost = _sum(by_op(run.launches, alone_run.launches, slow))
                of = f"   {slow.slow} cores at half the rate"
                _print_row(f"{n:5d} {kind}", lost, alone / lost.time, slow.rate, None, of)
                _print_ops(n, ops)
    return {"part": part, "title": title, "seconds_on_one_core": alone / 1e9, "rows": rows}


def _sum(ops: dict[str, "Lost"]) -> "Lost":
    from toynn.testing.scaling import Lost

    whole = Lost()
    for lost in ops.values():
        whole += lost
    return whole


def _losses(lost: "Lost") -> str:
    each = (lost.serial, lost.uneven, lost.hand_over, lost.growth, lost.memory)
    return "".join(f"{nanoseconds / 1e6:10.2f}" for nanoseconds in each)


def _print_row(
    name: str, lost: "Lost", speed_up: float, rate: float, wall: float | None, tail: str
) -> None:
    clock = "" if wall is None else f"{wall * 1e3:.1f}"
    share = f"{speed_up / rate:.2f}"
    print(f"{name:20}{lost.time / 1e6:10.1f}{clock:>10}{speed_up:10.2f}{share:>10}", end="")
    print(_losses(lost) + tail, flush=True)


def _print_ops(cores: int, ops: dict[str, "Lost"]) -> None:
    """Print how much time each op loses on so many cores."""
    print(f"   by op, on {cores} cores")
    least = SHOWN * _sum(ops).time
    shown = {op: lost for op, lost in ops.items() if lost.time >= least}
    rest = {op: lost for op, lost in ops.items() if op not in shown}
    if rest:
        shown[f"{len(rest)} more"] = _sum(rest)
    for op, lost in shown.items():
        share = f"{lost.ideal / lost.time:.2f}" if lost.time else ""
        print(f"   {op:27}{lost.time / 1e6:10.2f}{'':10}{share:>10}{_losses(lost)}")
