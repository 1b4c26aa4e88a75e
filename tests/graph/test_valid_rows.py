"""Fewer valid rows than a tape has room for: as if the tape had been recorded for so many."""

import numpy as np
import pytest

from toynn import Session, backends, ops
from toynn import _kernels as kernels
from toynn.backends import threads
from toynn.backends.protocol import Accumulate, Launch, Place, RowLimit
from toynn.errors import ConfigError, LifecycleError, ShapeError

ROOM, C, V = 150, 8, 11
SIZES = 1, 15, 64, 149, 150
IGNORED = -100
STILL = np.array([0, 0.9, 0.95, 1, 0, 1, 1], np.float32)  # an update that moves no weight


class Model:
    """Every op that takes rows, with room for so many; all weights are trained."""

    def __init__(self, room, *, chunk=None, fixed=False, checkpointing=False, **session):
        self.s = s = Session(seed=1, checkpointing=checkpointing, **session)
        rng = np.random.default_rng(4)
        self.weights = []

        def w(*shape):
            values = rng.standard_normal(shape).astype(np.float32)
            self.weights.append((s.parameter(f"w{len(self.weights)}", shape), values))
            return self.weights[-1][0]

        self.count = None if fixed else s.input("count", (), "i32")
        ids, positions, self.first, labels = self.inputs = [
            s.input(name, (room,), "i32", count=self.count)
            for name in ("ids", "positions", "first", "labels")
        ]
        control, hp = s.input("control", (2,), "i32"), s.input("hp", (7,))
        x = ops.embedding(s, w(V, C), ids)
        frequencies = s.mapped("frequencies", np.array([1, 0.1], np.float32))
        with s.tape.block("blk.0"):
            y = ops.rmsnorm(s, x, w(C))
            q, k, v = (ops.linear(s, y, w(columns, C), w(columns)) for columns in (C, 4, 4))
            q = ops.rope(s, ops.rmsnorm(s, q, w(4)), positions, frequencies, 2, interleaved=True)
            y = ops.attention(
                s, q, k, v, batch=1, n_heads=2, n_kv_heads=1, first=self.first, sinks=w(2)
            )  # fmt: skip
            x = ops.add(s, x, ops.linear(s, y, w(C, C)))
        routes = ops.route(s, ops.softmax(s, ops.linear(s, x, w(5, C))), 2, normalized=True)
        y = ops.silu(s, ops.experts(s, ops.dispatch(s, x, routes), w(5, 6, C), routes, w(5, 6)))
        y = ops.experts(s, ops.weigh(s, y, routes), w(5, C, 6), routes)
        x = ops.add(s, x, ops.combine(s, y, routes))
        y = ops.layernorm(s, ops.dropout(s, x, 0.3, control, 0), w(C), w(C))
        y = ops.linear(s, y, w(20, C), w(20), "gelu_tanh")
        y = ops.swiglu(s, ops.silu(s, y), ops.gelu(s, y))
        x = ops.add(s, ops.scale(s, x, 0.5), ops.linear(s, y, w(C, 20)))
        rows, picked = ops.valid_rows(s, labels, V)
        x = ops.layernorm(s, ops.embedding(s, x, rows), w(C), w(C))
        if chunk:
            loss = ops.linear_cross_entropy(s, x, w(V, C), picked, w(V), chunk)
        else:
            loss = ops.cross_entropy(s, ops.linear(s, x, w(V, C), w(V)), picked)
        s.set_loss(loss)
        s.build_backward()
        self.gradients = [s.grad(tensor) for tensor, _ in self.weights]
        for (tensor, _), gradient in zip(self.weights, self.gradients, strict=True):
            s.opt_step_adamw(tensor, gradient, hp)
        s.finalize_weights()
        s.realize()
        for tensor, values in self.weights:
            s.upload(tensor, values)
        s.upload(control, [3, 1])
        s.upload(hp, STILL)

    def run(self, batch, to="grads"):
        """Loss and gradients of a batch, which may be shorter than the room."""
        n = batch.shape[1]
        if self.count is not None:
            self.s.upload(self.count, n)
        for tensor, values in zip(self.inputs, batch, strict=True):
            filler = np.zeros(tensor.shape[0] - n, int)
            if tensor is self.first:
                filler = np.arange(n, tensor.shape[0])
            self.s.upload(tensor, np.concatenate([values, filler]))
        self.s.reset(moments=False)
        self.s.run(to)
        loss = self.s.download(self.s.tape.loss)
        return [loss] + [self.s.download(g) for g in self.gradients if to == "grads"]


def batch(n):
    """Ids, positions, first rows and labels (4, n) of two segments; some rows do not count."""
    rng = np.random.default_rng(n)
    ids, labels = rng.integers(0, V, (2, n))
    labels[rng.permutation(n)[: n // 2]] = IGNORED
    first = np.where(np.arange(n) < n // 3, 0, n // 3)
    return np.array([ids, np.arange(n) - first, first, labels])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "options",
    [{}, {"chunk": 64}, {"checkpointing": True}, {"matmul_precision": "medium"}, {"n_threads": 2}],
    ids=lambda options: "-".join(options) or "plain",
)
def test_fewer_rows_give_the_bits_of_a_tape_for_so_many(n, options):
    room, exact = Model(ROOM, **options), Model(n, **(options | {"fixed": True}))
    room.run(batch(ROOM))  # what is stored there then is not read
    for got, expected in zip(room.run(batch(n)), exact.run(batch(n)), strict=True):
        if options.get("chunk") and n > 64:  # which rows a chunk has depends on the room
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        else:
            assert got.tobytes() == expected.tobytes()
    assert room.run(batch(n), "loss")[0] == pytest.approx(float(exact.run(batch(n))[0]), rel=1e-6)


def test_only_live_rows_are_computed():
    """Kernels are told so: where one row is valid, no NaN of another is read."""
    model = Model(ROOM)
    one = batch(15)
    expected = [value.tobytes() for value in model.run(one)]
    arena = model.s._compiled[model.s.tape].arena
    arena.view(0, (arena.nbytes // 4,), np.dtype(np.float32)).fill(np.nan)
    model.s.upload(model.s.tape.inputs["control"], [3, 1])
    model.s.upload(model.s.tape.inputs["hp"], STILL)
    assert [value.tobytes() for value in model.run(one)] == expected


def test_a_count_that_does_not_fit_is_refused():
    model = Model(ROOM)
    for count in (0, ROOM + 1, -1):
        with pytest.raises(
            ShapeError, match=rf"count: must be a count of 1 to 150 rows; got {count}"
        ):
            model.s.upload(model.count, count)


def test_a_count_must_be_known():
    s = Session()
    x = s.input("x", (4, 2), count=s.input("count", (), "i32"))
    ops.silu(s, x)
    s.finalize_weights()
    s.realize()
    s.upload(x, np.zeros((4, 2)))
    with pytest.raises(LifecycleError, match=r"before upload\(count\)"):
        s.run("loss")


def test_what_computes_all_rows_refuses_fewer():
    s = Session()
    count = s.input("count", (), "i32")
    with pytest.raises(ShapeError, match="input x: needs rows, and a count"):
        s.input("x", (4, 2), count=s.input("floats", ()))
    x = s.input("y", (4, 2), count=count)
    with pytest.raises(
        ConfigError, match=r"class_token.forward: it computes all rows, but not all"
    ):
        ops.class_token(s, x, s.input("cls", (2,)), s.input("pos", (3, 2)))
    with pytest.raises(ConfigError, match="attention: a count may limit the rows of one sequence"):
        ops.attention(s, x, x, x, batch=2, n_heads=1)


@pytest.mark.parametrize("precision", [0, 1, 2])
@pytest.mark.parametrize("shape", [(1024, 768, 384), (512, 2304, 768), (512, 768, 3072)])
@pytest.mark.parametrize("entry", ["forward", "backward_input", "backward_weight"])
def test_scratch_memory_serves_any_fewer_rows(entry, shape, precision, monkeypatch):
    """A product of fewer rows may be cut otherwise, and need more."""
    monkeypatch.setattr(threads, "_chosen", 2)
    rows, N, K = shape
    sizes = {"N": N, "K": K, "precision": precision, "activation": 0, "type": 0}
    valid = RowLimit(Place("inputs", 0), "M", 0, rows)
    flops = 2 * rows * N * K
    launch = Launch(
        "F", f"matmul.{entry}", {}, {"M": rows, **sizes}, {}, Accumulate.NEVER, flops, 0, valid
    )
    product = getattr(kernels.matmul, entry)
    needed = [product.workspace({"M": m, **sizes}, n_threads=2) for m in range(1, rows + 1)]
    asked, own = [], kernels.entry.scratch_bytes
    monkeypatch.setattr(kernels.entry, "scratch_bytes", lambda *a: asked.append(a) or own(*a))
    assert backends.get("cpu").scratch([launch]) >= max(needed)
    assert len(asked) <= 1, "rows are counted in C: long contexts have many"
