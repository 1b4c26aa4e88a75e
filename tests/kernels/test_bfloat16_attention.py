"""matmul_precision="medium" in attention: products of bfloat16, where the CPU has them.

The reference does in float64 what the kernel does, and rounds where the kernel packs: q, k, v, do,
and p and ds of each block. p is rounded relative to the largest score of its row so far, so the
forward reference follows the blocks of 64 keys.
"""

import numpy as np
import pytest
from test_bfloat16 import normal, rounded, same_bits

import toynn._kernels as kernels
from toynn import Session, ops
from toynn._kernels import attention
from toynn.backends.reference.attention import join_heads, split_heads
from toynn.testing.cases import CASES

pytestmark = pytest.mark.kernels


def rounds(level):
    """Whether attention multiplies bfloat16 at a level: pairs, or in the tiles of AMX."""
    module = kernels.load("matmul", level)
    return module.multiplies_pairs() or module.multiplies_tiles()


real = pytest.mark.skipif(
    not rounds(kernels.level),
    reason="medium multiplies in float32: bfloat16 needs AVX512_BF16 or AMX, the level avx512 or "
    "amx, a build by GCC 12 or clang",
)
BLOCK = 64
EXP = 7.6e-5  # the largest relative error of a weight; rounding it then takes up to 2e-3
SHAPES = [  # B, T, H, KV, D, causal
    (2, 65, 4, 2, 33, True),
    (2, 65, 4, 2, 33, False),
    (1, 130, 3, 1, 16, True),
    (1, 145, 2, 1, 8, False),
    (1, 144, 2, 2, 8, False),  # the longest last block
    (1, 33, 2, 2, 64, True),  # as few rows as are rounded
    (1, 64, 2, 2, 257, True),  # one past a block of terms; an odd one
    (1, 97, 1, 1, 1, True),  # a pair of one term
]


def inputs(B, T, H, KV, D, seed=3):
    q, do = (normal(B * T, H * D, seed=seed + i) for i in range(2))
    k, v = (normal(B * T, KV * D, seed=seed + 2 + i) for i in range(2))
    return q, k, v, do


def run(shape, q, k, v, do, precision="medium", n_threads=1, module=attention):
    """o, lse, dq, dk, dv."""
    B, T, H, _, _, causal = shape
    o, dq, dk, dv = (np.full_like(x, np.nan) for x in (q, q, k, v))
    lse, delta = np.full((2, B, H, T), np.nan, np.float32)
    options = {"causal": causal, "n_threads": n_threads, "precision": precision}
    module.forward(o, lse, q, k, v, **options)
    module.backward(dq, dk, dv, delta, do, o, lse, q, k, v, **options)
    return o, lse, dq, dk, dv


def blocks(T, causal):
    """Where the kernel cuts T keys; without a mask the last block may have 16 more."""
    tail = 0 if causal else 16
    return list(range(0, max(1, T - tail), BLOCK))[: max(1, -(-(T - tail) // BLOCK))]


def weights(x):
    """e^x by the kernel's polynomial."""
    x = np.maximum(x, -87) / np.log(2)
    whole = np.floor(x)
    p = np.polynomial.polynomial.polyval(
        x - whole, [0.99992522, 0.69583354, 0.22606716, 0.078024523]
    )
    return np.where(whole >= -126, p * 2**whole, 0)


def reference(shape, q, k, v, do):
    """o, lse, dq, dk, dv in float64, rounded where the kernel rounds."""
    B, T, H, KV, D, causal = shape
    q, k, v, do = (split_heads(rounded(x), B, T, D) for x in (q, k, v, do))
    k, v = (x.repeat(H // KV, axis=1) for x in (k, v))
    s = q @ k.transpose(0, 1, 3, 2) / np.sqrt(D)
    if causal:
        s = np.where(np.tri(T, dtype=bool), s, -np.inf)
    o, most = np.zeros_like(q), np.full((B, H, T, 1), -np.inf)
    starts = blocks(T, causal)
    for j, end in zip(starts, [*starts[1:], T], strict=True):
        now = np.maximum(most, s[..., j:end].max(axis=-1, keepdims=True))
        o = o * np.exp(most - now) + rounded(weights(s[..., j:end] - now)) @ v[..., j:end, :]
        most = now
    lse = np.log(weights(s - most).sum(axis=-1, keepdims=True)) + most
    o /= np.exp(lse - most)
    p = weights(s - lse)
    return q, k, v, do, o, lse[..., 0], p


def gradients(shape, q, k, v, do, p, delta):
    B, T, H, KV, D, _ = shape
    ds = rounded(p * (do @ v.transpose(0, 1, 3, 2) - delta[..., None]) / np.sqrt(D))

    def served(x):
        return join_heads(x.reshape(B, KV, H // KV, T, D).sum(axis=2))

    dk, dv = ds.transpose(0, 1, 3, 2) @ q, rounded(p).transpose(0, 1, 3, 2) @ do
    return join_heads(ds @ k), served(dk), served(dv)


@real
@pytest.mark.parametrize("scale", np.linspace(0.5, 1.5, 8))
def test_a_weight_is_far_nearer_than_its_rounding(scale):
    """Each row sees two keys, with scores 0 and -x: the sum of two weights is exp(lse)."""
    T = 8192
    q, k, v = np.ones((T, 1), np.float32), np.zeros((T, 1), np.float32), np.ones((T, 1), np.float32)
    k[1::2, 0] = -rounded(np.linspace(0, 6, T // 2))
    o, lse = np.empty_like(q), np.empty((1, 1, T), np.float32)
    attention.forward(o, lse, q, k, v, window=2, scale=float(scale), precision="medium")
    total = 1 + np.exp(float(np.float32(scale)) * k[1::2, 0].astype(np.float64))
    np.testing.assert_allclose(np.exp(lse[0, 0, 1::2].astype(np.float64)), total, rtol=EXP)


@real
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_rounded_operands(shape):
    """But for factors so near a tie that float32 and float64 round them apart: off by 2^-8, rarely.

    Rounding all of them otherwise would give a mean of some 1e-3.
    """
    B, T, _, _, D, _ = shape
    q, k, v, do = inputs(*shape[:5])
    got_o, got_lse, *got = run(shape, q, k, v, do)
    rq, rk, rv, rdo, o, lse, p = reference(shape, q, k, v, do)
    delta = (split_heads(do.astype(np.float64) * got_o, B, T, D)).sum(
        axis=-1
    )  # of floats, not rounded
    expected = gradients(shape, rq, rk, rv, rdo, p, delta)
    np.testing.assert_allclose(got_lse, lse, atol=EXP)  # float32 may choose another power of two
    for x, exact in zip((got_o, *got), (join_heads(o), *expected), strict=True):
        off = np.abs(x - exact) / np.abs(exact).max()
        assert off.max() <= 2e-3
        assert np.sqrt((off**2).mean()) <= 5e-5


@real
def test_weights_before_they_are_rounded_are_right_to_a_twentieth_of_a_rounding():
    """e^x, against float64, of 2^18 floats x in two periods of the power of two, -2 ln 2 .. 0.

    x is the score of key 1: three bfloat16 add up to it. Key 0 scores 0, and all others so little
    that their weights are 0. So e^lse is e^0 + e^x.
    """
    T, H = 64, 256
    k = np.zeros((T, H, 4), np.float32)
    k[1, :, :3], k[2:, :, 3] = 1, 1
    v, o, lse = (np.zeros(shape, np.float32) for shape in ((T, H * 4), (T, H * 4), (1, H, T)))

    def sums(x):
        q, rest = np.full((T, H, 4), -1e4, np.float32), x
        for part in range(3):
            q[..., part] = rounded(rest)
            rest = rest - q[..., part]
        args = o, lse, *(y.reshape(T, -1) for y in (q, k, v))
        attention.forward(*args, causal=False, scale=1, precision="medium")
        return np.exp(lse[0].T.astype(np.float64))

    first = sums(np.full((T, H), -1e4, np.float32))  # e^0 alone
    assert np.abs(first - 1).max() <= EXP
    edges = np.array([2**-20, 2 * np.log(2)], np.float32).view(np.int32)
    bits = np.linspace(*edges, 16 * T * H).astype(np.int32)  # floats in order
    for x in -bits.view(np.float32).reshape(16, T, H):
        assert np.abs((sums(x) - first) / np.exp(x.astype(np.float64)) - 1).max() <= EXP


@real
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_agree_bit_for_bit(shape):
    values = inputs(*shape[:5])
    one = run(shape, *values)
    for n_threads in (2, 5):
        assert same_bits(run(shape, *values, n_threads=n_threads), one)


@real
def test_the_error_is_that_of_bfloat16():
    """Within 1 % of the norm at the shapes that are timed, and not zero."""
    for sizes in CASES["attention"].bench.values():
        shape = tuple(sizes.values())[:6]
        B, T, H, KV, D, _ = shape
        if T <= 32:
            continue
        values = inputs(B, T, H, KV, D)
        rough, exact = (run(shape, *values, precision=p) for p in ("medium", "highest"))
        for x, y in zip(rough, exact, strict=True):
            assert 0 < np.linalg.norm(x - y) <= 0.01 * np.linalg.norm(y)


@real
@pytest.mark.parametrize("length", [33, 64, 70, 81, 140])
def test_what_comes_later_changes_no_bit(length):
    shape = (1, 200, 2, 2, 24, True)
    q, k, v, do = inputs(*shape[:5])
    o, lse, *_ = run(shape, q, k, v, do)
    part = [np.ascontiguousarray(x[:length]) for x in (q, k, v, do)]
    o_part, lse_part, *_ = run((1, length, 2, 2, 24, True), *part)
    assert same_bits([o_part, lse_part], [o[:length], lse[..., :length]])


@pytest.mark.parametrize("T", [1, 32])
def test_short_sequences_stay_float32(T):
    shape = (3, T, 2, 1, 16, True)
    values = inputs(*shape[:5])
    assert same_bits(run(shape, *values), run(shape, *values, precision="highest"))


@pytest.mark.parametrize("level", kernels.built_levels())
def test_where_bfloat16_gains_nothing_medium_is_highest(level):
    if level not in kernels.supported_levels():
        pytest.skip(f"this CPU has no {level}")
    module, shape = kernels.load("attention", level), (1, 70, 2, 1, 16, True)
    values = inputs(*shape[:5])
    medium, highest = (run(shape, *values, p, module=module) for p in ("medium", "highest"))
    assert same_bits(medium, highest) != rounds(level)


def test_a_node_keeps_the_precision_it_was_recorded_with():
    s = Session(matmul_precision="medium")
    x, w = s.input("x", (70, 8)), s.parameter("w", (24, 8))
    o = ops.attention(s, ops.linear(s, x, w), batch=1, n_heads=1)
    s.matmul_precision = "highest"
    s.set_loss(ops.cross_entropy(s, o, s.input("labels", (70,), "i32")))
    s.build_backward()
    text = str(s.tape)
    assert "attention.forward (medium)" in text and "attention.backward (medium)" in text
