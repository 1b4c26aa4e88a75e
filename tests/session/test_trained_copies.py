"""Trained weights that are kept packed: updates write the copies, and bits are those without."""

from types import SimpleNamespace

import numpy as np
import pytest

import toynn
from toynn import memory, ops
from toynn._kernels import level
from toynn._kernels import load as load_kernel
from toynn.backends.cpu import copies
from toynn.errors import NonFiniteError

D, H, V = 290, 547, 301  # no multiples of a panel, a step, a pass or a block
E, ROWS, SHORT = 3, 90, 40
packing = load_kernel("copies", level)


class Net:
    """Two layers and a head; rows are an input, a constant lies beside the parameters."""

    def __init__(self, precision="medium", *, experts=False, train=True, **session):
        self.s = s = toynn.Session(seed=1, matmul_precision=precision, **session)
        self.experts = experts
        self.first = s.parameter("first", (E, H, D) if experts else (H, D))
        self.frozen = s.constant("frozen", (D, D))
        self.head = s.parameter("head", (V, H))
        self.router = s.parameter("router", (E, D))
        self.weights = [self.first, self.head] + [self.router] * experts
        self.main = self.record(ROWS, train=train)

    def record(self, rows, train=True):
        """Record the net; return the tape, and of its tensors those that are used below."""
        s = self.s
        x, labels = s.input("x", (rows, D)), s.input("labels", (rows,), "i32")
        hp = s.input("hp", (7,)) if train else None
        h = ops.linear(s, x, self.frozen)
        if self.experts:
            routes = ops.route(s, ops.softmax(s, ops.linear(s, h, self.router)), 2)
            h = ops.experts(s, ops.dispatch(s, h, routes), self.first, routes)
            h = ops.combine(s, ops.weigh(s, h, routes), routes)
        else:
            h = ops.linear(s, h, self.first)
        y = s.output(ops.linear(s, h, self.head))
        s.set_loss(ops.cross_entropy(s, y, labels))
        if train:
            s.build_backward()
            for w in self.weights:
                s.opt_step_adamw(w, s.grad(w), hp)
        return SimpleNamespace(tape=s.tape, x=x, labels=labels, y=y, hp=hp)

    def further(self, name, *args, **options):
        """Record it on a further tape, and give that inputs."""
        recorded = self.s.record(name, lambda: self.record(*args, **options))
        self.feed(recorded)
        return recorded

    def realize(self, seed=1):
        self.s.finalize_weights()
        self.s.realize()
        self.upload(seed)
        self.feed(self.main)
        return self

    def upload(self, seed):
        rng = np.random.default_rng(seed)
        for w in (*self.weights, self.frozen):
            self.s.upload(w, rng.standard_normal(w.shape, np.float32) / 20)

    def feed(self, recorded):
        rng = np.random.default_rng(2)
        self.s.upload(recorded.x, rng.standard_normal(recorded.x.shape, np.float32))
        self.s.upload(recorded.labels, rng.integers(0, V, recorded.labels.shape))

    def step(self, k, to="update", of=None):
        of = of or self.main
        if of.hp:
            self.s.upload(of.hp, toynn.AdamW.for_lora().hp_for_step(k))
        self.s.run(to, tape=of.tape)
        return self.s.download(of.y)

    def state(self):
        return [self.s.download(w) for w in self.weights]


def same(a, b):
    return all(np.array_equal(one, other) for one, other in zip(a, b, strict=True))


def copies_of(net):
    return list(net.s.backend._copies._made.values())


def assert_copies_are_the_weights(net):
    """As they would be if they were packed now: byte for byte."""
    s, made = net.s, copies_of(net)
    offsets = {s._storage.places[w]: w for w in net.weights}
    for copy in made:
        key, w = copy.key, s.download(offsets[copy.key.place]).reshape(-1, copy.key.N, copy.key.K)
        for i, matrix in enumerate(w):
            fresh = np.zeros(key.each // 4, np.float32)
            packing.pack(fresh, matrix, key.entry, key.form, key.K)
            there = copy._panels.download(i * key.each, (key.each,), "u8")
            assert np.array_equal(there, fresh.view(np.uint8)), key
    return len(made)


@pytest.fixture
def kept(monkeypatch):
    """Updates keep copies of every form, so that there are some at every level."""
    monkeypatch.setattr(copies, "kept_while_trained", lambda form, precision: True)


@pytest.fixture
def packings(monkeypatch):
    """The copies that are packed but by updates, in order."""
    done, refresh = [], copies.Copy.refresh

    def noted(copy, threads):
        if copy.version != copy._source.changes:
            done.append(copy.key)
        refresh(copy, threads)

    monkeypatch.setattr(copies.Copy, "refresh", noted)
    return done


@pytest.fixture
def pair(monkeypatch):
    """Make two nets that are alike, but that one keeps copies."""

    def make(*args, **options):
        nets = []
        for keeps in (False, True):
            with monkeypatch.context() as patch:
                patch.setattr(copies, "kept_while_trained", lambda *_, keeps=keeps: keeps)
                nets.append(Net(*args, **options).realize())
                nets[-1].s.memory()
        assert not copies_of(nets[0])
        assert copies_of(nets[1])
        return nets

    return make


@pytest.mark.kernels
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_bits_are_the_same(precision, experts, threads, pair, packings):
    plain, packed = pair(precision, experts=experts, n_threads=threads)
    for k in range(3):
        assert same([packed.step(k)], [plain.step(k)])
        assert same(packed.state(), plain.state())
        assert assert_copies_are_the_weights(packed) >= 3  # first, and head there and back
    assert len(packings) == len(set(packings))  # once each


@pytest.mark.kernels
def test_other_tapes_read_them_and_keep_them(pair, packings):
    results = []
    for net in pair("highest"):  # of which no level keeps copies by itself
        before = net.s.memory().packed
        short, valid = net.further("short", SHORT), net.further("valid", ROWS, train=False)
        assert net.s.memory().packed == before
        assert len(net.s._compiled[valid.tape].program._copies) == (2 if before else 0)
        results.append([])
        for k in range(4):
            net.step(k, of=short if k % 2 else None)
            results[-1] += [net.step(k, "loss", of=valid), *net.state()]
        assert_copies_are_the_weights(net)
    assert same(*results)
    assert len(packings) == len(set(packings)) == len(copies_of(net))


@pytest.mark.kernels
def test_a_copy_outlives_the_tape_that_kept_it(kept):
    """A tape that trains keeps the copies of evaluation, though it came when the first had gone."""
    net = Net().realize()
    valid = net.further("valid", ROWS, train=False)
    net.step(0)
    net.s._drop(net.main.tape)
    net.step(1, of=net.further("long", 2000))  # so many rows that it makes none itself
    assert valid.tape in net.s._compiled
    assert assert_copies_are_the_weights(net) == 2


@pytest.mark.parametrize("way", ["upload", "feed"])
def test_uploaded_weights_are_packed_again(way, pair, packings):
    results = []
    for net in pair():
        net.step(0)
        if way == "upload":
            net.upload(7)
        else:
            net.s.feed({net.head: np.full((V, H), 0.25, np.float32)})
        results.append([net.step(1), *net.state(), net.step(2)])
    assert same(*results)
    assert len(packings) == 2 * len(set(packings))


def test_a_refused_step_changes_none(pair, packings):
    results = []
    for net in pair():
        net.step(0)
        x = net.main.x
        good = net.s.download(x)
        net.s.upload(x, np.full_like(good, 1e30))
        with pytest.raises(NonFiniteError):
            net.step(1)
        assert_copies_are_the_weights(net)
        net.s.upload(x, good)
        results.append([net.step(1), *net.state()])
    assert same(*results)
    assert len(packings) == len(set(packings))


@pytest.mark.parametrize("combined", [False, True])
def test_micro_batches_and_apply(combined, pair):
    results = []
    for net in pair():
        for k in range(3):
            for _ in range(2):
                net.step(k, "grads")
            if combined:
                net.s.combine(3.0, lambda sums: np.multiply(sums, 1.5, out=sums), 1000)
            net.step(k, "apply")
            assert_copies_are_the_weights(net)
        results.append([net.step(3), *net.state()])
    assert same(*results)


def test_memory_says_what_they_take_before_they_are_there_and_after(kept):
    net = Net("highest")
    promised = net.s.memory()
    net.realize()
    assert net.s.memory() == promised
    net.step(0)
    assert net.s.memory() == promised
    floats = H * D + 2 * V * H  # first has no copy for the product back: x needs no gradient
    assert 4 * floats <= promised.packed


@pytest.mark.parametrize("free, keeps", [(2**40, True), (2**20, False), (None, True)])
def test_they_are_kept_where_they_fit(free, keeps, kept, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    net = Net()
    assert (net.s.memory().packed > 0) == keeps
    assert (net.realize().s.memory().packed > 0) == keeps
    monkeypatch.setattr(memory, "free_memory", lambda: 2**40)
    net.further("short", SHORT)
    assert (net.s.memory().packed > 0) == keeps  # the first tape that trains has decided


def test_they_come_with_the_first_tape_that_trains(kept):
    net = Net(train=False).realize()
    assert net.s.memory().packed == 0


def test_only_products_of_bfloat16_have_them():
    """In medium, where the level multiplies bfloat16; in no other precision."""
    for precision in ("highest", "high"):
        assert Net(precision).s.memory().packed == 0
    form = packing.form("forward", ROWS, H, D, 2)
    assert (Net("medium").s.memory().packed > 0) == (form > 0)
    rule = copies.kept_while_trained
    assert rule(1, 2) and rule(2, 2)
    assert not (rule(0, 2) or rule(6, 0) or rule(4, 1))
