"""The ideas of docs/performance.md beyond the matrix product, each timed without and with it.

``python bench/ideas.py``. The version without it is plain: NumPy, or toynn's kernels one by one.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
from smallest import smallest

import toynn
from toynn import _kernels as kernels
from toynn.graph.planner import layout_of
from toynn.graph.tape import Role
from toynn.testing import steps
from toynn.testing.race import race

#: A title, and the calls without and with the idea.
Idea = tuple[str, Callable[[], object], Callable[[], object]]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def epilogue(n_threads: int) -> Idea:
    """Bias and GELU while a block of the product is in cache, or in separate passes."""
    M, N, K = smallest((256, 3072, 768), (16, 64, 64))
    x, w, b, y, pre, sums = normal(M, K), normal(N, K), normal(N), *np.empty((3, M, N), np.float32)
    matmul, gelu = kernels.matmul, kernels.gelu

    def apart() -> None:
        matmul.forward(sums, None, x, w, None, n_threads=n_threads)
        np.add(sums, b, out=pre)
        gelu.forward(y.reshape(-1), pre.reshape(-1), n_threads=n_threads)

    def fused() -> None:
        matmul.forward(y, pre, x, w, b, activation="gelu_tanh", n_threads=n_threads)

    return "bias and GELU in the product's store", apart, fused


def gemv(n_threads: int) -> Idea:
    """One row of y by dot products with w as stored, or four rows with w packed."""
    N, K = smallest((5632, 2048), (64, 64))
    w, x, y = normal(N, K), normal(4, K), np.empty((4, N), np.float32)
    product = partial(kernels.matmul.forward, b=None, n_threads=n_threads)
    packed = partial(product, y, None, x, w)
    return "one row: w is read once, not packed", packed, partial(product, y[:1], None, x[:1], w)


def attention(n_threads: int) -> Idea:
    """Scores in blocks on the stack, or as a T x T matrix for each head."""
    B, T, H, D = 1, smallest(1024, 64), 12, 64
    q, k, v, o = normal(B * T, H * D), normal(B * T, H * D), normal(B * T, H * D), normal(T, H * D)
    lse = np.empty((B, H, T), np.float32)
    future = np.triu(np.full((T, T), -np.inf, np.float32), 1)

    def whole() -> np.ndarray:
        heads = (x.reshape(T, H, D).transpose(1, 0, 2) for x in (q, k, v))
        qs, ks, vs = heads
        scores = qs @ ks.transpose(0, 2, 1) * np.float32(D**-0.5) + future
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True)) @ vs

    blocks = partial(kernels.attention.forward, o, lse, q, k, v, n_threads=n_threads)
    return "attention by blocks of 64 x 64 scores", whole, blocks


def adamw(n_threads: int) -> Idea:
    """One pass over w, m, v and g, or one for each operation of the formula."""
    w, m, v, g = np.abs(normal(4, smallest(16_000_000, 1000)))
    hp = toynn.AdamW.for_lora().hp_for_step(10)
    lr, beta1, beta2, eps, decay, c1, c2 = hp

    def passes() -> None:
        np.add(beta1 * m, (1 - beta1) * g, out=m)
        np.add(beta2 * v, (1 - beta2) * g * g, out=v)
        np.subtract(w * (1 - lr * decay), lr * (c1 * m) / (np.sqrt(c2 * v) + eps), out=w)

    scale = np.ones(1, np.float32)
    one = partial(kernels.adamw.step, w, m, v, g, hp, scale, n_threads=n_threads)
    return "AdamW in one pass", passes, one


def program(n_threads: int) -> Idea:
    """The kernels of a tiny step called by one loop in C, or by as many Python calls."""
    shape = steps.SHAPES["d64_L2_T32_B1"]
    recipe = steps.gpt2_recipe(shape)
    session = recipe.session
    ids, labels = steps.draw(shape)
    steps.toynn_step(recipe, ids, steps.positions(shape), labels)()
    calls = len(session.tape.nodes)
    x = np.zeros(1, np.float32)
    entry = partial(kernels.elementwise.scale, x, x, alpha=1.0)

    def one_by_one() -> None:
        session.run()
        for _ in range(calls):
            entry()

    return f"{calls} kernels of a tiny step without Python", one_by_one, session.run


IDEAS = (epilogue, gemv, attention, adamw, program)


def show_memory() -> None:
    """Print the memory of a step's activations, each stored separately or in one planned arena."""
    session = steps.gpt2_recipe(
        steps.SHAPES[smallest("gpt2_124m_T64_B4", "d64_L2_T32_B1")]
    ).engine.session
    used = {tensor.root for node in session.tape.nodes for tensor in node.tensors if tensor}
    apart = sum(tensor.nbytes for tensor in used if tensor.role is Role.ACTIVATION)
    arena = layout_of(session.tape).nbytes
    told = "MB: each activation by itself, or one planned arena"
    print(f"{told:48}{apart / 1e6:10.1f}{arena / 1e6:10.1f}{apart / arena:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    n_threads = parser.parse_args().threads
    toynn.set_num_threads(n_threads)
    print(f"{f'ms, best; {n_threads} threads':48}{'before':>10}{'after':>10}{'times':>8}")
    for make in IDEAS:
        told, before, after = make(n_threads)
        best = {who: min(t) for who, t in race({"before": before, "after": after}, 5).items()}
        row = "".join(f"{1e3 * best[who]:10.3f}" for who in best)
        print(f"{told:48}{row}{best['before'] / best['after']:8.2f}", flush=True)
    show_memory()


if __name__ == "__main__":
    main()
