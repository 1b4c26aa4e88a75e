"""How the time of a step grows with its sizes, and the memory that a step takes."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import steps
from smallest import smallest

#: One size at a time is varied around this model.
BASE = smallest(
    steps.Shape(d_model=256, layers=4, heads=8, vocab=4096, T=128, B=4),
    steps.SHAPES["d64_L2_T32_B1"],
)
SERIES = {
    "T": smallest((32, 64, 128, 256, 512, 1024), (32,)),
    "B": smallest((1, 2, 4, 8, 16), (1,)),
    "layers": smallest((1, 2, 4, 8), (1,)),
    "vocab": smallest((1024, 4096, 16384, 65536), (1024,)),
}

MEMORY = smallest("gpt2_124m_T64_B4", "d64_L2_T32_B1")


def has_torch() -> bool:
    """Whether PyTorch can take part."""
    return find_spec("torch") is not None


def work(tape: Any) -> int:
    """Return the flops of a training step, without nodes that only evaluation runs."""
    return sum(node.flops for node in tape.nodes if node.phase in tape.phases("update"))


def attention_share(session: Any) -> float:
    """Return attention's share of a session's time."""
    rows = session.profile().rows
    return sum(row.share for row in rows if row.op.startswith("attention"))


def peak() -> int:
    """Return the peak bytes of memory of this program.

    The ru_maxrss of a child process would not do: it begins with its parent's memory.
    """
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("VmHWM:") + 1]) * 1024


def measured(who: str, precision: str, n_threads: int) -> list[int]:
    """Return peak bytes after import and after three steps, and the promised bytes (0: unknown).

    The steps run in another process.
    """
    command = [sys.executable, __file__, who, precision, str(n_threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


if __name__ == "__main__":  # see measured
    import toynn

    contestant, wanted, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    toynn.set_float32_matmul_precision(wanted)
    toynn.set_num_threads(threads)
    if contestant == "torch":
        import torch  # noqa: F401  (its own memory)
    before, shape = peak(), steps.SHAPES[MEMORY]
    ids, labels = steps.draw(shape)
    promised = 0
    if contestant == "torch":
        rough = wanted == "medium"
        step = steps.torch_step(steps.torch_gpt2(shape), ids, labels, threads, bf16=rough)
    else:
        recipe = steps.gpt2_recipe(shape)
        step = steps.toynn_step(recipe, ids, steps.positions(shape), labels)
        promised = recipe.session.memory().peak
    for _ in range(3):
        step()
    print(before, peak(), promised)
