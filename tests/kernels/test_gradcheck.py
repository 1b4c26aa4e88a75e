"""gradcheck itself: what it passes, and that it catches what is wrong."""

from dataclasses import replace

import numpy as np
import pytest
from tapes import Net, used_twice

from toynn import ops
from toynn.ops import arithmetic, elementwise
from toynn.testing import gradcheck
from toynn.testing.cases import CASES


@pytest.mark.parametrize("op", [op for op, case in CASES.items() if case.function])
def test_op(op):
    assert gradcheck(op)


# -- What must be caught -------------------------------------------------------------------------


def test_a_wrong_gradient_rule_is_caught(monkeypatch):
    def wrong(back, node, dy):
        back.emit(ops.SCALE, {"y": node["x"]}, {"x": dy}, node, alpha=1.01)

    monkeypatch.setattr(elementwise, "SCALE", replace(ops.SCALE, gradient=wrong))
    net = Net()
    s = net.realize(net.loss(ops.scale(net.s, net.activation(), 1.0)))
    with pytest.raises(AssertionError, match=r"gradcheck session w\d \(\d, \d\): gradient "):
        gradcheck(s)


def test_a_forgotten_contribution_is_caught(monkeypatch):
    def forgetful(back, node, dy):
        back.contribute(node.inputs[0], dy)

    monkeypatch.setattr(arithmetic, "ADD", replace(ops.ADD, gradient=forgetful))
    net = Net()
    s = net.realize(net.loss(used_twice(net)))
    with pytest.raises(AssertionError, match="gradcheck session"):
        gradcheck(s)


def test_a_wrong_reference_is_caught(monkeypatch):
    case = CASES["silu"]

    def wrong(inputs, dy, **sizes):
        return {"dx": case.gradients(inputs, dy, **sizes)["dx"] * 1.01}

    monkeypatch.setitem(CASES, "silu", replace(case, gradients=wrong))
    with pytest.raises(AssertionError, match=r"gradcheck silu .* x \(\d+,\): gradient "):
        gradcheck("silu")


def test_a_wrong_kernel_is_caught(monkeypatch):
    from toynn import _kernels as kernels

    monkeypatch.setattr(kernels, "silu", kernels.gelu)
    with pytest.raises(AssertionError, match="of the kernel writes dx wrong"):
        gradcheck("silu")


# -- Functions -----------------------------------------------------------------------------------


def product(a, b, ids):
    """y = sin(a) b[ids], ids integers."""

    def backward(dy):
        db = np.zeros_like(b)
        np.add.at(db, ids, dy * np.sin(a))
        return dy * np.cos(a) * b[ids], db, None

    return np.sin(a) * b[ids], backward


def test_function():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(20).astype(np.float32)
    assert gradcheck(product, (a, rng.standard_normal(4), rng.integers(0, 4, 20)), samples=None)


def test_function_of_one_array_to_a_scalar():
    assert gradcheck(lambda x: ((x**3).sum(), lambda dy: dy * 3 * x**2), [np.arange(3.0)])


def test_a_wrong_element_is_found():
    def function(x):
        gradient = 2 * x
        gradient[1, 2] += 0.01
        return (x**2).sum(), lambda dy: dy * gradient

    x = np.ones((2, 3))
    with pytest.raises(AssertionError, match=r"gradcheck input 0 \(1, 2\): gradient "):
        gradcheck(function, [x])
    assert gradcheck(function, [x], rtol=0.1)


def test_a_gradient_that_is_nan_is_found():
    with pytest.raises(AssertionError, match="gradient nan"):
        gradcheck(lambda x: (x.sum(), lambda dy: dy * np.array([1, np.nan])), [np.ones(2)])


def test_a_gradient_of_another_shape_is_found():
    with pytest.raises(AssertionError, match=r"shape \(2,\), but its gradient has \(1,\)"):
        gradcheck(lambda x: (x.sum(), lambda dy: dy * np.ones(1)), [np.ones(2)])


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(ValueError, match="no op is called relu"):
        gradcheck("relu")
    with pytest.raises(ValueError, match="adamw has no gradient"):
        gradcheck("adamw")
    with pytest.raises(TypeError, match="needs inputs"):
        gradcheck(product)
    with pytest.raises(ValueError, match="1 inputs need 1 gradients; got 2"):
        gradcheck(lambda x: (x, lambda dy: (dy, dy)), [np.ones(2)])
