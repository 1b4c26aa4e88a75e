"""What the case table cannot say of attention: fused arrays, refusals, extreme scores."""

import numpy as np
import pytest

from toynn._kernels import attention

pytestmark = pytest.mark.kernels

B, T, H, D = 2, 70, 3, 20


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def run(q, k, v, do, dq, dk, dv, **options):
    o, lse, delta = np.empty_like(do), np.empty((B, H, T), np.float32), np.empty((B, H, T), "f")
    attention.forward(o, lse, q, k, v, **options)
    attention.backward(dq, dk, dv, delta, do, o, lse, q, k, v, **options)
    return o


def test_columns_of_one_array():
    qkv, do = normal(B * T, 3 * H * D), normal(B * T, H * D)
    dqkv = np.full_like(qkv, np.nan)
    o = run(*np.split(qkv, 3, axis=1), do, *np.split(dqkv, 3, axis=1), n_threads=2)
    apart = [np.ascontiguousarray(x) for x in np.split(qkv, 3, axis=1)]
    gradients = [np.empty_like(x) for x in apart]
    assert o.tobytes() == run(*apart, do, *gradients).tobytes()
    assert dqkv.tobytes() == np.hstack(gradients).tobytes()


@pytest.mark.parametrize("scale", [0.0, -0.5, 300.0])
def test_any_scale(scale):
    """Large scores do not overflow: the largest weight of each row is exp(0)."""
    q, k, v, do = normal(4, B * T, H * D)
    gradients = [np.empty_like(q) for _ in range(3)]
    o = run(q, k, v, do, *gradients, scale=scale)
    assert np.isfinite(o).all()
    assert all(np.isfinite(x).all() for x in gradients)
    np.testing.assert_allclose(o[0], v[0], rtol=1e-6)  # the first query sees one key
    if scale == 0:
        np.testing.assert_allclose(o[T - 1], v[:T].mean(axis=0), atol=1e-6)


def test_refusals_say_what_was_needed():
    q, k, v, o = normal(4, B * T, H * D)
    lse = normal(B, H, T)
    with pytest.raises(ValueError, match=r"needs q \(140, 60\)"):
        attention.forward(o, lse, q[1:], k, v)
    with pytest.raises(ValueError, match="KV that divides H"):
        attention.forward(o, lse, q, k[:, : 2 * D], v[:, : 2 * D])
    with pytest.raises(ValueError, match="columns of q, k, v or a gradient are not C-contiguous"):
        attention.forward(o, lse, q, np.asfortranarray(k), v)
    with pytest.raises(ValueError, match="dq, dk, dv need the row strides of q, k, v"):
        wide = normal(B * T, 2 * H * D)
        attention.backward(wide[:, : H * D], k, v, lse, o, o, lse, q, k, v)
