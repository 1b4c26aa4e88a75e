"""ops.numpy: a node that is a function of NumPy, where the program is cut."""

import numpy as np
import pytest
from pages import data_of

from toynn import Session, ops
from toynn.errors import BackendError, ConfigError, ShapeError
from toynn.explorer import page
from toynn.testing import gradcheck

DRAW = np.random.default_rng(5).standard_normal
X, W = DRAW((6, 3)).astype(np.float32), DRAW((3, 2)).astype(np.float32)


def huber(d):
    return np.where(abs(d) < 1, d * d / 2, abs(d) - 0.5)


def huber_backward(dy, d):
    return dy * np.clip(d, -1, 1)


def outer(a, b):
    return a[:, None] * b


def outer_backward(dy, a, b):
    return (dy * b).sum(1), (dy * a[:, None]).sum(0)


def session(forward=huber, backward=huber_backward, shape=(6, 2), block=None, pure=False, **given):
    """A session with a node of NumPy between kernels, realized; and the loss."""
    s = Session(**given)
    x, w = s.input("x", X.shape), s.parameter("w", W)
    d = x @ w
    if block:
        with s.tape.block(block):
            y = ops.numpy(s, forward, backward, [d * 1.5], shape, pure=pure) * d
    else:
        y = ops.numpy(s, forward, backward, [d * 1.5], shape) * d
    s.set_loss(y.sum())
    s.build_backward()
    s.finalize_weights()
    s.realize()
    s.upload(x, X)
    return s


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_node_in_numpy_trains(backend):
    s = session(backend=backend)
    assert gradcheck(s)
    s.run("grads")
    d = X @ W
    dw = X.T @ (huber(1.5 * d) + 1.5 * d * np.clip(1.5 * d, -1, 1))
    np.testing.assert_allclose(s.download(s.grad(s.tape.nodes[0]["w"])), dw, rtol=2e-5, atol=2e-5)
    calls = [calls for calls, _ in s.times()]
    assert len(set(calls[: len(calls)])) <= 2 and all(calls)
    names = [row.split()[2] for row in str(s.tape).splitlines() if "(Python)" in row]
    assert names == ["numpy.huber", "numpy.huber_backward"]
    assert "numpy.huber" in str(s.profile())


def test_several_inputs_of_any_kind():
    """Parameters, integers and scalars among them; a gradient for some alone."""

    def forward(a, b, n, c):
        return a[:, None] * b + c * n[:, None]

    def backward(dy, a, b, n, c):
        return (dy * b).sum(1), (dy * a[:, None]).sum(0), None, (dy * n[:, None]).sum()

    with Session() as s:
        a, b, c = s.parameter("a", W[:, 0]), s.parameter("b", X[:, 0]), s.parameter("c", ())
        n = s.input("n", (3,), "i32")
        y = ops.numpy(s, forward, backward, [a, b, n, c], (3, 6))
        s.set_loss((y.tanh() + ops.numpy(s, outer, outer_backward, [a, b], (3, 6))).sum())
        s.build_backward()
        s.finalize_weights()
        s.realize()
        s.upload(n, [2, 0, -1])
        s.upload(c, 0.25)
        assert gradcheck(s)


def test_without_a_backward_no_gradient_flows():
    with Session() as s:
        w = s.parameter("w", W)
        noise = ops.numpy(s, lambda w: np.full_like(w, 2), None, [w], W.shape)
        s.set_loss((noise * w).sum())
        s.build_backward()
        s.finalize_weights()
        s.realize()
        s.run("grads")
        assert (s.download(s.grad(w)) == 2).all()
        assert "numpy.lambda (Python)" in str(s.tape)


def test_micro_batches_and_parts_of_a_run():
    s = session()
    w = s.tape.nodes[0]["w"]
    s.run("grads")
    once = s.download(s.grad(w))
    s.run("grads")
    np.testing.assert_allclose(s.download(s.grad(w)), once, rtol=1e-6)
    seen = []
    s.run("loss", look=lambda i, done, read: seen.append(i))
    forward = [i for i, node in enumerate(s.tape.nodes) if node.phase == "F"]
    assert seen == sorted(forward * 2)


def broken(d):
    raise KeyError("a name")


KEPT = []


def keeper(d):
    KEPT.append(d[1:])
    return d


REFUSED = {
    "shape": (lambda d: d[1:], ShapeError, r"y must have the shape \(6, 2\); got \(5, 2\)"),
    "scalar": (lambda d: 1.0, ShapeError, r"y must have the shape \(6, 2\); got \(\)"),
    "raises": (broken, BackendError, "ops.numpy broken raised KeyError: 'a name'"),
    "keeps": (keeper, BackendError, r"ops.numpy keeper keeps its array x0: keep a copy, x0.copy"),
    "writes": (lambda d: np.add(d, 1, out=d), BackendError, "raised ValueError: output array is"),
    "complex": (lambda d: d * 1j, BackendError, "raised UFuncTypeError|raised TypeError: Cannot"),
    "none": (lambda d: None, ShapeError, r"y must have the shape \(6, 2\); got \(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_does_not_do_its_work(name):
    forward, kind, message = REFUSED[name]
    s = session(forward)
    with pytest.raises(kind, match=message):
        s.run("grads")
    assert not s.pending
    KEPT.clear()


BACK = {
    "shape": (lambda dy, d: dy[:, 0], ShapeError, r"dx0 must have the shape \(6, 2\); got \(6,\)"),
    "count": (lambda dy, d: (dy, dy), BackendError, "1 inputs need 1 gradients; got 2"),
    "none": (lambda dy, d: None, ShapeError, r"dx0 must have .*\(6, 2\); got \(\)"),
}


@pytest.mark.parametrize("name", BACK)
def test_a_backward_that_does_not_do_its_work(name):
    backward, kind, message = BACK[name]
    s = session(huber, backward)
    s.run("loss")
    with pytest.raises(kind, match=message):
        s.run("grads")


def test_a_wrong_gradient_is_caught():
    with pytest.raises(AssertionError, match=r"gradcheck session w .*: gradient"):
        gradcheck(session(huber, lambda dy, d: dy * d))


def test_the_result_may_be_the_input_itself():
    assert gradcheck(session(lambda d: d, lambda dy, d: dy))


def test_recomputed_blocks_take_pure_functions_alone():
    with pytest.raises(ConfigError, match=r"ops.numpy huber is in a block .*pure=True"):
        session(block="one", checkpointing=True)
    plain, again = session(block="one"), session(block="one", checkpointing=True, pure=True)
    assert sum(n.op.kernel == "numpy.huber" for n in again.tape.nodes) == 2
    found = []
    for s in (plain, again):
        s.run("grads")
        found.append(s.download(s.grad(s.tape.nodes[0]["w"])).tobytes())
    assert found[0] == found[1]


def test_where_it_is_refused():
    with pytest.raises(ConfigError, match=r"huber needs activations in float32, not bf"):
        session(block="one", activations="bfloat16")
    with pytest.raises(ShapeError):
        ops.numpy(Session(), huber, None, [], (-1,))


def test_the_explorer_shows_the_function():
    told = "".join(data_of(page(session(), values=True).html)["files"].values())
    assert "np.where(abs(d)" in told and "dy * np.clip(d, -1, 1)" in told
