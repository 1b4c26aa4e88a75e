"""Operators on tensors of a session, by NumPy's rules; gradients of inputs; and what is refused."""

import gc

import numpy as np
import pytest

from toynn import Session, ops
from toynn.errors import ConfigError, LifecycleError, ShapeError
from toynn.testing import gradcheck

DRAW = np.random.default_rng(3).standard_normal
X, Y, V = (DRAW(shape).astype(np.float32) for shape in ((2, 3, 4), (3, 1), (4,)))


def computed(build, backend="cpu", n_threads=None):
    """Return what a formula of tensors computes from X, Y and V."""
    with Session(backend, n_threads=n_threads) as s:
        x, y, v = (s.input(name, a.shape) for name, a in zip("xyv", (X, Y, V), strict=True))
        out = build(x, y, v, s)
        s.output(out)
        s.finalize_weights()
        s.realize()
        for tensor, a in zip((x, y, v), (X, Y, V), strict=True):
            s.upload(tensor, a)
        s.run("loss")
        return s.download(out)


#: Formulas that NumPy's arrays and tensors both understand.
ALIKE = [
    lambda x, y, v: x + y * v - 2 / (3 + v * v) - x / y,
    lambda x, y, v: (1 - x) ** 2 + (-y) ** 3 - abs(v) + x / 4 + 0.5 * y,
    lambda x, y, v: x[1, :, 1:3] + x[0, -1, 3] + y[2:] - v[1:3],
    lambda x, y, v: x[..., 2:] * 1.0,
    lambda x, y, v: (
        (x * y).sum() + x.sum((0, 2)).mean() + (v.reshape(2, 2) @ v.reshape(2, -1)).sum()
    ),
    lambda x, y, v: (
        x.sum(1, keepdims=True) + x.mean((0, 1)) - x.mean(-1, keepdims=True).sum((0, 2)).mean()
    ),
    lambda x, y, v: x.transpose(2, 0, 1) + x.reshape(4, 2, 3) + x.transpose().reshape(4, 2, 3),
    lambda x, y, v: x @ v + (x @ x.transpose(0, 2, 1)).sum(1) + (y.transpose() @ x)[:, 0, 1:],
    lambda x, y, v: v @ v.reshape(4, 1) + v @ v,
    lambda x, y, v: x.transpose(1, 0, 2).reshape(3, -1)[1:, 2:6] - y.reshape(1, 3).transpose()[1:],
]


@pytest.mark.parametrize("index", range(len(ALIKE)))
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_formulas_mean_what_they_mean_to_numpy(index, backend):
    build = ALIKE[index]
    expected = build(*(a.astype(float) for a in (X, Y, V)))
    got = computed(lambda x, y, v, s: build(x, y, v), backend)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)


def test_functions_that_numpy_spells_otherwise():
    def build(x, y, v, s):
        z = (x * x).sqrt() + v.exp().log() + y.tanh() + x.relu()
        return ops.concat(s, [z, z[:, :1] ** 1.5], axis=1)

    z = np.abs(X) + V + np.tanh(Y) + np.maximum(X, 0)
    with np.errstate(invalid="ignore"):  # powers of numbers below 0
        expected = np.concatenate([z, z[:, :1] ** 1.5], axis=1)
    np.testing.assert_allclose(computed(build), expected, rtol=1e-5, atol=1e-6)


def test_where_chooses_and_does_not_multiply():
    with Session() as s:
        mask, v = s.input("mask", (2, 2), "i32"), s.input("v", (2,))
        out = s.output(ops.where(s, mask, v.log(), 0) + ops.where(s, mask, 0, v))
        s.finalize_weights()
        s.realize()
        s.upload(mask, [[1, 0], [7, 0]])
        s.upload(v, [np.e, -1])
        s.run("loss")
        np.testing.assert_allclose(s.download(out), [[1, -1], [1, -1]], rtol=1e-6)


def test_any_number_of_threads_gives_the_same_bits():
    def build(x, y, v, s):
        wide = (x.reshape(24, 1) @ x.reshape(1, 24)).reshape(24, 24, 1) * v
        return (wide.sum(1).exp().mean(0) + wide.transpose(2, 1, 0).mean((1, 2))).tanh()

    one = computed(build, n_threads=1)
    assert all(computed(build, n_threads=n).tobytes() == one.tobytes() for n in (2, 5))


def test_a_reshaped_tensor_needs_no_node_and_no_memory():
    with Session() as s:
        x = s.input("x", (2, 6))
        y = x.reshape(3, 4).reshape(-1)
        assert y.shape == (12,) and not s.tape.nodes
        assert y.reshape(2, 6) is x
        w = s.parameter("w", DRAW((3, 2)))
        loss = ((x.reshape(4, 3) @ w.reshape(2, 3).transpose() * w.reshape(6)[:2]) ** 2).mean()
        s.set_loss(loss.reshape(1, 1))
        s.build_backward()
        s.finalize_weights()
        s.realize()
        s.upload(x, DRAW((2, 6)))
        assert gradcheck(s)
        assert s.download(loss.reshape(1, 1)).shape == (1, 1)


def test_the_gradient_of_an_input():
    """The loss is sum((x w)^2), so its gradient with respect to x is 2 x w^2."""
    with Session() as s:
        x, w = s.input("x", (3, 2)), s.parameter("w", V[:2])
        y = x * w
        loss = (y**2).sum()
        d_x, d_y = s.gradient_of(x.reshape(6)), s.gradient_of(y)
        assert s.gradient_of(x) is d_x
        s.set_loss(loss)
        s.build_backward()
        s.finalize_weights()
        s.realize()
        s.upload(x, Y.reshape(3, 1) * [1, 2])
        s.run("grads", weight=3.0)
        values = Y.reshape(3, 1) * [1, 2]
        np.testing.assert_allclose(s.download(d_x), 2 * values * V[:2] ** 2, rtol=1e-6)
        np.testing.assert_allclose(s.download(d_y), 2 * values * V[:2], rtol=1e-6)
        assert s.grad(x) is d_x
        with pytest.raises(LifecycleError, match=r"gradient_of\(\) after realize"):
            s.gradient_of(x)


def test_an_input_alone_has_a_gradient():
    """No parameter: the gradient of the picture that a frozen model sees."""
    with Session() as s:
        x, w = s.input("x", (4,)), s.constant("w", V)
        d_x = s.gradient_of(x)
        s.set_loss((x * w).tanh().sum())
        s.build_backward()
        s.finalize_weights()
        s.realize()
        s.upload(x, V)
        s.run("grads")
        np.testing.assert_allclose(s.download(d_x), V / np.cosh(V**2) ** 2, rtol=1e-5)


def test_gradients_that_cannot_be():
    s = Session()
    x, w, n = s.input("x", (2,)), s.parameter("w", (2,)), s.input("n", (2,), "i32")
    for tensor in (w, n, Session().input("x", (2,))):
        with pytest.raises(
            ConfigError, match=f"needs an input or activation .*; got {tensor!r}"[:20]
        ):
            s.gradient_of(tensor)
    s.set_loss((w * w).sum())
    s.gradient_of(x)
    with pytest.raises(ConfigError, match="gradient_of: the loss does not depend on x"):
        s.build_backward()
    s = Session()
    x, w = s.input("x", (2,)), s.parameter("w", (2,))
    s.set_loss((w * x).sum())
    s.build_backward()
    with pytest.raises(LifecycleError, match=r"gradient_of\(x\) after build_backward\(\): ask"):
        s.gradient_of(x)
    with pytest.raises(ConfigError, match=r"x is an input: call gradient_of\(\) before build"):
        s.grad(x)


REFUSED = {
    "broadcast": (lambda x, s: x + s.input("y", (2, 4)), r"add: .*; got x \(2, 3\), y \(2, 4\)"),
    "axis": (lambda x, s: x.sum(2), r"sum: needs axes from -2 to 1, each once, not 2; .*\(2, 3\)"),
    "twice": (lambda x, s: x.mean((0, -2)), r"mean: needs axes .* not \(0, -2\)"),
    "reshape": (lambda x, s: x.reshape(4, 2), r"a shape of 6 elements, not \(4, 2\); got x \(2, 3"),
    "guess": (lambda x, s: x.reshape(-1, 4), r"a shape of 6 elements, not \(-1, 4\)"),
    "axes": (lambda x, s: x.transpose(0, 0), r"each of 2 axes, not \(0, 0\)"),
    "part": (lambda x, s: x[2], r"part: needs slices .* not 2; got x \(2, 3\)"),
    "nothing": (lambda x, s: x[1:1], r"part: needs slices .*slice\(1, 1, None\)"),
    "step": (lambda x, s: x[:, ::2], r"part: needs slices with step 1"),
    "deep": (lambda x, s: x[0, 0, 0], r"part: needs slices"),
    "by-mask": (lambda x, s: x[s.input("i", (2,), "i32")], r"part: needs slices"),
    "matmul": (lambda x, s: x @ x, r"matmul: needs a .* got a \(2, 3\), b \(2, 3\)"),
    "batches": (
        lambda x, s: s.input("a", (2, 1, 3)) @ s.input("b", (3, 3, 2)),
        r"matmul: needs batches that broadcast; got a \(2, 1, 3\), b \(3, 3, 2\)",
    ),
    "concat": (
        lambda x, s: ops.concat(s, [x, x[:, 1:]]),
        r"equal shapes but for axis 0; got first",
    ),
    "where": (
        lambda x, s: ops.where(s, s.input("m", (3,), "i32"), x, 0),
        r"where: needs shapes that broadcast to \(3,\).* got x \(2, 3\)",
    ),
    "mask": (lambda x, s: ops.where(s, x, x, 0), r"pointwise.masked: mask must be i32; got f32"),
    "i32": (lambda x, s: x + s.input("i", (2, 3), "i32"), r"add: b must be f32; got i32"),
    "zero": (lambda x, s: x / 0, r"div: needs a number that is not 0"),
    "loss": (lambda x, s: s.set_loss(x * x), r"the loss is a scalar; got mul.0 \(2, 3\): take its"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_shapes_that_are_refused(name):
    build, message = REFUSED[name]
    s = Session()
    with pytest.raises(ShapeError, match=message):
        build(s.input("x", (2, 3)), s)


def test_operands_that_are_refused():
    s, other = Session(), Session()
    x, y = s.input("x", (2, 3)), other.input("y", (2, 3))
    with pytest.raises(ConfigError, match=r"pointwise.mul: y belongs to another session"):
        x * y
    array = r"add: needs tensors or numbers; got ndarray: an array becomes a tensor by s.constant"
    for build in (lambda: x + X[0], lambda: X[0] + x):
        with pytest.raises(ConfigError, match=array):
            build()
    assert (np.float32(2) * x).shape == (x * np.float32(2)).shape == (2, 3)
    with pytest.raises(ConfigError, match=r"power: the exponent is a number; for a tensor p"):
        x**x
    with pytest.raises(ConfigError, match="where: needs a tensor; got 1"):
        ops.where(s, s.input("m", (2, 3), "i32"), x, 1)
    with pytest.raises(TypeError):
        iter(x)
    rows = s.input("rows", (2, 3), count=s.input("n", (), "i32"))
    assert (rows * 2 + rows)[:, 1:].root.valid is not None
    for build in (rows.sum, rows.transpose, lambda: rows.reshape(6), lambda: rows[1:]):
        with pytest.raises(ConfigError, match="rows"):
            build()


def test_a_tensor_keeps_no_session_alive():
    s = Session()
    x = s.input("x", (2, 3))
    del s
    gc.collect()
    with pytest.raises(LifecycleError, match="add: the session of x no longer exists"):
        x + 1


def test_a_logarithm_of_a_number_below_zero_is_nan():
    got = computed(lambda x, y, v, s: ops.concat(s, [(v - v - 1).log(), (v - v).log()]))
    assert np.isnan(got[:4]).all() and (got[4:] == -np.inf).all()
