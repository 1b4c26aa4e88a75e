"""The reference backend: every kernel has one, and sessions on it compute what the CPU does."""

import subprocess
import sys

import numpy as np
import pytest
from hang import HANG
from small_recipes import RECIPES, SIZES
from tapes import TAPES, Net
from tiny import HP, Tiny

import toynn
from toynn import ops
from toynn.backends.protocol import Accumulate, Launch
from toynn.backends.reference import KERNELS, Reference
from toynn.errors import BackendUnavailable, NonFiniteError
from toynn.numerics import dtypes
from toynn.session import Session
from toynn.testing.calls import check
from toynn.testing.cases import CASES
from toynn.testing.cases.quants import blocks
from toynn.testing.launches import OPS, entries, run

#: Between kernels both round to float32, within them only the CPU does: a loss is off by a few
#: units in its last place at first, and more as each step starts from what the last one left.
CLOSE = 5e-6


def test_every_kernel_has_a_reference():
    have = {name: set(signature.tensors) for name, signature in entries()}
    assert set(ops.TABLE) <= set(have) == set(KERNELS)
    for name, signature in entries():
        known = {*signature.tensors, *signature.sizes, *signature.options}
        assert set(KERNELS[name].takes) <= known, name


def test_a_kernel_without_a_reference_is_refused_when_it_is_compiled():
    launch = Launch("F", "gelu.sideways", {}, {}, {}, Accumulate.NEVER, 0, 0)
    with pytest.raises(BackendUnavailable, match=r"'reference': has no kernel gelu\.sideways"):
        Reference().compile([launch], {})


# -- The op-case table -----------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_op(op):
    for shape in CASES[op].shapes:
        for call in CASES[op].calls(np.random.default_rng(3), **shape):
            check(op, call, run(Reference(), op, call))
            if call.accumulates:
                more = {key: call.expected[key] + 1 for key in call.accumulates}
                got = run(Reference(), op, call, accumulate=True)
                for key, expected in more.items():
                    np.testing.assert_allclose(got[key], expected, rtol=1e-5, atol=1e-5)


# -- Tapes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TAPES)
def test_tape(name):
    make, *arguments = TAPES[name]
    results = []
    for backend in ("cpu", "reference"):
        net = Net(backend=backend)
        y = make(net, *arguments)
        s = net.realize(net.loss(y))
        s.max_grad_norm = 0.5
        for _ in range(2):  # micro-batches
            s.run("grads")
        s.run()
        results.append([s.download(s.tape.loss), s.grad_norm, *map(s.download, net.gradients)])
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was():
    tiny = Tiny(backend="reference")
    tiny.s.run()
    tiny.s.upload(tiny.w, np.full(tiny.w.shape, 1e38))
    before = tiny.state()
    with pytest.raises(NonFiniteError, match="first bad gradient"):
        tiny.s.run()
    assert all(np.array_equal(a, b) for a, b in zip(before, tiny.state(), strict=True))


@pytest.mark.parametrize("dtype", dtypes.QUANTIZED)
def test_blocks(dtype):
    """Frozen weights of every type, in products forward and back, and in a table."""
    rng = np.random.default_rng(0)
    N, K = 8, 512
    kind = dtypes.DTYPES[dtype]
    raw = blocks(rng, kind.ggml, N * K // kind.elements).reshape(-1)
    results = []
    for backend in ("cpu", "reference"):
        s = Session(backend)
        a = s.parameter("a", (K, 4))
        w = s.mapped("w", raw, dtype, (N, K))
        ids, x = s.input("ids", (3,), "i32"), s.input("x", (3, 4))
        labels = s.input("labels", (3,), "i32")
        y = ops.add(s, ops.linear(s, x, a), ops.embedding(s, w, ids))
        s.set_loss(ops.cross_entropy(s, ops.linear(s, y, w, activation="gelu_tanh"), labels))
        s.build_backward()
        s.finalize_weights()
        s.upload(a, np.linspace(-1, 1, a.size).reshape(a.shape))
        s.realize()
        s.upload(ids, [1, 7, 1])
        s.upload(x, np.eye(3, 4))
        s.upload(labels, [0, 3, 5])
        s.run("grads")
        results.append((s.download(s.tape.loss), s.download(s.grad(a))))
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_a_session_reads_codebooks_before_any_kernel_was_called():
    """Other tests read them earlier in this process."""
    test = f"{__file__}::test_blocks[iq2_xxs]"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout


# -- Recipes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_to_the_same_losses(name, tmp_path):
    (one, losses), (other, expected) = (
        RECIPES[name](backend, tmp_path) for backend in ("cpu", "reference")
    )
    assert losses[-1] != losses[0]
    np.testing.assert_allclose(losses, expected, rtol=CLOSE)
    for key, gradient in one.engine.gradients().items():
        scale = np.abs(gradient).max() + 1e-6
        np.testing.assert_allclose(gradient, other.engine.gradients()[key], atol=1e-3 * scale)


def test_reading_a_sequence_piece_by_piece():
    read = {}
    for backend in ("cpu", "reference"):
        engine = toynn.LlamaSeqEngine(backend)
        config = toynn.LlamaConfig(**SIZES | {"context": 80}, n_kv_heads=1)
        engine.realize_for_random_init(config, toynn.RecipeOptions(seed=3))
        decoder, ids = engine.decoder(), np.arange(75) % 61
        read[backend] = [decoder.read(ids[:70]), *(decoder.read(ids[i : i + 1]) for i in (70, 71))]
    np.testing.assert_allclose(read["cpu"], read["reference"], rtol=1e-4, atol=1e-6)


def test_chunks_of_the_loss():
    losses = []
    for backend in ("cpu", "reference"):
        s = Session(backend)
        w, labels = s.parameter("w", (9, 4)), s.input("labels", (7,), "i32")
        x, hp = s.input("x", (7, 4)), s.input("hp", (7,))
        s.set_loss(ops.linear_cross_entropy(s, x, w, labels, rows=3))
        s.build_backward()
        s.opt_step_adamw(w, s.grad(w), hp)
        s.finalize_weights()
        s.upload(w, np.linspace(-1, 1, 36).reshape(9, 4))
        s.realize()
        s.upload(x, np.eye(7, 4))
        s.upload(hp, HP)
        s.upload(labels, [0, -100, 3, 8, 1, 1, 2])
        for to in ("update", "update", "loss"):
            s.run(to)
            losses.append(float(s.download(s.tape.loss)))
    np.testing.assert_allclose(losses[:3], losses[3:], rtol=1e-6)


def test_a_profile_counts_the_calls_of_each_op():
    tiny = Tiny(backend="reference")
    for _ in range(3):
        tiny.s.run()
    rows = {row.op: row for row in tiny.s.profile().rows}
    assert rows["matmul.forward"].calls == 3 and rows["matmul.forward"].ms > 0
    assert tiny.s.memory().activations < Tiny().s.memory().activations
