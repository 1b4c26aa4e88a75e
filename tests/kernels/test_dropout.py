"""Dropout: the statistics of its masks, and that forward and backward have the same one."""

import numpy as np
import pytest

import toynn._kernels as kernels
from toynn import Session, ops
from toynn._kernels import dropout
from toynn.errors import ConfigError, ShapeError

N = 2**18


def mask(step=0, p=0.25, n=N, seed=1, site=0):
    """Which elements are kept."""
    y = np.empty(n, np.float32)
    control = np.array([step, 1], np.int32)
    dropout.forward(y, np.ones(n, np.float32), control, p=p, seed=seed, site=site)
    assert set(np.unique(y)) <= {np.float32(0), np.float32(1 / (1 - np.float32(p)))}
    return y > 0


@pytest.mark.parametrize("p", [0.01, 0.1, 0.25, 0.5, 0.9, 0.999])
def test_as_many_are_dropped_as_should_be(p):
    kept = mask(p=p)
    sigma = np.sqrt(p * (1 - p))
    for part in (
        kept,
        kept.reshape(-1, 32)[:, :16],
        kept[::2],
        kept[1::2],
        kept[: N // 16],
        kept[-N // 16 :],
    ):
        assert abs(part.mean() - (1 - p)) < 4.5 * sigma / np.sqrt(part.size)


def test_masks_are_independent():
    """Of neighbours, of the halves of a hash, and of masks of another step, site or seed."""
    kept = mask()
    others = [mask(step=1), mask(site=1), mask(seed=2), mask(seed=0), mask(step=2**31 - 1)]
    others += [np.roll(kept, k) for k in (1, 2, 3, 16, 4096)]
    for other in others:
        both = (kept & other).mean()
        assert abs(both - 0.75**2) < 4.5 * np.sqrt(0.75**2 * (1 - 0.75**2) / N)
    assert np.array_equal(kept, mask())


def test_elements_of_a_mask_do_not_depend_on_how_many_there_are():
    assert np.array_equal(mask(n=4099), mask()[:4099])


def test_every_isa_level_has_the_same_mask():
    x = np.random.default_rng(0).standard_normal(9001).astype(np.float32)
    control, bits = np.array([5, 1], np.int32), set()
    for level in set(kernels.built_levels()) & set(kernels.supported_levels()):
        y = np.empty_like(x)
        kernels.load("dropout", level).forward(y, x, control, p=0.1, seed=3, site=2)
        bits.add(y.tobytes())
    assert len(bits) == 1


def recorded(p=0.4, **session):
    """A parameter, dropped at two sites; y is kept, and the loss has a gradient everywhere."""
    s = Session(**session)
    w, control = s.parameter("w", (64, 32)), s.input("dropout", (2,), "i32")
    first = ops.dropout(s, w, p, control, 0)
    y = s.output(ops.add(s, first, ops.dropout(s, w, p, control, 1)))
    s.set_loss(ops.cross_entropy(s, y, s.input("labels", (64,), "i32")))
    s.build_backward()
    s.finalize_weights()
    s.upload(w, np.random.default_rng(1).standard_normal(w.shape))
    s.realize()
    s.upload(s.tape.inputs["labels"], np.arange(64) % 32)
    return s, w, y, control


def run(s, w, y, control, step, active=1):
    s.upload(control, [step, active])
    s.run("grads")
    values, gradient = s.download(y), s.download(s.grad(w))
    s.reset(moments=False)
    return values, gradient


def test_forward_and_backward_have_the_same_mask():
    s, w, y, control = recorded(seed=5)
    values, gradient = run(s, w, y, control, 7)
    kept = [mask(7, 0.4, w.size, seed=5, site=site).reshape(w.shape) for site in (0, 1)]
    factor = np.sum(kept, axis=0) / 0.6
    np.testing.assert_allclose(values, s.download(w) * factor, rtol=1e-5, atol=1e-6)
    probabilities = np.exp(values.astype(np.float64))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    probabilities[np.arange(64), np.arange(64) % 32] -= 1
    np.testing.assert_allclose(gradient, probabilities * factor / 64, rtol=1e-4, atol=1e-7)


def test_the_step_and_the_seed_choose_the_mask_and_the_switch_turns_it_off():
    net = recorded(seed=5)
    first, again, other = run(*net, 7), run(*net, 7), run(*net, 8)
    for a, b, c in zip(first, again, other, strict=True):
        assert a.tobytes() == b.tobytes() != c.tobytes()
    for seed in (6, -5, 2**63 + 5, 10**30):
        assert not np.array_equal(run(*recorded(seed=seed), 7)[0], first[0]) or seed == 2**63 + 5
    off = run(*net, 7, active=0)
    plain = recorded(p=0)
    assert not any(node.op.kernel.startswith("dropout") for node in plain[0].tape.nodes)
    for a, b in zip(off, run(*plain[:3], plain[3], 7), strict=True):
        assert a.tobytes() == b.tobytes()


def test_wrong_arguments():
    s = Session()
    x, control = s.parameter("w", (2, 3)), s.input("dropout", (2,), "i32")
    for p in (-0.1, 1, 1.5, float("nan"), 1 - 1e-12):
        with pytest.raises(ConfigError, match=r"p must be a number in \[0, 1\)"):
            ops.dropout(s, x, p, control, 0)
    with pytest.raises(ConfigError, match="site"):
        ops.dropout(s, x, 0.5, control, -1)
    for wrong in (s.input("three", (3,), "i32"), s.input("float", (2,)), x):
        with pytest.raises(ShapeError, match=r"control, an i32 input \(2,\)"):
            ops.dropout(s, x, 0.5, wrong, 0)
    with pytest.raises(ValueError, match=r"dropout.forward: needs p in \[0, 1\)"):
        dropout.forward(*np.zeros((2, 3), np.float32), np.zeros(2, np.int32), p=1.0)


@pytest.mark.parametrize("values", [(-1, 1), (0, 2), (0, -1)])
def test_a_bad_step_or_switch_is_refused(values):
    s, _, _, control = recorded()
    with pytest.raises(ConfigError, match=r"dropout: needs \(step >= 0, 0 or 1\); got"):
        s.upload(control, values)
