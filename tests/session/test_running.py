"""What a run computes: up to the loss, gradients of micro-batches, an update, or none."""

import numpy as np
import pytest
from tiny import N, Tiny

from toynn.errors import (
    LifecycleError,
    NonFiniteError,
)


def test_run_to_loss_touches_no_weight_gradient_or_moment():
    tiny = Tiny()
    tiny.s.run()
    kept = [*tiny.state(), tiny.s.download(tiny.s.grad(tiny.w))]
    tiny.feed()
    tiny.s.run("loss")
    now = [*tiny.state(), tiny.s.download(tiny.s.grad(tiny.w))]
    assert all(np.array_equal(a, b) for a, b in zip(kept, now, strict=True))


def test_micro_batches_add_weighted_gradients():
    tiny = Tiny()
    gradients = []
    for weight in (3.0, 1.0):
        tiny.feed()
        tiny.s.reset(moments=False)
        tiny.s.run("grads")
        gradients.append((weight, tiny.s.download(tiny.s.grad(tiny.wte))))
    mean = sum(weight * g for weight, g in gradients) / 4

    tiny = Tiny()
    for weight in (3.0, 1.0):
        tiny.feed()
        tiny.s.run("grads", weight=weight)
    np.testing.assert_allclose(tiny.s.download(tiny.s.grad(tiny.wte)), mean, rtol=1e-5, atol=1e-7)


def test_an_update_apart_has_the_bits_of_one_in_a_run():
    tiny, apart = Tiny(), Tiny()
    with pytest.raises(LifecycleError, match=r"before run\(to='grads'\)"):
        apart.s.run("apply")
    for each in (tiny, apart):
        each.feed()
        each.s.run("grads", weight=3.0)
        each.feed()
    tiny.s.run("update", weight=2.0)
    apart.s.run("grads", weight=2.0)
    apart.s.run("apply")
    assert not apart.s.pending
    assert all(np.array_equal(a, b) for a, b in zip(tiny.state(), apart.state(), strict=True))


def test_sums_of_gradients_are_replaced_block_by_block():
    """As if three processes had the same micro-batch: tripled sums, and a tripled weight."""
    tiny, tripled = Tiny(), Tiny()
    seen = []

    def triple(values):
        seen.append(values.size)
        values *= 3

    for each in (tiny, tripled):
        each.feed()
        each.s.run("grads", weight=2.0)
    tripled.s.combine(6.0, triple, 37)
    assert max(seen) == 37 and 4 * sum(seen) == tripled.s.gradient_bytes
    for weight in (tiny.w, tiny.wte):
        np.testing.assert_allclose(
            tripled.s.download(tripled.s.grad(tripled.w if weight is tiny.w else tripled.wte)),
            tiny.s.download(tiny.s.grad(weight)),
            rtol=1e-6,
        )
    tripled.s.run("apply")
    tripled.s.combine(1.0, seen.append, 1 << 20)
    assert not seen[-1].any()  # where nothing waits, there are zeros


def test_reset_zeroes_gradients_and_moments():
    tiny = Tiny()
    start = tiny.state()
    tiny.s.run()
    moments = [t for t in tiny.s.tape.nodes[-1].outputs if t.role.value == "moment"]
    assert all(tiny.s.download(t).any() for t in moments)
    tiny.s.reset(moments=False)
    assert not tiny.s.download(tiny.s.grad(tiny.w)).any()
    assert all(tiny.s.download(t).any() for t in moments)
    tiny.s.reset(moments=True)
    assert not any(tiny.s.download(t).any() for t in moments)
    after_one_step = tiny.state()
    for weight, values in zip((tiny.wte, tiny.w), start, strict=True):
        tiny.s.upload(weight, values)
    tiny.s.run()
    again = tiny.state()
    assert all(np.array_equal(a, b) for a, b in zip(after_one_step, again, strict=True))


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was():
    tiny = Tiny()
    tiny.s.run()
    values = tiny.s.download(tiny.wte)
    values[2, 3] = np.nan
    tiny.s.upload(tiny.wte, values)
    tiny.s.upload(tiny.tokens, np.full(N, 2))
    before = tiny.state()
    with pytest.raises(NonFiniteError, match="first bad gradient: w;"):
        tiny.s.run()
    after = tiny.state()
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))


def test_clipping_scales_the_update_and_reports_the_norm_before():
    tiny, clipped = Tiny(), Tiny()
    clipped.s.max_grad_norm = 1e-3
    tiny.s.run()
    clipped.s.run()
    assert clipped.s.grad_norm == tiny.s.grad_norm > 1e-3
    moment = clipped.s.tape.nodes[-1].outputs[1]
    ratio = clipped.s.download(moment) / tiny.s.download(tiny.s.tape.nodes[-1].outputs[1])
    np.testing.assert_allclose(ratio, 1e-3 / tiny.s.grad_norm, rtol=2e-3)


def test_two_sessions_side_by_side_do_not_meddle():
    alone = Tiny()
    alone.s.run()
    one, other = Tiny(), Tiny()
    other.s.run()
    one.s.run()
    other.s.close()
    assert all(np.array_equal(a, b) for a, b in zip(alone.state(), one.state(), strict=True))
