"""embedding, cross_entropy, adamw, grad_norm: what the case table cannot say."""

import numpy as np
import pytest

from toynn._kernels import adamw, chunked_cross_entropy, cross_entropy, embedding, grad_norm
from toynn.backends.cpu.program import CompiledProgram
from toynn.numerics.checks import IGNORED

pytestmark = pytest.mark.kernels

F32 = np.float32


def full(*shape):
    return np.full(shape, np.nan, F32)


def forward(logits, labels):
    """Loss, lse and rows of float32 logits and labels of either form."""
    logits = np.asarray(logits, F32)
    labels = np.asarray(labels)
    loss, lse, rows = full(1), full(len(logits)), full(1)
    if labels.ndim == 2:
        cross_entropy.forward_dense(loss, lse, rows, logits, labels.astype(F32))
    else:
        cross_entropy.forward(loss, lse, rows, logits, labels.astype(np.int32))
    return loss, lse, rows


def backward(logits, labels, lse, rows):
    logits = np.asarray(logits, F32)
    labels = np.asarray(labels)
    dlogits = full(*logits.shape)
    if labels.ndim == 2:
        entry, labels = cross_entropy.backward_dense, labels.astype(F32)
    else:
        entry, labels = cross_entropy.backward, labels.astype(np.int32)
    entry(dlogits, np.ones(1, F32), logits, labels, lse, rows)
    return dlogits


@pytest.mark.parametrize("bad", [-1, -99, 3, 2**31 - 1])
def test_embedding_refuses_ids_outside_the_table(bad):
    ids = np.array([0, 2, bad], np.int32)
    message = rf"row 2: id {bad} is outside 0\.\.2"
    with pytest.raises(ValueError, match=rf"embedding.forward: {message}"):
        embedding.forward(full(3, 4), np.zeros((3, 4), F32), ids)
    with pytest.raises(ValueError, match=rf"embedding.backward: {message}"):
        embedding.backward(full(3, 4), np.zeros((3, 4), F32), ids)


def test_embedding_backward_with_no_ids_zeroes_unless_it_accumulates():
    dw, dy, ids = full(3, 4), np.zeros((0, 4), F32), np.zeros(0, np.int32)
    embedding.backward(dw, dy, ids)
    assert not dw.any()
    dw += 1
    embedding.backward(dw, dy, ids, accumulate=True)
    assert (dw == 1).all()


@pytest.mark.parametrize("bad", [-1, -99, -101, 5])
def test_cross_entropy_refuses_labels_out_of_range(bad):
    logits, labels = np.zeros((3, 5), F32), np.array([4, bad, -100], np.int32)
    message = rf"row 1: label {bad} is outside 0\.\.4 and not -100"
    with pytest.raises(ValueError, match=rf"cross_entropy.forward: {message}"):
        forward(logits, labels)
    with pytest.raises(ValueError, match=rf"cross_entropy.backward: {message}"):
        backward(logits, labels, full(3), full(1))


def test_the_label_that_does_not_count_is_one_and_the_same():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORED
    labels, rows = np.array([IGNORED], np.int32), full(1)
    assert forward(np.zeros((1, 5)), labels)[2] == 0
    chunked_cross_entropy.count(rows, labels, V=5)
    assert rows == 0
    for other in (IGNORED - 1, IGNORED + 1):
        with pytest.raises(ValueError, match=f"label {other} is outside 0..4 and not {IGNORED}"):
            forward(np.zeros((1, 5)), [other])
        with pytest.raises(ValueError, match=f"label {other} is outside 0..4 and not {IGNORED}"):
            chunked_cross_entropy.count(rows, np.array([other], np.int32), V=5)


def test_loss_of_equal_logits_is_log_v():
    loss, lse, rows = forward(np.full((4, 100), 2), [0, 1, -100, 99])
    assert loss[0] == pytest.approx(np.log(100), rel=1e-6)
    assert lse == pytest.approx(2 + np.log(100), rel=1e-6)
    assert rows[0] == 3


@pytest.mark.parametrize("offset", [-1e30, -1e4, 1e4, 1e30])
def test_large_logits_are_safe(offset):
    logits = np.array([[0, 1, 2]], F32) + F32(offset)
    loss, lse, rows = forward(logits, [1])
    shifted = np.float64(logits) - np.float64(logits.max())
    assert loss[0] == pytest.approx(np.log(np.exp(shifted).sum()) - shifted[0, 1], rel=1e-6)
    assert np.isfinite(backward(logits, [1], lse, rows)).all()


@pytest.mark.parametrize("V", [3, 40, 1500])
def test_minus_infinity_logits_are_classes_that_cannot_be(V):
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((2, V)).astype(F32)
    logits[:, 1:] = -np.inf
    logits[1, V - 1] = logits[1, 0]
    for labels in ([0, V - 1], np.eye(V)[[0, V - 1]]):
        loss, lse, rows = forward(logits, labels)
        assert loss[0] == pytest.approx(np.log(2) / 2, rel=1e-6)
        dlogits = backward(logits, labels, lse, rows)
        assert dlogits[0] == pytest.approx(0, abs=1e-6)
        assert dlogits[1, [0, V - 1]] == pytest.approx([0.25, -0.25], rel=1e-5)
    assert forward(logits, [1, 0])[0][0] == np.inf


@pytest.mark.parametrize("where", [0, 17, 49])
def test_nan_logits_stay_nan_and_stay_in_their_row(where):
    logits, labels = np.zeros((2, 50), F32), [3, 4]
    logits[0, where] = np.nan
    loss, lse, rows = forward(logits, labels)
    assert np.isnan(loss[0]) and np.isnan(lse[0]) and np.isfinite(lse[1])
    dlogits = backward(logits, labels, lse, rows)
    assert np.isnan(dlogits[0]).all() and np.isfinite(dlogits[1]).all()


@pytest.mark.parametrize("labels", [[-100, -100], np.zeros((2, 7))])
def test_no_row_that_counts_gives_nan_loss_and_no_gradient(labels):
    logits = np.ones((2, 7), F32)
    loss, lse, rows = forward(logits, labels)
    assert np.isnan(loss[0]) and rows[0] == 0
    assert not backward(logits, labels, lse, rows).any()


def test_no_rows_and_no_classes():
    loss, _, rows = forward(np.zeros((0, 5)), np.zeros(0))
    assert np.isnan(loss[0]) and rows[0] == 0
    for labels in ([-100, -100], np.zeros((2, 0))):
        loss, lse, rows = forward(np.zeros((2, 0)), labels)
        assert np.isnan(loss[0]) and rows[0] == 0
        backward(np.zeros((2, 0)), labels, lse, rows)


def test_dense_one_hot_rows_are_integer_labels():
    rng = np.random.default_rng(2)
    logits, labels = rng.standard_normal((9, 33)).astype(F32), rng.integers(0, 33, 9)
    one, two = forward(logits, labels), forward(logits, np.eye(33)[labels])
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, rel=1e-6)
    first = backward(logits, labels, *one[1:])
    assert first == pytest.approx(backward(logits, np.eye(33)[labels], *two[1:]), abs=1e-8)


@pytest.mark.parametrize("V", [1, 37, 1024, 2500])
@pytest.mark.parametrize("dense", [False, True])
def test_backward_in_place_gives_the_same_bits(V, dense):
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((5, V)).astype(F32)
    labels = rng.integers(0, V, 5).astype(np.int32)
    labels[2] = -100
    if dense:
        labels = rng.random((5, V), F32)
    _, lse, rows = forward(logits, labels)
    apart = backward(logits, labels, lse, rows)
    entry = cross_entropy.backward_dense if dense else cross_entropy.backward
    entry(logits, np.ones(1, F32), logits, labels, lse, rows)
    assert logits.tobytes() == apart.tobytes()


def run_entry(entry, arrays, **sizes):
    """Call a kernel as the program does: no check comes before it."""
    program = CompiledProgram(1, 0, [])
    addresses = [array.__array_interface__["data"][0] for array in arrays]
    ordered = tuple(sizes.get(name, 0) for name in entry.signature.sizes)
    program.append("F", entry.capsule, addresses, ordered, (), 0, 2, 1e-3)
    program.run("F", False, 2)


BAD_IDS = np.array([2, -1, 3, -(2**31), 2**31 - 1, 0], np.int32)


def test_embedding_entries_skip_ids_outside_the_table():
    w = np.arange(12, dtype=F32).reshape(3, 4) + 1
    y, dw = full(6, 4), full(3, 4)
    run_entry(embedding.forward, [y, w, BAD_IDS], N=6, V=3, C=4)
    assert (y[0] == w[2]).all() and (y[5] == w[0]).all() and not y[1:5].any()
    run_entry(embedding.backward, [dw, np.ones((6, 4), F32), BAD_IDS], N=6, V=3, C=4)
    assert dw[:, 0].tolist() == [1, 0, 1]


def test_cross_entropy_entries_take_labels_out_of_range_as_ignored():
    logits = np.random.default_rng(5).standard_normal((6, 3)).astype(F32)
    labels = np.where((BAD_IDS >= 0) & (BAD_IDS < 3), BAD_IDS, -100)
    expected = forward(logits, labels)
    loss, lse, rows = full(1), full(6), full(1)
    run_entry(cross_entropy.forward, [loss, lse, rows, logits, BAD_IDS], N=6, V=3)
    assert (loss[0], rows[0]) == (expected[0][0], 2)
    dlogits, one = full(6, 3), np.ones(1, F32)
    arrays = [dlogits, one, logits, BAD_IDS, lse, rows]
    run_entry(cross_entropy.backward, arrays, N=6, V=3)
    assert dlogits.tobytes() == backward(logits, labels, lse, rows).tobytes()
    assert not dlogits[1:5].any()


def adamw_step(w, m, v, g, hp, scale):
    adamw.step(w, m, v, g, np.asarray(hp, F32), np.array([scale], F32))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
def test_adamw_writes_nothing_when_scale_is_not_finite(scale):
    rng = np.random.default_rng(4)
    w, m, v = (rng.random(5000, F32) for _ in range(3))
    before = [a.copy() for a in (w, m, v)]
    adamw_step(w, m, v, np.full(5000, np.nan, F32), [1e-3, 0.9, 0.95, 1e-8, 0, 1, 1], scale)
    for a, b in zip((w, m, v), before, strict=True):
        assert a.tobytes() == b.tobytes()


def test_adamw_first_corrected_step_moves_by_lr_against_the_gradient():
    g = np.array([1e-3, -2, 30, 0], F32)
    w, m, v = np.ones(4, F32), np.zeros(4, F32), np.zeros(4, F32)
    adamw_step(w, m, v, g, [0.01, 0.9, 0.999, 1e-8, 0, 1 / (1 - 0.9), 1 / (1 - 0.999)], 1)
    assert w == pytest.approx(1 - 0.01 * np.sign(g), rel=1e-5)


def test_adamw_zero_gradient_only_decays():
    w, m, v = np.array([2, -4], F32), np.zeros(2, F32), np.zeros(2, F32)
    adamw_step(w, m, v, np.zeros(2, F32), [0.1, 0.9, 0.999, 1e-8, 0.5, 1, 1], 1)
    assert w == pytest.approx([1.9, -3.8], rel=1e-6)
    assert not m.any() and not v.any()


def norm_of(g, max_norm=0.0, weight_inverse=1.0):
    g = np.asarray(g, F32)
    norm, scale = full(1), full(1)
    grad_norm.forward(norm, scale, g, np.array([max_norm, weight_inverse], F32))
    return norm[0], scale[0]


def test_grad_norm_clips_to_max_norm():
    assert norm_of([3, 4]) == pytest.approx((5, 1))
    assert norm_of([3, 4], max_norm=10) == pytest.approx((5, 1))
    assert norm_of([3, 4], max_norm=1) == pytest.approx((5, 0.2), rel=1e-6)
    assert norm_of([3, 4], max_norm=1, weight_inverse=0.5) == pytest.approx((2.5, 0.2), rel=1e-6)
    assert norm_of([], max_norm=1) == (0, 1)
    assert norm_of([0, 0], max_norm=1, weight_inverse=0.5) == (0, 0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 16383, 16384, 20000])
def test_grad_norm_scale_is_nan_when_a_gradient_is_not_finite(bad, where):
    g = np.zeros(20001, F32)
    g[where] = bad
    norm, scale = norm_of(g, max_norm=1)
    assert not np.isfinite(norm) and np.isnan(scale)
