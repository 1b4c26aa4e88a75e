"""The names with which a call is recorded, the shapes that fit a signature, shared memory."""

import numpy as np
import pytest

import toynn
import toynn._kernels as kernels
from toynn import ops
from toynn._kernels.base.signature import Signature, Unsolved
from toynn.errors import ConfigError


@pytest.mark.parametrize(
    ("tensors", "sizes", "message"),
    [
        ({"w": None}, {}, r"needs w; its signature is y\[N C\]; r\[N\] <- "),
        ({"r": None}, {}, "needs r; its signature"),
        ({"z": None}, {}, "has no z; its signature"),
        ({}, {"epsilon": 1e-5}, "has no epsilon; its signature"),
    ],
)
def test_a_name_that_does_not_fit_is_refused_when_recorded(tensors, sizes, message):
    s = toynn.Session()
    x, w = s.input("x", (3, 4)), s.parameter("w", (4,))
    with pytest.raises(ConfigError, match=f"^recording rmsnorm.forward: {message}"):
        s.tape.record(ops.rows.RMSNORM, {"x": x, "w": w} | tensors, **sizes)
    assert not s.tape.nodes


def test_sizes_follow_from_shapes():
    attention = Signature.parse("o[B*T H*D]; lse[B H T] <- q[B*T H*D] k[B*T KV*D] | window=0")
    shapes = {"o": (6, 8), "lse": (2, 2, 3), "q": (6, 8), "k": (6, 4)}
    assert attention.solve(shapes, {}) == {"B": 2, "T": 3, "H": 2, "D": 4, "KV": 1}
    with pytest.raises(
        Unsolved, match=r"^k\[B\*T KV\*D\] needs shape \(6, KV\*D\) .* got k \(6, 3\)$"
    ):
        attention.solve(shapes | {"k": (6, 3)}, {})
    with pytest.raises(Unsolved, match=r"^no array shows B T: give it by name$"):
        Signature.parse("y[B*T] <- x[B*T]").solve({"y": (6,), "x": (6,)}, {})


def test_outputs_share_memory_only_where_the_signature_says():
    x, y = np.ones((2, 8), np.float32)
    kernels.silu.forward(x, x)  # y[n]=x
    with pytest.raises(ValueError, match="y is written, and shares memory with a; it may be"):
        kernels.elementwise.add(y[:4], y[2:6], x[:4])


@pytest.mark.parametrize("N, K", [(2**31, 2**31), (2**40, 2**40), (2**56, 1), (-3, 4)])
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("prepacked.nbytes", lambda N, K: kernels.prepacked.nbytes("forward", 0, N, K)),
        ("prepacked.form", lambda N, K: kernels.prepacked.form("forward", 1, N, K, 0)),
        ("grad_norm.tiles", lambda N, K: kernels.grad_norm.tiles(N, K)),
        (
            "matmul.forward",
            lambda N, K: kernels.matmul.forward.workspace(
                {"M": 1, "N": N, "K": K, "precision": 0, "activation": 0, "type": 0}
            ),
        ),
    ],
    ids=["nbytes", "form", "tiles", "workspace"],
)
def test_sizes_whose_bytes_cannot_be_counted_are_refused(name, count, N, K):
    needed = r"needs sizes from 0 on and at most 2\^56 elements; got \("
    with pytest.raises(ValueError, match=rf"^{name}: [a-z ]+ {needed}"):
        count(N, K)


def test_solved_sizes_are_remembered_by_shape_and_by_what_is_given():
    """Sizes of one call must not serve another that differs in a shape or in a size given."""
    x, w = np.ones((2, 4), np.float32), np.ones(4, np.float32)
    for rows in (2, 1, 2):
        y, r = np.zeros((rows, 4), np.float32), np.zeros(rows, np.float32)
        kernels.rmsnorm.forward(y, r, x[:rows], w)
        assert y.all() and r.all()
    with pytest.raises(ValueError, match=r"y\[N C\] needs shape \(2, 4\)"):
        kernels.rmsnorm.forward(y[:1], r, x, w)
    q, first = np.ones((6, 8), np.float32), np.zeros(6, np.int32)
    resolve = kernels.attention.forward.resolve
    for B, T in ((1, 6), (2, 3)):
        lse = np.zeros((B, 2, T), np.float32)
        for window in (0, 2, 0):
            _, sizes, options = resolve(q, lse, q, q, q, first, window=window)
            assert (sizes["B"], sizes["T"], sizes["window"]) == (B, T, window)
            assert options["scale"] == 0.5
            sizes.clear()  # they are the caller's


def test_a_default_may_be_a_formula_of_sizes():
    signature = Signature.parse("y[N D] <- x[N D] | n=2 rest=N-n float scale=1/sqrt(D)")
    sizes = {"N": 6, "D": 16, "n": 2}
    assert [signature.default(name, sizes) for name in ("n", "rest", "scale")] == [2, 4, 0.25]
    with pytest.raises(ZeroDivisionError):
        signature.default("scale", {"D": 0})
    with pytest.raises(NameError):
        signature.default("rest", {})
