"""A chain of pointwise ops: toynn's operators, NumPy, PyTorch; and what one kernel for all gives.

``python bench/chain.py --threads 1`` times, for small and large arrays, the loss
mean(x sigmoid(x) u) and its gradients. By operators that is a kernel for each op. ``ops.swiglu``
has x sigmoid(x) u in one kernel: what fusing such a chain would give. NumPy has no gradients.
"""

import argparse
from collections.abc import Callable

import numpy as np
from smallest import smallest

from toynn import Session, ops
from toynn.graph.tape import Tensor
from toynn.testing.race import race

ROUNDS = smallest(10, 1)

try:
    import torch
except ImportError:
    torch = None


def one_by_one(s: Session, x: Tensor, u: Tensor) -> Tensor:
    """By operators: six kernels forward, the mean among them."""
    return (x / (1 + (-x).exp()) * u).mean()


def fused(s: Session, x: Tensor, u: Tensor) -> Tensor:
    """By one kernel, and the mean."""
    return ops.swiglu(s, x, u).mean()


def toynn_runs(build: Callable[..., Tensor], given: np.ndarray, threads: int, to: str) -> Callable:
    """Return a function that runs the loss, or its gradients too."""
    s = Session(n_threads=threads)
    x, u = s.parameter("x", given[0]), s.parameter("u", given[1])
    s.set_loss(build(s, x, u))
    s.build_backward()
    s.finalize_weights()
    s.realize()
    return lambda: s.run(to)


def torch_runs(given: np.ndarray, backward: bool) -> Callable:
    """Return a function that runs PyTorch's eager mode."""
    x, u = (torch.tensor(a, requires_grad=backward) for a in given)

    def run() -> None:
        loss = (x / (1 + (-x).exp()) * u).mean()
        if backward:
            x.grad = u.grad = None
            loss.backward()

    return run


def main() -> None:
    """Print the least milliseconds by size, of the loss and with gradients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    if torch is not None:
        torch.set_num_threads(threads)
    for n in smallest((1 << 16, 1 << 20), (64, 128)):
        given = np.random.default_rng(0).standard_normal((2, n), np.float32)
        x, u = given
        for to in ("loss", "grads"):
            calls = {
                "operators": toynn_runs(one_by_one, given, threads, to),
                "one kernel": toynn_runs(fused, given, threads, to),
            }
            if to == "loss":
                calls["NumPy"] = lambda x=x, u=u: (x / (1 + np.exp(-x)) * u).mean()
            if torch is not None:
                calls["PyTorch"] = torch_runs(given, to == "grads")
            for name, seconds in race(calls, ROUNDS).items():
                print(f"{n:10,}  {to:6}  {name:10}  {1e3 * min(seconds):8.3f} ms", flush=True)


if __name__ == "__main__":
    main()
