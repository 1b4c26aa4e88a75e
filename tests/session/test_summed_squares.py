"""The norm where products have summed the squares: the same bits in every way to an update."""

import numpy as np
import pytest

import toynn
from toynn import ops
from toynn.backends.cpu import squares
from toynn.errors import NonFiniteError

V, K, N = 50, 272, 288  # ids, and the columns and rows of a gradient that is large enough
ROWS = 96
HP = np.array([1e-2, 0.9, 0.999, 1e-8, 0.0, 10.0, 1000.0], np.float32)


class Net:
    """Embedding, two layers and a loss; rows of which a count says how many there are."""

    def __init__(self, rows=ROWS, **session):
        s = self.s = toynn.Session(seed=1, **session)
        shapes = {"wte": (V, K), "w1": (N, K), "b1": (N,), "w2": (V, N)}
        self.weights = {name: s.parameter(name, shape) for name, shape in shapes.items()}
        self.hp = s.input("hp", (7,))
        self.inputs = self._record(rows)
        s.finalize_weights()
        self.promised = s.memory()
        s.realize()
        self.rng = np.random.default_rng(3)
        for weight in self.weights.values():
            s.upload(weight, 0.1 * self.rng.standard_normal(weight.shape))
        s.upload(self.hp, HP)

    def _record(self, rows):
        s, w = self.s, self.weights
        count = s.input("count", (), "i32")
        ids, labels = (s.input(name, (rows,), "i32", count=count) for name in ("ids", "labels"))
        x = ops.embedding(s, w["wte"], ids)
        y = ops.linear(s, x, w["w1"], w["b1"], "gelu_tanh")
        s.set_loss(ops.cross_entropy(s, ops.linear(s, y, w["w2"]), labels))
        s.build_backward()
        for weight in w.values():
            s.opt_step_adamw(weight, s.grad(weight), self.hp)
        return count, ids, labels

    def other(self, rows):
        """A tape of so many rows, and its inputs."""

        def build():
            hp = self.hp
            self.hp = self.s.input("hp", (7,))
            built = self.s.tape, self._record(rows), self.hp
            self.hp = hp
            return built

        tape, inputs, hp = self.s.record(rows, build)
        self.s.upload(hp, HP)
        return tape, inputs

    def feed(self, seed, inputs=None, live=None):
        count, ids, labels = inputs or self.inputs
        rng = np.random.default_rng(seed)
        self.s.upload(count, live or ids.shape[0])
        for tensor in (ids, labels):
            self.s.upload(tensor, rng.integers(0, V, tensor.shape))
        return self

    def expected(self):
        gradients = [self.s.download(self.s.grad(w)) for w in self.weights.values()]
        return np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))

    def result(self):
        """The norm and the weights, once the norm is known to be right."""
        assert self.s.grad_norm == pytest.approx(self.expected(), rel=1e-6)
        return [np.float32(self.s.grad_norm), *map(self.s.download, self.weights.values())]


def same(a, b):
    return all(np.array_equal(one, other) for one, other in zip(a, b, strict=True))


def updated(**session):
    net = Net(**session).feed(1)
    net.s.run()
    return net.result()


def accumulated():
    """By two micro-batches."""
    net = Net().feed(1)
    net.s.run("grads")
    net.feed(2).s.run()
    return net.result()


def unchanged(values):
    """What combine may do to gradients."""


@pytest.fixture
def planted():
    """Change gradients behind the back of a session: what nobody reads again does not count."""

    def plant(net, name):
        storage = net.s._storage
        buffer, offset = storage.held[net.s.grad(net.weights[name])]
        buffer.view(offset, (4,), np.dtype(np.float32))[:] = 1e6

    return plant


def test_the_norm_reads_no_gradient_that_a_product_has_squared(planted):
    net = Net().feed(1)
    net.s.run("grads")
    expected = net.expected()
    planted(net, "w1")
    net.s.run("apply")
    assert net.s.grad_norm == pytest.approx(expected, rel=1e-6)
    for name in ("wte", "b1", "w2"):  # embedding, bias, few elements
        net.feed(1).s.run("grads")
        planted(net, name)
        net.s.run("apply")
        assert net.s.grad_norm > 1e6


def test_the_threads_do_not_matter():
    assert same(updated(n_threads=1), updated(n_threads=2))


def test_an_update_apart_from_its_gradients():
    net = Net().feed(1)
    net.s.run("grads")
    net.s.run("apply")
    assert same(net.result(), updated())


def test_the_next_step_is_right_too():
    net = Net().feed(1)
    net.s.run()
    net.result()
    net.feed(2).s.run()
    net.result()


def test_micro_batches_and_those_of_a_checkpoint():
    begun, net = Net().feed(1), Net()
    begun.s.run("grads")
    net.s.wait(*begun.s.waiting())
    net.feed(2).s.run()
    assert same(net.result(), accumulated())
    last = Net().feed(1)
    last.s.run("grads")
    last.feed(2).s.run("grads")
    net = Net()
    net.s.wait(*last.s.waiting())
    net.s.run("apply")
    assert same(net.result(), accumulated())


def test_sums_of_ranks():
    net = Net().feed(1)
    net.s.run("grads")
    net.s.combine(1.0, unchanged, 1000)
    net.s.run("apply")
    first = net.result()
    assert same(first, updated())

    def doubled(values):
        values *= 2

    net = Net().feed(1)
    net.s.run("grads")
    net.s.combine(1.0, doubled, 1000)
    net.s.run("apply")
    assert net.result()[0] == 2 * first[0]


def test_after_a_reset():
    net = Net().feed(2)
    net.s.run("grads")
    net.s.reset(moments=True)
    net.feed(1).s.run()
    assert same(net.result(), updated())


@pytest.mark.parametrize("rows", [8, 40, 200])
@pytest.mark.parametrize("least", [1, squares.LEAST])
def test_gradients_of_another_tape(rows, least, monkeypatch):
    """An update takes them, whichever tape it is of: ranks may differ in that."""
    monkeypatch.setattr(squares, "LEAST", least)
    results = []
    for applied_by_other in (True, False):
        net = Net().feed(1)
        net.s.run("grads")
        tape, inputs = net.other(rows)
        net.feed(2, inputs).s.run("grads", tape=tape)
        net.s.run("apply", tape=tape if applied_by_other else None)
        results.append(net.result())
    assert same(*results)


@pytest.mark.parametrize("live", [1, 5, 50])
def test_fewer_rows_than_there_is_room_for(live):
    net = Net().feed(1)
    net.s.run()
    net.feed(2, live=live).s.run()
    alone = net.result()
    net = Net().feed(1)
    net.s.run()
    net.feed(2, live=live).s.run("grads")
    net.s.combine(1.0, unchanged, 10**6)
    net.s.run("apply")
    assert same(net.result(), alone)


def test_a_gradient_that_is_not_finite_is_refused():
    def spoilt(values):
        values[net.s._storage.places[net.s.grad(net.weights["w1"])].offset // 4 + 5] = np.nan

    net = Net().feed(1)
    net.s.run()
    before = net.result()[1:]
    net.s.run("grads")
    net.s.combine(1.0, spoilt, 10**6)
    with pytest.raises(NonFiniteError, match="first bad gradient: w1"):
        net.s.run("apply")
    assert same(before, map(net.s.download, net.weights.values()))
    net.s.upload(net.weights["wte"], np.full((V, K), 1e38))
    with pytest.raises(NonFiniteError, match="first bad gradient: "):
        net.s.run()


def test_memory_says_what_they_take(monkeypatch):
    net = Net()
    assert net.s.memory() == net.promised
    monkeypatch.setattr(squares, "LEAST", 1 << 30)
    taken = net.promised.activations - Net().promised.activations
    assert 0 < taken < 4 * N * K / 8  # a float for each tile of w1


def test_small_models_have_none(monkeypatch):
    monkeypatch.setattr(squares, "LEAST", N * K + 1)
    net = Net().feed(1)
    net.s.run()
    net.result()
