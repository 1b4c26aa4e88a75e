"""matmul_precision="medium": products of bfloat16 pairs, where the CPU has them.

References are float64 products of operands that NumPy has rounded: what is left is the error of
adding up in float32. Products of at most 2^16 multiply-adds stay float32.
"""

import numpy as np
import pytest

import toynn
import toynn._kernels as kernels
from toynn import GPT2Config, LlamaConfig, RecipeOptions, Session, ops
from toynn._kernels import matmul
from toynn.formats.quants import BLOCKS, TYPES
from toynn.recipes import GPT2, FromScratch, VitTiny
from toynn.testing.cases.quants import matrix

pytestmark = pytest.mark.kernels

real = pytest.mark.skipif(
    not matmul.multiplies_pairs(),
    reason=f"medium multiplies in float32: bfloat16 needs {kernels.cpu.PAIRS_NEED}",
)

ROWS, COLUMNS = (12, 4) if kernels.level == "neon" else (14, 16)  # MR and V where there are pairs
SHAPES = [  # M, N, K
    (129, 131, 127),  # all edges ragged; K is odd, and so are the sums of dx and dw
    (300, 65, 545),  # three blocks of terms, the last of 33
    (1025, 48, 97),  # more rows than columns
    (40, 1000, 513),  # a last block of one term
    (ROWS + 1, 1500, 1501),  # as few rows as are packed in all three products
    (257, 33, 256),
    (32, 192, 64),  # as small as those of a tiny step
    (ROWS + 1, (1 << 16) // (41 * (ROWS + 1)) + 1, 41),  # just over 2^16 multiply-adds
]
HP = np.array([1e-3, 0.9, 0.999, 1e-8, 0.0, 10.0, 1000.0], np.float32)


def rounded(x):
    """float64 of the nearest bfloat16, ties to even; subnormals are 0."""
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    near = bits.view(np.float32).astype(np.float64)
    return np.where(np.abs(x) < 2.0**-126, 0, near)


def normal(*shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def products(x, w, dy, precision, n_threads=1, type="F32", module=matmul):
    """y, dx and, for a float w, dw."""
    y, dx, dw = (np.full(a.shape, np.nan, np.float32) for a in (dy, x, np.empty((dy.shape[1], 1))))
    module.forward(y, None, x, w, None, type=type, n_threads=n_threads, precision=precision)
    module.backward_input(dx, dy, w, type=type, n_threads=n_threads, precision=precision)
    if type != "F32":
        return y, dx
    dw = np.full((dy.shape[1], x.shape[1]), np.nan, np.float32)
    module.backward_weight(dw, dy, x, n_threads=n_threads, precision=precision)
    return y, dx, dw


def same_bits(some, others):
    return [a.tobytes() for a in some] == [b.tobytes() for b in others]


@real
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_rounded_operands(shape):
    M, N, K = shape
    x, w, dy = normal(M, K), normal(N, K, seed=4), normal(M, N, seed=5)
    rx, rw, rdy = rounded(x), rounded(w), rounded(dy)
    expected = rx @ rw.T, rdy @ rw, rdy.T @ rx
    for got, exact in zip(products(x, w, dy, "medium"), expected, strict=True):
        assert np.abs(got - exact).max() <= 1e-6 * np.abs(exact).max()


@real
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_agree_bit_for_bit(shape):
    M, N, K = shape
    x, w, dy = normal(M, K), normal(N, K, seed=4), normal(M, N, seed=5)
    one = products(x, w, dy, "medium")
    for n_threads in (2, 5):
        assert same_bits(products(x, w, dy, "medium", n_threads), one)


@real
def test_bias_activation_and_accumulation_are_those_of_float32():
    x, w, dy, b = normal(130, 140), normal(150, 140, seed=4), normal(130, 150, seed=5), normal(150)
    y, pre = np.empty_like(dy), np.empty_like(dy)
    matmul.forward(y, pre, x, w, b, activation="gelu_exact", precision="medium")
    bare, _, dw = products(x, w, dy, "medium")
    assert pre.tobytes() == (bare + b).tobytes()
    assert (y != pre).any()
    more = np.full_like(dw, 0.5)
    matmul.backward_weight(more, dy, x, accumulate=True, precision="medium")
    np.testing.assert_allclose(more, dw + 0.5, atol=1e-4)


@real
@pytest.mark.parametrize("name", [name for name in TYPES if name != "F32"])
@pytest.mark.parametrize("shape", [(150, 140, 768), (60, 700, 512), (400, 200, 1024)], ids=str)
def test_blocks_are_rounded_while_they_are_packed(name, shape):
    M, N, K = shape
    _, raw, exact = matrix(np.random.default_rng(5), TYPES[name], N, K)
    x, dy = normal(M, K), normal(M, N, seed=5)
    expected = products(x, exact.astype(np.float32), dy, "medium")[:2]
    for n_threads in (1, 3):
        assert same_bits(products(x, raw, dy, "medium", n_threads, name), expected)


@real
@pytest.mark.parametrize("name", [name for name in TYPES if name != "F32"])
def test_rows_of_an_odd_number_of_blocks(name):
    K = 7 * BLOCKS[name][0]
    K *= -(-512 // K)
    _, raw, exact = matrix(np.random.default_rng(5), TYPES[name], 51, K)
    x, dy = normal(151, K), normal(151, 51, seed=5)
    expected = products(x, exact.astype(np.float32), dy, "medium")[:2]
    assert same_bits(products(x, raw, dy, "medium", type=name), expected)


EDGES = [
    *(1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-23, 1 + 2.0**-8 - 2.0**-23),  # ties
    *(3.38e38, 2.0**-126, 2.0**-127, 1e-40, 0.0, 65519.0),
]


@real
@pytest.mark.parametrize("sign", [1, -1])
def test_operands_are_rounded_to_nearest_even(sign):
    """Times one, in each place from which an operand is packed."""
    n = 135
    a = normal(n, n)
    a.flat[: len(EDGES)] = a.flat[-len(EDGES) :] = EDGES
    a *= sign
    one = np.eye(n, dtype=np.float32)
    y, dx, dw = products(a, one, one, "medium")  # y = a, dx = one, dw = a
    for got in (y, dw):
        np.testing.assert_array_equal(got, rounded(a))
    y, dx, dw = products(one, a, one, "medium")  # y = a^T, dx = a
    for got in (y.T, dx):
        np.testing.assert_array_equal(got, rounded(a))
    y, dx, dw = products(one, one, a, "medium")  # dx = a, dw = a^T
    for got in (dx, dw.T):
        np.testing.assert_array_equal(got, rounded(a))


@real
@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF])
def test_nan_stays_nan_and_in_its_row(bits):
    """Whatever its bits are: those that rounding drops too."""
    x, w, dy = normal(150, 171), normal(161, 171, seed=4), normal(150, 161, seed=5)
    x.view(np.uint32)[77, 170] = bits
    y, dx, dw = products(x, w, dy, "medium", 2)
    assert np.isnan(y[77]).all() and np.isnan(y).sum() == 161
    assert np.isnan(dw[:, 170]).all() and np.isnan(dw).sum() == 161
    assert np.isfinite(dx).all()


@real
@pytest.mark.parametrize("value", [np.inf, -np.inf, 3.4e38, -3.4e38])
def test_infinity_stays_infinity(value):
    """3.4e38 is nearer to 2^128, which bfloat16 has not, than to the largest that it has."""
    w = np.abs(normal(161, 171, seed=4)) + 0.1
    for row, column in ((77, 170), (149, 0)):
        x = normal(150, 171)
        x[row, column] = value
        y, _, dw = products(x, w, np.abs(normal(150, 161, seed=5)) + 0.1, "medium")
        assert (y[row] == np.sign(value) * np.inf).all() and np.isinf(y).sum() == 161
        assert (dw[:, column] == np.sign(value) * np.inf).all() and np.isinf(dw).sum() == 161


SMALL = (128, 128, 128)  # 2^21 multiply-adds; with pairs 2^16, with tiles 2^14
if matmul.multiplies_pairs():
    SMALL = (24, 21, 32) if matmul.multiplies_tiles() else (32, 64, 32)


@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        (3, 1500, 1501),
        (ROWS, 1500, 1501),
        (3000, COLUMNS, 1501),
        (1, 33, 70000),
        (0, 5, 3),
    ],
)
def test_small_and_skinny_products_stay_float32(shape):
    M, N, K = shape
    x, w, dy = normal(M, K), normal(N, K, seed=4), normal(M, N, seed=5)
    y, exact = np.empty_like(dy), np.empty_like(dy)
    matmul.forward(y, None, x, w, None, precision="medium")
    matmul.forward(exact, None, x, w, None)
    assert y.tobytes() == exact.tobytes()


@pytest.mark.parametrize("M,N,K", [(4, 1500, 1501), (1500, 4, 1501), (1500, 1501, 4)])
def test_skinny_products_stay_float32(M, N, K):
    """A side of a few rows or columns leaves the other one nothing to be packed for."""
    x, w, dy = normal(M, K), normal(N, K, seed=4), normal(M, N, seed=5)
    medium, highest = (products(x, w, dy, p) for p in ("medium", "highest"))
    skinny = {4: (1,), 1500: (0, 2) if N == 4 else (1, 2)}[M]  # of y, dx, dw
    assert all(medium[i].tobytes() == highest[i].tobytes() for i in skinny)


@pytest.mark.skipif(matmul.multiplies_tiles(), reason="high has parts of its own")
def test_high_is_highest():
    x, w, dy = normal(129, 127), normal(131, 127, seed=4), normal(129, 131, seed=5)
    assert same_bits(products(x, w, dy, "high"), products(x, w, dy, "highest"))


@pytest.mark.parametrize("level", kernels.built_levels())
def test_where_there_are_no_pairs_medium_is_highest(level):
    if level not in kernels.supported_levels():
        pytest.skip(f"this CPU has no {level}")
    module = kernels.load("matmul", level)
    if module.multiplies_pairs():
        assert level in ("avx512", "amx", "neon") and kernels.cpu.pairs_unit()
    x, w, dy = normal(129, 127), normal(131, 127, seed=4), normal(129, 131, seed=5)
    medium, highest = (products(x, w, dy, p, module=module) for p in ("medium", "highest"))
    assert same_bits(medium, highest) != (module.multiplies_pairs() or module.multiplies_tiles())


def test_the_configuration_says_what_precisions_are():
    told = toynn.backends.config.describe()
    assert told["medium multiplies in"].startswith(
        "bfloat16" if matmul.multiplies_pairs() or matmul.multiplies_tiles() else "float32"
    )
    for precision in ("highest", "high"):
        tiles = "parts of bfloat16" in told[f"{precision} multiplies in"]
        assert tiles == matmul.multiplies_tiles()


def test_refusal_of_a_precision():
    x, w, y = normal(3, 4), normal(5, 4), normal(3, 5)
    with pytest.raises(ValueError, match=r"matmul.forward: precision needs .*'low'"):
        matmul.forward(y, None, x, w, None, precision="low")


@pytest.mark.parametrize("entry", ["forward", "backward_input", "backward_weight"])
@pytest.mark.parametrize("shape", [(64, 512, 96), (1024, 50257, 768), (300, 700, 1024)])
def test_scratch_memory_serves_any_smaller_number_of_threads(entry, shape):
    sizes = dict(zip("MNK", shape, strict=True), precision=2, activation=0, type=0)
    needs = [getattr(matmul, entry).workspace(sizes, n) for n in range(1, 33)]
    assert needs == sorted(needs)


# -- On the tape -----------------------------------------------------------------------------------


def test_a_node_keeps_the_precision_it_was_recorded_with():
    """One program mixes: a layer in medium, one in highest, and their gradients likewise."""
    M, N, K = 256, 96, 128
    s = Session(matmul_precision="medium")
    x, labels = s.input("x", (M, K)), s.input("labels", (M,), "i32")
    a, b = s.parameter("a", (K, K)), s.parameter("b", (N, K))
    hidden = s.output(ops.linear(s, x, a))
    s.matmul_precision = "highest"
    logits = s.output(ops.linear(s, hidden, b))
    s.set_loss(ops.cross_entropy(s, logits, labels))
    s.build_backward()
    s.finalize_weights()
    precisions = {
        (node.op.kernel.removeprefix("matmul."), w): node.sizes["precision"]
        for node in s.tape.nodes
        for w in (a, b)
        if w in node.inputs or s.tape.gradients[w] in node.outputs
        if "precision" in node.sizes
    }
    assert precisions == {
        ("forward", a): 2,
        ("backward_weight", a): 2,
        ("forward", b): 0,
        ("backward_input", b): 0,
        ("backward_weight", b): 0,
    }
    assert str(s.tape).count("matmul.forward (medium)") == 1
    assert '"precision": 2' in s.tape.to_json()
    values = {x: normal(M, K), a: normal(K, K, seed=4), b: normal(N, K, seed=5)}
    s.realize()
    for tensor, array in values.items():
        s.upload(tensor, array)
    s.upload(labels, np.zeros(M, np.int32))
    s.run("grads")
    got = s.download(hidden)
    as_is = not (matmul.multiplies_pairs() or matmul.multiplies_tiles())
    exact = [v.astype(np.float64) if as_is else rounded(v) for v in (values[x], values[a])]
    np.testing.assert_allclose(got, exact[0] @ exact[1].T, atol=2e-4)
    np.testing.assert_allclose(s.download(logits), got @ values[b].astype(np.float64).T, atol=2e-3)


def precisions(engine):
    nodes = engine.session.tape.nodes
    return {node.sizes["precision"] for node in nodes if "precision" in node.sizes}


def gpt2(precision):
    toynn.set_float32_matmul_precision(precision)
    try:
        recipe = GPT2()
        recipe.realize(GPT2Config(256, 128, 4, 512, 2, 64), RecipeOptions(t_batch=4, seed=1))
    finally:
        toynn.set_float32_matmul_precision("highest")
    return recipe


def llama(weight_dtype):
    recipe = FromScratch()
    sizes = {"vocab": 256, "d_model": 128, "n_heads": 4, "n_kv_heads": 2, "d_ff": 352}
    cfg = LlamaConfig(**sizes, n_layers=2, context=64)
    recipe.realize(cfg, RecipeOptions(t_batch=4, seed=1, weight_dtype=weight_dtype))
    return recipe


def test_weight_dtype_bf16_means_medium():
    assert precisions(llama("bf16").engine) == {2}
    assert precisions(llama("f16").engine) == precisions(llama("f32").engine) == {0}


def test_a_vision_transformer_follows_the_setting():
    recipe = VitTiny()
    toynn.set_float32_matmul_precision("medium")
    try:
        recipe.realize(toynn.ViTConfig(), RecipeOptions(t_batch=1))
    finally:
        toynn.set_float32_matmul_precision("highest")
    assert precisions(recipe.engine) == {2}


@real
@pytest.mark.parametrize(
    ("make", "exact", "rough"), [(gpt2, "highest", "medium"), (llama, "f32", "bf16")]
)
def test_training_in_medium_is_near_that_in_highest(make, exact, rough):
    """Ten steps: losses within 0.1 %, gradients of the first within 2 % of their norm."""
    ids, labels = np.random.default_rng(2).integers(0, 256, (2, 256)).astype(np.int32)
    losses, gradients = [], []
    for recipe in (make(exact), make(rough)):
        positions = np.tile(np.arange(64, dtype=np.int32), 4)
        got = [recipe.step(ids, positions, labels, HP, True)]
        gradients.append(recipe.engine.gradients())
        got += [recipe.step(ids, positions, labels, HP, False) for _ in range(9)]
        losses.append(np.array(got))
    assert losses[0][-1] < losses[0][0] - 0.5  # it learns
    off = np.abs(losses[1] / losses[0] - 1)
    worst = max(
        np.linalg.norm(gradients[1][name] - g) / np.linalg.norm(g)
        for name, g in gradients[0].items()
    )
    assert 0 < off.max() <= 1e-3
    assert 0 < worst <= 2e-2
