"""Products and attention: rows of GFLOP/s beside NumPy and PyTorch."""

from functools import partial

import numpy as np
from rows import heading, report, summary
from smallest import smallest

import toynn
from toynn._kernels import attention as attention_kernel
from toynn._kernels import matmul as matmul_kernel
from toynn.formats.quants import TYPES
from toynn.testing.cases import CASES
from toynn.testing.cases.quants import matrix
from toynn.testing.race import Contestants, race

#: N and K of products with quantized weights.
MATRICES = smallest(((768, 768), (5632, 2048), (2048, 5632)), ((256, 256),))


def shapes() -> dict[str, dict[str, int]]:
    """Return sizes of products: the case table's with float weights, and larger batches."""
    found = {name: sizes for name, sizes in CASES["matmul"].bench.items() if "type" not in sizes}
    for name in [name for name in found if name.startswith("gpt2")]:
        found[f"{name}_1024"] = found[name] | {"M": 1024}
    for C in (128, 256):
        parts = {"qkv": (3 * C, C), "fc": (4 * C, C), "proj": (C, 4 * C)}
        found |= {f"d{C}_{part}": {"M": 1024, "N": N, "K": K} for part, (N, K) in parts.items()}
    return smallest(found, {name: dict.fromkeys("MNK", 160) for name in found})


def products(M: int, N: int, K: int, n_threads: int) -> dict[str, Contestants]:
    """Return the three products of a linear layer; contestants write into given arrays."""
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
    """Race products in bfloat16: toynn's medium and highest, and PyTorch's with casts."""
    import torch

    torch.set_num_threads(n_threads)
    rng = np.random.default_rng(7)
    heading(["toynn", "highest", "torch bf16"])
    ratios = []
    for name, sizes in shapes().items():
        M, N, K = sizes["M"], sizes["N"], sizes["K"]
        if only not in name or M * N * K <= 1 << 21 or M <= 3:
            continue  # computed in float32 at any precision
        x, w, dy = (rng.standard_normal(shape, np.float32) for shape in ((M, K), (N, K), (M, N)))
        y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)
        tx, tw, tdy = map(torch.from_numpy, (x, w, dy))
        rows = {
            "y = x w^T": (partial(matmul_kernel.forward, y, None, x, w, None), tx, tw.t()),
            "dx = dy w": (partial(matmul_kernel.backward_input, dx, dy, w), tdy, tw),
            "dw = dy^T x": (partial(matmul_kernel.backward_weight, dw, dy, x), tdy.t(), tx),
        }
        for product, (entry, a, b) in rows.items():
            contestants = {
                "toynn": partial(entry, n_threads=n_threads, precision="medium"),
                "highest": partial(entry, n_threads=n_threads),
                "torch bf16": lambda a=a, b=b: torch.mm(a.bfloat16(), b.bfloat16()).float(),
            }
            title = f"{name} {M}x{N}x{K} {product}"
            ratios.append(report(title, contestants, 2 * M * N * K, rounds))
    summary(ratios)


def matmul(n_threads: int, rounds: int, only: str) -> None:
    """Race products at the case table's shapes, and at 1024 rows."""
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
    """Print the times of products with quantized weights over the time with float32 weights."""
    names = ["F32", *(name for name in TYPES if name != "F32" and only.upper() in name)]
    rng = np.random.default_rng(7)
    print(f"{'ms with F32, then times that':42}" + "".join(f"{name:>8}" for name in names))
    for M, N, K in [(M, *NK) for M in (256, 1) for NK in MATRICES]:
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
    """Return attention without and with gradients; PyTorch's is its fused attention."""
    import torch

    rng = np.random.default_rng(7)
    q, k, v, o, do, dq, dk, dv = rng.standard_normal((8, B * T, H * D), np.float32)
    lse, delta = np.empty((2, B, H, T), np.float32)

    def forward() -> None:
        attention_kernel.forward(o, lse, q, k, v, causal=causal, n_threads=n_threads)

    def both() -> None:
        forward()
        attention_kernel.backward(
            dq, dk, dv, delta, do, o, lse, q, k, v, causal=causal, n_threads=n_threads
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
    """Race attention at the case table's shapes with as many heads of k and v as of q."""
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
