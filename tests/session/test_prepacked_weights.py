"""Prepacked frozen weights: the same bits; when they are packed, and what they take."""

import numpy as np
import pytest

import toynn
from toynn import _kernels as kernels
from toynn import ops
from toynn._kernels import matmul
from toynn.backends.cpu.prepacked import Prepacked
from toynn.errors import ConfigError, LifecycleError
from toynn.formats import quants
from toynn.session import memory

N, K = 288, 544  # outputs, inputs: no multiples of what a pass or a stretch takes
LARGE = N * K * 8  # bytes of both copies in float32, at least


def drawn(seed, dtype="F32"):
    w = np.random.default_rng(seed).standard_normal((N, K), np.float32)
    return w if dtype == "F32" else quants.quantize(w, dtype)


class Net:
    """Rows of x times w, frozen, and a loss: products by w there and back."""

    def __init__(self, rows, dtype="F32", *, uploaded=False, **session):
        self.s = s = toynn.Session(seed=1, **session)
        self.rows, kind = rows, dtype.lower()
        if uploaded:
            self.w = s.constant("w", (N, K), kind)
        else:
            self.w = s.mapped(
                "w", drawn(1, dtype).reshape(-1 if kind != "f32" else (N, K)), kind, (N, K)
            )
        self.x, self.labels = s.parameter("x", (rows, K)), s.input("labels", (rows,), "i32")
        self.y = s.output(ops.linear(s, self.x, self.w))
        s.set_loss(ops.cross_entropy(s, self.y, self.labels))
        s.build_backward()
        s.finalize_weights()

    def realize(self):
        rng = np.random.default_rng(3)
        self.s.realize()
        self.s.upload(self.x, rng.standard_normal((self.rows, K)))
        self.s.upload(self.labels, rng.integers(0, N, self.rows))
        return self

    def run(self):
        self.s.run(to="grads")
        values = [self.s.download(t) for t in (self.y, self.s.grad(self.x))]
        self.s.reset(moments=False)
        return values


def same(a, b):
    return all(np.array_equal(one, other) for one, other in zip(a, b, strict=True))


@pytest.fixture
def packings(monkeypatch):
    """The products whose panels are packed, in order."""
    done, refresh = [], Prepacked.refresh

    def noted(each, threads):
        before = each.version
        refresh(each, threads)
        if each.version != before:
            done.append(each.key.product)

    monkeypatch.setattr(Prepacked, "refresh", noted)
    return done


@pytest.mark.kernels
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", ["highest", "high", "medium", "int8"])
@pytest.mark.parametrize("dtype", ["F32", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("rows", [3, 33, 100])
def test_bits_are_the_same(rows, dtype, precision, threads, packings):
    if precision == "int8" and not (dtype != "F32" and kernels.matmul.multiplies_quads()):
        pytest.skip("int8 is for quantized weights, and levels with products of 8-bit codes")
    session = {"matmul_precision": precision, "n_threads": threads}
    plain = Net(rows, dtype, **session).realize().run()
    assert not packings
    packed = Net(rows, dtype, prepack="always", **session).realize()
    assert same(packed.run(), plain)
    assert same(packed.run(), plain)
    assert packings == ([] if rows == 3 else ["forward", "backward_input"])


def test_they_are_packed_again_after_an_upload(packings):
    plain, packed = (Net(40, uploaded=True, prepack=p) for p in ("never", "always"))
    for net in (plain, packed):
        net.s.upload(net.w, drawn(1))
        net.realize()
    first = packed.run()
    assert same(first, plain.run())
    for net in (plain, packed):
        net.s.upload(net.w, drawn(2))
    second = packed.run()
    assert same(second, plain.run())
    assert not same(second, first)
    assert same(packed.run(), second)
    assert packings == 2 * ["forward", "backward_input"]


def test_tapes_share_them(packings):
    net = Net(40, prepack="always").realize()
    before = net.s.memory()

    def build():
        s = net.s
        labels = s.input("labels", (40,), "i32")
        s.output(ops.linear(s, net.x, net.w))
        return labels

    net.s.record("evaluation", build)
    assert net.s.memory().prepacked == before.prepacked
    net.run()
    assert packings == ["forward", "backward_input"]


def test_memory_says_what_they_take_before_they_are_there_and_after():
    net = Net(40, prepack="always")
    promised = net.s.memory()
    net.realize()
    assert net.s.memory() == promised
    parts = 1.5 if kernels.matmul.multiplies_tiles() else 1  # three of bfloat16 for a float
    assert parts * LARGE <= promised.prepacked < 1.2 * parts * LARGE
    plain = Net(40).s.memory()
    assert promised.peak == plain.peak + promised.prepacked
    assert "prepacked" in str(promised)
    assert "prepacked" not in str(plain)


def test_costs_are_known_by_choice_before_allocation():
    """Packing takes time in each run: on 40 rows longer than on 128, beside the product."""
    shares = []
    for rows in (40, 128):
        costs = Net(rows).s.costs(["always", "never"])
        for prepack, cost in costs.items():
            assert cost.memory == Net(rows, prepack=prepack).s.memory()
        shares.append(costs["never"].seconds / costs["always"].seconds - 1)
    most = 0.6 if matmul.multiplies_tiles() else 0.2  # products in tiles take less beside packing
    assert 0.02 < shares[1] < shares[0] / 2 < most
    with pytest.raises(LifecycleError, match=r"costs\(\) after realize"):
        Net(40).realize().s.costs(["never"])


@pytest.mark.parametrize("free, kept", [(2**40, True), (2**20, False), (None, True)])
def test_auto_keeps_what_fits(free, kept, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    net = Net(40, "Q8_0", prepack="auto")
    assert (net.s.memory().prepacked > 0) == kept
    assert (net.realize().s.memory().prepacked > 0) == kept
    assert same(net.run(), Net(40, "Q8_0").realize().run())


@pytest.mark.parametrize("precision, rows", [("highest", 128), ("high", 256), ("medium", 1024)])
def test_auto_keeps_none_where_many_rows_are_multiplied(precision, rows):
    """On no CPU: in the tiles of AMX, packing three parts costs little beside six products."""
    auto, always = (
        Net(rows + 1, prepack=p, matmul_precision=precision) for p in ("auto", "always")
    )
    assert auto.s.memory().prepacked == 0 < always.s.memory().prepacked


def test_a_wrong_word_is_refused():
    with pytest.raises(ConfigError, match=r"prepack must be one of auto, always, never; got 'on'"):
        toynn.Session(prepack="on")
    with pytest.raises(ConfigError, match=r"prepack must be .*always.* got 1"):
        toynn.RecipeOptions(prepack=1)


def test_none_is_kept_for_rows_that_are_multiplied_in_8_bits():
    if not kernels.matmul.multiplies_int8():
        pytest.skip("this CPU has no products in 8 bits")
    kept = [Net(16, "Q8_0", prepack="always", matmul_precision=p) for p in ("medium", "highest")]
    few, all_ = (net.s.memory().prepacked for net in kept)
    assert 0 < few < 0.6 * all_  # for the way back alone
